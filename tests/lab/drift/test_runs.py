"""Each defect off is the right code bit for bit; each one on has its signature. Real models."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kvlab.engine import NodeConfig, StepNode
from kvlab.engine.model import Forced, ModelCells, Prefilled, ShardedModel, load_model
from kvlab.lab.drift import DEFECTS, DriftStudy, Point, Prompts, condition
from kvlab.lab.drift import run as run_module
from kvlab.lab.drift.run import forced_run, free_run, node_config, reference_run
from kvlab.lab.drift.tables import RunData, cut, events_of
from kvlab.lab.keep import Values
from tests.lab.drift.tiny_study import save_checkpoint

NOISE = 1e-3  # far above the rounding of these models, far below what a wrong row does


class Runs:
    """Runs of one checkpoint, each made once."""

    def __init__(self, model: Path, prompts: Prompts) -> None:
        self.study = DriftStudy(model, prompts)
        self.made: dict[tuple[str, int, str], Values] = {}

    def reference(self, dtype: str) -> Values:
        key = ("reference", 1, dtype)
        return self.made.get(key) or self.made.setdefault(
            key, reference_run(self.study, dtype, "forced")
        )

    def forced(self, name: str, dcp_size: int, dtype: str = "float32") -> Values:
        point, reference = Point(condition(name), dcp_size, dtype), self.reference(dtype)
        key = (point.known.runs_as, dcp_size, dtype)
        return self.made.get(key) or self.made.setdefault(
            key, forced_run(self.study, point, reference)
        )

    def drift(self, name: str, dcp_size: int, dtype: str = "float32") -> NDArray[np.float64]:
        run, reference = self.forced(name, dcp_size, dtype), self.reference(dtype)
        said, want = (np.asarray(x["logprob"], np.float64) for x in (run, reference))
        return np.abs(said - want)

    def same(self, name: str, dcp_size: int) -> bool:
        a, b = self.forced(name, dcp_size), self.forced("forced_fixed", dcp_size)
        return bool(np.array_equal(a["logprob"], b["logprob"], equal_nan=True))

    def restored_at(self, name: str, dcp_size: int) -> dict[int, list[int]]:
        prompts = [len(tokens) for tokens in self.study.prompts.tokens]
        events = events_of(self.forced(name, dcp_size)["events"])
        return RunData(prompts, (), (), (), (), (), events).back

    def cut(self, values: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        return list(cut(values, self.reference("float32")["length"]))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runs(checkpoint: Path, requests_: Prompts) -> Runs:
    return Runs(checkpoint, requests_)


@pytest.fixture(scope="module")
def rows_only(tmp_path_factory: pytest.TempPathFactory, requests_: Prompts) -> Runs:
    """A model without linear attention."""
    return Runs(save_checkpoint(tmp_path_factory.mktemp("deepseek"), "deepseek"), requests_)


def test_without_a_defect_nothing_of_the_study_changes_a_bit(runs: Runs) -> None:
    study, reference = runs.study, runs.reference("float32")
    config = node_config(Point(condition("forced_fixed"), 4, "float32"), study.prompts)
    sharded = ShardedModel(load_model(study.model), config.layout, requests=20)
    streams = {
        rid: [*study.prompts.tokens[rid], *output.tolist()]
        for rid, output in enumerate(cut(reference["token"], reference["length"]))
    }
    prompts = dict(enumerate(study.prompts.tokens))
    plain = ModelCells(sharded, prompts, sampler=Forced(streams), handover=True,
                       prefilled=Prefilled())  # fmt: skip
    StepNode(config, plain).run(study.prompts.workload)
    for c in (1, 4):
        assert len(runs.restored_at("forced_fixed", c)) >= 4
        same, different = runs.forced("forced_fixed", c)["restores"].tolist()
        assert same >= 6 and different == 0
    said = [x for rid in sorted(plain.streams) for x in plain.streams[rid].logprobs]
    assert np.array_equal(np.array(said, np.float32), runs.forced("forced_fixed", 4)["logprob"])


def test_what_freed_and_new_rows_hold_reaches_nothing_with_the_fix(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_warm", lambda *_: None)
    cold = Runs(runs.study.model, runs.study.prompts)
    assert np.array_equal(
        cold.forced("forced_fixed", 4)["logprob"], runs.forced("forced_fixed", 4)["logprob"]
    )


@pytest.mark.parametrize("name", ["no_retraction", "forced_fixed", "natural", "recompute"])
def test_right_code_drifts_by_rounding_only(name: str, runs: Runs) -> None:
    for dcp_size in (1, 4) if name == "forced_fixed" else (4,):
        assert runs.drift(name, dcp_size).max() < NOISE
        assert runs.forced(name, dcp_size)["kl"].astype(float).max() < NOISE


REACH_ONE = [d.name for d in DEFECTS if d.can_act(1) and d.dtypes == ("float32",)]
NEED_RANKS = [d.name for d in DEFECTS if not d.can_act(1)]


@pytest.mark.parametrize("name", NEED_RANKS)
def test_a_defect_of_index_or_merge_is_bit_identical_to_the_fix_at_one_rank(
    name: str, runs: Runs
) -> None:
    assert runs.same(f"defect:{name}", 1)


@pytest.mark.parametrize("name", NEED_RANKS)
def test_a_defect_of_index_or_merge_leaves_the_noise_at_four_ranks(name: str, runs: Runs) -> None:
    assert runs.drift(f"defect:{name}", 4).max() > NOISE


@pytest.mark.parametrize("name", REACH_ONE)
def test_the_other_defects_leave_the_noise_at_one_rank(name: str, runs: Runs) -> None:
    drift = runs.drift(f"defect:{name}", 1)
    assert np.isnan(drift).any() or drift.max() > NOISE


STATE = ["state_not_restored", "state_stale", "snapshot_ahead", "snapshot_behind"]


@pytest.mark.parametrize(
    ("name", "dcp_size"), [*((name, 1) for name in STATE), ("snapshot_behind", 4)]
)
def test_a_wrong_state_hits_restored_requests_only_and_only_after_the_restore(
    name: str, dcp_size: int, runs: Runs
) -> None:
    drift = runs.cut(runs.drift(f"defect:{name}", dcp_size))
    back = runs.restored_at(f"defect:{name}", dcp_size)
    for rid, values in enumerate(drift):
        assert values[: back[rid][0] if rid in back else None].max(initial=0) < NOISE
    hit = [rid for rid in back if drift[rid][back[rid][0] :].max() > NOISE]
    assert hit
    if name in ("state_not_restored", "snapshot_ahead"):
        assert set(hit) == set(back)


def test_a_stale_state_hurts_only_those_whose_slot_was_used_in_between(runs: Runs) -> None:
    same, different = runs.forced("defect:state_stale", 1)["restores"].tolist()
    assert 0 < different < same


@pytest.mark.parametrize("name", ["state_not_restored", "snapshot_ahead"])
def test_a_model_without_linear_attention_has_no_state_to_lose(name: str, rows_only: Runs) -> None:
    assert rows_only.same(f"defect:{name}", 2)


def test_index_defects_bring_back_other_bits_and_hit_requests_before_they_ever_leave(
    runs: Runs,
) -> None:
    for name, sizes in (("widened_as_rows", (2, 4, 8)), ("old_rows", (1,))):
        worst = 0.0
        for c in sizes:
            assert runs.forced(f"defect:{name}", c)["restores"][1] > 0
            back = runs.restored_at(f"defect:{name}", c)
            for rid, values in enumerate(runs.cut(runs.drift(f"defect:{name}", c))):
                before = values[: back[rid][0] if rid in back else None]
                worst = max(worst, before.max(initial=0))
        assert worst > NOISE


def test_nan_in_the_padding_row_makes_nan_tokens_and_one_token_over_and_over(runs: Runs) -> None:
    assert np.isnan(runs.drift("defect:nan_padding", 1)).sum() > 10
    assert (runs.forced("defect:nan_padding", 1)["rank"] == -1).any()
    drawn = free_run(runs.study, Point(condition("defect:nan_padding"), 1, "float32"))
    stuck = np.isnan(drawn["logprob"])
    assert stuck.any()
    assert set(drawn["token"][stuck].tolist()) == {0}


def test_lost_scales_hit_quantized_rows(runs: Runs) -> None:
    lost, kept = (runs.drift(name, 2, "fp8") for name in ("defect:scales_lost", "forced_fixed"))
    assert lost.max() > kept.max()
    assert runs.forced("defect:scales_lost", 2, "fp8")["restores"][1] > 0
    assert runs.forced("forced_fixed", 2, "fp8")["restores"][1] == 0


def test_a_wrong_merge_needs_no_retraction(runs: Runs) -> None:
    drift = runs.cut(runs.drift("defect:wrong_log_base", 4))
    # The prefill was handed over from one rank, so the first token is right; the next is not.
    assert all(values[0] < NOISE for values in drift)
    assert max(values[1] for values in drift) > NOISE
    assert runs.forced("defect:wrong_log_base", 4)["restores"][1] == 0


def test_with_a_hand_over_no_query_meets_an_empty_shard(runs: Runs) -> None:
    known = condition("defect:empty_lse_zero")
    assert known.defect is not None and known.defect.on_node
    handed = replace(known, defect=replace(known.defect, on_node=False))
    point = Point(handed, 4, "float32")
    made = forced_run(runs.study, point, runs.reference("float32"))
    assert np.array_equal(made["logprob"], runs.forced("forced_fixed", 4)["logprob"])
    assert max(values[0] for values in runs.cut(runs.drift(known.name, 4))) > NOISE


def test_forced_runs_say_the_references_tokens_and_free_ones_depend_on_the_seed(
    runs: Runs,
) -> None:
    point = Point(condition("forced_fixed"), 4, "float32")
    reference = reference_run(runs.study, "float32", "free")
    drawn = free_run(runs.study, point)
    assert np.array_equal(drawn["token"], reference["token"])
    other = free_run(replace(runs.study, seed=1), point)
    assert not np.array_equal(drawn["token"], other["token"])
    assert reference["length"].tolist() == [
        r.output_tokens for r in runs.study.prompts.workload.requests
    ]


def test_the_silent_regime_holds_at_every_size_and_a_smaller_pool_raises(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for c in (2, 8):
        assert runs.forced("forced_before_fix", c)["restores"].sum() > 0

    def small(point: Point, prompts: Prompts) -> NodeConfig:
        config = node_config(point, prompts)
        return replace(config, layout=replace(config.layout, num_pages=40))

    monkeypatch.setattr(run_module, "node_config", small)
    point = Point(condition("forced_before_fix"), 8, "float32")
    with pytest.raises(IndexError):
        forced_run(runs.study, point, runs.reference("float32"))

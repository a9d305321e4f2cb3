"""A prefill that was kept hands over the same bits as one that is run, and where each is run."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kvlab.engine import NodeConfig, StepNode
from kvlab.engine.model import ModelCells, Prefilled, ShardedModel, prefill_apart, take_snapshot
from kvlab.engine.workload import Request
from kvlab.errors import IndexSpaceError, PoolError, StudyError
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import Placed, layout, model, prompt

REQUESTS = (Request(0, 0.0, 7, 9), Request(1, 0.0, 3, 1), Request(2, 0.0, 12, 8))
CONFIG = NodeConfig(DcpLayout(4, 2, 40), reserved_decode_tokens=2, force_retract_interval=3)
OWN = model("kimi-moe")
PROMPTS = {r.rid: prompt(r.rid, r.prompt_tokens).tolist() for r in REQUESTS}


def cells_of(config: NodeConfig, prefilled: Prefilled | None, **rules: object) -> ModelCells:
    sharded = ShardedModel(OWN, config.layout, requests=3, batch_invariant=True)
    cells = ModelCells(sharded, PROMPTS, handover=True, prefilled=prefilled, **rules)  # type: ignore[arg-type]
    StepNode(config, cells).run(REQUESTS)
    return cells


@pytest.mark.parametrize("chunk_tokens", [None, 5])
@pytest.mark.parametrize("restore", ["backup", "recompute"])
def test_runs_that_share_prefills_say_bit_for_bit_what_runs_with_their_own_say(
    restore: str, chunk_tokens: int | None
) -> None:
    kept = Prefilled()
    for dcp_size in (1, 4, 2):
        config = replace(CONFIG, layout=DcpLayout(dcp_size, 2, 40), restore=restore)  # type: ignore[arg-type]
        shared = cells_of(config, kept, chunk_tokens=chunk_tokens)
        own = cells_of(config, None, chunk_tokens=chunk_tokens)
        for rid, stream in own.streams.items():
            assert shared.streams[rid] == stream
    assert (kept.runs, len(kept)) == (3, 3)


def test_a_kept_prefill_arrives_on_every_node_with_the_same_rows_and_state() -> None:
    kept = Prefilled()
    snapshots = []
    for dcp_size in (3, 3, 8):
        sharded = ShardedModel(OWN, layout(dcp_size, 2, 12), requests=1)
        placed = Placed(sharded, [12])
        done = kept.get(sharded, 2, PROMPTS[2])
        done.hand_over(sharded.pools, placed.slots(0), placed.states[0])
        snapshots.append(take_snapshot(sharded.pools, placed.slots(0), placed.states[0]))
    left = take_snapshot(done.pools, done.slots, done.state)
    for arrived in snapshots:
        left.require_equal(arrived, "request 2")
    assert kept.runs == 1


def test_kept_prefills_of_another_prompt_model_or_setting_are_refused() -> None:
    kept = Prefilled()
    sharded = ShardedModel(OWN, DcpLayout(2, 2, 10), requests=1)
    kept.get(sharded, 0, PROMPTS[0])
    with pytest.raises(StudyError, match="request 0 was prefilled with 7 tokens, asked for 3"):
        kept.get(sharded, 0, PROMPTS[1])
    with pytest.raises(StudyError, match=r"one model and its settings.*'absorbed', 5\)"):
        kept.get(sharded, 0, PROMPTS[0], 5)
    for other in (
        ShardedModel(model("kimi-moe"), DcpLayout(2, 2, 10), requests=1),
        ShardedModel(OWN, DcpLayout(2, 2, 10), requests=1, form="expanded"),
        ShardedModel(OWN, DcpLayout(2, 2, 10), requests=1, kv_dtype=torch.bfloat16),
    ):
        with pytest.raises(StudyError, match="one model and its settings"):
            kept.get(other, 0, PROMPTS[0])


def test_kept_prefills_without_a_hand_over_are_refused() -> None:
    sharded = ShardedModel(OWN, DcpLayout(2, 2, 10), requests=1)
    with pytest.raises(StudyError, match="got prefilled \\(0 of them\\) with handover=False"):
        ModelCells(sharded, PROMPTS, prefilled=Prefilled())


@pytest.mark.parametrize(("handover", "ranks"), [(True, 1), (False, 4)])
def test_a_request_of_one_token_is_prefilled_where_the_others_are(
    handover: bool, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    prefill = ShardedModel.prefill

    def watched(self: ShardedModel, *args: object, **rules: object) -> torch.Tensor:
        seen.append(self.layout.dcp_size)
        return prefill(self, *args, **rules)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardedModel, "prefill", watched)
    cells = ModelCells(ShardedModel(OWN, CONFIG.layout, requests=3), PROMPTS, handover=handover)
    StepNode(CONFIG, cells).run(REQUESTS)
    assert seen == [ranks] * 3


def test_a_prefill_apart_on_interleaved_ranks_holds_each_position_once() -> None:
    sharded = ShardedModel(OWN, DcpLayout(2, 4, 10, 4), requests=1)
    done = prefill_apart(sharded, PROMPTS[2], dcp_size=2)
    assert done.pools.layout == DcpLayout(2, 4, 2, 4)
    assert take_snapshot(done.pools, WidenedSlots(done.slots.ids), done.state).rows.shape[1] == 12


def test_kept_prefills_of_a_model_whose_weights_were_written_since_are_refused() -> None:
    own: Any = model("kimi-dense")
    kept = Prefilled()
    sharded = ShardedModel(own, DcpLayout(2, 2, 10), requests=1)
    kept.get(sharded, 0, PROMPTS[0])
    kept.get(sharded, 0, PROMPTS[0])
    with torch.no_grad():
        own.lm_head.weight.mul_(2)
    with pytest.raises(StudyError, match="or its weights were written since"):
        kept.get(sharded, 0, PROMPTS[0])
    assert kept.runs == 1


def test_a_prefill_that_failed_binds_nothing_and_one_without_tokens_is_refused() -> None:
    kept = Prefilled()
    sharded = ShardedModel(OWN, DcpLayout(2, 2, 10), requests=1)
    with pytest.raises(PoolError, match="a token is an id of the vocabulary"):
        kept.get(sharded, 0, [99], 5)
    kept.get(sharded, 0, PROMPTS[0], 3)
    with pytest.raises(StudyError, match="a prefill has at least one token: got none"):
        kept.get(sharded, 1, [], 3)
    with pytest.raises(IndexSpaceError, match=r"token must be an int: got 1\.5"):
        kept.get(sharded, 1, [1.5], 3)  # type: ignore[list-item]

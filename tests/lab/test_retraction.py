"""Retraction counts: equal to a node that steps on real pools, kept under what decides them."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine import StepNode
from kvlab.engine.workload import (
    LengthModel,
    Lognormal,
    Request,
    Workload,
    generate_closed_loop,
)
from kvlab.errors import CapacityError, LayoutError, StudyError
from kvlab.lab.retraction import (
    COLUMNS,
    GIB,
    RetractionStudy,
    least_budget,
    suggest_budgets,
)
from kvlab.memory import geometry
from tests.lab.support import MODEL, PAGE, SMALL, TOKEN, lines, pages, study


@pytest.mark.parametrize(
    ("restore", "interval"), [("backup", None), ("backup", 7), ("recompute", 7)]
)
def test_the_counts_are_those_of_a_node_that_steps_on_real_pools(
    restore: str, interval: int | None
) -> None:
    made = study(restore=restore, force_retract_interval=interval, dcp_sizes=(1, 3))
    table = made.run(jobs=1)
    assert table["retractions"].sum() > 0
    for line, (c, budget) in zip(table.to_dict("records"), made.points(), strict=True):
        config = made.config(c, budget)
        stepped = StepNode(config).run(SMALL, record=True)
        done = stepped.counters
        given_back = [e.tokens for e in stepped.events if e.kind == "retract"]
        assert line["retractions"] == done.retracted_requests == len(given_back)
        assert line["retracted_tokens"] == sum(given_back)
        assert line["aborted"] == done.aborted
        assert line["finished"] + line["aborted"] == line["requests"] == len(SMALL)
        assert line["backup_gib"] == done.backup_bytes / GIB
        for name in ("finished", "forwards", "decode_tokens", "recomputed_tokens", "peak_pages"):
            assert line[name] == getattr(done, name)
        assert line["peak_host_gib"] == done.peak_host_tokens * config.token_bytes / GIB


@pytest.mark.parametrize("interval", [None, 3])
def test_a_full_host_counts_as_on_a_node_that_steps_on_real_pools(interval: int | None) -> None:
    host = 30 * TOKEN / GIB
    rules: dict[str, Any] = {"dcp_sizes": (1, 2), "force_retract_interval": interval}
    made = study(host_gib=host, host_full="recompute", **rules)
    table = made.run(jobs=1)
    assert (table["aborted"] == 0).all()
    assert table["declined_backups"].sum() > 0
    for line, (c, budget) in zip(lines(table), made.points(), strict=True):
        config = made.config(c, budget)
        assert config.host_capacity_tokens == 30
        done = StepNode(config).run(SMALL).counters
        assert line.declined_backups == done.declined_backups
        assert line.recomputed_tokens == done.recomputed_tokens
        assert line.resumed == done.resumed_requests
        assert line.retractions == done.retracted_requests
        assert (line.recomputed_tokens > 0) == (line.declined_backups > 0)
        assert line.peak_host_gib <= host
    aborting = study(host_gib=host, **rules).run(jobs=1)
    assert (aborting["aborted"] == aborting["declined_backups"]).all()
    assert (aborting["recomputed_tokens"] == 0).all()
    assert aborting["aborted"].sum() > 0


def test_a_host_with_room_for_the_peak_declines_nothing() -> None:
    free = study(force_retract_interval=5).run(jobs=1)
    peak = float(free["peak_host_gib"].max())
    assert peak > 0
    bounded = study(force_retract_interval=5, host_gib=peak).run(jobs=1)
    pd.testing.assert_frame_equal(free, bounded)


@given(st.integers(2, 64), st.integers(1, 500), st.sampled_from([1, 4, 64]), st.floats(0, 0.99))
@settings(max_examples=40)
def test_capacity_grows_by_exactly_the_dcp_size(c: int, count: int, page: int, part: float) -> None:
    budget = (count + 1 + part) * page * TOKEN / GIB
    made = RetractionStudy(SMALL, dcp_sizes=(1, c), budgets_gib=(budget,), page_size=page)
    one, many = (made.config(size, budget).layout.capacity_tokens for size in (1, c))
    assert many == c * one
    # Rounding of a float may take the last byte of the last page, never more.
    assert one in (count * page, (count - 1) * page)


def test_rows_come_budget_by_budget_with_the_named_columns_in_front(tmp_path: Path) -> None:
    made, told = study(), list[tuple[int, int]]()

    def run(jobs: int) -> pd.DataFrame:
        told.clear()
        return made.run(jobs=jobs, cache=tmp_path, progress=lambda *call: told.append(call))

    table = made.run(jobs=2)
    pd.testing.assert_frame_equal(table, run(1))
    assert told == [(done, 6) for done in range(7)]
    pd.testing.assert_frame_equal(table, run(1))
    assert told == [(6, 6)]
    assert tuple(table.columns[: len(COLUMNS)]) == COLUMNS
    assert list(zip(table["dcp_size"], table["budget_gib"], strict=True)) == made.points()
    assert table["budget_gib"].is_monotonic_increasing
    assert set(table["label"]) == {"simulated"}
    assert (table["capacity_tokens"] == table["num_pages"] * PAGE * table["dcp_size"]).all()
    assert not table.isna().any(axis=None)


def test_what_is_backed_up_is_what_the_victims_held_and_recompute_backs_nothing_up() -> None:
    forced = study(force_retract_interval=5)
    backup, recompute = forced.run(jobs=1), replace(forced, restore="recompute").run(jobs=1)
    assert backup["retractions"].sum() > 0
    assert recompute["retractions"].sum() > 0
    assert (backup["backup_gib"] == backup["retracted_tokens"] * TOKEN / GIB).all()
    assert (backup["resumed"] == backup["retractions"]).all()
    assert (backup["recomputed_tokens"] == 0).all()
    assert (recompute["backup_gib"] == 0).all()
    assert (recompute["recomputed_tokens"] > 0).sum() == (recompute["retractions"] > 0).sum()


@given(
    st.integers(0, 100),
    st.integers(1, 60),
    st.sampled_from([MODEL, "DeepSeek-V3", "MiniCPM3-4B"]),
    st.sampled_from(["bf16", "fp8", "fp32"]),
    st.none() | st.integers(1, 200),
    st.sampled_from(["backup", "recompute"]),
)
@settings(max_examples=10)
def test_suggested_budgets_rise_and_none_of_them_aborts_a_request(
    seed: int, n: int, model: str, dtype: str, concurrency: int | None, restore: str
) -> None:
    lengths = LengthModel(Lognormal(300.0, 0.9, 1, 900), Lognormal(20.0, 0.8, 1, 300))
    workload = generate_closed_loop(n, lengths, seed=seed)
    budgets = suggest_budgets(workload, model, dtype, concurrency)
    assert 1 <= len(budgets) <= 4
    assert list(budgets) == sorted(set(budgets))
    made = RetractionStudy(workload, model, dtype, dcp_sizes=(1, 2, 16), budgets_gib=budgets,
                           concurrency=concurrency, restore=restore)  # fmt: skip
    assert made.run(jobs=1)["aborted"].sum() == 0


def test_the_parameters_are_plain_and_name_what_decides() -> None:
    found = study().parameters()
    assert json.loads(json.dumps(found)) == found
    assert (found["digest"], found["restore"]) == (SMALL.fingerprint, "backup")
    # Without a bound the host decides nothing.
    assert found.keys().isdisjoint({"host_gib", "host_full", "geometry"})
    bounded = study(host_gib=0.5).parameters()
    assert (bounded["host_gib"], bounded["host_full"]) == (0.5, "abort")
    own = study(model=replace(geometry(MODEL), name="mine"))
    assert own.config(2, pages(20)) == study().config(2, pages(20))
    said = own.parameters()
    assert said["model"] == "mine"
    assert said["geometry"] == {"mla_layers": 7, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"dcp_sizes": ()}, StudyError, r"dcp_sizes must name at least one value.*got \(\)"),
        ({"dcp_sizes": (2, 2)}, StudyError, r"each once: got \(2, 2\)"),
        ({"dcp_sizes": (0,)}, LayoutError, r"dcp_size must be at least 1"),
        ({"budgets_gib": (pages(0),)}, CapacityError, r"a pool needs 2 pages a rank"),
        ({"budgets_gib": (-1.0,)}, CapacityError, r"a budget in GiB lies in .*got -1\.0"),
        ({"model": "GPT-2"}, CapacityError, r"a model is named as .*got 'GPT-2'"),
        ({"dtype": "int3"}, CapacityError, r"a row is stored in one of .*got 'int3'"),
        ({"concurrency": 0}, StudyError, r"concurrency must be an int of at least 1: got 0"),
        ({"restore": "pray"}, StudyError, r"restore must be one of backup, recompute: got 'pray'"),
        ({"host_full": "pray"}, StudyError, r"host_full must be one of abort, recompute: got"),
        (
            {"host_gib": -0.5},
            StudyError,
            r"host_gib lies in \[0, 8589934592\), .*: got -0\.5; None",
        ),
        ({"step_time_s": 0.0}, StudyError, r"step_time_s must be a finite time above 0"),
    ],
)
def test_parameters_that_describe_no_node_are_refused_when_the_study_is_made(
    change: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        study(**change)


def test_suggested_budgets_rise_in_equal_ratios_from_what_the_longest_request_needs() -> None:
    requests = (*(Request(rid, 0.0, 500, 20) for rid in range(100)), Request(100, 0.0, 9000, 20))
    workload = Workload("one long", requests, "by hand")
    budgets = suggest_budgets(workload, MODEL)
    assert budgets[0] == pytest.approx(least_budget(workload, MODEL), rel=0.01)
    ratios = [b / a for a, b in pairwise(budgets)]
    assert len(ratios) == 3
    assert ratios == pytest.approx([ratios[0]] * 3, rel=0.02)
    assert len(suggest_budgets(workload, MODEL, concurrency=1)) == 1
    half = suggest_budgets(workload, MODEL, "fp8")
    assert [b / w for b, w in zip(half, budgets, strict=True)] == pytest.approx([0.5] * 4, rel=0.02)
    assert suggest_budgets(workload, MODEL, "bf16", None) == budgets  # open loop
    more = suggest_budgets(workload, MODEL, "bf16", 1000)
    assert more[-1] / budgets[-1] == pytest.approx(1000 / 128, rel=0.01)

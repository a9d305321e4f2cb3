"""Each part gives whole rows, times what is right and nothing else, and has its aims."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from kvlab.attn import Partial
from kvlab.engine.workload import generate_closed_loop, save_csv
from kvlab.errors import StudyError
from kvlab.lab.bench import copies, engine, ops
from kvlab.lab.bench.__main__ import PARTS
from kvlab.lab.bench.clock import Place
from kvlab.lab.bench.cost import LATER, NEEDED
from kvlab.lab.bench.rows import Conditions, Row, as_frame, as_record
from kvlab.memory import HostArena
from tests.lab.bench.support import FEW, FEW_REQUESTS, FEW_STEPS, FEW_TOKENS, HERE, tiny_rows
from tests.ops.support import needs_interpreter

RUNS = Path(__file__).resolve().parents[3] / "data" / "runs"
DETAILED = replace(FEW_TOKENS, aimed=True)


def require_whole(rows: list[Row]) -> None:
    """Every row names its two sides and has times, a ratio that fits them, and its repetitions."""
    assert rows
    keys = {(row.part, row.case, row.ours, row.baseline) for row in rows}
    assert len(keys) == len(rows)
    for row in rows:
        for part in (row.seconds, row.baseline_seconds, row.ratio):
            assert 0 < part.low <= part.median <= part.high
        assert (as_record(row)["aim"] is None) == (as_record(row)["met"] is None)
        if row.baseline == "copy":
            assert row.share_of_copy == row.ratio.median


@pytest.mark.parametrize("part", PARTS)
def test_each_part_gives_whole_rows(part: str) -> None:
    rows = tiny_rows(part)
    require_whole(rows)
    assert {row.part for row in rows} == {part}


def test_no_two_cases_of_a_part_have_one_name() -> None:
    for cases in (*ops.FULL.values(), copies.FULL, engine.FULL_DECODE):
        names = [case.name for case in cases]
        assert len(set(names)) == len(names)


def aims(rows: list[Row]) -> dict[tuple[str, str], float]:
    """The least ratio of each aimed pair."""
    return {(row.ours, row.baseline): row.aim.ratio for row in rows if row.aim is not None}


def test_a_cpu_has_its_aims_at_the_aimed_sizes_alone() -> None:
    assert aims([row for part in PARTS if part != "owner_write" for row in tiny_rows(part)]) == {}
    large: Any = FEW["localize"]
    assert aims(ops.rows_of(replace(large, aimed="cpu"), HERE)) == {
        ("localize, first rank", "mask"): 5.0,
        ("checked stride", "mask"): 5.0,
        ("localize, read from the table", "unchecked stride"): 1 / 1.1,
    }
    assert aims(tiny_rows("owner_write")) == {
        ("the pool's method", "upstream's eager write"): 1 / 1.3
    }
    rows = copies.rows_of(DETAILED, HERE)
    require_whole(rows)
    assert aims(rows) == {pair: aim.ratio for pair, aim in copies.CPU_AIMS.items()}


@needs_interpreter
def test_a_gpu_has_its_own_aims_and_both_backends_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Place, "on_cpu", False)
    monkeypatch.setattr(copies, "HostArena", lambda pinned: HostArena())
    both = replace(HERE, backends=("torch", "triton"))
    assert set(aims(copies.rows_of(DETAILED, HERE)).values()) == {5.0, 0.85}
    runs: Any = FEW["localize"]
    rows = [
        *ops.rows_of(replace(runs, ids=100, aimed="cpu"), both),
        *ops.rows_of(FEW["merge"], both),
        *ops.rows_of(FEW["owner_write"], both),
    ]
    require_whole(rows)
    for op in FEW:
        assert {row.facts.backend for row in rows if row.facts.op == op} == {"torch", "triton"}
    assert aims(rows) == {
        ("localize_run, triton", "copy"): 1 / 1.1,
        ("merge_stacked, triton", "copy"): 0.8,
    }


@pytest.mark.parametrize(("part", "copy_bytes"), [("localize", 5000), ("owner_write", 18_688)])
def test_a_copy_is_of_half_of_what_an_op_must_read_and_write(part: str, copy_bytes: int) -> None:
    assert {row.facts.bytes for row in tiny_rows(part)} - {None} == {copy_bytes}


def test_steps_share_no_slot_and_each_has_as_many_of_every_rank() -> None:
    for case in (ops.WriteCase(64, 4, False), ops.WriteCase(512, 4, True)):
        _, works = ops.make_steps(case, HERE, 3)
        slots = torch.cat([work.inputs["ids"] for work in works])
        assert len(set(slots.tolist())) == len(slots) == len(works) * case.ids
        for work in works:
            assert torch.bincount(work.inputs["ids"] % 4).tolist() == [case.ids // 4] * 4


@pytest.mark.parametrize("part", FEW)
def test_an_op_that_gives_something_else_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    both = replace(HERE, backends=("torch", "triton"))
    spec = ops.SPEC[ops.OPS[part]]

    def worse(*args: Any, backend: str, **more: Any) -> Any:
        if part == "owner_write" and backend == "triton":
            more["first_slot"] = more["slot_end"]  # all is padding
        found = spec.op(*args, **more, backend="torch")
        if backend == "torch" or found is None:
            return found
        return Partial(found.out + 0.1, found.lse) if part == "merge" else found + 1

    monkeypatch.setitem(ops.SPEC, spec.name, replace(spec, op=worse))
    with pytest.raises(StudyError, match=r"'.*, triton' does not give what .* gives \(.*\); do no"):
        ops.rows_of(FEW[part], both)


def test_ours_and_upstream_must_copy_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in (replace(FEW_TOKENS, dcp_size=1), FEW_TOKENS, DETAILED):
        copies.require_equal(copies.CopyBench(case, HERE))
    monkeypatch.setattr(copies.CopyBench, "_stride", lambda self, ids: ids[3::4].flip(0) // 4)
    with pytest.raises(StudyError, match="\"upstream's loop\" does not give what 'backup' gives"):
        copies.rows_of(FEW_TOKENS, HERE)


@pytest.mark.parametrize("case", [FEW_TOKENS, DETAILED])
def test_what_is_kept_of_backups_keeps_its_length(case: copies.CopyCase) -> None:
    bench = copies.CopyBench(case, replace(HERE, cache_bytes=2 * FEW_TOKENS.request_bytes))
    assert (bench.count, bench.kept) == (4, 4)
    for contender in (*bench.backups(), *bench.restores()):
        for i in range(6):
            contender.finish(contender.prepare(i)())
    grain = bench.pool.host.grain
    # Three of each kind of backup, and what is made beforehand for each kind of restore.
    kinds = 6 if case.aimed else 4
    assert bench.pool.host.lent_bytes == (bench.kept - 1) * kinds * grain
    assert bench.pool.host.audit() == []


def test_a_case_that_the_machine_cannot_hold_is_a_line_with_its_need_and_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "QUICK", (copies.FULL[-4], FEW_TOKENS))
    first, second = copies.measure(True, replace(HERE, host_bytes=2 * 2**30))
    assert isinstance(first, str)
    assert first.startswith(
        "left out: copy, 61 layers x 64k tokens x 576 bf16, c=1: a timing must not swap: it takes "
    )
    assert isinstance(second, list)


def test_logits_that_are_not_the_librarys_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    step = engine.Sharded.step
    monkeypatch.setattr(engine.Sharded, "step", lambda self: step(self) + 1e-3)
    with pytest.raises(StudyError, match=r"'decode, c=1' does not give what \"the library's deco"):
        engine.decode_rows(FEW_STEPS)


def test_the_sweep_takes_the_trace_of_the_named_folder_or_the_shipped_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_TRACES", str(tmp_path))
    assert engine.find_trace() is None
    save_csv(generate_closed_loop(30, seed=1, name="mine"), tmp_path / engine.TRACE)
    for trace, name in ((engine.find_trace(), "mine"), (None, "default")):
        (row,) = engine.sweep_rows(FEW_REQUESTS, trace)
        assert row.case == f"20 runs of {name}, 20 requests"
        assert row.note.endswith("M decode tokens/s")
    require_whole(engine.growth_rows(FEW_REQUESTS))


@pytest.mark.parametrize("file", sorted(path.name for path in RUNS.glob("bench-*.csv")))
def test_the_recorded_figures_are_of_the_parts_and_columns_of_today(file: str) -> None:
    recorded = pd.read_csv(RUNS / file, dtype={"commit": str})
    columns = as_frame(tiny_rows("merge"), Conditions.now(HERE, 1)).columns
    assert recorded.columns.tolist() == columns.tolist()
    assert {*NEEDED, *LATER} <= set(columns)
    assert set(recorded.part) <= set(PARTS)
    assert not recorded.duplicated(["part", "case", "ours", "baseline", "threads"]).any()
    aimed = recorded.dropna(subset="aim")
    assert ((aimed.ratio >= aimed.aim) == (aimed.met == "yes")).all()

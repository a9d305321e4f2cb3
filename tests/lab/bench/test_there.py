"""What differs on a GPU, as far as a CPU can show it: its aims, and both backends side by side."""

from dataclasses import replace

import pytest

from kvlab.lab.bench import localize, merge, request_pool, requests, writes
from kvlab.lab.bench.place import Place
from kvlab.lab.bench.rows import Row
from kvlab.memory import HostArena
from tests.lab.bench.support import (
    FEW_IDS,
    FEW_ROWS,
    FEW_TOKENS,
    FEW_WRITES,
    HERE,
    require_whole,
)
from tests.ops.support import needs_interpreter

BOTH = replace(HERE, backends=("torch", "triton"))


def aims(rows: list[Row]) -> dict[tuple[str, str], float]:
    """The least ratio of each aimed pair."""
    return {(row.ours, row.baseline): row.aim.ratio for row in rows if row.aim is not None}


def unpinned(pinned: bool) -> HostArena:
    """Pinned memory needs a device."""
    assert pinned
    return HostArena()


def test_a_gpu_has_its_own_aims_for_backup_restore_and_merge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Place, "on_cpu", False)
    monkeypatch.setattr(request_pool, "HostArena", unpinned)
    assert aims(requests.rows_of(FEW_TOKENS, HERE)) == {
        ("backup", "upstream's loop"): 5.0,
        ("backup", "one copy out"): 0.85,
        ("restore", "upstream's loop back"): 5.0,
        ("restore", "one copy back"): 0.85,
    }
    assert aims(merge.rows_of(FEW_ROWS, HERE)) == {("merge_stacked, torch", "copy"): 0.8}
    rows = localize.rows_of(replace(FEW_IDS, aimed="cpu"), HERE)
    assert aims(rows) == {("localize_run, torch", "copy"): 1 / 1.1}


@needs_interpreter
def test_both_backends_are_timed_and_the_aim_is_that_of_the_one_that_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Place, "on_cpu", False)
    rows = [
        *localize.rows_of(replace(FEW_IDS, ids=100, aimed="cpu"), BOTH),
        *merge.rows_of(FEW_ROWS, BOTH),
        *writes.rows_of(replace(FEW_WRITES, ids=16), replace(BOTH, cache_bytes=1)),
    ]
    require_whole(rows)
    for op in ("localize", "merge", "owner_write"):
        assert {row.facts.backend for row in rows if row.facts.op == op} == {"torch", "triton"}
    assert set(aims(rows)) == {("localize_run, triton", "copy"), ("merge_stacked, triton", "copy")}
    for row in rows:
        if "triton" in row.ours:
            assert row.facts.backend == "triton"

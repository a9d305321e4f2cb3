"""Ours and upstream's loop copy the same rows, and what is kept keeps its length."""

from dataclasses import replace

import pytest
import torch

from kvlab.errors import StudyError
from kvlab.lab.bench import copies, upstream
from kvlab.lab.bench.rows import LeftOut
from tests.lab.bench.support import HERE, SMALL


@pytest.mark.parametrize("dcp_size", [1, 4])
def test_ours_and_upstream_copy_the_same_rows(dcp_size: int) -> None:
    bench = copies.CopyBench(replace(SMALL, dcp_size=dcp_size))
    copies.require_equal(bench)
    chunks = bench.back_up_upstream(0)
    bench.restore_upstream(chunks, 1)
    again = torch.stack([torch.cat(layer) for layer in bench.back_up_upstream(1)])
    first = torch.stack([torch.cat(layer) for layer in chunks])
    assert torch.equal(again.view(torch.int16), first.view(torch.int16))


def test_a_contender_that_copies_other_rows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = copies.CopyBench(SMALL)
    monkeypatch.setattr(upstream, "stride", lambda ids, c, r: ids[r::c] // c + 1)
    with pytest.raises(StudyError, match="what is timed must be right"):
        copies.require_equal(bench)


def test_nothing_is_copied_for_a_row_before_the_copies_were_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "stride", lambda ids, c, r: ids[r::c] // c + 1)
    with pytest.raises(StudyError, match="ours and upstream's loop copy different rows"):
        copies.rows_of(SMALL)


def test_the_queue_of_backups_keeps_its_length() -> None:
    bench = copies.CopyBench(SMALL)
    ours, *_ = bench.backups()
    for i in range(6):
        ours.finish(ours.prepare(i)())
    assert bench.arena.lent_bytes == SMALL.queue * bench.arena.grain
    assert bench.arena.idle_bytes == bench.arena.grain


def test_a_machine_with_too_little_memory_has_a_line_that_says_so() -> None:
    little = replace(HERE, host_bytes=8 * 2**30)
    for some in copies.measure(False, little):
        assert isinstance(some, LeftOut)
        assert "it takes 7.12 GiB of memory, at most 6.00 may be taken" in some.sentence()


def test_what_upstream_does_to_a_cpus_memory_is_not_measured_elsewhere() -> None:
    there = replace(HERE, device=torch.device("meta"), device_bytes=2**40)
    assert list(copies.measure(True, there)) == []

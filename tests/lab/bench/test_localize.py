"""Every way to localize that is timed gives the rows of the mask, and is held to its own bytes."""

from dataclasses import replace

import pytest
import torch

from kvlab.errors import StudyError
from kvlab.index import WidenedSlots
from kvlab.lab.bench import localize, upstream
from kvlab.ops import CheckFlag
from tests.lab.bench.support import BRIEF, FEW_IDS, HERE


@pytest.mark.parametrize(("ids", "c"), [(1000, 1), (1000, 2), (1000, 3), (999, 4), (5, 8)])
def test_all_ways_to_localize_give_the_rows_of_the_mask(ids: int, c: int) -> None:
    case = replace(FEW_IDS, ids=ids, dcp_size=c)
    run = localize.make_runs(case, HERE)[1]
    assert len(run) == ids
    given = localize.Run(run, WidenedSlots(run), run.clone())
    for name, way in localize.ways(case, HERE, CheckFlag("cpu")).items():
        found = way(given)
        ranks = range(c) if name in (localize.ALL, localize.STRIDES) else [case.rank]
        for rank, rows in zip(ranks, found, strict=True):
            assert rows.tolist() == [i // c for i in run.tolist() if i % c == rank], name


def test_a_way_to_localize_that_gives_other_rows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "stride", lambda ids, c, r: ids[r::c] // c + 1)
    with pytest.raises(
        StudyError, match=r"rows of 'unchecked stride' for rank 3 \(1000 ids, c=4\)"
    ):
        localize.rows_of(FEW_IDS, HERE)


def test_stride_and_mask_agree_on_a_run_from_a_page() -> None:
    ids = torch.arange(64, 64 + 37)
    for rank in range(4):
        assert upstream.stride(ids, 4, rank).tolist() == upstream.mask(ids, 4, rank).tolist()


def test_a_right_run_that_the_flag_finds_bad_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckFlag, "read", lambda self: 7)
    with pytest.raises(StudyError, match=r"localize_run finds id 7 of a right run bad \(1000 ids"):
        localize.rows_of(FEW_IDS, HERE)


def test_the_runs_exceed_the_cache_twice_and_are_at_least_two() -> None:
    case = localize.LocalizeCase(1024, 4, BRIEF)
    assert case.runs_at(HERE) * 8 * 1024 >= 2 * HERE.cache_bytes
    assert replace(case, ids=2**20).runs_at(HERE) == 2
    assert len(localize.make_runs(case, HERE)) == case.runs_at(HERE) == 4


def test_the_copy_moves_what_a_checked_localization_reads_and_writes() -> None:
    case = replace(FEW_IDS, ids=1024, dcp_size=4)
    assert 2 * case.copy_ids == 1024 + 256
    rows = localize.rows_of(case, HERE)
    assert {row.facts.bytes for row in rows if row.ours in (localize.FURTHER, localize.ALL)} == {
        None
    }
    shares = [row for row in rows if row.baseline == localize.COPY]
    assert [row.ours for row in shares] == [
        localize.CHECKED,
        localize.FIRST,
        "localize_run, torch",
    ]
    for row in shares:
        assert row.share_of_copy == row.ratio.median
        assert (row.facts.op, row.facts.backend, row.facts.bytes) == ("localize", "torch", 8 * 640)
        assert (row.facts.ids, row.facts.dcp_size) == (1024, 4)


def test_each_device_has_the_aims_of_its_size() -> None:
    assert [(case.ids, case.dcp_size, case.aimed) for case in localize.FULL if case.aimed] == [
        (128 * 2**10, 8, "cpu"),
        (4 * 2**20, 8, "cuda"),
    ]
    for where, want in (("cpu", 5), ("cuda", 0)):  # on a CPU no row has the aims of a GPU
        rows = localize.rows_of(replace(FEW_IDS, aimed=where), HERE)
        assert sum(row.aim is not None for row in rows) == want


def test_the_sizes_go_from_a_thousand_ids_to_sixteen_million() -> None:
    sizes = [case.ids for case in localize.FULL if case.dcp_size == 8]
    assert (min(sizes), max(sizes)) == (2**10, 16 * 2**20)
    assert [localize.count_text(n) for n in (1000, 1024, 2**17, 2**24)] == [
        "1000",
        "1k",
        "128k",
        "16M",
    ]

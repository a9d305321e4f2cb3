"""The four steps of a backup: what every row of every rank holds, and where it went."""

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import IndexSpaceError, StudyError
from kvlab.index import DcpLayout
from kvlab.lab.backup_steps import STEPS, BackupSteps, BackupTrace, localize_ways, refusal

LAYOUTS = st.integers(1, 3).flatmap(
    lambda page: st.builds(
        DcpLayout, st.integers(1, 5), st.just(page), st.just(30), st.sampled_from([1, page])
    )
)


def traces() -> st.SearchStrategy[tuple[BackupSteps, BackupTrace]]:
    """A run of the four steps, with any ragged length."""
    steps = st.builds(BackupSteps, LAYOUTS, st.integers(2, 9), st.integers(2, 3))
    return steps.map(lambda study: (study, study.run()))


def positions(trace: BackupTrace, step: str, place: str) -> list[int]:
    """Positions of the victim that are held there, over all ranks."""
    cells = trace.cells
    here = cells[(cells["step"] == step) & (cells["place"] == place)]
    return sorted(here.loc[here["request"] == trace.victim, "position"])


@given(traces())
@settings(max_examples=25)
def test_the_ranks_hold_every_cached_position_once_in_the_pool_or_on_the_host(
    run: tuple[BackupSteps, BackupTrace],
) -> None:
    study, trace = run
    every = list(range(study.seqlen - 1))
    for step, buffer, host in zip(
        STEPS, (every, [], [], every), ([], every, every, []), strict=True
    ):
        assert positions(trace, step, "buffer") == buffer
        assert positions(trace, step, "host") == host


@given(traces())
@settings(max_examples=25)
def test_a_restored_position_lies_in_the_row_of_its_new_slot(
    run: tuple[BackupSteps, BackupTrace],
) -> None:
    study, trace = run
    cells = trace.cells
    held = cells[(cells["step"] == STEPS[-1]) & (cells["request"] == trace.victim)]
    assert len(held) == study.seqlen - 1
    for rank, row, position in zip(held["rank"], held["row"], held["position"], strict=True):
        slot = int(trace.new.ids[int(position)])
        assert (rank, row) == (study.layout.owner(slot), study.layout.row(slot))
        line = trace.moved.loc[int(position)]
        assert (rank, row, slot) == (line["new_owner"], line["new_row"], line["new_slot"])


@given(traces())
@settings(max_examples=25)
def test_old_and_new_slot_of_a_position_have_one_owner(
    run: tuple[BackupSteps, BackupTrace],
) -> None:
    study, trace = run
    moved = trace.moved
    assert moved["position"].tolist() == list(range(study.seqlen - 1))
    assert moved["old_owner"].tolist() == moved["new_owner"].tolist()
    for name in ("old", "new"):
        slots = [study.layout.slot(r, row) for r, row in _places(moved, name)]
        assert slots == moved[f"{name}_slot"].tolist()


def _places(moved: pd.DataFrame, name: str) -> list[tuple[int, int]]:
    return list(zip(moved[f"{name}_owner"], moved[f"{name}_row"], strict=True))


@given(traces(), st.integers(1, 4))
@settings(max_examples=25)
def test_one_run_is_localized_alike_by_all_ways_but_the_one_that_cuts_first(
    run: tuple[BackupSteps, BackupTrace], turns: int
) -> None:
    study, trace = run
    c = study.layout.dcp_size
    ways = localize_ways(trace.old.ids, c, chunk=turns * c)
    for way in ("localize", "stride", "cut_first"):  # whole turns cut nothing apart
        assert ways[way].tolist() == ways["mask"].tolist()


def test_cutting_first_gives_wrong_rows_when_a_chunk_is_no_whole_turn() -> None:
    ways = localize_ways(torch.arange(4, 16), 4, chunk=3)
    assert ways["mask"].tolist() == [[1, 2, 3]] * 4
    assert ways["cut_first"].tolist() == [[1, 1, 2, 3], [1, 2, 2, 3], [1, 2, 3, 3], []]


def test_two_ragged_runs_joined_are_right_by_mask_and_localize_only() -> None:
    ways = localize_ways(torch.tensor([8, 9, 10, 11, 12, 16, 17, 18, 19, 20]), 4, chunk=4)
    assert ways["mask"].tolist() == [[2, 3, 4, 5], [2, 4], [2, 4], [2, 4]]
    assert ways["localize"].tolist() == ways["mask"].tolist()
    assert ways["stride"].tolist() == [[2, 3, 4], [2, 4, 5], [2, 4], [2, 4]]


@given(traces())
@settings(max_examples=25)
def test_no_other_request_changes_but_by_its_own_arrival_or_end(
    run: tuple[BackupSteps, BackupTrace],
) -> None:
    study, trace = run
    live = [set(range(study.requests))] * 4
    live[1] = live[0] - {trace.victim}
    live[2] = live[1] | {study.requests}
    live[3] = live[2] - {0} | {trace.victim}
    for step, expected in zip(STEPS, live, strict=True):
        cells = trace.cells.query("place == 'buffer' and request >= 0")
        cells = cells[cells["step"] == step]
        counted = cells.groupby("request")["position"].nunique()
        assert counted.to_dict() == dict.fromkeys(expected, study.seqlen - 1)


def test_the_worked_example_is_as_told() -> None:
    trace = BackupSteps(DcpLayout(2, 2, 9), 4).run()
    assert trace.old.ids.tolist() == [12, 13, 14]
    assert trace.copies["rows"].tolist() == [2, 1]
    held = trace.cells[(trace.cells["step"] == "restored") & (trace.cells["request"] == 2)]
    want = pd.DataFrame({"rank": [0, 0, 1], "row": [2, 3, 2], "position": [0, 2, 1]})
    assert held[["rank", "row", "position"]].reset_index(drop=True).equals(want)


@pytest.mark.parametrize(
    ("seqlen", "requests", "pages"), [(1, 2, 9), (5, 1, 9), (5, 3, 2)], ids=str
)
def test_steps_that_cannot_be_taken_are_refused(seqlen: int, requests: int, pages: int) -> None:
    text = f"got seqlen={seqlen}, requests={requests}, num_pages={pages}, bound"
    with pytest.raises(StudyError, match=text):
        BackupSteps(DcpLayout(2, 2, pages), seqlen, requests)


def test_a_refusal_is_told_with_its_class() -> None:
    def call() -> None:
        raise IndexSpaceError("a slot is not a row")

    assert refusal(call) == "IndexSpaceError: a slot is not a row"


def test_a_call_that_goes_through_has_no_refusal_to_tell() -> None:
    with pytest.raises(StudyError, match="was to be refused and was not: it returned a int"):
        refusal(lambda: 3)

"""Owner tables agree with the layout slot by slot, and with rows found by counting."""

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.owners import (
    ENGINE_RULES,
    OwnerStudy,
    localize_ways,
    parse_sizes,
    rule_interleave,
)
from tests.lab.support import lines


@st.composite
def layouts(draw: st.DrawFn) -> DcpLayout:
    page = draw(st.integers(1, 6))
    interleave = draw(st.sampled_from([i for i in range(1, page + 1) if page % i == 0]))
    return DcpLayout(draw(st.integers(1, 5)), page, draw(st.integers(1, 6)), interleave)


@st.composite
def studies(draw: st.DrawFn) -> OwnerStudy:
    lay = draw(layouts())
    end = draw(st.integers(1, lay.capacity_tokens))
    start = draw(st.integers(0, end - 1))
    pages = draw(st.permutations(range(1, lay.num_pages + 1)))
    return OwnerStudy(lay, end - start, start, tuple(pages) if draw(st.booleans()) else None)


def dealt(lay: DcpLayout) -> list[dict[int, int]]:
    """For each rank, row -> slot: slots are dealt in turns of ``interleave``, as cards are."""
    rows: list[dict[int, int]] = [{} for _ in range(lay.dcp_size)]
    for slot in range(lay.slot_end):
        hand = rows[slot // lay.interleave % lay.dcp_size]
        hand[len(hand)] = slot
    return rows


@given(studies())
def test_every_position_has_the_owner_and_row_that_the_layout_gives_its_slot(
    study: OwnerStudy,
) -> None:
    lay, table = study.layout, study.table()
    width = lay.widened_page_size
    assert table["position"].tolist() == list(range(study.start, study.start + study.length))
    for line in lines(table):
        page = study.page_list[line.position // width]
        assert (line.page, line.slot) == (page, page * width + line.position % width)
        assert (line.owner, line.row) == (lay.owner(line.slot), lay.row(line.slot))


@given(studies())
def test_the_verdict_on_raw_use_is_what_the_owners_buffer_holds_in_that_row(
    study: OwnerStudy,
) -> None:
    rows = dealt(study.layout)
    for line in lines(study.table()):
        held = rows[line.owner].get(line.slot)
        assert rows[line.owner][line.row] == line.slot
        assert line.raw_slot == (-1 if held is None else held)
        if held is None:
            assert line.raw == "out of range"
        else:
            assert line.raw == ("right" if held == line.slot else "another slot")


@given(layouts())
def test_raw_use_is_right_everywhere_on_one_rank_and_nowhere_on_more(lay: DcpLayout) -> None:
    raw = set(OwnerStudy(lay, lay.capacity_tokens).table()["raw"])
    assert raw == {"right"} if lay.dcp_size == 1 else "right" not in raw


@given(studies())
def test_the_lengths_of_the_ranks_count_the_positions_of_the_table(study: OwnerStudy) -> None:
    lens = study.lens()
    assert lens["rank"].tolist() == list(range(study.layout.dcp_size))
    owned = study.table()["owner"].value_counts()
    assert lens["positions"].tolist() == [int(owned.get(r, 0)) for r in lens["rank"]]


def test_the_worked_example_of_the_module() -> None:
    table = OwnerStudy(DcpLayout(2, 2, 8), length=4, pages=(2,)).table()
    expected = {
        "position": [0, 1, 2, 3],
        "slot": [8, 9, 10, 11],
        "page": [2] * 4,
        "owner": [0, 1, 0, 1],
        "row": [4, 4, 5, 5],
        "raw": ["another slot"] * 4,
        "raw_slot": [16, 19, 20, 23],
    }
    pd.testing.assert_frame_equal(table, pd.DataFrame(expected), check_dtype=False)


SMALL = DcpLayout(2, 2, 3)


@pytest.mark.parametrize(
    ("start", "length", "pages", "sentence"),
    [
        (0, 0, None, r"start >= 0 and length >= 1: got start=0, length=0"),
        (-1, 3, None, r"start >= 0 and length >= 1: got start=-1, length=3"),
        (0, 13, None, r"positions 0\.\.12 need 4 different pages of 4 slots: got \[1, 2, 3\]"),
        (0, 13, None, "raise num_pages or shorten the run"),
        (0, 8, (2, 2), "name more pages, none twice, or shorten the run"),
        (4, 5, (1, 2), r"positions 0\.\.8 need 3 different pages of 4 slots: got \[1, 2\]"),
        (0, 8, (2, 2), r"need 2 different pages of 4 slots: got \[2, 2\] \(num_pages=3\)"),
        (0, 1, (4,), r"a page must lie in \[1, 3\]: got 4; page 0 is the padding page"),
        (0, 1, (0,), r"a page must lie in \[1, 3\]: got 0"),
    ],
)
def test_a_run_that_its_pages_cannot_hold_is_refused(
    start: int, length: int, pages: tuple[int, ...] | None, sentence: str
) -> None:
    with pytest.raises(StudyError, match=sentence):
        OwnerStudy(SMALL, length, start, pages)


def test_the_error_names_a_few_pages_of_a_long_list() -> None:
    with pytest.raises(StudyError, match=r"\[1, 2, .*12, \.\.\. 5000 in all\]") as refused:
        OwnerStudy(DcpLayout(1, 1, 5000), length=6000)
    assert len(str(refused.value)) < 300


def test_every_engine_rule_gives_an_interleave_that_the_layout_takes() -> None:
    assert [rule_interleave(rule, 64) for rule in ENGINE_RULES] == [1, 64]
    with pytest.raises(StudyError, match=r"rule must be one of .*: got 'first come'"):
        rule_interleave("first come", 64)


def test_sizes_of_a_command_line_are_whole_numbers_joined_by_commas() -> None:
    assert parse_sizes("1,2,16", "dcp sizes") == (1, 2, 16)
    with pytest.raises(StudyError, match=r"dcp sizes must be whole numbers joined .*'1,,2'"):
        parse_sizes("1,,2", "dcp sizes")
    with pytest.raises(StudyError, match=r"dcp sizes must be at least 1 each: got '2,0'"):
        parse_sizes("2,0", "dcp sizes")


def test_cutting_first_gives_wrong_rows_when_a_chunk_is_no_whole_turn() -> None:
    ways = localize_ways(torch.arange(4, 16), 4, chunk=3)
    assert ways["mask"].tolist() == [[1, 2, 3]] * 4
    assert ways["cut_first"].tolist() == [[1, 1, 2, 3], [1, 2, 2, 3], [1, 2, 3, 3], []]
    whole = localize_ways(torch.arange(4, 16), 4, chunk=8)
    for way in ("localize", "stride", "cut_first"):  # whole turns cut nothing apart
        assert whole[way].tolist() == whole["mask"].tolist()


def test_two_ragged_runs_joined_are_right_by_mask_and_localize_only() -> None:
    ways = localize_ways(torch.tensor([8, 9, 10, 11, 12, 16, 17, 18, 19, 20]), 4, chunk=4)
    assert ways["mask"].tolist() == [[2, 3, 4, 5], [2, 4], [2, 4], [2, 4]]
    assert ways["localize"].tolist() == ways["mask"].tolist()
    assert ways["stride"].tolist() == [[2, 3, 4], [2, 4, 5], [2, 4], [2, 4]]

"""Owner tables agree with the layout slot by slot, and with rows found by counting."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.owners import ENGINE_RULES, OwnerStudy, localize_ways, parse_sizes, rule_interleave
from tests.lab.support import lines


@st.composite
def studies(draw: st.DrawFn) -> OwnerStudy:
    page = draw(st.integers(1, 6))
    interleave = draw(st.sampled_from([i for i in range(1, page + 1) if page % i == 0]))
    lay = DcpLayout(draw(st.integers(1, 5)), page, draw(st.integers(1, 6)), interleave)
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
@settings(max_examples=50)
def test_each_position_has_its_owner_and_row_and_raw_use_hits_what_the_owner_holds_there(
    study: OwnerStudy,
) -> None:
    lay, table, rows = study.layout, study.table(), dealt(study.layout)
    width = lay.widened_page_size
    assert table["position"].tolist() == list(range(study.start, study.start + study.length))
    for line in lines(table):
        page = study.page_list[line.position // width]
        assert (line.page, line.slot) == (page, page * width + line.position % width)
        assert rows[line.owner][line.row] == line.slot
        assert study.position_of(line.slot) == line.position
        held = rows[line.owner].get(line.slot, -1)
        assert line.raw_slot == held
        kind = "out of range" if held < 0 else "right" if held == line.slot else "another slot"
        assert line.raw == kind
    assert {"right"} == set(table["raw"]) if lay.dcp_size == 1 else "right" not in set(table["raw"])
    held_by, lens = table["owner"].value_counts(), study.lens()
    assert lens["positions"].tolist() == [int(held_by.get(r, 0)) for r in lens["rank"]]


def test_the_worked_example_of_the_module() -> None:
    assert OwnerStudy(DcpLayout(2, 2, 8), length=4, pages=(2,)).columns() == {
        "position": [0, 1, 2, 3],
        "slot": [8, 9, 10, 11],
        "page": [2] * 4,
        "owner": [0, 1, 0, 1],
        "row": [4, 4, 5, 5],
        "raw": ["another slot"] * 4,
        "raw_slot": [16, 19, 20, 23],
    }


@pytest.mark.parametrize(
    ("start", "length", "pages", "sentence"),
    [
        (0, 0, None, r"start >= 0 and length >= 1: got start=0, length=0"),
        (-1, 3, None, r"start >= 0 and length >= 1: got start=-1, length=3"),
        (0, 13, None, r"positions 0\.\.12 need 4 different pages of 4 slots: got \[1, 2, 3\]"),
        (0, 8, (2, 2), r"got \[2, 2\] \(num_pages=3\); name more pages, none twice, or shorten"),
        (0, 1, (4,), r"a page must lie in \[1, 3\]: got 4; page 0 is the padding page"),
        (0, 1, (0,), r"a page must lie in \[1, 3\]: got 0"),
    ],
)
def test_a_run_that_its_pages_cannot_hold_is_refused(
    start: int, length: int, pages: tuple[int, ...] | None, sentence: str
) -> None:
    with pytest.raises(StudyError, match=sentence):
        OwnerStudy(DcpLayout(2, 2, 3), length, start, pages)
    with pytest.raises(StudyError, match=r"\[1, 2, .*12, \.\.\.\]"):
        OwnerStudy(DcpLayout(1, 1, 5000), length=6000)


def test_engine_rules_and_lists_of_sizes_are_read_or_refused() -> None:
    assert [rule_interleave(rule, 64) for rule in ENGINE_RULES] == [1, 64]
    with pytest.raises(StudyError, match=r"rule must be one of .*: got 'first come'"):
        rule_interleave("first come", 64)
    assert parse_sizes("1, 2,16", "pages") == (1, 2, 16)
    for text in ("1,,2", "2,0", "-1", "x"):
        with pytest.raises(StudyError, match=f"pages must be whole numbers .*'{text}'"):
            parse_sizes(text, "pages")


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

"""What each public border says to a bad value: the class, and the text with its facts.

The facts are the rule, the value, where it stands, and the bound; then what to do instead. Wrong
tensors and wrong wrappers are in ``test_spaces``, the other borders in ``test_errors_tables`` and
``test_errors_counts``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kvlab.index
from kvlab.errors import IndexSpaceError, KvlabError, LayoutError

from .oracle import ids

# Bad values are what the types forbid.
index: Any = kvlab.index
Layout: Any = index.DcpLayout
LAYOUT = Layout(2, page_size=2, num_pages=4)
WIDE = Layout(4, page_size=64, num_pages=128)
HOLE = ids([4, -1, 5])
Call = Callable[[], object]
Row = tuple[Call, type[KvlabError], str]

TABLE: dict[str, Row] = {
    # Sizes of a layout.
    "no rank": (lambda: Layout(0, 2, 2), LayoutError, r"dcp_size must be at least 1: .*dcp_size=0"),
    "no page": (lambda: Layout(2, 2, 0), LayoutError, r"num_pages must be at least 1: .*_pages=0"),
    "no row": (lambda: Layout(2, 0, 2), LayoutError, r"page_size must be at least 1: .*_size=0"),
    "no turn": (lambda: Layout(2, 2, 2, 0), LayoutError, r"interleave must be at least 1: .*=0"),
    "turn of half a page": (
        lambda: Layout(2, 64, 2, interleave=48),
        LayoutError,
        r"interleave must divide page_size.*: got interleave=48, page_size=64; use 1 or 64",
    ),
    "a page too many": (
        lambda: Layout(2**20, 2**20, 2**23),
        LayoutError,
        r"the largest slot must fit int64: num_pages=8388608 .* bound 9223372036854775807; use few",
    ),
    "a size past int64": (
        lambda: Layout(2**70, 1, 1),
        LayoutError,
        rf"dcp_size must fit int64, at most 9223372036854775807: .* got dcp_size={2**70}",
    ),
    "a float size": (
        lambda: Layout(2.0, 2, 2),
        LayoutError,
        r"dcp_size must be an int: the number of ranks .*; got 2\.0 \(float\); pass a Python int",
    ),
    "a bool size": (lambda: Layout(True, 2, 2), LayoutError, r"got True \(bool\); pass a Python"),
    "a size of NumPy": (
        lambda: Layout(np.int64(2), 2, 2),
        LayoutError,
        r"got np\.int64\(2\) \(int64\); pass a Python int",
    ),
    # Single ids.
    "a slot past the layout": (
        lambda: WIDE.owner(33024),
        IndexSpaceError,
        r"widened slot must lie in \[0, 33024\): got 33024 \(num_pages=128, W=256\)",
    ),
    "a negative slot": (lambda: WIDE.row(-1), IndexSpaceError, r"in \[0, 33024\): got -1"),
    "a slot of half a token": (
        lambda: WIDE.owner(4.0),
        IndexSpaceError,
        r"widened slot must be an int: got 4\.0 \(float\); pass a whole number",
    ),
    "a slot that is a bool": (lambda: WIDE.owner(True), IndexSpaceError, r"got True \(bool\)"),
    "a slot given for a row": (
        lambda: WIDE.slot(0, 8256),
        IndexSpaceError,
        r"row must lie in \[0, 8256\): got row 8256; 33024 is the bound of a widened slot",
    ),
    "a row that is a float": (lambda: WIDE.slot(0, 1.5), IndexSpaceError, r"row must be an int"),
    "a rank past the layout": (
        lambda: WIDE.slot(4, 64),
        LayoutError,
        r"dcp_rank must lie in \[0, 4\): got dcp_rank=4 with dcp_size=4; ranks are numbered from 0",
    ),
    "a negative rank": (lambda: WIDE.slot(-1, 64), LayoutError, r"dcp_rank must be at least 0"),
    "a negative count": (lambda: WIDE.pages_for(-1), LayoutError, r"tokens must be at least 0"),
    "rows of no bytes": (lambda: WIDE.bytes_per_rank(0), LayoutError, r"row_bytes must be at lea"),
    "no layers": (lambda: WIDE.bytes_per_rank(8, 0), LayoutError, r"layers must be at least 1"),
    # Runs and their rows.
    "a negative start": (
        lambda: index.WidenedSlots(ids([4]), start=-1),
        IndexSpaceError,
        r"start must be the position of the first id, a Python int in \[0, 2\*\*63\): got -1 \(int",
    ),
    "a start that is a bool": (
        lambda: index.WidenedSlots(ids([4]), start=True),
        IndexSpaceError,
        r"got True \(bool\)",
    ),
    "a start past int64": (
        lambda: index.WidenedSlots(ids([4]), start=2**63),
        IndexSpaceError,
        r"got 9223372036854775808 \(int\)",
    ),
    "a start of NumPy": (
        lambda: index.WidenedSlots(ids([4]), start=np.int64(3)),
        IndexSpaceError,
        r"got np\.int64\(3\) \(int64\)",
    ),
    "a chunk past the run": (
        lambda: index.WidenedSlots(ids([4, 5])).chunk(1, 3),
        IndexSpaceError,
        r"a chunk must lie inside the run: got \[1, 3\) of \[0, 2\)",
    ),
    "a chunk that ends before it begins": (
        lambda: index.WidenedSlots(ids([4, 5])).chunk(2, 1),
        IndexSpaceError,
        r"got \[2, 1\) of \[0, 2\)",
    ),
    "a slot of the padding page": (
        lambda: index.localize(index.WidenedSlots(ids([4, 5, 2])), LAYOUT, 0),
        IndexSpaceError,
        r"widened slot must lie in \[4, 20\): got 2 at index 2; 1 of 3 ids are outside; slots "
        r"below 4 are the padding page, never handed out; DcpLayout\(dcp_size=2",
    ),
    "a slot past the pool": (
        lambda: index.localize(index.WidenedSlots(ids([18, 19, 20, 21])), LAYOUT, 1),
        IndexSpaceError,
        r"widened slot must lie in \[4, 20\): got 20 at index 2; 2 of 4 ids are outside",
    ),
    "a hole in a run": (
        lambda: index.localize(index.WidenedSlots(HOLE), LAYOUT, 0),
        IndexSpaceError,
        r"a slot must be at least 0: got -1 at index 1; -1 marks a hole .* use localize_fixed",
    ),
    "a hole where one rank holds all": (
        lambda: index.localize(index.WidenedSlots(HOLE), Layout(1, 2, 4), 0),
        IndexSpaceError,
        r"a slot must be at least 0: got -1 at index 1",
    ),
    "localize on no such rank": (
        lambda: index.localize(index.WidenedSlots(ids([4])), LAYOUT, 2),
        LayoutError,
        r"dcp_rank must lie in \[0, 2\): got dcp_rank=2",
    ),
    "a slot declared to be a row": (
        lambda: index.PhysicalRows.assume_physical(ids([4, 10]), LAYOUT, 0),
        IndexSpaceError,
        r"row must lie in \[0, 10\): got 10 at index 1; 1 of 2 ids are outside; a widened slot mu",
    ),
    "a row assumed on no such rank": (
        lambda: index.PhysicalRows.assume_physical(ids([4]), LAYOUT, 2),
        LayoutError,
        r"dcp_rank must lie in \[0, 2\)",
    ),
    "a hole in the mask": (
        lambda: index.localize_masked(HOLE, 2, 0),
        IndexSpaceError,
        r"got -1 at index 1; -1 marks a hole and would look owned by the last rank",
    ),
    "a hole in the stride": (
        lambda: index.localize_strided(HOLE, 2, 0),
        IndexSpaceError,
        r"got -1 at index 1",
    ),
    "a run with a start that is not its own": (
        lambda: index.localize_strided(ids([5, 6, 7]), 2, 0),
        IndexSpaceError,
        r"\(slot % 2 == position % 2\): slot 5 at index 0 has owner 1, position 0 has 0; .* pass "
        r"its true start, localize each run by itself, or use localize_masked",
    ),
    "the break inside a run": (
        lambda: index.localize_strided(ids([7, 8, 10]), 3, 0, start=10),
        IndexSpaceError,
        r"slot 10 at index 2 has owner 1, position 12 has 0",
    ),
    "a negative start of a stride": (
        lambda: index.localize_strided(ids([5]), 2, 0, start=-1),
        LayoutError,
        r"start must be at least 0: the position of ids\[0\]; got start=-1",
    ),
    "a start of the check that is no int": (
        lambda: index.run_is_aligned(ids([5]), 2, 1.0),
        LayoutError,
        r"start must be an int",
    ),
    "an inverse past int64": (
        lambda: index.slot_of(ids([3, 2**62]), 4, 0),
        IndexSpaceError,
        r"row must lie in \[0, 2305843009213693952\): got 4611686018427387904 at index 1; .* int64",
    ),
    "a hole for the inverse": (
        lambda: index.slot_of(HOLE, 4, 0),
        IndexSpaceError,
        r"row must lie in .* got -1 at index 1",
    ),
    "a turn past int64": (
        lambda: index.owner_of(ids([1]), 2**40, 2**40),
        LayoutError,
        r"dcp_size \* interleave must fit int64",
    ),
    # Fixed shape.
    "no ranks to write on": (
        lambda: index.remap_dcp_write_locations_fixed_shape(ids([1]), 0, 0),
        LayoutError,
        r"dcp_size must be at least 1",
    ),
    "a rank past the write": (
        lambda: index.remap_dcp_write_locations_fixed_shape(ids([1]), 2, 2),
        LayoutError,
        r"dcp_rank must lie in \[0, 2\): got dcp_rank=2",
    ),
    "a hole that is a float": (
        lambda: index.localize_fixed_shape(ids([1]), 2, 0, hole=-1.0),
        LayoutError,
        r"hole must be an int: .* got -1\.0 \(float\)",
    ),
    "a hole to write into": (
        lambda: index.plan_dcp_owner_write(HOLE, 2, 0),
        IndexSpaceError,
        r"got -1 at index 1; -1 marks a hole",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_error_names_the_rule_the_value_its_place_and_the_bound(name: str) -> None:
    call, kind, text = TABLE[name]
    with pytest.raises(kind, match=text) as raised:
        call()
    assert type(raised.value) is kind


@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize("bad", [2, 3, 20, 21])
def test_a_slot_outside_the_layout_is_refused_by_the_rank_that_would_store_it(
    bad: int, rank: int
) -> None:
    for start in (0, 1):  # the stride for the right one, the mask for the other
        run = index.WidenedSlots(ids([4, 5, bad]), start)
        if bad % 2 == rank:
            with pytest.raises(IndexSpaceError, match=rf"in \[4, 20\): got {bad} at index 2"):
                index.localize(run, LAYOUT, rank)
        else:
            assert len(index.localize(run, LAYOUT, rank)) == 1


@pytest.mark.parametrize("bad", [torch.int64, "2", None, 2 + 0j])
def test_a_size_of_any_other_type_is_named_with_its_type(bad: object) -> None:
    with pytest.raises(LayoutError, match=rf"got .* \({type(bad).__name__}\)"):
        index.owner_of(ids([1]), bad)

"""What lengths, frees, capacity and raw use say to a bad value: class, and text with facts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kvlab.index
from kvlab.errors import CapacityError, IndexSpaceError, KvlabError, LayoutError

from .oracle import ids

index: Any = kvlab.index  # bad values are what the types forbid
LAYOUT = index.DcpLayout(2, page_size=2, num_pages=4)
Call = Callable[[], object]
Row = tuple[Call, type[KvlabError], str]

TABLE: dict[str, Row] = {
    # Lengths.
    "a negative length": (
        lambda: index.get_dcp_lens(ids([3, -2]), 2, 0),
        LayoutError,
        r"lens must be at least 0: got -2 at index 1; a token count has no sign",
    ),
    "a negative length of one rank": (
        lambda: index.get_dcp_lens(ids([-2]), 1, 0),
        LayoutError,
        r"lens must be at least 0: got -2 at index 0",
    ),
    "a negative first position": (
        lambda: index.get_dcp_lens(ids([3, 3]), 2, 0, ids([0, -1])),
        LayoutError,
        r"start must be at least 0: got -1 at index 1",
    ),
    "lengths that are floats": (
        lambda: index.get_dcp_lens(torch.tensor([3.0]), 2, 0),
        LayoutError,
        r"lens must be int64 or int32 token counts, got torch\.float32",
    ),
    "lengths in a list": (
        lambda: index.get_dcp_lens([3], 2, 0),
        LayoutError,
        r"lens must be an int64 tensor of token counts, got list; use torch\.tensor",
    ),
    "a start that is no tensor": (
        lambda: index.get_dcp_lens(ids([3]), 2, 0, 5),
        LayoutError,
        r"start must be an int64 tensor of token counts, got int",
    ),
    "starts of more runs than lengths": (
        lambda: index.get_dcp_lens(ids([3]), 2, 0, ids([1, 2])),
        LayoutError,
        r"start must have the shape of lens, or broadcast to it: got start \(2,\), lens \(1,\)",
    ),
    "starts with an axis more": (
        lambda: index.get_dcp_lens(ids([3])[0], 2, 0, ids([1])),
        LayoutError,
        r"got start \(1,\), lens \(\)",
    ),
    "a length on no such rank": (
        lambda: index.get_dcp_lens(ids([3]), 2, 2),
        LayoutError,
        r"dcp_rank must lie in \[0, 2\): got dcp_rank=2",
    ),
    "a turn of none": (
        lambda: index.get_dcp_lens(ids([3]), 2, 0, interleave=0),
        LayoutError,
        r"interleave must be at least 1",
    ),
    "chunks of nothing": (
        lambda: index.get_dcp_chunk_lens(5, 0, 2),
        LayoutError,
        r"chunk_tokens must be at least 1",
    ),
    "chunks of a negative length": (
        lambda: index.get_dcp_chunk_lens(-5, 2, 2),
        LayoutError,
        r"tokens must be at least 0: a token count; got tokens=-5",
    ),
    "chunks on no ranks": (
        lambda: index.get_dcp_chunk_lens(5, 2, 0),
        LayoutError,
        r"dcp_size must be at least 1",
    ),
    "no queries": (
        lambda: index.visible_keys(5, 0, 2, 0),
        LayoutError,
        r"queries must be at least 1: the number of newest tokens that ask; got queries=0",
    ),
    "more queries than tokens": (
        lambda: index.visible_keys(2, 3, 2, 0),
        LayoutError,
        r"tokens must be at least 3: the request's length, its queries included; got tokens=2",
    ),
    # Frees, capacity, raw use.
    "a range backwards": (
        lambda: index.merge_touching([(4, 8), (9, 5)]),
        IndexSpaceError,
        r"a range must be \[begin, end\) with 0 <= begin <= end: got \[9, 5\)",
    ),
    "a range below zero": (
        lambda: index.merge_touching([(-4, 8)]),
        IndexSpaceError,
        r"got \[-4, 8\)",
    ),
    "a range of half tokens": (
        lambda: index.merge_touching([(0, 8.0)]),
        IndexSpaceError,
        r"end must be an int: got 8\.0 \(float\)",
    ),
    "ranges that overlap": (
        lambda: index.merge_touching([(6, 9), (0, 7)]),
        IndexSpaceError,
        r"ranges must not overlap: \[6, 9\) begins inside \[0, 7\); each slot is freed once",
    ),
    "ranges that share a page": (
        lambda: index.pages_of_free([(8, 9), (12, 24)], 8),
        IndexSpaceError,
        r"segment at 12 shares page 1 with the one ending in it \(page size 8\): freed apart, the",
    ),
    "a range from the middle of a page": (
        lambda: index.pages_of_free([(6, 8)], 4),
        IndexSpaceError,
        r"a free must begin on a page: got 6, page size 4; tokens 4\.\.5 still live in page 1; begi"
        r"n at 8",
    ),
    "pages of nothing": (
        lambda: index.pages_of_free([(0, 8)], 0),
        LayoutError,
        r"page must be at least 1: tokens of one allocator page; got page=0",
    ),
    "rows for fewer tokens than none": (
        lambda: index.rows_for_tokens(-1, LAYOUT),
        LayoutError,
        r"tokens must be at least 0",
    ),
    "a fit of fewer tokens than none": (
        lambda: index.fits(-1, LAYOUT),
        LayoutError,
        r"tokens must be at least 0",
    ),
    "rows of no elements": (
        lambda: index.first_row_beyond_int32(0),
        LayoutError,
        r"row_elements must be at least 1",
    ),
    "the padding page": (
        lambda: index.raw_use_of_page(LAYOUT, 0),
        IndexSpaceError,
        r"page must lie in \[1, 4\]: got 0; page 0 is the padding page",
    ),
    "a page past the pool": (
        lambda: index.raw_use_of_page(LAYOUT, 5),
        IndexSpaceError,
        r"page must lie in \[1, 4\]: got 5",
    ),
    # Budgets.
    "a budget below one page": (
        lambda: index.layout_for_rows(63, 4, 64),
        CapacityError,
        r"a pool needs at least one page: got 63 rows a rank, page_size 64; raise the budget or",
    ),
    "a budget of no pages of no ranks": (
        lambda: index.layout_for_rows(64, 0, 64),
        LayoutError,
        r"dcp_size must be at least 1",
    ),
    "a budget in half rows": (
        lambda: index.layout_for_rows(100.0, 2, 2),
        LayoutError,
        r"rows_per_rank must be an int: a budget in whole rows; got 100\.0 \(float\)",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_error_names_the_rule_the_value_its_place_and_the_bound(name: str) -> None:
    call, kind, text = TABLE[name]
    with pytest.raises(kind, match=text) as raised:
        call()
    assert type(raised.value) is kind

"""What filters, tables, pairs, moves and virtual pages say to a bad value: class, and text."""

from collections.abc import Callable
from typing import Any

import pytest

import kvlab.index
from kvlab.errors import IndexSpaceError, KvlabError, LayoutError

from .oracle import ids

index: Any = kvlab.index  # bad values are what the types forbid
HOLE = ids([4, -1, 5])
Call = Callable[[], object]
Row = tuple[Call, type[KvlabError], str]

TABLE: dict[str, Row] = {
    # Filters and tables.
    "a start without a length": (
        lambda: index.filter_dcp_local_chunk_kv_indices(ids([4]), [0, 1], [1], 2, 0),
        LayoutError,
        r"starts and lens must name the same runs: got 2 starts, 1 lens",
    ),
    "lengths that do not add up": (
        lambda: index.filter_dcp_local_chunk_kv_indices(ids([4, 5]), [0] * 9, [1] * 9, 2, 0),
        LayoutError,
        r"add up to the ids: got sum 9 of \[1, 1, 1, 1, 1, 1, 1, 1\]\.\.\. for 2 ids",
    ),
    "lengths that add up by a negative one": (
        lambda: index.filter_dcp_local_chunk_kv_indices(ids([4, 5]), [0, 0], [3, -1], 2, 0),
        LayoutError,
        r"lens must be at least 0 and add up to the ids: got sum 2 of \[3, -1\] for 2 ids",
    ),
    "a run out of phase": (
        lambda: index.filter_dcp_local_chunk_kv_indices(ids([4, 5, 8]), [0, 1], [2, 1], 2, 0),
        IndexSpaceError,
        r"slot 8 at index 0 has owner 0, position 1 has 1; the run is not one run from position 1",
    ),
    "a run before position 0": (
        lambda: index.filter_dcp_local_chunk_kv_indices(ids([4]), [-2], [1], 2, 0),
        LayoutError,
        r"start must be at least 0",
    ),
    "a hole in a filter": (
        lambda: index.filter_dcp_local_kv_indices(HOLE, 2, 0),
        IndexSpaceError,
        r"got -1 at index 1",
    ),
    "a joined run by its upstream name": (
        lambda: index.maybe_dcp_kernel_indices(ids([8, 12]), 2, 0),
        IndexSpaceError,
        r"slot 12 at index 1 has owner 0, position 1 has 1",
    ),
    "a table from the middle of a page": (
        lambda: index.dcp_local_kv_block_table(ids([8, 9, 10, 11, 14, 15]).reshape(1, 6), 2, 2),
        IndexSpaceError,
        r"a page must begin on a multiple of 4: got slot 14 in row 0, column 4; pass rows from pos",
    ),
    "an indexer's table from the middle of a page": (
        lambda: index.dcp_indexer_block_table(ids([8, 9, 4, 7, 8, 9]).reshape(2, 3), 2),
        IndexSpaceError,
        r"a page must begin on a multiple of 2: got slot 7 in row 1, column 0",
    ),
    "a table of pages of nothing": (
        lambda: index.dcp_local_kv_block_table(ids([8])[None], 0, 2),
        LayoutError,
        r"page_size must be at least 1: rows of one page in one rank's buffer; got page_size=0",
    ),
    "a table on no ranks": (
        lambda: index.dcp_local_kv_block_table(ids([8])[None], 2, 0),
        LayoutError,
        r"dcp_size must be at least 1",
    ),
    "an indexer's table of pages of nothing": (
        lambda: index.dcp_indexer_block_table(ids([8])[None], -2),
        LayoutError,
        r"page_size must be at least 1.*got page_size=-2",
    ),
    "a kernel block across blocks": (
        lambda: index.expand_kernel_blocks(ids([1]), 64, 48),
        LayoutError,
        r"kernel_block must divide block_size: got kernel_block=48, block_size=64",
    ),
    "a block of nothing": (
        lambda: index.expand_kernel_blocks(ids([1]), 0, 1),
        LayoutError,
        r"block_size must be at least 1",
    ),
    "a kernel block of nothing": (
        lambda: index.expand_kernel_blocks(ids([1]), 4, 0),
        LayoutError,
        r"kernel_block must be at least 1",
    ),
    "more tokens than the table": (
        lambda: index.slots_of_blocks(ids([5, 2]), 8, 17),
        LayoutError,
        r"tokens must fit the table: got 17 for 2 blocks of 8",
    ),
    "fewer tokens than none": (
        lambda: index.slots_of_blocks(ids([5, 2]), 8, -1),
        LayoutError,
        r"tokens must be at least 0",
    ),
    "a hole that holds tokens": (
        lambda: index.slots_of_blocks(ids([5, -1]), 8, 9),
        IndexSpaceError,
        r"block must lie in .* got -1 at index 1; 1 of 2 ids are outside; a hole \(-1\) holds no",
    ),
    # Pairs, moves, virtual pages.
    "lists of two lengths": (
        lambda: index.require_paired(ids([4, 5]), ids([4]), 2),
        IndexSpaceError,
        r"both lists must name the same tokens: got 2 device ids and 1 host ids",
    ),
    "a pair on two ranks": (
        lambda: index.require_paired(ids([4, 5]), ids([8, 10]), 2),
        IndexSpaceError,
        r"slot 5 \(rank 1\) and host slot 10 \(rank 0\) at index 1; 1 of 2 pairs differ; allocate",
    ),
    "a hole that would pair with the last rank": (
        lambda: index.require_paired(ids([5, -1]), ids([7, 9]), 2),
        IndexSpaceError,
        r"got -1 at index 1; -1 marks a hole",
    ),
    "a hole on the host": (
        lambda: index.require_paired(ids([5]), ids([-1]), 2),
        IndexSpaceError,
        r"got -1 at index 0",
    ),
    "pairs on no ranks": (
        lambda: index.require_paired(ids([5]), ids([5]), 0),
        LayoutError,
        r"dcp_size must be at least 1",
    ),
    "a move without a target": (
        lambda: index.localize_move(ids([4]), ids([4, 6]), 2, 0),
        IndexSpaceError,
        r"a move pairs each source with one target: got 1 targets and 2 sources",
    ),
    "a move between ranks": (
        lambda: index.localize_move(ids([4, 6]), ids([8, 5]), 2, 0),
        IndexSpaceError,
        r"source slot 5 \(rank 1\) and target slot 6 \(rank 0\) at index 1 have different owners; "
        r"choose a target with target % 2 == 1, or transfer between the ranks",
    ),
    "a move from a hole": (
        lambda: index.localize_move(ids([5]), ids([-1]), 2, 0),
        IndexSpaceError,
        r"got -1 at index 0",
    ),
    "a move into a hole": (
        lambda: index.localize_move(ids([-1]), ids([5]), 2, 0),
        IndexSpaceError,
        r"got -1 at index 0",
    ),
    "a virtual page past the table": (
        lambda: index.localize_virtual(ids([4, 12]), ids([0, 2, 1]), 2, 2, 0),
        IndexSpaceError,
        r"virtual row must lie in \[0, 6\): got 6 at index 1; .* its page is not in the page table",
    ),
    "a virtual page that is not mapped": (
        lambda: index.look_up_rows(ids([2, 5]), ids([0, 2, -1]), 2),
        IndexSpaceError,
        r"a virtual page must be mapped: virtual row 5 at index 1 is in page 2, which has no phys",
    ),
    "a virtual page of nothing": (
        lambda: index.look_up_rows(ids([2]), ids([0, 1]), 0),
        LayoutError,
        r"page_size must be at least 1",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_error_names_the_rule_the_value_its_place_and_the_bound(name: str) -> None:
    call, kind, text = TABLE[name]
    with pytest.raises(kind, match=text) as raised:
        call()
    assert type(raised.value) is kind

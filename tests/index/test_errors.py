"""What each public border says to a bad value: the class, and the text with its facts.

The facts are the rule, the value, where it stands, and the bound; then what to do instead. Wrong
tensors and wrong wrappers are in ``test_spaces``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kvlab.index
from kvlab.errors import IndexSpaceError, KvlabError, LayoutError
from kvlab.index import Shard

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
    "a slot of half a token": (
        lambda: WIDE.owner(4.0),
        IndexSpaceError,
        r"widened slot must be an int: got 4\.0 \(float\); pass a whole number",
    ),
    "a slot given for a row": (
        lambda: WIDE.slot(0, 8256),
        IndexSpaceError,
        r"row must lie in \[0, 8256\): got row 8256; 33024 is the bound of a widened slot",
    ),
    "a rank past the layout": (
        lambda: WIDE.slot(4, 64),
        LayoutError,
        r"rank must lie in \[0, 4\): got rank=4 with dcp_size=4; ranks are numbered from 0",
    ),
    "a negative count": (lambda: WIDE.pages_for(-1), LayoutError, r"tokens must be at least 0"),
    # Runs and their rows.
    "a negative start": (
        lambda: index.WidenedSlots(ids([4]), start=-1),
        IndexSpaceError,
        r"start must be the position of the first id, a Python int in \[0, 2\*\*63\): got -1 \(int",
    ),
    "a start past int64": (
        lambda: index.WidenedSlots(ids([4]), start=2**63),
        IndexSpaceError,
        r"got 9223372036854775808 \(int\)",
    ),
    "a chunk past the run": (
        lambda: index.WidenedSlots(ids([4, 5])).chunk(1, 3),
        IndexSpaceError,
        r"a chunk must lie inside the run: got \[1, 3\) of \[0, 2\)",
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
    "a slot declared to be a row": (
        lambda: index.PhysicalRows.assume_physical(ids([4, 10]), LAYOUT, 0),
        IndexSpaceError,
        r"row must lie in \[0, 10\): got 10 at index 1; 1 of 2 ids are outside; a widened slot mu",
    ),
    "a hole in the mask": (
        lambda: index.localize_masked(HOLE, Shard(2, 0)),
        IndexSpaceError,
        r"got -1 at index 1; -1 marks a hole and would look owned by the last rank",
    ),
    "a run with a start that is not its own": (
        lambda: index.localize_strided(ids([5, 6, 7]), Shard(2, 0)),
        IndexSpaceError,
        r"\(slot % 2 == position % 2\): slot 5 at index 0 has owner 1, position 0 has 0; .* pass "
        r"its true start, localize each run by itself, or use localize_masked",
    ),
    "the break inside a run": (
        lambda: index.localize_strided(ids([7, 8, 10]), Shard(3, 0), start=10),
        IndexSpaceError,
        r"slot 10 at index 2 has owner 1, position 12 has 0",
    ),
    "a negative start of a stride": (
        lambda: index.localize_strided(ids([5]), Shard(2, 0), start=-1),
        LayoutError,
        r"start must be at least 0: the position of ids\[0\]; got start=-1",
    ),
    "a turn past int64": (
        lambda: index.owner_of(ids([1]), 2**40, 2**40),
        LayoutError,
        r"dcp_size \* interleave must fit int64",
    ),
    # Fixed shape.
    "a hole that is a float": (
        lambda: index.localize_fixed_shape(ids([1]), Shard(2, 0), hole=-1.0),
        LayoutError,
        r"hole must be an int: .* got -1\.0 \(float\)",
    ),
    # Lengths.
    "a negative length": (
        lambda: index.get_dcp_lens(ids([3, -2]), Shard(2, 0)),
        LayoutError,
        r"lens must be at least 0: got -2 at index 1; a token count has no sign",
    ),
    "a negative first position": (
        lambda: index.get_dcp_lens(ids([3, 3]), Shard(2, 0), ids([0, -1])),
        LayoutError,
        r"start must be at least 0: got -1 at index 1",
    ),
    "lengths that are floats": (
        lambda: index.get_dcp_lens(torch.tensor([3.0]), Shard(2, 0)),
        LayoutError,
        r"lens must be an int64 or int32 tensor of token counts: got torch\.float32",
    ),
    "lengths in a list": (
        lambda: index.get_dcp_lens([3], Shard(2, 0)),
        LayoutError,
        r"lens must be an int64 or int32 tensor of token counts: got list; use torch\.tensor",
    ),
    "a start that is no tensor": (
        lambda: index.get_dcp_lens(ids([3]), Shard(2, 0), 5),
        LayoutError,
        r"start must be an int64 or int32 tensor of token counts: got int",
    ),
    "starts of more runs than lengths": (
        lambda: index.get_dcp_lens(ids([3]), Shard(2, 0), ids([1, 2])),
        LayoutError,
        r"start must have the shape of lens, or broadcast to it: got start \(2,\), lens \(1,\)",
    ),
    "a run whose end exceeds int64": (
        lambda: index.get_dcp_lens(ids([2**62]), Shard(2, 0), ids([2**62])),
        LayoutError,
        r"start \+ lens must fit int64, .*: got a length of 4611686018427387904 at index 0",
    ),
    "chunks of nothing": (
        lambda: index.get_dcp_chunk_lens(5, 0, 2),
        LayoutError,
        r"chunk_tokens must be at least 1",
    ),
    "a block of more slots than int64 has": (
        lambda: index.dcp_local_kv_block_table(ids([2**62])[None], 2**62, 3),
        LayoutError,
        r"page_size \* dcp_size must fit int64",
    ),
    # Frees, capacity, raw use.
    "a range backwards": (
        lambda: index.merge_touching([(4, 8), (9, 5)]),
        IndexSpaceError,
        r"a range must be \[begin, end\) with 0 <= begin <= end: got \[9, 5\)",
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
    "the padding page": (
        lambda: index.raw_use_of_page(LAYOUT, 0),
        IndexSpaceError,
        r"page must lie in \[1, 4\]: got 0; page 0 is the padding page",
    ),
    # Budgets.
    # Filters and tables.
    "a start without a length": (
        lambda: index.filter_dcp_local_chunk_kv_indices(ids([4]), [0, 1], [1], Shard(2, 0)),
        LayoutError,
        r"starts and lens must name the same runs: got 2 starts, 1 lens",
    ),
    "lengths that do not add up": (
        lambda: index.filter_dcp_local_chunk_kv_indices(ids([4, 5]), [0] * 9, [1] * 9, Shard(2, 0)),
        LayoutError,
        r"add up to the ids: got sum 9 of \[1, 1, 1, 1, 1, 1, 1, 1\]\.\.\. for 2 ids",
    ),
    "a run out of phase": (
        lambda: index.filter_dcp_local_chunk_kv_indices(
            ids([4, 5, 8]), [0, 1], [2, 1], Shard(2, 0)
        ),
        IndexSpaceError,
        r"slot 8 at index 0 has owner 0, position 1 has 1; the run is not one run from position 1",
    ),
    "a joined run by its upstream name": (
        lambda: index.maybe_dcp_kernel_indices(ids([8, 12]), Shard(2, 0)),
        IndexSpaceError,
        r"slot 12 at index 1 has owner 0, position 1 has 1",
    ),
    "a table from the middle of a page": (
        lambda: index.dcp_local_kv_block_table(ids([8, 9, 10, 11, 14, 15]).reshape(1, 6), 2, 2),
        IndexSpaceError,
        r"a page must begin on a multiple of 4: got slot 14 in row 0, column 4; pass rows from pos",
    ),
    "a table of pages of nothing": (
        lambda: index.dcp_local_kv_block_table(ids([8])[None], 0, 2),
        LayoutError,
        r"page_size must be at least 1: rows of one page in one rank's buffer; got page_size=0",
    ),
    "more tokens than the table": (
        lambda: index.slots_of_blocks(ids([5, 2]), 8, 17),
        LayoutError,
        r"tokens must fit the table: got 17 for 2 blocks of 8",
    ),
    "a hole that holds tokens": (
        lambda: index.slots_of_blocks(ids([5, -1]), 8, 9),
        IndexSpaceError,
        r"block must lie in .* got -1 at index 1; 1 of 2 ids are outside; a hole \(-1\) holds no",
    ),
    # Pairs, moves, virtual pages.
    "a move without a target": (
        lambda: index.localize_move(ids([4]), ids([4, 6]), Shard(2, 0)),
        IndexSpaceError,
        r"a move pairs each source with one target: got 1 targets and 2 sources",
    ),
    "a move between ranks": (
        lambda: index.localize_move(ids([4, 6]), ids([8, 5]), Shard(2, 0)),
        IndexSpaceError,
        r"source slot 5 \(rank 1\) and target slot 6 \(rank 0\) at index 1 have different owners; "
        r"choose a target of rank 1, or transfer between the ranks",
    ),
    "a move from a hole": (
        lambda: index.localize_move(ids([5]), ids([-1]), Shard(2, 0)),
        IndexSpaceError,
        r"got -1 at index 0",
    ),
    "a virtual page past the table": (
        lambda: index.localize_virtual(ids([4, 12]), ids([0, 2, 1]), 2, Shard(2, 0)),
        IndexSpaceError,
        r"virtual row must lie in \[0, 6\): got 6 at index 1; .* its page is not in the page table",
    ),
    "a virtual page that is not mapped": (
        lambda: index.look_up_rows(ids([2, 5]), ids([0, 2, -1]), 2),
        IndexSpaceError,
        r"a virtual page must be mapped: virtual row 5 at index 1 is in page 2, which has no phys",
    ),
    "a physical page whose rows exceed int64": (
        lambda: index.look_up_rows(ids([3]), ids([0, 2**62]), 2),
        IndexSpaceError,
        r"physical page must lie in \[0, 4611686018427387904\): got 4611686018427387904 at",
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

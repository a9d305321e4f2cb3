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
from kvlab.errors import IndexSpaceError as Space
from kvlab.errors import LayoutError as Sizes
from kvlab.index import Shard

from .oracle import ids

# Bad values are what the types forbid.
index: Any = kvlab.index
Layout: Any = index.DcpLayout
LAYOUT, WIDE, TWO = Layout(2, page_size=2, num_pages=4), Layout(4, 64, 128), Shard(2, 0)
HOLE = ids([4, -1, 5])


def chunks(run: list[int], starts: list[int], lens: list[int]) -> object:
    return index.filter_dcp_local_chunk_kv_indices(ids(run), starts, lens, TWO)


def local(slots: list[int], rank: int) -> object:
    return index.localize(index.WidenedSlots(ids(slots)), LAYOUT, rank)


def table(slots: list[int], page: int, c: int = 2) -> object:
    return index.dcp_local_kv_block_table(ids(slots)[None], page, c)


BAD: list[tuple[type[Exception], Callable[[], object], str]] = [
    # Sizes of a layout.
    (Sizes, lambda: Layout(0, 2, 2), r"dcp_size must be at least 1: .*dcp_size=0"),
    (Sizes, lambda: Layout(2, 64, 2, interleave=48), r"interleave=48, page_size=64; use 1 or 64"),
    (Sizes, lambda: Layout(2**20, 2**20, 2**23), r"largest slot must fit int64: num_pages=8388608"),
    (Sizes, lambda: Layout(2**70, 1, 1), rf"dcp_size must fit int64, .* got dcp_size={2**70}"),
    (Sizes, lambda: Layout(2.0, 2, 2), r"dcp_size must be an int: .*; got 2\.0 \(float\); pass a"),
    (Sizes, lambda: Layout(True, 2, 2), r"got True \(bool\); pass a Python int"),
    (Sizes, lambda: Layout(np.int64(2), 2, 2), r"got np\.int64\(2\) \(int64\); pass a Python int"),
    (Sizes, lambda: index.owner_of(ids([1]), 2**40, 2**40), r"\* interleave must fit int64"),
    (Sizes, lambda: WIDE.pages_for(-1), r"tokens must be at least 0"),
    # Single ids.
    (Space, lambda: WIDE.owner(33024), r"in \[0, 33024\): got 33024 \(num_pages=128, W=256\)"),
    (Space, lambda: WIDE.owner(4.0), r"widened slot must be an int: got 4\.0 \(float\)"),
    (Space, lambda: WIDE.slot(0, 8256), r"got row 8256; 33024 is the bound of a widened slot"),
    (Sizes, lambda: WIDE.slot(4, 64), r"rank must lie in \[0, 4\): got rank=4 with dcp_size=4"),
    # Runs and their rows.
    (Space, lambda: index.WidenedSlots(ids([4]), start=-1), r"start must be .*: got -1 \(int"),
    (Space, lambda: index.WidenedSlots(ids([4]), start=True), r"start must be .*: got True \(bool"),
    (Space, lambda: index.WidenedSlots(ids([4]), 1.0), r"start must be .*: got 1.0 \(float"),
    (Space, lambda: index.WidenedSlots(ids([4]), 2**63), r"got 9223372036854775808 \(int\)"),
    (Space, lambda: index.WidenedSlots(HOLE).chunk(1, 4), r"run: got \[1, 4\) of \[0, 3\)"),
    (
        Space,
        lambda: local([4, 5, 2], 0),
        r"widened slot must lie in \[4, 20\): got 2 at index 2; 1 of 3 ids are outside; slots "
        r"below 4 are the padding page, never handed out; DcpLayout\(dcp_size=2",
    ),
    (Space, lambda: local([18, 19, 20, 21], 1), r"got 20 at index 2; 2 of 4 ids are outside"),
    (Space, lambda: local([4, -1, 5], 0), r"-1 at index 1; -1 marks a hole .* localize_fixed"),
    (
        Space,
        lambda: index.PhysicalRows.assume_physical(ids([4, 10]), LAYOUT, 0),
        r"row must lie in \[0, 10\): got 10 at index 1; 1 of 2 ids are outside; a widened slot mu",
    ),
    (Space, lambda: index.localize_masked(HOLE, TWO), r"got -1 at index 1; .* \(-1 % c == c - 1"),
    (
        Space,
        lambda: index.localize_strided(ids([5, 6, 7]), TWO),
        r"\(slot % 2 == position % 2\): slot 5 at index 0 has owner 1, position 0 has 0; .* pass "
        r"its true start, localize each run by itself, or use localize_masked",
    ),
    (
        Space,
        lambda: index.localize_strided(ids([7, 8, 10]), Shard(3, 0), start=10),
        r"slot 10 at index 2 has owner 1, position 12 has 0",
    ),
    (Sizes, lambda: index.localize_strided(ids([5]), TWO, start=-1), r"start must be at least 0"),
    (Sizes, lambda: index.localize_fixed_shape(HOLE, TWO, hole=-1.0), r"hole must be an int"),
    # Lengths.
    (Sizes, lambda: index.get_dcp_lens(ids([0, -2]), TWO), r"lens must be .*: got -2 at index 1"),
    (Sizes, lambda: index.get_dcp_lens(ids([3]), TWO, ids([-1])), r"start must be .*: got -1 at"),
    (Sizes, lambda: index.get_dcp_lens(torch.tensor([3.0]), TWO), r"counts: got torch\.float32"),
    (Sizes, lambda: index.get_dcp_lens(ids([3]), TWO, ids([1, 2])), r"start \(2,\), lens \(1,\)"),
    (
        Sizes,
        lambda: index.get_dcp_lens(ids([2**62]), TWO, ids([2**62])),
        r"start \+ lens must fit int64, .*: got a length of 4611686018427387904 at index 0",
    ),
    (Sizes, lambda: index.get_dcp_chunk_lens(5, 0, 2), r"chunk_tokens must be at least 1"),
    # Frees and raw use.
    (Space, lambda: index.merge_touching([(4, 8), (9, 5)]), r"begin <= end: got \[9, 5\)"),
    (Space, lambda: index.merge_touching([(0, 8.0)]), r"end must be an int: got 8\.0 \(float\)"),
    (Space, lambda: index.merge_touching([(6, 9), (0, 7)]), r"\[6, 9\) begins inside \[0, 7\)"),
    (Space, lambda: index.pages_of_free([(8, 9), (12, 24)], 8), r"segment at 12 shares page 1"),
    (
        Space,
        lambda: index.pages_of_free([(6, 8)], 4),
        r"must begin on a page: got 6, page size 4; tokens 4\.\.5 still live in page 1; begin at 8",
    ),
    (Space, lambda: index.raw_use_of_page(LAYOUT, 0), r"in \[1, 4\]: got 0; page 0 is the padding"),
    # Filters and tables.
    (Sizes, lambda: chunks([4], [0, 1], [1]), r"the same runs: got 2 starts, 1 lens"),
    (Sizes, lambda: chunks([4, 5], [0] * 9, [1] * 9), r"sum 9 of \[(1, ){7}1\]\.\.\. for 2 ids"),
    (
        Space,
        lambda: chunks([4, 5, 8], [0, 1], [2, 1]),
        r"slot 8 at index 0 has owner 0, position 1",
    ),
    (Space, lambda: index.maybe_dcp_kernel_indices(ids([8, 12]), TWO), r"slot 12 at index 1 has"),
    (
        Space,
        lambda: table([8, 9, 10, 11, 14, 15], 2),
        r"multiple of 4: got slot 14 in row 0, colum",
    ),
    (Sizes, lambda: table([8], 0), r"page_size must be at least 1"),
    (Sizes, lambda: table([2**62], 2**62, 3), r"page_size \* dcp_size must fit int64"),
    (Sizes, lambda: index.slots_of_blocks(ids([5, 2]), 8, 17), r"got 17 for 2 blocks of 8"),
    (Space, lambda: index.slots_of_blocks(ids([5, -1]), 8, 9), r"got -1 at index 1; .* holds no"),
    # Moves and virtual pages.
    (Space, lambda: index.localize_move(HOLE, HOLE[:2], TWO), r"got 3 targets and 2 sources"),
    (
        Space,
        lambda: index.localize_move(ids([4, 6]), ids([8, 5]), TWO),
        r"source slot 5 \(rank 1\) and target slot 6 \(rank 0\) at index 1 have different owners; "
        r"choose a target of rank 1, or transfer between the ranks",
    ),
    (Space, lambda: index.localize_move(ids([5]), ids([-1]), TWO), r"got -1 at index 0"),
    (Space, lambda: index.localize_move(ids([-1]), ids([5]), TWO), r"got -1 at index 0"),
    (
        Space,
        lambda: index.localize_virtual(ids([4, 12]), ids([0, 2, 1]), 2, TWO),
        r"virtual row must lie in \[0, 6\): got 6 at index 1; .* its page is not in the page table",
    ),
    (
        Space,
        lambda: index.look_up_rows(ids([2, 5]), ids([0, 2, -1]), 2),
        r"a virtual page must be mapped: virtual row 5 at index 1 is in page 2, which has no phys",
    ),
    (Space, lambda: index.look_up_rows(ids([3]), ids([0, 2**62]), 2), r"physical page must lie in"),
]


@pytest.mark.parametrize(("kind", "call", "text"), BAD)
def test_the_error_names_the_rule_the_value_its_place_and_the_bound(
    kind: type[Exception], call: Callable[[], object], text: str
) -> None:
    with pytest.raises(kind, match=text) as raised:
        call()
    assert type(raised.value) is kind


@pytest.mark.parametrize("bad", [2, 3, 20, 21])
def test_a_slot_outside_the_layout_is_refused_by_the_rank_that_would_store_it(bad: int) -> None:
    for start in (0, 1):  # the stride for the right one, the mask for the other
        run = index.WidenedSlots(ids([4, 5, bad]), start)
        with pytest.raises(Space, match=rf"in \[4, 20\): got {bad} at index 2"):
            index.localize(run, LAYOUT, bad % 2)
        assert len(index.localize(run, LAYOUT, 1 - bad % 2)) == 1

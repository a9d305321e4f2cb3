"""Ids of any width come out exact: int32 does not wrap, and nothing passes through a float."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.index import (
    DcpLayout,
    Shard,
    WidenedSlots,
    dcp_local_kv_block_table,
    filter_dcp_local_chunk_kv_indices,
    localize,
    localize_fixed_shape,
    localize_masked,
    localize_move,
    localize_strided,
    owned_elements,
    owner_of,
    plan_dcp_owner_write,
    remap_dcp_local_topk_indices,
    row_of,
    run_is_aligned,
    slots_of_blocks,
)

from .oracle import ids

TOP = 2**31 - 1
# Where a product of int32 wraps, where float32 and float64 skip integers, where int64 ends.
EDGES = (TOP, 2**24, 2**53, 2**53 + 2**31, 2**62, 2**63 - 40)

ANY_WIDTH: dict[str, Callable[[Tensor], object]] = {
    "owner_of": lambda v: owner_of(v, 3),
    "row_of": lambda v: row_of(v, 3, 2),
    "localize_masked": lambda v: localize_masked(v, Shard(3, 1, 2)),
    "localize_strided": lambda v: localize_strided(v, Shard(3, 1), int(v[0]) % 3),
    "localize_strided, a power of two": lambda v: localize_strided(v, Shard(8, 1), int(v[0]) % 8),
    "owned_elements": lambda v: owned_elements(v, Shard(3, 1)),
    "run_is_aligned": lambda v: [run_is_aligned(v, c, 1) for c in (2, 3, 8)],
    "localize": lambda v: localize(WidenedSlots(v, 1), DcpLayout(4, 1, 2**40), 1).ids,
    "localize_fixed_shape": lambda v: localize_fixed_shape(v, Shard(2, 1, 2)),
    "plan_dcp_owner_write": lambda v: plan_dcp_owner_write(v, Shard(3, 0))[1],
    "remap_dcp_local_topk_indices": lambda v: remap_dcp_local_topk_indices(v, Shard(3, 0)),
    "filter_dcp_local_chunk_kv_indices": lambda v: filter_dcp_local_chunk_kv_indices(
        v, [int(v[0])], [len(v)], Shard(3, 1)
    ),
    "dcp_local_kv_block_table": lambda v: dcp_local_kv_block_table(v[None] // 4 * 4, 2, 2),
    "slots_of_blocks": lambda v: slots_of_blocks(v, 512, 700),
    "localize_move": lambda v: localize_move(v, v - 9, Shard(3, 1))[0],
}


@pytest.mark.parametrize("name", ANY_WIDTH)
def test_int32_ids_give_what_int64_ids_give(name: str) -> None:
    narrow = torch.arange(TOP - 20, TOP + 1).to(torch.int32)
    call = ANY_WIDTH[name]
    found, want = call(narrow), call(narrow.to(torch.int64))
    if isinstance(found, Tensor):
        assert isinstance(want, Tensor)
        assert found.dtype == want.dtype == torch.int64
        assert found.tolist() == want.tolist()
        # And what int64 gives is not what a wrapped or rounded product would be.
        assert not found.numel() or int(found.min()) >= -1
    else:
        assert found == want


@given(st.sampled_from(EDGES), st.integers(0, 30), st.integers(1, 70), st.integers(1, 5))
@settings(max_examples=60)
def test_owner_row_and_slot_are_those_of_python_ints_at_every_edge(
    edge: int, off: int, c: int, turn: int
) -> None:
    v = edge + off
    owner, row = v // turn % c, v // (c * turn) * turn + v % turn
    assert owner_of(ids([v]), c, turn).tolist() == [owner]
    assert row_of(ids([v]), c, turn).tolist() == [row]
    assert localize_masked(ids([v]), Shard(c, owner, turn)).tolist() == [row]
    assert localize_fixed_shape(ids([v]), Shard(c, owner, turn)).tolist() == [row]
    if row < 2**63 // (c * turn) * turn:
        assert Shard(c, owner, turn).slot(ids([row])).tolist() == [v]


@given(st.sampled_from(EDGES), st.integers(0, 30), st.integers(2, 70))
@settings(max_examples=60)
def test_a_run_at_every_edge_is_strided_exactly(edge: int, off: int, c: int) -> None:
    start = edge + off
    run = torch.arange(5) + start  # a request so long that slot and position are equal
    for rank in {start % c, (start + 4) % c, 0}:
        want = [v // c for v in range(start, start + 5) if v % c == rank]
        assert localize_strided(run, Shard(c, rank), start).tolist() == want


def test_a_layout_up_to_the_end_of_int64_localizes_its_last_page() -> None:
    layout = DcpLayout(4, page_size=2**20, num_pages=2**41 - 1)
    last = torch.arange(6) + (layout.slot_end - 6)
    for rank in range(4):
        rows = localize(WidenedSlots(last, start=2), layout, rank)
        assert rows.ids.tolist() == [v // 4 for v in last.tolist() if v % 4 == rank]

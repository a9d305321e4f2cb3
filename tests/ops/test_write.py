"""Laws of the owner's write: each token once, on one rank, and nothing else anywhere."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import LayoutError
from kvlab.index import DcpLayout, Shard
from kvlab.ops import Backend, set_mla_kv_buffer
from tests.ops.support import BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=25)
@given(c=st.integers(1, 8), interleave=st.integers(1, 3), n=st.integers(0, 40))
def test_all_ranks_together_store_each_token_once_and_touch_nothing_else(
    backend: Backend, c: int, interleave: int, n: int
) -> None:
    layout = DcpLayout(c, 2 * interleave, 4, interleave)
    bounds: Any = {"first_slot": layout.first_slot, "slot_end": layout.slot_end}
    ids = layout.first_slot + torch.randperm(layout.capacity_tokens)[:n]
    ids[::4] = torch.randint(-1, layout.first_slot, (len(ids[::4]),))
    ids[3::7] = torch.tensor([-2, layout.slot_end, 2**40, -(2**60)]).repeat(10)[: len(ids[3::7])]
    nope, rope = torch.randn(len(ids), 5), torch.randn(len(ids), 3)
    stored = 0
    for rank in range(c):
        layer = torch.full((layout.rows_per_rank, 8), -7.0)
        set_mla_kv_buffer(layer, ids, nope, rope, layout.shard(rank), **bounds, backend=backend)
        for at, slot in enumerate(ids.tolist()):
            if layout.first_slot <= slot < layout.slot_end and layout.owner(slot) == rank:
                row = layout.row(slot)
                assert torch.equal(layer[row], torch.cat([nope[at], rope[at]]))
                layer[row] = -7.0
                stored += 1
        assert bool((layer == -7.0).all())
    assert stored == int(((ids >= layout.first_slot) & (ids < layout.slot_end)).sum())


@pytest.mark.parametrize("interleave", [1, 2, 3])
@pytest.mark.parametrize("c", [1, 2, 5])
def test_the_bound_on_the_rows_is_exact_for_every_slot_end(c: int, interleave: int) -> None:
    none, some, shard = (
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(0, 1),
        Shard(c, 0, interleave),
    )
    for slot_end in range(1, 40):
        needed = 1 + max(shard.row(slot) for slot in range(slot_end))
        for rows in (needed, needed - 1):
            parts = (torch.zeros(rows, 2), none, some, some)
            refused = pytest.raises(LayoutError, match="must have a row for every slot")
            with refused if rows < needed else nullcontext():
                set_mla_kv_buffer(*parts, shard, first_slot=0, slot_end=slot_end)

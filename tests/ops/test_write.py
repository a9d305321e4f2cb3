"""Laws of the owner's write: each token once, on one rank, and nothing else anywhere."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.index import DcpLayout, Shard
from kvlab.ops import Backend, CheckFlag, set_mla_kv_buffer
from tests.ops.support import TRITON, twin_can_run

BACKENDS: list[Backend] = ["torch", *(TRITON if twin_can_run() else [])]


@pytest.mark.parametrize("backend", BACKENDS)
@given(c=st.integers(1, 8), interleave=st.integers(1, 3), n=st.integers(0, 40))
def test_all_ranks_together_store_each_token_once_and_touch_nothing_else(
    backend: Backend, c: int, interleave: int, n: int
) -> None:
    layout = DcpLayout(c, 2 * interleave, 4, interleave)
    ids = layout.first_slot + torch.randperm(layout.capacity_tokens)[:n]
    ids[::4] = torch.randint(-1, layout.first_slot, (len(ids[::4]),))
    nope, rope = torch.randn(len(ids), 5), torch.randn(len(ids), 3)
    stored = 0
    for rank in range(c):
        layer = torch.full((layout.rows_per_rank, 8), -7.0)
        flag = CheckFlag("cpu")
        set_mla_kv_buffer(
            layer,
            ids,
            nope,
            rope,
            Shard(c, rank, interleave),
            first_slot=layout.first_slot,
            slot_end=layout.slot_end,
            flag=flag,
            backend=backend,
        )
        assert flag.read() is None
        for at, slot in enumerate(ids.tolist()):
            if slot >= layout.first_slot and layout.owner(slot) == rank:
                row = layout.row(slot)
                assert torch.equal(layer[row], torch.cat([nope[at], rope[at]]))
                layer[row] = -7.0
                stored += 1
        assert bool((layer == -7.0).all())
    assert stored == int((ids >= layout.first_slot).sum())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("bad", "at"), [(-2, 1), (16, 2), (2**40, 0), (-(2**60), 3)])
def test_an_id_out_of_bounds_is_told_by_every_rank_and_stored_by_none(
    backend: Backend, bad: int, at: int
) -> None:
    ids = torch.tensor([4, 5, 6, 7])
    ids[at] = bad
    for rank in range(2):
        layer = torch.zeros(8, 4)
        flag = CheckFlag("cpu")
        ones = torch.ones(4, 3)
        set_mla_kv_buffer(
            layer,
            ids,
            ones,
            ones[:, :1],
            Shard(2, rank),
            first_slot=4,
            slot_end=16,
            flag=flag,
            backend=backend,
        )
        assert flag.read() == at
        mine = [i for i in ids.tolist() if 4 <= i < 16 and i % 2 == rank]
        assert int(layer.any(dim=1).sum()) == len(mine)

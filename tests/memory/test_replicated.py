"""A pool that every rank holds whole must hold every id that the allocator issues."""

import pytest
import torch

from kvlab.errors import IndexSpaceError, RankMismatchError
from kvlab.index import DcpLayout, WidenedSlots, localize
from kvlab.memory import PagedTokenToKVPoolAllocator, ReplicatedKVPool

from .support import SIZES, assemble, ids, make_pools, rows_like, write

C14 = DcpLayout(dcp_size=2, page_size=2, num_pages=2)


def test_two_pages_at_dcp_2_are_twelve_rows_and_not_six() -> None:
    assert [pool.rows_per_rank for pool in make_pools(C14, "replicated")] == [12, 12]
    assert [pool.rows_per_rank for pool in make_pools(C14)] == [6, 6]


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("c", SIZES)
def test_every_rank_holds_every_slot_that_is_handed_out(c: int, turn: int) -> None:
    layout = DcpLayout(dcp_size=c, page_size=4, num_pages=5, interleave=turn)
    allocator = PagedTokenToKVPoolAllocator(layout)
    slots = allocator.alloc(allocator.available_size())
    assert slots is not None
    pools = make_pools(layout, "replicated")
    values = rows_like(pools[0], len(slots))
    write(pools, slots, values)
    assert torch.equal(assemble(pools)[:, slots], values)
    for pool in pools:
        rows = pool.resolve(WidenedSlots(slots))
        assert torch.equal(rows.ids, slots)
        assert (rows.source.tolist(), rows.rank) == (list(range(len(slots))), 0)
        nope, rope = pool.get_mla_kv_buffer(1, rows)
        assert torch.equal(torch.cat([nope, rope], dim=1), values[1])
        assert pool.audit() == []


def test_the_padding_page_is_a_widened_one() -> None:
    (pool, _) = make_pools(C14, "replicated")
    pool.set_mla_kv_buffer(0, torch.arange(-1, 4), torch.ones(5, 2), torch.ones(5, 1))
    assert not pool.buffer.any()
    pool.buffer[0, 3] = 1
    assert pool.audit() == ["the padding page of rank 0 was written"]


def test_rows_of_a_sharded_pool_are_not_its_rows() -> None:
    pools = make_pools(C14, "replicated")
    slots = WidenedSlots(torch.arange(4, 8))
    for rank, pool in enumerate(pools):
        with pytest.raises(RankMismatchError, match=rf"rows of rank {rank} .* cannot index the po"):
            pool.get_mla_kv_buffer(0, localize(slots, C14, rank))
    sharded = make_pools(C14)[0]
    with pytest.raises(RankMismatchError, match=r"rows of rank 0 .*dcp_size=1, page_size=4"):
        sharded.get_mla_kv_buffer(0, pools[0].resolve(slots))


def test_a_move_is_local_whatever_the_residues() -> None:
    # Target 6 and source 5 have different owners in a sharded pool of two ranks (c13).
    pools = make_pools(C14, "replicated")
    write(pools, torch.arange(4, 12), rows_like(pools[0], 8))
    before = assemble(pools)
    for pool in pools:
        pool.move_kv_cache(ids([6]), ids([5]))
    before[:, 6] = before[:, 5]
    assert torch.equal(assemble(pools), before)


def test_one_id_past_the_widened_space_is_refused() -> None:
    pool: ReplicatedKVPool
    for pool in make_pools(C14, "replicated"):  # type: ignore[assignment]
        pool.set_mla_kv_buffer(0, ids([11]), torch.ones(1, 2), torch.ones(1, 1))
        with pytest.raises(IndexSpaceError, match=r"write slot must lie in \[-1, 12\): got 12"):
            pool.set_mla_kv_buffer(0, ids([12]), torch.ones(1, 2), torch.ones(1, 1))

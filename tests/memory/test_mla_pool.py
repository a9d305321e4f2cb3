"""Writes, reads and moves of the MLA pools: each token once, each row its own, nothing else."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import IndexSpaceError, RankMismatchError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.memory import MLATokenToKVPool, PageTable, ReplicatedKVPool, UnifiedKVPool

from .support import (
    DTYPES,
    KINDS,
    NOPE,
    ROPE,
    Run,
    assemble,
    bits,
    deal,
    ids,
    layouts,
    make_pools,
    rows_like,
    runs,
    scramble,
    write,
)

SMALL = DcpLayout(dcp_size=2, page_size=2, num_pages=3)  # slots 4..15, rows 2..7
C14 = DcpLayout(dcp_size=2, page_size=2, num_pages=2)


def test_the_example_of_the_module() -> None:
    pools = make_pools(SMALL)
    values = rows_like(pools[0], 3)
    write(pools, ids([8, 9, 10]), values)
    assert torch.equal(pools[0].buffer[:, [4, 5]], values[:, [0, 2]])
    assert torch.equal(pools[1].buffer[:, [4]], values[:, [1]])
    for pool, rows in zip(pools, ([4, 5], [4]), strict=True):
        assert pool.buffer.abs().sum(dim=(0, 2)).nonzero().flatten().tolist() == rows


@given(st.data())
@settings(max_examples=60)
def test_all_ranks_together_hold_each_token_once_and_nothing_else(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    kind = data.draw(st.sampled_from(KINDS))
    dtype = data.draw(st.sampled_from(DTYPES))
    pools = make_pools(layout, kind, dtype=dtype)
    wide, end = layout.page_size * layout.dcp_size, len(deal(layout))
    live = data.draw(st.lists(st.integers(wide, end - 1), unique=True, max_size=20))
    idle = data.draw(st.lists(st.integers(-1, wide - 1), max_size=5))  # holes, padding page
    loc = ids(data.draw(st.permutations(live + idle)))
    if data.draw(st.booleans()):
        loc = loc.to(torch.int32)
    values = rows_like(pools[0], len(loc))
    values[:, loc < wide] = torch.nan  # upstream issue 36207: padding wrote NaN rows into slot 0
    scramble(pools, seed=1)
    want = assemble(pools)
    want[:, loc[loc >= wide].long()] = values[:, loc >= wide].to(dtype).view(want.dtype)
    write(pools, loc, values)
    assert torch.equal(bits(assemble(pools)), bits(want))
    assert all(pool.audit() == [] for pool in pools)


@given(run=runs(), kind=st.sampled_from(KINDS), dtype=st.sampled_from(DTYPES))
@settings(max_examples=60)
def test_what_is_written_is_read_back_through_the_dtype_bit_by_bit(
    run: Run, kind: str, dtype: torch.dtype
) -> None:
    pools, by_row = (make_pools(run.layout, kind, dtype=dtype) for _ in range(2))
    values = rows_like(pools[0], len(run.old))
    write(pools, ids(run.old), values)
    seen: list[int] = []
    for pool, twin in zip(pools, by_row, strict=True):
        rows = pool.resolve(run.old_slots)
        seen += rows.source.tolist()
        for layer in range(pool.layers):
            nope, rope = pool.get_mla_kv_buffer(layer, rows)
            assert (nope.dtype, rope.dtype) == (dtype, dtype)
            assert (nope.shape, rope.shape) == ((len(rows), NOPE), (len(rows), ROPE))
            found = torch.cat([nope.view(pool.buffer.dtype), rope.view(pool.buffer.dtype)], dim=1)
            want = values[layer, rows.source].to(dtype).view(pool.buffer.dtype)
            assert torch.equal(bits(found), bits(want))
            twin.put_rows(layer, twin.resolve(run.old_slots), values[layer, rows.source])
        assert torch.equal(bits(pool.buffer), bits(twin.buffer))
    times = run.layout.dcp_size if kind == "replicated" else 1
    assert sorted(seen) == sorted(list(range(len(run.old))) * times)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_bit_pattern_of_a_dtype_survives(dtype: torch.dtype) -> None:
    """NaNs, infinities, signed zeros, and subnormals too: what goes in as bytes comes out."""
    patterns = torch.arange(256, dtype=torch.uint8).repeat_interleave(dtype.itemsize).view(dtype)
    layout = DcpLayout(dcp_size=2, page_size=64, num_pages=2)
    pools = make_pools(layout, layers=1, nope=1, rope=0, dtype=dtype)
    write(pools, torch.arange(128, 384), patterns.view(1, 256, 1))
    assert torch.equal(
        assemble(pools)[0, 128:].view(torch.uint8), patterns.view(256, 1).view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_pool_takes_any_float_dtype_any_stride_and_no_graph(dtype: torch.dtype) -> None:
    slots = torch.arange(4, 16)
    for given_as in (torch.float64, *DTYPES):
        pools = make_pools(SMALL, dtype=dtype)
        nope = torch.randn(NOPE, 24).to(given_as).T[::2]  # neither dimension is contiguous
        rope = torch.randn(ROPE, 12).T.expand(12, ROPE)
        for pool in pools:
            pool.set_mla_kv_buffer(1, torch.arange(8, 32)[::2] // 2, nope, rope)
            assert not pool.buffer[0].any()
        want = torch.cat([nope.to(dtype), rope.to(dtype)], dim=1).view(pools[0].buffer.dtype)
        assert torch.equal(bits(assemble(pools)[1, 4:]), bits(want))
    for pool in pools:
        grown = torch.ones(12, NOPE, requires_grad=True), torch.ones(12, ROPE, requires_grad=True)
        pool.set_mla_kv_buffer(0, WidenedSlots(slots), *grown)
        assert not pool.buffer.requires_grad
        pool.load_cpu_copy(pool.get_cpu_copy(WidenedSlots(slots)), WidenedSlots(slots))


@given(st.data())
@settings(max_examples=50)
def test_a_move_on_all_ranks_is_a_move_of_the_whole(data: st.DataObject) -> None:
    layout, kind = data.draw(layouts()), data.draw(st.sampled_from(KINDS))
    pools = make_pools(layout, kind)
    scramble(pools, seed=2)
    dealt, first = deal(layout), layout.page_size * layout.dcp_size
    by_owner: dict[int, list[int]] = {}
    for slot in range(first, len(dealt)):
        owner = 0 if kind == "replicated" else dealt[slot][0]
        by_owner.setdefault(owner, []).append(slot)
    target, source = [], []
    for mates in by_owner.values():
        some = data.draw(st.lists(st.sampled_from(mates), unique=True, max_size=4))
        target += some
        source += data.draw(
            st.lists(st.sampled_from(mates), min_size=len(some), max_size=len(some))
        )
    order = data.draw(st.permutations(range(len(target))))
    to, at = ids([target[i] for i in order]), ids([source[i] for i in order])
    want = assemble(pools)
    want[:, to] = want[:, at].clone()  # all reads before all writes: targets may be sources
    for pool in pools:
        pool.move_kv_cache(to, at)
    assert torch.equal(bits(assemble(pools)), bits(want))
    assert all(pool.audit() == [] for pool in pools)


def test_upstream_names_say_what_upstream_says() -> None:
    layout = DcpLayout(dcp_size=4, page_size=64, num_pages=4)
    options: dict[str, Any] = {"layers": 3, "kv_lora_rank": 4, "qk_rope_head_dim": 2}
    for rank in range(4):
        sharded = MLATokenToKVPool(layout, rank, **options)
        draft = ReplicatedKVPool(layout, rank, **options)
        unified = UnifiedKVPool(PageTable(layout, physical_pages=3), rank, **options)
        assert [pool.write_loc_dcp_span for pool in (sharded, draft, unified)] == [4, 1, 1]
        for pool, rows in ((sharded, 320), (draft, 1280), (unified, 256)):
            assert tuple(pool.buffer.shape) == (3, rows, 6)


def test_the_upstream_regression_rows_3_to_5_get_the_former_rows_0_to_2() -> None:
    """``TestDcpRetractionBackup``: c=4, r=1, 2 layers, row i of layer L holds i + 100 L.

    There slots 0..11 go to 12..23, in a bare pool of 8 rows. Slots below W are padding here, so
    the run lies one page of 3 rows higher: slots 12..23 (rows 3..5) go to 24..35 (rows 6..8).
    """
    layout = DcpLayout(dcp_size=4, page_size=3, num_pages=3)
    pool = make_pools(layout, nope=1, rope=0)[1]
    pool.buffer[:, 3:, 0] = torch.arange(3.0, 12.0) + torch.tensor([[0.0], [100.0]])
    before = pool.buffer.clone()
    backup = pool.get_cpu_copy(WidenedSlots(torch.arange(12, 24)))
    assert backup.kv[:, :, 0].tolist() == [[3, 4, 5], [103, 104, 105]]
    pool.load_cpu_copy(backup, WidenedSlots(torch.arange(24, 36)))
    before[:, 6:9] = before[:, 3:6]
    assert torch.equal(pool.buffer, before)


def test_the_upstream_resolved_pool_copies_the_rows_that_it_is_told() -> None:
    layout = DcpLayout(dcp_size=4, page_size=1, num_pages=7)
    pool = make_pools(layout, nope=1, rope=0)[1]
    pool.buffer[:, 1:, 0] = torch.arange(1.0, 8.0) + torch.tensor([[0.0], [100.0]])
    rows = PhysicalRows.assume_physical(torch.arange(8), layout, rank=1)
    assert torch.equal(pool.get_cpu_copy(rows).kv, pool.buffer)


# --- a pool that every rank holds whole must hold every id that the allocator issues --------------


def test_two_pages_at_dcp_2_are_twelve_rows_and_not_six() -> None:
    assert [pool.rows_per_rank for pool in make_pools(C14, "replicated")] == [12, 12]
    assert [pool.rows_per_rank for pool in make_pools(C14)] == [6, 6]


def test_every_rank_holds_every_slot_the_padding_page_is_a_widened_one_and_moves_are_local() -> (
    None
):
    pools = make_pools(C14, "replicated")
    slots, values = torch.arange(4, 12), rows_like(pools[0], 8)
    write(pools, torch.arange(-1, 12), torch.cat([torch.ones(2, 5, 3), values], dim=1))
    assert torch.equal(assemble(pools)[:, slots], values)
    for pool in pools:
        rows = pool.resolve(WidenedSlots(slots))
        assert torch.equal(rows.ids, slots)
        pool.move_kv_cache(ids([6]), ids([5]))  # two owners in a sharded pool (c13)
        assert torch.equal(pool.buffer[:, 6], values[:, 1])
        assert pool.audit() == []
        with pytest.raises(IndexSpaceError, match=r"write slot must lie in \[-1, 12\): got 12"):
            pool.set_mla_kv_buffer(0, ids([12]), torch.ones(1, 2), torch.ones(1, 1))
        pool.buffer[0, 3] = 1
        assert pool.audit() == ["the padding page of rank 0 was written"]


def test_rows_of_a_sharded_pool_are_not_its_rows() -> None:
    replicated, sharded = make_pools(C14, "replicated")[0], make_pools(C14)[0]
    slots = WidenedSlots(torch.arange(4, 8))
    with pytest.raises(RankMismatchError, match=r"rows of rank 1 .* cannot index the pool of rank"):
        replicated.get_mla_kv_buffer(0, localize(slots, C14, 1))
    with pytest.raises(RankMismatchError, match=r"rows of rank 0 .*dcp_size=1, page_size=4"):
        sharded.get_mla_kv_buffer(0, replicated.resolve(slots))

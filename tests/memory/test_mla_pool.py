"""Writes, reads and moves of the MLA pools: each token once, each row its own, nothing else."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
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
    slots_on,
    write,
)

SMALL = DcpLayout(dcp_size=2, page_size=2, num_pages=3)  # slots 4..15, rows 2..7


def test_the_example_of_the_module() -> None:
    pools = make_pools(SMALL)
    values = rows_like(pools[0], 3)
    write(pools, ids([8, 9, 10]), values)
    assert torch.equal(pools[0].buffer[:, [4, 5]], values[:, [0, 2]])
    assert torch.equal(pools[1].buffer[:, [4]], values[:, [1]])
    for pool, rows in zip(pools, ([4, 5], [4]), strict=True):
        assert pool.buffer.abs().sum(dim=(0, 2)).nonzero().flatten().tolist() == rows


@given(st.data())
@settings(max_examples=80)
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
    values[:, loc < wide] = torch.nan
    scramble(pools, seed=1)
    want = assemble(pools)
    want[:, loc[loc >= wide].long()] = values[:, loc >= wide].to(dtype).view(want.dtype)
    write(pools, loc, values)
    assert torch.equal(bits(assemble(pools)), bits(want))
    assert all(pool.audit() == [] for pool in pools)


@given(run=runs(), kind=st.sampled_from(KINDS), dtype=st.sampled_from(DTYPES))
@settings(max_examples=80)
def test_what_is_written_is_read_back_through_the_dtype_bit_by_bit(
    run: Run, kind: str, dtype: torch.dtype
) -> None:
    pools = make_pools(run.layout, kind, dtype=dtype)
    values = rows_like(pools[0], len(run.old))
    write(pools, ids(run.old), values)
    seen: list[int] = []
    for pool in pools:
        rows = pool.resolve(run.old_slots)
        seen += rows.source.tolist()
        for layer in range(pool.layers):
            nope, rope = pool.get_mla_kv_buffer(layer, rows)
            assert (nope.dtype, rope.dtype) == (dtype, dtype)
            assert (nope.shape, rope.shape) == ((len(rows), NOPE), (len(rows), ROPE))
            found = torch.cat([nope.view(pool.buffer.dtype), rope.view(pool.buffer.dtype)], dim=1)
            want = values[layer, rows.source].to(dtype).view(pool.buffer.dtype)
            assert torch.equal(bits(found), bits(want))
    times = run.layout.dcp_size if kind == "replicated" else 1
    assert sorted(seen) == sorted(list(range(len(run.old))) * times)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_bit_pattern_of_a_dtype_survives(dtype: torch.dtype) -> None:
    """NaNs, infinities, signed zeros, and subnormals too: what goes in as bytes comes out."""
    width = torch.empty(0, dtype=dtype).element_size()
    patterns = torch.arange(256, dtype=torch.uint8).repeat_interleave(width).view(dtype)
    layout = DcpLayout(dcp_size=2, page_size=64, num_pages=2)
    pools = make_pools(layout, layers=1, nope=1, rope=0, dtype=dtype)
    write(pools, torch.arange(128, 384), patterns.view(1, 256, 1))
    assert torch.equal(
        assemble(pools)[0, 128:].view(torch.uint8), patterns.view(256, 1).view(torch.uint8)
    )


def test_a_padded_batch_row_with_nan_leaves_the_padding_page_alone() -> None:
    # Upstream issue 36207: padding slots wrote NaN rows into slot 0.
    for kind in KINDS:
        pools = make_pools(SMALL, kind)
        write(pools, ids([0, 0, -1, 3, 2, 1, 0]), torch.full((2, 7, 3), torch.nan))
        assert all(not pool.buffer.any() for pool in pools)
        write(pools, ids([0, 9, 0]), torch.full((2, 3, 3), torch.nan))
        assert sum(int(pool.buffer.isnan().any(dim=2).sum()) for pool in pools) == (
            4 if kind == "replicated" else 2
        )
        assert all(pool.audit() == [] for pool in pools)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_before_and_behind_the_buffer_are_not_touched(kind: str) -> None:
    """The buffer becomes a part of a larger one, with guard rows on both sides."""
    pools = make_pools(SMALL, kind)
    around = []
    for pool in pools:
        shape = pool.buffer.shape
        wider = torch.full((shape[0] * shape[1] + 8, 3), 77.0)
        wider[4:-4] = 0
        pool.buffer = wider[4:-4].view(shape)
        around.append(wider)
    slots = WidenedSlots(torch.arange(4, 16))
    values = rows_like(pools[0], 12)
    write(pools, torch.arange(-1, 16), torch.cat([torch.ones(2, 5, 3), values], dim=1))
    for pool in pools:
        backup = pool.get_cpu_copy(slots)
        pool.buffer[:, pool.row_layout.first_row :] = 5
        pool.load_cpu_copy(backup, slots)
        pool.move_kv_cache(ids([4, 5]), ids([14, 15]))
    assert torch.equal(assemble(pools)[:, 6:], values[:, 2:])
    for wider in around:
        assert bool((wider[:4] == 77).all())
        assert bool((wider[-4:] == 77).all())
        assert not wider[4:6].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_pool_takes_any_float_dtype_any_stride_and_no_graph(
    kind: str, dtype: torch.dtype
) -> None:
    slots = torch.arange(4, 16)
    for given_as in (torch.float64, torch.float32, torch.bfloat16, *DTYPES):
        pools = make_pools(SMALL, kind, dtype=dtype)
        nope = torch.randn(NOPE, 24).to(given_as).T[::2]  # neither dimension is contiguous
        rope = torch.randn(ROPE, 12).T.to(given_as).expand(12, ROPE)
        for pool in pools:
            pool.set_mla_kv_buffer(1, torch.arange(8, 32)[::2] // 2, nope, rope)
            assert not pool.buffer[0].any()
        want = torch.cat([nope.to(dtype), rope.to(dtype)], dim=1).view(pools[0].buffer.dtype)
        assert torch.equal(bits(assemble(pools)[1, 4:]), bits(want))
    for pool in pools:
        for layer in range(2):
            pool.set_mla_kv_buffer(
                layer,
                WidenedSlots(slots),
                torch.ones(12, NOPE, requires_grad=True),
                torch.ones(12, ROPE, requires_grad=True) * 2,
            )
        assert not pool.buffer.requires_grad
        pool.load_cpu_copy(pool.get_cpu_copy(WidenedSlots(slots)), WidenedSlots(slots))


def test_the_bound_of_a_write_is_the_bound_of_the_widened_space() -> None:
    # Upstream PR 33432: ids from 8256 on were refused, though the pool holds slots to 33023.
    layout = DcpLayout(dcp_size=4, page_size=64, num_pages=128)
    pools = make_pools(layout, layers=1, nope=1, rope=0)
    assert (layout.row_end, layout.slot_end) == (8256, 33024)
    loc = ids([8255, 8256, 8257, 33020, 33021, 33022, 33023])
    write(pools, loc, torch.arange(1.0, 8.0).view(1, 7, 1))
    held = assemble(pools)[0, :, 0]
    assert held.nonzero().flatten().tolist() == loc.tolist()
    assert held[loc].tolist() == [1, 2, 3, 4, 5, 6, 7]


@given(st.data())
@settings(max_examples=60)
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


def test_two_rows_can_be_swapped_by_one_move() -> None:
    (pool,) = make_pools(DcpLayout(1, 2, 3))
    scramble([pool], seed=3)
    before = pool.buffer.clone()
    pool.move_kv_cache(ids([4, 5]), ids([5, 4]))
    assert torch.equal(pool.buffer[:, [4, 5]], before[:, [5, 4]])


@pytest.mark.parametrize("rank", range(4))
def test_upstream_names_say_what_upstream_says(rank: int) -> None:
    layout = DcpLayout(dcp_size=4, page_size=64, num_pages=4)
    table = PageTable(layout, physical_pages=3)
    options: dict[str, Any] = {"layers": 3, "kv_lora_rank": 4, "qk_rope_head_dim": 2}
    sharded = MLATokenToKVPool(layout, rank, **options)
    draft = ReplicatedKVPool(layout, rank, **options)
    unified = UnifiedKVPool(table, rank, **options)
    assert [pool.write_loc_dcp_span for pool in (sharded, draft, unified)] == [4, 1, 1]
    for pool, rows in ((sharded, 320), (draft, 1280), (unified, 256)):
        assert tuple(pool.buffer.shape) == (3, rows, 6)
    size = "3 layers x 320 rows x 6 torch.bfloat16, 0.0 MiB on cpu"
    assert repr(sharded) == f"MLATokenToKVPool(rank {rank} of 4, {size})"


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
    assert torch.equal(pool.buffer[:, 6:9], before[:, 3:6])
    assert torch.equal(
        pool.buffer[:, [*range(6), *range(9, 12)]], before[:, [*range(6), *range(9, 12)]]
    )


def test_the_upstream_resolved_pool_copies_the_rows_that_it_is_told() -> None:
    layout = DcpLayout(dcp_size=4, page_size=1, num_pages=7)
    pool = make_pools(layout, nope=1, rope=0)[1]
    pool.buffer[:, 1:, 0] = torch.arange(1.0, 8.0) + torch.tensor([[0.0], [100.0]])
    rows = PhysicalRows.assume_physical(torch.arange(8), layout, rank=1)
    backup = pool.get_cpu_copy(rows)
    assert torch.equal(backup.kv, pool.buffer)
    assert (backup.positions, backup.rows) == (8, 8)


def test_a_request_on_two_pages_lies_where_the_cards_were_dealt() -> None:
    for turn in (1, 2, 4):
        layout = DcpLayout(dcp_size=3, page_size=4, num_pages=4, interleave=turn)
        pools = make_pools(layout)
        slots = slots_on([4, 2], layout, 0, 20)
        values = rows_like(pools[0], 20)
        write(pools, ids(slots), values)
        for at, slot in enumerate(slots):
            owner, row = deal(layout)[slot]
            assert torch.equal(pools[owner].buffer[:, row], values[:, at])


@given(
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    n=st.integers(0, 24),
    seed=st.integers(0, 99),
)
def test_whole_rows_are_stored_as_a_write_to_their_slots_stores_them(
    kind: str, dtype: torch.dtype, n: int, seed: int
) -> None:
    slots = WidenedSlots(torch.arange(8, 8 + n))
    values = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    layout = DcpLayout(4, 2, 4)
    by_slot, by_row = (make_pools(layout, kind, dtype=dtype) for _ in range(2))
    for one, two in zip(by_slot, by_row, strict=True):
        one.set_mla_kv_buffer(1, slots, values[:, :2], values[:, 2:])
        rows = two.resolve(slots)
        two.put_rows(1, rows, values[rows.source])
        assert torch.equal(bits(one.buffer), bits(two.buffer))
        if dtype.itemsize != 1:
            assert torch.equal(two.get_rows(1, rows), values[rows.source].to(dtype))

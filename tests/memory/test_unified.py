"""Virtual pages above, physical ones below: what compaction moves, every rank still finds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import IndexSpaceError, PoolError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.memory import MLATokenToKVPool, PageTable, UnifiedKVPool

from .support import (
    C09,
    assemble,
    bits,
    deal,
    ids,
    pools_on,
    rows_like,
    scramble,
    slots_on,
    write,
)


def c09() -> tuple[PageTable, list[UnifiedKVPool]]:
    """The page table of the example: v2p = [0, 2, 3, 1]."""
    table = PageTable(C09, physical_pages=3)
    assert table.map_pages([3, 1, 2])
    assert table.v2p.tolist() == [0, 2, 3, 1]
    return table, pools_on(table)


def test_shard_on_the_virtual_id_then_look_the_page_up() -> None:
    _, pools = c09()
    slots = WidenedSlots(ids([9]), start=5)
    assert [pool.resolve(slots).ids.tolist() for pool in pools] == [[], [6]]
    write(pools, slots.ids, torch.ones(2, 1, 3))
    assert not pools[0].buffer.any()
    assert pools[1].buffer[0, :, 0].nonzero().flatten().tolist() == [6]


@given(st.data())
@settings(max_examples=80)
def test_compaction_moves_rows_and_no_rank_loses_a_token(data: st.DataObject) -> None:
    c = data.draw(st.sampled_from((1, 2, 3, 4)))
    page = data.draw(st.integers(1, 3))
    turn = data.draw(st.sampled_from((1, page)))
    layout = DcpLayout(c, page, data.draw(st.integers(1, 8)), turn)
    table = PageTable(layout, physical_pages=data.draw(st.integers(1, 6)))
    pools = pools_on(table)
    dealt = deal(layout)
    truth = torch.zeros(2, len(dealt), 3)
    for step in range(data.draw(st.integers(1, 12))):
        mapped = [v for v in range(1, layout.num_pages + 1) if int(table.v2p[v]) >= 0]
        what = data.draw(st.sampled_from(("map", "unmap", "compact", "compact")))
        if what == "map":
            free = [v for v in range(1, layout.num_pages + 1) if v not in mapped]
            some = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else []
            fits = len(mapped) + len(some) <= table.physical_pages
            assert table.map_pages(some) is fits
            if fits and some:
                slots = ids([v * page * c + i for v in some for i in range(page * c)])
                values = rows_like(pools[0], len(slots), seed=step)
                write(pools, slots, values)
                truth[:, slots] = values
        elif what == "unmap" and mapped:
            gone = data.draw(st.lists(st.sampled_from(mapped), unique=True))
            table.unmap_pages(gone)
            for v in gone:
                truth[:, v * page * c : (v + 1) * page * c] = 0
        elif what == "compact":
            before = table.v2p.clone()
            moves = table.compact()
            used = sorted(p for p in table.v2p.tolist() if p > 0)
            assert used == list(range(1, len(mapped) + 1))
            assert (before >= 0).equal(table.v2p >= 0)
            for pool in data.draw(st.permutations(pools)):
                pool.apply_moves(moves)
        assert table.audit() == []
        assert torch.equal(bits(assemble(pools)), bits(truth))
        for v in mapped:
            if int(table.v2p[v]) >= 0:
                run = WidenedSlots(torch.arange(v * page * c, (v + 1) * page * c))
                for pool in pools:
                    rows = pool.resolve(run)
                    nope, rope = pool.get_mla_kv_buffer(1, rows)
                    want = truth[1, run.ids[rows.source]]
                    assert torch.equal(torch.cat([nope, rope], dim=1), want)
                    assert pool.audit() == []


def test_a_backup_is_restored_into_other_pages_after_a_compaction() -> None:
    layout = DcpLayout(dcp_size=2, page_size=2, num_pages=6)
    table = PageTable(layout, physical_pages=4)
    assert table.map_pages([1, 2, 3, 4])
    pools = pools_on(table)
    scramble(pools, seed=1)
    old = WidenedSlots(ids(slots_on([4, 2], layout, 0, 7)))
    saved = assemble(pools)[:, old.ids]
    backups = [pool.get_cpu_copy(old) for pool in pools]
    table.unmap_pages([2, 4])
    moves = table.compact()
    assert moves == [(3, 2)]
    for pool in pools:
        pool.apply_moves(moves)
    assert table.map_pages([6, 5])
    new = WidenedSlots(ids(slots_on([5, 6], layout, 0, 7)))
    want = assemble(pools)
    want[:, new.ids] = saved
    for pool, backup in zip(pools, backups, strict=True):
        pool.load_cpu_copy(backup, new)
    assert torch.equal(bits(assemble(pools)), bits(want))


def needs_apply(pool: UnifiedKVPool) -> str:
    made = pool.table.moves
    return (
        rf"rank {pool.rank} has applied \d of {made} compactions: its rows are not where the table "
        r"says; call apply_moves first"
    )


def test_a_rank_that_has_not_applied_a_compaction_serves_nothing() -> None:
    table, pools = c09()
    slots = WidenedSlots(torch.arange(4, 8))
    stale = pools[0].resolve(slots)
    backup = pools[0].get_cpu_copy(slots)
    table.unmap_pages([3])
    moves = table.compact()
    assert moves == [(3, 1)]
    pools[1].apply_moves(moves)
    pool, kept = pools[0], pools[0].buffer.clone()
    nope, rope = torch.ones(4, 2), torch.ones(4, 1)
    for call in (
        lambda: pool.resolve(slots),
        lambda: pool.set_mla_kv_buffer(0, slots, nope, rope),
        lambda: pool.get_mla_kv_buffer(0, stale),
        lambda: pool.move_kv_cache(ids([4]), ids([6])),
        lambda: pool.get_cpu_copy(slots),
        lambda: pool.get_cpu_copy(stale),
        lambda: pool.load_cpu_copy(backup, slots),
        lambda: pool.load_cpu_copy(backup, stale),
    ):
        with pytest.raises(PoolError, match=needs_apply(pool)):
            call()
    assert torch.equal(pool.buffer, kept)
    assert not backup.spent
    pool.apply_moves(moves)
    pool.load_cpu_copy(backup, slots)
    pools[1].resolve(slots)


def test_rows_from_before_a_compaction_are_refused_after_it() -> None:
    table, (pool, _) = c09()
    slots = WidenedSlots(torch.arange(4, 8))
    backup, stale = pool.get_cpu_copy(slots), pool.resolve(slots)
    table.unmap_pages([3])
    pool.apply_moves(table.compact())
    text = (
        r"rows must come from this pool's own resolve: these were looked up in edition \d+ of a "
        r"page table, the pool wants rows looked up in edition \d+ of a page table; call "
        r"pool\.resolve\(slots\)"
    )
    for call in (
        lambda: pool.get_mla_kv_buffer(0, stale),
        lambda: pool.get_cpu_copy(stale),
        lambda: pool.load_cpu_copy(backup, stale),
    ):
        with pytest.raises(IndexSpaceError, match=text):
            call()
    pool.load_cpu_copy(backup, pool.resolve(slots))


def test_rows_of_a_page_that_was_given_away_or_of_another_table_are_refused() -> None:
    table, (pool, _) = c09()
    slots = WidenedSlots(torch.arange(4, 8))
    stale = pool.resolve(slots)
    table.unmap_pages([3])
    assert table.map_pages([3])  # the same page again: nobody can tell from its number
    _, (other, _) = c09()
    for rows in (stale, other.resolve(slots)):
        with pytest.raises(IndexSpaceError, match="must come from this pool's own resolve"):
            pool.get_mla_kv_buffer(0, rows)


def test_rows_that_no_page_table_was_asked_for_are_refused() -> None:
    _, (_, pool) = c09()
    slots = WidenedSlots(torch.arange(4, 8))
    backup = pool.get_cpu_copy(slots)
    text = r"these were not looked up in a page table, the pool wants rows looked up in edition"
    for rows in (localize(slots, C09, 1), PhysicalRows.assume_physical(ids([2, 3]), C09, 1)):
        for call in (
            lambda rows=rows: pool.get_mla_kv_buffer(0, rows),
            lambda rows=rows: pool.get_cpu_copy(rows),
            lambda rows=rows: pool.load_cpu_copy(backup, rows),
        ):
            with pytest.raises(IndexSpaceError, match=text):
                call()


def test_a_plain_pool_refuses_rows_that_were_looked_up_in_a_page_table() -> None:
    _, pools = c09()
    plain = MLATokenToKVPool(C09, 1, layers=2, kv_lora_rank=2, qk_rope_head_dim=1)
    rows = pools[1].resolve(WidenedSlots(torch.arange(4, 8)))
    text = r"these were looked up in edition \d+ of a page table, the pool wants rows not looked up"
    with pytest.raises(IndexSpaceError, match=text):
        plain.get_mla_kv_buffer(0, rows)


def test_ids_are_translated_once() -> None:
    _, (pool, _) = c09()
    rows = pool.resolve(WidenedSlots(torch.arange(4, 8)))
    text = r"must be raw ids, got PhysicalRows of rank 0: they are localized already; a second loc"
    for call in (
        lambda: pool.resolve(rows),  # type: ignore[arg-type]
        lambda: pool.set_mla_kv_buffer(0, rows, torch.ones(2, 2), torch.ones(2, 1)),  # type: ignore[arg-type]
        lambda: pool.move_kv_cache(rows, rows),  # type: ignore[arg-type]
        lambda: WidenedSlots(rows),  # type: ignore[arg-type]
    ):
        with pytest.raises(IndexSpaceError, match=text):
            call()


def test_two_compactions_are_applied_in_order_and_each_once() -> None:
    layout = DcpLayout(dcp_size=2, page_size=1, num_pages=5)
    table = PageTable(layout, physical_pages=5)
    assert table.map_pages([1, 2, 3, 4, 5])
    pools = pools_on(table)
    scramble(pools, seed=1)
    truth = assemble(pools)
    table.unmap_pages([1, 2])
    first = table.compact()
    table.unmap_pages([4])
    second = table.compact()
    assert (first, second, table.moves) == ([(5, 1), (4, 2)], [(3, 2)], 2)
    assert (table.compaction(0), table.compaction(1)) == (first, second)
    truth[:, [2, 3, 4, 5, 8, 9]] = 0
    pool, kept = pools[0], pools[0].buffer.clone()
    text = (
        r"compactions are applied one by one, in their order: rank 0 has applied {} of 2, next are "
        r"the moves {}: got {}; nothing was copied"
    )

    def refused(moves: list[tuple[int, int]], done: int, due: str, got: str) -> None:
        with pytest.raises(PoolError, match=text.format(done, due, got)):
            pool.apply_moves(moves)
        assert torch.equal(pool.buffer, kept)

    refused(second, 0, r"\[\(5, 1\), \(4, 2\)\]", r"\[\(3, 2\)\]")
    refused(first[::-1], 0, r"\[\(5, 1\), \(4, 2\)\]", r"\[\(4, 2\), \(5, 1\)\]")
    pool.apply_moves([])  # nothing was moved, nothing to do
    with pytest.raises(PoolError, match=needs_apply(pool)):
        pool.resolve(WidenedSlots(torch.arange(6, 8)))
    pool.apply_moves(first)
    kept = pool.buffer.clone()
    refused(first, 1, r"\[\(3, 2\)\]", r"\[\(5, 1\), \(4, 2\)\]")
    pool.apply_moves(second)
    kept = pool.buffer.clone()
    refused(second, 2, r"\[\]", r"\[\(3, 2\)\]")
    for moves in (first, second):
        pools[1].apply_moves(moves)
    assert torch.equal(bits(assemble(pools)), bits(truth))


def test_a_pool_made_after_a_compaction_has_nothing_to_apply() -> None:
    table, _ = c09()
    table.unmap_pages([3])
    moves = table.compact()
    (pool, _) = pools_on(table)
    pool.resolve(WidenedSlots(torch.arange(4, 8)))
    with pytest.raises(PoolError, match=r"rank 0 has applied 1 of 1, next are the moves \[\]"):
        pool.apply_moves(moves)


def test_an_unmapped_page_has_no_rows() -> None:
    layout = DcpLayout(dcp_size=2, page_size=2, num_pages=9)
    table = PageTable(layout, physical_pages=2)
    assert table.map_pages([8])
    pools = pools_on(table)
    assert [pool.buffer.shape[1] for pool in pools] == [6, 6]
    text = r"a virtual page must be mapped: virtual row 18 at index 1 is in page 9, which has no ph"
    slots = WidenedSlots(ids([35, 36, 37]), start=3)
    for call in (
        lambda: pools[0].resolve(WidenedSlots(ids([34, 35, 36]), start=2)),
        lambda: pools[1].resolve(WidenedSlots(ids([35, 36, 37]), start=3)),
        lambda: pools[1].get_cpu_copy(slots),
        lambda: pools[1].set_mla_kv_buffer(0, slots, torch.ones(3, 2), torch.ones(3, 1)),
        lambda: pools[1].move_kv_cache(ids([33, 37]), ids([35, 35])),
    ):
        with pytest.raises(IndexSpaceError, match=text):
            call()
    assert not any(pool.buffer.any() for pool in pools)

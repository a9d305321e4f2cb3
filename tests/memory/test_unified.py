"""Virtual pages above, physical ones below: what compaction moves, every rank still finds."""

import re

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
@settings(max_examples=40)
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


def behind(rank: int, done: int, made: int) -> str:
    return (
        rf"rank {rank} has applied {done} of {made} compactions: its rows are not where the table "
        r"says; call apply_moves first"
    )


def test_a_rank_that_has_not_applied_a_compaction_serves_nothing() -> None:
    table, (pool, other) = c09()
    slots = WidenedSlots(torch.arange(4, 8))
    stale, backup = pool.resolve(slots), pool.get_cpu_copy(slots)
    table.unmap_pages([3])
    moves = table.compact()
    assert moves == [(3, 1)]
    other.apply_moves(moves)
    kept = pool.buffer.clone()
    for call in (
        lambda: pool.resolve(slots),
        lambda: pool.set_mla_kv_buffer(0, slots, torch.ones(4, 2), torch.ones(4, 1)),
        lambda: pool.get_mla_kv_buffer(0, stale),
        lambda: pool.move_kv_cache(ids([4]), ids([6])),
        lambda: pool.get_cpu_copy(slots),
        lambda: pool.get_cpu_copy(stale),
        lambda: pool.load_cpu_copy(backup, slots),
    ):
        with pytest.raises(PoolError, match=behind(0, 0, 1)):
            call()
    assert torch.equal(pool.buffer, kept)
    assert not backup.spent
    pool.apply_moves(moves)
    pool.load_cpu_copy(backup, slots)
    other.resolve(slots)


def test_rows_of_another_edition_or_table_or_of_none_are_refused() -> None:
    table, (pool, _) = c09()
    _, (other, _) = c09()
    slots = WidenedSlots(torch.arange(4, 8))
    backup, stale = pool.get_cpu_copy(slots), pool.resolve(slots)
    table.unmap_pages([3])
    assert table.map_pages([3])  # the same page again: nobody can tell from its number
    given_away = pool.resolve(slots)
    table.unmap_pages([3])
    pool.apply_moves(table.compact())
    plain = localize(slots, C09, 0)
    raw = PhysicalRows.assume_physical(ids([2, 3]), C09, 0)
    for rows in (stale, given_away, other.resolve(slots), plain, raw):
        text = (
            r"rows must come from this pool's own resolve: these are of edition (\d+|None) of a "
            r"page table, the pool wants \d+ \(None: not looked up in one\); call pool\.resolve"
        )
        for call in (
            lambda rows=rows: pool.get_mla_kv_buffer(0, rows),
            lambda rows=rows: pool.get_cpu_copy(rows),
            lambda rows=rows: pool.load_cpu_copy(backup, rows),
        ):
            with pytest.raises(IndexSpaceError, match=text):
                call()
    with pytest.raises(
        IndexSpaceError, match=r"are of edition \d+ of a page table, the pool wants N"
    ):
        MLATokenToKVPool(C09, 0, layers=2).get_rows(0, other.resolve(slots))
    pool.load_cpu_copy(backup, pool.resolve(slots))


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
    assert table.compactions == [first, second] == [[(5, 1), (4, 2)], [(3, 2)]]
    truth[:, [2, 3, 4, 5, 8, 9]] = 0
    pool = pools[0]
    for due, others in ((first, (second, first[::-1])), (second, (first,)), ([], (second,))):
        kept, done = pool.buffer.clone(), [first, second, []].index(due)
        for moves in others:
            text = (
                rf"compactions are applied one by one, in their order: rank 0 has applied {done} "
                rf"of 2, next are the moves {re.escape(str(due))}: got {re.escape(str(moves))}; n"
            )
            with pytest.raises(PoolError, match=text):
                pool.apply_moves(moves)
            assert torch.equal(pool.buffer, kept)
        if done < 2:
            with pytest.raises(PoolError, match=behind(0, done, 2)):
                pool.resolve(WidenedSlots(torch.arange(6, 8)))
        pool.apply_moves(due)
    for moves in (first, second):
        pools[1].apply_moves(moves)
    assert torch.equal(bits(assemble(pools)), bits(truth))
    pools_on(table)[0].resolve(WidenedSlots(torch.arange(6, 8)))  # a new pool has none to apply


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
        lambda: pools[1].set_mla_kv_buffer(0, slots, torch.ones(3, 2), torch.ones(3, 1)),
        lambda: pools[1].move_kv_cache(ids([33, 37]), ids([35, 35])),
    ):
        with pytest.raises(IndexSpaceError, match=text):
            call()
    assert not any(pool.buffer.any() for pool in pools)


# --- the page table: a one-to-one map that refuses whatever would make it another -----------------


def test_a_page_that_cannot_be_mapped_or_unmapped_changes_nothing() -> None:
    table = PageTable(C09, physical_pages=5)
    assert table.map_pages([2])
    before = table.v2p.clone()
    for call, pages, error, text in (
        (table.map_pages, [3, 0], PoolError, r"must lie in \[1, 3\]: got 0; page 0 is the padding"),
        (table.unmap_pages, [4], PoolError, r"a virtual page must lie in \[1, 3\]: got 4"),
        (table.map_pages, [-1], PoolError, r"a virtual page must lie in \[1, 3\]: got -1"),
        (table.map_pages, [3, 3], PoolError, r"each virtual page is named once: got \[3, 3\]"),
        (table.unmap_pages, [2, 2], PoolError, r"each virtual page is named once: got \[2, 2\]"),
        (table.map_pages, [3, 2], PoolError, "virtual page 2 is already mapped"),
        (table.unmap_pages, [2, 3], PoolError, "virtual page 3 is not mapped"),
        (table.map_pages, [True], IndexSpaceError, r"virtual page must be an int: got True"),
    ):
        with pytest.raises(error, match=text):
            call(pages)  # type: ignore[arg-type]
        assert torch.equal(table.v2p, before)


def test_the_audit_finds_a_wrong_entry() -> None:
    twice = "the page table maps two virtual pages to one physical page"
    for page, value, text in (
        (1, 3, twice),
        (2, 1, twice),
        (0, 4, "the padding page is mapped elsewhere"),
        (3, 0, "the padding page is mapped elsewhere"),
        (1, 9, "v2p names a page past the 5 physical ones"),
    ):
        table = PageTable(C09, physical_pages=5)
        assert table.map_pages([3, 1, 2])
        (pool, _) = pools_on(table)
        assert pool.audit() == []
        table.v2p[page] = value
        assert pool.audit() == [text]

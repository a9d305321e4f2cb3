"""What pools, the allocator and backups show of themselves is true, and changes nothing: a backup
in flight stays in flight."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import BackupError, IndexSpaceError
from kvlab.index import DcpLayout, WidenedSlots, localize
from kvlab.memory import (
    DeferredLane,
    HostArena,
    HybridLinearKVPool,
    KvBackup,
    MLATokenToKVPool,
    PagedTokenToKVPoolAllocator,
    ReqToTokenPool,
    StatePool,
)
from kvlab.memory.flight import Flight
from kvlab.memory.shown import backup_state
from tests.index.cells import facts, numbers, read, span

from .staged import LANES, put_on, slots_from, staged
from .support import KINDS, SMALL, allocator, make_pools, state


def shown(backup: KvBackup) -> dict[str, str]:
    return facts(read(backup._repr_html_())[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_shows_its_sizes_and_the_rows_of_its_pages(kind: str) -> None:
    for pool in make_pools(SMALL, kind):
        told, pages = read(pool._repr_html_())
        found = facts(told)
        assert numbers(told.caption) == [pool.rank, pool.layout.dcp_size]
        assert numbers(found["buffer"].replace("float32", "")) == list(pool.buffer.shape)
        assert numbers(found["memory"])[0] == pool.buffer.numel() * pool.buffer.element_size()
        assert numbers(found["span of its ids"]) == [pool.write_loc_dcp_span]
        assert found["space"].startswith(pool.space)
        rows = pages.texts()["rows"]
        assert span(rows[0]) == range(pool.row_layout.first_row)
        assert span(rows[-1])[-1] == pool.rows_per_rank - 1
        assert "gradient" in pages.rows[1][1].style


def test_a_hybrid_pool_shows_both_of_its_pools() -> None:
    (pool,) = make_pools(DcpLayout(1, 2, 4))
    states = StatePool(3, layers=2, conv_shape=(2, 3), temporal_shape=(4,))
    slot = states.alloc()
    hybrid = HybridLinearKVPool(pool, states, [1, 4])
    _, _, told = read(hybrid._repr_html_())
    found = facts(told)
    assert (found["in use"], found["which"]) == ("1 of 3", str(slot))
    assert numbers(found["conv of a slot"]) == [2, 2, 3]
    assert numbers(found["memory"]) == [2 * 4 * (6 + 4) * 4]
    assert repr(states) == (
        "StatePool(1 of 3 state slots in use, 2 layers, conv (2, 3), temporal (4,), float32 on cpu)"
    )
    assert repr(hybrid) == f"HybridLinearKVPool({pool!r}, {states!r}, layers [1, 4])"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=30), st.booleans())
def test_an_allocator_shows_each_page_as_it_is(moves: list[tuple[bool, int]], sort: bool) -> None:
    a = allocator(DcpLayout(2, 2, 40), need_sort=sort)
    held: list[torch.Tensor] = []
    for give, pages in moves:
        if give and held:
            a.free(held.pop(0))
        elif (slots := a.alloc(pages * a.page_size)) is not None:
            held.append(slots)
    before = state(a)
    told, strip = read(a._repr_html_())
    assert state(a) == before
    found = facts(told)
    free = a.available_size() // a.page_size
    assert numbers(found["pages"]) == [free, 40, a.used_pages]
    assert numbers(found["tokens that fit"]) == [a.available_size(), a.layout.capacity_tokens]
    out = {int(x) // a.page_size for slots in held for x in slots}
    seen = 0
    for column in strip.columns():
        if "padding" in column["pages"]:
            continue
        pages_here = span(column["pages"])
        assert {p in out for p in pages_here} == {column["state"] == "out"}
        low, end = pages_here[0] * a.page_size, (pages_here[-1] + 1) * a.page_size
        assert span(column["slots"]) == range(low, end)
        seen += len(pages_here)
    left_out = sum(numbers(x)[0] for x in strip.texts()["pages"] if x.startswith("..."))
    assert seen + left_out == 40


def test_an_allocator_of_many_pages_shows_them_as_runs() -> None:
    a = PagedTokenToKVPoolAllocator(DcpLayout(8, 64, 10**6))
    a.alloc(512 * 3)
    assert repr(a) == (
        "PagedTokenToKVPoolAllocator(999997 of 1000000 pages free, 511998464 tokens, W=512)"
    )
    _, strip = read(a._repr_html_())
    assert strip.texts()["pages"] == ["0 (padding)", "1 .. 3", "4 .. 1000000"]


@given(st.lists(st.integers(0, 6), max_size=25))
def test_a_request_table_shows_the_rows_in_use(lengths: list[int]) -> None:
    table = ReqToTokenPool(25, 8, SMALL)
    for n in lengths:
        req = table.alloc()
        assert req is not None
        table.append(req, torch.arange(8, 8 + n))
    told, *rest = read(table._repr_html_())
    assert facts(told)["rows in use"] == f"{len(lengths)} of 25"
    assert bool(rest) == bool(lengths)
    for strip in rest:
        for column in strip.columns():
            assert table.length(int(column["row"])) == int(column["positions"])
        hidden = sum(numbers(x)[0] for x in strip.texts()["row"] if x.startswith("..."))
        assert len(strip.columns()) + hidden == len(lengths)
    assert repr(table).startswith(f"ReqToTokenPool({len(lengths)} of 25 rows in use, at most 8")


@given(st.integers(0, 60), st.integers(0, 9), st.sampled_from(KINDS), st.integers(1, 2))
def test_a_backup_shows_which_positions_it_holds_and_how_many(
    n: int, start: int, kind: str, turn: int
) -> None:
    layout = DcpLayout(2, 2, 20, turn)
    slots = slots_from(4 + start % 4, n, start % 4)
    for pool in make_pools(layout, kind):
        backup = pool.get_cpu_copy(slots)
        told, *rest = read(backup._repr_html_())
        found = facts(told)
        assert found["state"] == "on the host"
        assert found["checksum"] == backup.checksum
        assert numbers(found["rows of this rank"]) == [backup.rows, n]
        assert numbers(found["memory"])[0] == backup.nbytes
        assert span(found["positions of all ranks"]) == (
            range(slots.start, slots.start + n) if n else range(0)
        )
        source = backup.source.tolist()
        for strip in rest:
            for column in strip.columns():
                row = column[f"row of r{pool.rank}'s copy"]
                at = int(column["position"]) - slots.start
                assert (at in source) == (row != "-")
                assert row == "-" or source[int(row)] == at


@pytest.mark.parametrize("lane", ["late", "shuffled"])
def test_a_backup_in_flight_stays_in_flight_when_it_shows_itself(lane: str) -> None:
    (pool, _) = staged(lane)
    put_on([pool], lambda: LANES[lane](40))
    backup = pool.get_cpu_copy(slots_from(4, 11), wait=False)
    assert not backup.done
    found = shown(backup)
    assert (found["state"], found["checksum"]) == ("in flight", "not known before wait()")
    repr(backup)
    assert not backup.done
    backup.wait()
    assert shown(backup)["state"] == "on the host"
    assert shown(backup)["checksum"] == backup.checksum


def test_a_restore_in_flight_stays_in_flight_when_it_shows_itself() -> None:
    (pool, _) = staged("late")
    backup = pool.get_cpu_copy(slots_from(4, 11))
    pool.load_cpu_copy(backup, slots_from(16, 11), wait=False)
    assert shown(backup)["state"] == "restore in flight"
    assert not backup.done
    backup.wait()
    assert shown(backup)["state"] == "restored: its host memory may hold another backup"


def test_a_copy_that_has_ended_unseen_is_not_settled_by_being_shown() -> None:
    (pool, _) = staged("at once")
    backup = pool.get_cpu_copy(slots_from(4, 11), wait=False)
    assert backup._flights[0].land is not None
    assert shown(backup)["state"] == "copied, not looked at: wait() does"
    assert backup._flights[0].land is not None


def test_a_spent_backup_says_how_it_ended() -> None:
    (pool,) = make_pools(DcpLayout(1, 2, 4))
    backup = pool.get_cpu_copy(slots_from(2, 3))
    backup.discard()
    assert shown(backup)["state"] == "discarded: its host memory may hold another backup"
    with pytest.raises(BackupError, match="consumed once"):
        backup.wait()


def test_a_backup_without_a_flight_or_with_a_state_shows_itself() -> None:
    (pool,) = make_pools(DcpLayout(1, 2, 4))
    states = StatePool(3, layers=2, conv_shape=(2,), temporal_shape=(4,))
    hybrid = HybridLinearKVPool(pool, states, [0, 1])
    backup = hybrid.get_cpu_copy(slots_from(2, 3), states.alloc())
    assert shown(backup)["recurrent state"] == "on the host too"
    assert repr(backup.state).startswith("StateBackup(conv (2, 2), temporal (2, 4), checksum='")
    assert shown(replace(backup, _flights=[]))["state"] == "on the host"


class _Broken:
    """The event of a device that has failed."""

    known = False

    @property
    def done(self) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def wait(self) -> None:
        raise AssertionError("a repr waits for nothing")


def test_a_device_that_has_failed_is_no_reason_to_raise() -> None:
    flight = Flight(_Broken(), _Broken(), lambda: "")
    assert backup_state([], [flight]) == "in flight, and the device answers RuntimeError"
    ended = Flight(_Broken(), _Broken(), None, "a sum")
    assert backup_state([], [ended, flight]).startswith("restore in flight")


def test_a_failed_copy_says_so_and_where_to_ask() -> None:
    flight = Flight(_Broken(), _Broken(), None, error=IndexSpaceError("no"))
    assert backup_state([], [flight]) == "lost on its way (IndexSpaceError): wait() says why"
    ended = Flight(_Broken(), _Broken(), None, "a sum")
    assert backup_state([], [ended, flight]) == (
        "restore failed (IndexSpaceError): wait() says why"
    )


def test_an_arena_shows_what_it_lends_and_none_of_its_memory() -> None:
    arena = HostArena(100, grain=10)
    first, second = arena.take(5), arena.take(25)
    assert first is not None and second is not None
    arena.give(second)
    assert repr(arena) == "HostArena(10 bytes lent in 1 blocks, 30 idle, bound 100)"
    assert repr(HostArena()) == "HostArena(0 bytes lent in 0 blocks, 0 idle, no bound)"


@pytest.mark.gpu
def test_on_a_device_nothing_is_read_or_waited_for() -> None:
    layout = DcpLayout(2, 2, 8)
    pool = MLATokenToKVPool(layout, 0, layers=2, kv_lora_rank=4, device="cuda")
    slots = WidenedSlots(torch.arange(4, 15, device="cuda"))
    rows = localize(slots, layout, 0)
    pool.get_cpu_copy(slots, wait=False).wait()  # kernels are compiled, a block is there
    torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]
    backup = pool.get_cpu_copy(slots, wait=False)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for value in (slots, rows, pool, backup):
            read(value._repr_html_())
            repr(value)
        told = shown(backup)["state"]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert told == "in flight"
    backup.wait()
    assert shown(backup)["state"] == "on the host"
    graph = torch.cuda.CUDAGraph()
    second = pool.get_cpu_copy(slots, wait=False)
    with torch.cuda.graph(graph):
        torch.ones(3, device="cuda").mul_(2)
        state_then = shown(second)["state"]
        read(slots._repr_html_())
    assert state_then.startswith("in flight")
    second.wait()


def test_a_deferred_lane_is_not_run_by_showing_its_pool() -> None:
    (pool,) = make_pools(DcpLayout(1, 2, 8))
    (lane,) = put_on([pool], lambda: DeferredLane(None, 40))
    pool.get_cpu_copy(slots_from(2, 3)).discard()
    backup = pool.get_cpu_copy(slots_from(2, 5), wait=False)
    found = facts(read(pool._repr_html_())[0])
    assert "by DeferredLane" in found["host"]
    assert "lent in 1 blocks" in found["host"]
    assert not backup.done
    backup.wait()
    assert lane.audit() == []

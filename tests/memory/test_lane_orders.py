"""Rows in flight are read before they are written over, whatever overtakes what."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine import FingerprintCells
from kvlab.errors import BackupError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import (
    DeferredLane,
    HostArena,
    KvBackup,
    MLATokenToKVPool,
    PageTable,
    UnifiedKVPool,
)
from kvlab.memory.streams import Event, Stream, Work

from .staged import put_on, slots_from, whole
from .support import KINDS, bits, make_pools, pools_on, scramble

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=8)  # slots 4..35
OLD, NEW = slots_from(4, 11), slots_from(20, 11)


def unordered(pool: MLATokenToKVPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the ordering hook away: writes go ahead of the copies in flight."""
    monkeypatch.setattr(pool, "before_write", lambda: None)


# --- the law, on rows that name their request ----------------------------------------------------


@pytest.mark.parametrize("hook", [True, False])
@pytest.mark.parametrize("room", [16, 100, 10_000])
def test_reused_rows_come_back_as_another_requests_unless_writes_are_ordered(
    hook: bool, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = FingerprintCells(LAYOUT, lane=lambda: DeferredLane(staging_bytes=room), wait=False)
    if not hook:
        for pool in cells.pools:
            unordered(pool, monkeypatch)
    position = torch.arange(11)
    cells.write(torch.full((11,), 1), position, OLD.ids)
    backups = cells.back_up(1, OLD)
    assert not any(backup.done for backup in backups)
    # Request 2 is given the slots at once, while the backup of request 1 has not begun to run.
    cells.write(torch.full((11,), 2), position, OLD.ids)
    cells.check(2, OLD)
    cells.restore(1, backups, NEW)
    if hook:
        cells.check(1, NEW)
    else:
        text = r"row \d+ holds \(request, position, layer\) = \[2, \d+, 0\], expected \[1, "
        with pytest.raises(PoolError, match=text):
            cells.check(1, NEW)
    assert all(backup.spent for backup in backups)
    assert cells.audit() == []


def writes() -> dict[str, Callable[[MLATokenToKVPool], None]]:
    def store(pool: MLATokenToKVPool) -> None:
        for layer in range(pool.layers):
            pool.set_mla_kv_buffer(layer, OLD, torch.ones(11, 2), torch.ones(11, 1))

    def put(pool: MLATokenToKVPool) -> None:
        rows = pool.resolve(OLD)
        for layer in range(pool.layers):
            pool.put_rows(layer, rows, torch.ones(len(rows), 3))

    def restore(pool: MLATokenToKVPool) -> None:
        other = pool.get_cpu_copy(NEW, wait=False)
        pool.load_cpu_copy(other, OLD, wait=False)

    return {
        "set_mla_kv_buffer": store,
        "put_rows": put,
        "fill": lambda pool: pool.fill(pool.resolve(OLD), 1.0),
        "move": lambda pool: pool.move_kv_cache(OLD.ids, NEW.ids),
        "restore": restore,
    }


@pytest.mark.parametrize("room", [12, 40, 10_000])
@pytest.mark.parametrize("how", sorted(writes()))
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_write_comes_after_the_backups_in_flight(
    kind: str, how: str, room: int
) -> None:
    pools, plain = make_pools(LAYOUT, kind), make_pools(LAYOUT, kind)
    put_on(pools, lambda: DeferredLane(staging_bytes=room))
    for group in (pools, plain):
        scramble(group, seed=1)
    for pool, twin in zip(pools, plain, strict=True):
        want = twin.get_cpu_copy(OLD)
        backup = pool.get_cpu_copy(OLD, wait=False)
        writes()[how](twin)
        writes()[how](pool)
        backup.wait()
        assert whole(backup) == whole(want)
        pool.before_read()
        assert torch.equal(bits(pool.buffer), bits(twin.buffer))


@pytest.mark.parametrize("how", sorted(set(writes()) - {"restore"}))
def test_each_of_them_would_be_too_early_without_its_hook(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pool, _), (twin, _) = make_pools(LAYOUT), make_pools(LAYOUT)
    put_on([pool], DeferredLane)
    unordered(pool, monkeypatch)
    for one in (pool, twin):
        scramble([one], seed=1)
    want, backup = twin.get_cpu_copy(OLD), pool.get_cpu_copy(OLD, wait=False)
    writes()[how](pool)
    backup.wait()
    assert whole(backup) != whole(want)


@pytest.mark.parametrize("hook", [True, False])
def test_a_compaction_comes_after_the_backups_in_flight(
    hook: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = DcpLayout(2, 2, 4)
    table = PageTable(layout, physical_pages=4)
    assert table.map_pages([1, 2, 3])
    pools: list[UnifiedKVPool] = pools_on(table)
    put_on(pools, DeferredLane)
    for pool in pools:
        pool.buffer[:] = torch.arange(pool.buffer.shape[1])[:, None] + 1.0
    slots = slots_from(4, 4)  # virtual page 1, physical page 1
    backups = [pool.get_cpu_copy(slots, wait=False) for pool in pools]
    table.unmap_pages([1])
    moves = table.compact()
    assert moves == [(3, 1)]
    for pool, backup in zip(pools, backups, strict=True):
        if not hook:
            unordered(pool, monkeypatch)
        pool.apply_moves(moves)
        backup.wait()
        held = backup.kv[0, :, 0].tolist()
        assert held == ([3.0, 4.0] if hook else [7.0, 8.0])


def test_reads_through_the_pool_come_after_the_restores_in_flight() -> None:
    pools = make_pools(LAYOUT)
    put_on(pools, lambda: DeferredLane(staging_bytes=30))
    scramble(pools, seed=1)
    for pool in pools:
        rows = pool.resolve(NEW)
        want = pool.get_rows(1, pool.resolve(OLD))
        backup = pool.get_cpu_copy(OLD, wait=False)
        pool.load_cpu_copy(backup, NEW, wait=False)
        assert not backup.done
        assert not torch.equal(bits(pool.buffer[1, rows.ids]), bits(want))
        assert torch.equal(bits(pool.get_rows(1, rows)), bits(want))


def test_a_backup_sees_the_restore_that_was_begun_before_it() -> None:
    (pool, *_) = make_pools(LAYOUT)
    put_on([pool], lambda: DeferredLane(staging_bytes=30))
    scramble([pool], seed=1)
    first = pool.get_cpu_copy(OLD, wait=False)
    want = first.checksum
    pool.load_cpu_copy(first, NEW, wait=False)
    again = pool.get_cpu_copy(NEW, wait=False)
    assert again.checksum == want
    first.wait()


@pytest.mark.parametrize("c", [1, 2])
def test_the_slots_may_be_another_requests_before_the_rows_have_been_read(c: int) -> None:
    layout = DcpLayout(c, 2, 8)
    for kind in KINDS:
        (pool, *_), (twin, *_) = make_pools(layout, kind), make_pools(layout, kind)
        put_on([pool], DeferredLane)
        for one in (pool, twin):
            scramble([one], seed=1)
        ids = torch.arange(2 * c, 2 * c + 7)
        want = twin.get_cpu_copy(WidenedSlots(ids.clone()))
        rows = pool.resolve(WidenedSlots(ids))
        backups = [pool.get_cpu_copy(s, wait=False) for s in (WidenedSlots(ids), rows)]
        ids.fill_(0)
        for backup in backups:
            assert backup.checksum == want.checksum


# --- odd orders -----------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), room=st.integers(12, 200), data=st.data())
@settings(max_examples=100)
def test_whatever_overtakes_what_requests_keep_their_rows(
    seed: int, room: int, data: st.DataObject
) -> None:
    """Three requests are backed up, written over and restored, begun and awaited in any order, on
    one lane and in one arena."""
    arena, lane = HostArena(grain=64), DeferredLane(seed, room)
    (pool, *_), (twin, *_) = make_pools(LAYOUT, host=arena), make_pools(LAYOUT)
    pool.lane = lane
    for one in (pool, twin):
        scramble([one], seed=1)
    runs = [slots_from(4, 7), slots_from(12, 8), slots_from(20, 5)]
    away: dict[int, tuple[KvBackup, KvBackup]] = {}
    back: list[KvBackup] = []
    for step in range(data.draw(st.integers(1, 12))):
        rid = data.draw(st.integers(0, 2))
        if rid in away:
            mine, other = away.pop(rid)
            pool.load_cpu_copy(mine, runs[rid], wait=data.draw(st.booleans()))
            twin.load_cpu_copy(other, runs[rid])
            back.append(mine)
        else:
            mine = pool.get_cpu_copy(runs[rid], wait=data.draw(st.booleans()))
            away[rid] = mine, twin.get_cpu_copy(runs[rid])
            for one in (pool, twin):
                one.fill(one.resolve(runs[rid]), float(step))
        ends_now = data.draw(st.booleans())
        if back and ends_now:
            back.pop(data.draw(st.integers(0, len(back) - 1))).wait()
    for mine, other in away.values():
        assert mine.checksum == other.checksum
        mine.discard()
    for mine in back:
        mine.wait()
    assert pool.audit() == []
    assert torch.equal(bits(pool.buffer), bits(twin.buffer))
    assert arena.lent_bytes == lane.in_flight == 0


class Deaf:
    """A stream that does not wait for the other one."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def run(self, work: Work) -> None:
        self.stream.run(work)

    def mark(self) -> Event:
        return self.stream.mark()

    def after(self, event: Event) -> None:
        return

    def keep(self, tensor: torch.Tensor) -> None:
        return


@pytest.mark.parametrize("deaf", [None, "_rows", "_copies"])
@pytest.mark.parametrize("restoring", [False, True])
def test_a_stream_that_does_not_wait_for_staging_spoils_copies_in_some_orders(
    deaf: str | None, restoring: bool
) -> None:
    spoilt = 0
    for seed in range(30):
        (pool, *_), (twin, *_) = make_pools(LAYOUT, layers=4), make_pools(LAYOUT, layers=4)
        pool.lane = lane = DeferredLane(seed, 24)
        for one in (pool, twin):
            scramble([one], seed=1)
        backup = pool.get_cpu_copy(OLD)
        if not restoring:
            backup.discard()
        if deaf is not None:
            setattr(lane, deaf, Deaf(getattr(lane, deaf)))
        try:
            if restoring:
                pool.load_cpu_copy(backup, NEW)
            else:
                backup = pool.get_cpu_copy(OLD)
        except (BackupError, IndexError):  # the checksum saw it, or there were no sums yet
            spoilt += 1
            continue
        twin.move_kv_cache(NEW.ids, OLD.ids)
        spoilt += (
            not torch.equal(bits(pool.buffer), bits(twin.buffer))
            if restoring
            else whole(backup) != whole(twin.get_cpu_copy(OLD))
        )
    assert spoilt == 0 if deaf is None else spoilt > 10

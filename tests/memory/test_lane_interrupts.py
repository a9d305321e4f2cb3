"""An interrupt at any point leaves nothing behind that runs later, and nothing lent."""

import sys
from threading import Thread
from typing import Any

import pytest
import torch

from kvlab import ops
from kvlab.index import DcpLayout
from kvlab.memory import HostArena, KvBackup, MLATokenToKVPool, StagedLane
from kvlab.memory.lanes import staged_on_cpu
from kvlab.memory.rows import digest
from kvlab.memory.streams import CpuStreams, DeferredStreams, Event, Stream, Streams, Work

from .staged import every_lane, slots_from, staged, whole
from .support import bits, make_pools, scramble

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=8)  # slots 4..35
OLD, NEW = slots_from(4, 11), slots_from(20, 11)


class Interrupted:
    """Streams of which the call number ``at``, from when it is set, is interrupted."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.at: int | None = None

    def tick(self) -> None:
        if self.at is not None:
            self.at -= 1
            if self.at < 0:
                self.at = None
                raise KeyboardInterrupt

    def caller(self) -> Stream:
        return Ticking(self, self.streams.caller())

    def stream(self) -> Stream:
        return Ticking(self, self.streams.stream())

    def capturing(self) -> bool:
        return False


class Ticking:
    def __init__(self, owner: Interrupted, stream: Stream) -> None:
        self.owner, self.stream = owner, stream

    def run(self, work: Work) -> None:
        self.owner.tick()
        self.stream.run(work)

    def mark(self) -> Event:
        self.owner.tick()
        return self.stream.mark()

    def after(self, event: Event) -> None:
        self.owner.tick()
        self.stream.after(event)

    def keep(self, tensor: torch.Tensor) -> None:
        self.owner.tick()
        self.stream.keep(tensor)


def pool_on(streams: Streams) -> tuple[MLATokenToKVPool, Interrupted]:
    (pool, _) = make_pools(LAYOUT)
    interrupted = Interrupted(streams)
    pool.lane = StagedLane(interrupted, "cpu", 40)
    scramble([pool], seed=1)
    return pool, interrupted


def time_goes_by(pool: MLATokenToKVPool) -> None:
    for stream in (pool.lane._rows, pool.lane._copies):  # type: ignore[attr-defined]
        stream.mark().wait()


every_streams = pytest.mark.parametrize(
    "make",
    [CpuStreams, DeferredStreams, lambda: DeferredStreams(1), lambda: DeferredStreams(2)],
    ids=["at once", "late", "shuffled", "shuffled again"],
)


@every_streams
@pytest.mark.parametrize("used_before", [True, False])
def test_a_backup_that_is_interrupted_while_it_is_queued_writes_nothing_later(
    make: Any, used_before: bool
) -> None:
    points = 0
    for at in range(1000):
        pool, interrupted = pool_on(make())
        if used_before:
            pool.get_cpu_copy(OLD).discard()
        want = pool.buffer.clone()
        interrupted.at = at
        try:
            backup = pool.get_cpu_copy(OLD, wait=False)
        except KeyboardInterrupt:
            points += 1
        else:
            backup.discard()
            break
        assert pool.host.lent_bytes == 0
        block = pool.host.take(144)
        assert block is not None
        block.fill_(7)
        time_goes_by(pool)
        assert bool((block == 7).all())  # another request's backup may be here by now
        pool.host.give(block)
        assert pool.audit() == []
        again = pool.get_cpu_copy(OLD)
        assert torch.equal(bits(again.kv), bits(want[:, pool.resolve(OLD).ids]))
        assert torch.equal(bits(pool.buffer), bits(want))
    assert points > 20


@every_streams
def test_a_restore_that_is_interrupted_while_it_is_queued_writes_nothing_later(make: Any) -> None:
    points = 0
    for at in range(1000):
        pool, interrupted = pool_on(make())
        backup = pool.get_cpu_copy(OLD)
        interrupted.at = at
        try:
            pool.load_cpu_copy(backup, NEW, wait=False)
        except KeyboardInterrupt:
            points += 1
        else:
            backup.wait()
            break
        now = pool.buffer.clone()
        time_goes_by(pool)
        assert torch.equal(bits(pool.buffer), bits(now))
        assert not backup.spent
        pool.load_cpu_copy(backup, NEW)
        new, old = pool.resolve(NEW).ids, pool.resolve(OLD).ids
        assert torch.equal(bits(pool.buffer[:, new]), bits(pool.buffer[:, old]))
        assert pool.audit() == []
        assert pool.host.lent_bytes == 0
    assert points > 20


@every_lane
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("op", ["gather_rows", "scatter_rows"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_copy_that_is_interrupted_while_it_runs_does_not_pass_for_whole(
    lane: str, wait: bool, op: str, at: int
) -> None:
    (pool, _) = staged(lane)
    made = pool.get_cpu_copy(OLD)
    real, calls = getattr(ops, op), 0

    def sometimes(*given: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise KeyboardInterrupt
        real(*given, **options)

    backups: list[KvBackup] = []

    def attempt() -> None:
        if op == "gather_rows":
            backups.append(pool.get_cpu_copy(OLD, wait=wait))
        else:
            pool.load_cpu_copy(made, NEW, wait=wait)
        for backup in (*backups, made):
            backup.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, op, sometimes)
        with pytest.raises(KeyboardInterrupt):
            attempt()
    for backup in backups:
        with pytest.raises(RuntimeError, match="this copy was given up while it was queued"):
            backup.wait()
    if op == "scatter_rows" and made._flights[1:]:
        with pytest.raises(RuntimeError, match="this copy was given up while it was queued"):
            made.wait()
    assert not made.spent
    pool.load_cpu_copy(made, NEW)
    new, old = pool.resolve(NEW).ids, pool.resolve(OLD).ids
    assert torch.equal(bits(pool.buffer[:, new]), bits(pool.buffer[:, old]))
    assert pool.audit() == []
    assert pool.host.lent_bytes == 0


@every_lane
@pytest.mark.parametrize("wait", [True, False])
def test_a_landing_that_is_interrupted_is_made_up_for(
    lane: str, wait: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pool, _) = staged(lane)
    calls = 0

    def once(sums: torch.Tensor, host: torch.Tensor) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return digest(sums, host)

    want = pool.get_cpu_copy(OLD)
    monkeypatch.setattr("kvlab.memory.staging.digest", once)
    if wait:
        with pytest.raises(KeyboardInterrupt):
            pool.get_cpu_copy(OLD)
    else:
        backup = pool.get_cpu_copy(OLD, wait=False)
        with pytest.raises(KeyboardInterrupt):
            backup.wait()
        assert backup.checksum == want.checksum
        backup.discard()
    want.discard()
    assert pool.host.lent_bytes == 0
    assert pool.audit() == []


def test_threads_may_share_a_lane_and_an_arena() -> None:
    arena, lane = HostArena(grain=64), staged_on_cpu(100)
    pools = [make_pools(LAYOUT, host=arena)[rank] for rank in (0, 1)]
    scramble(pools, seed=1)
    wanted = [whole(pool.get_cpu_copy(OLD)) for pool in pools]
    wrong: list[object] = []

    def back_up(pool: MLATokenToKVPool, want: bytes) -> None:
        try:
            for _ in range(60):
                backup = pool.get_cpu_copy(OLD)
                if whole(backup) != want:
                    wrong.append(pool.rank)
                backup.discard()
        except Exception as error:
            wrong.append(error)

    for pool in pools:
        pool.lane = lane
    threads = [
        Thread(target=back_up, args=(pool, want))
        for pool, want in zip(pools, wanted, strict=True)
        for _ in range(2)
    ]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []
    assert arena.audit() == lane.audit() == []

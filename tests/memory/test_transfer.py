"""A transfer decides when and by which way rows move, never which bytes arrive.

Copies beside the caller are tested on streams of the CPU: at once, as late as can be, and in odd
orders (``late``). Whatever goes wrong on the way, pool, request and arena are as they were.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab import ops
from kvlab.engine import FingerprintCells, NodeConfig, StepNode
from kvlab.engine.workload import Request
from kvlab.errors import BackupError, LayoutError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import (
    HostArena,
    HostTransfer,
    KvBackup,
    MLATokenToKVPool,
    PageTable,
    StagedTransfer,
    back_up_ranks,
    restore_ranks,
)
from kvlab.memory.transfer import Work

from .late import CPU, Event, LateStreams, PromptStreams, Stream, late, prompt
from .support import (
    DTYPES,
    KINDS,
    Run,
    assemble,
    bits,
    ids,
    make_pools,
    pools_on,
    runs,
    scramble,
    slots_on,
    state_pool,
    taken,
    untouched,
)

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=8)  # slots 4..35


def slots_from(first: int, n: int) -> WidenedSlots:
    return WidenedSlots(ids(range(first, first + n)))


OLD, NEW = slots_from(4, 11), slots_from(20, 11)
TRANSFERS: dict[str, Callable[[int], StagedTransfer]] = {
    "at once": prompt,
    "late": lambda room: late(None, room),
    "shuffled": lambda room: late(1, room),
}
every_transfer = pytest.mark.parametrize("how", sorted(TRANSFERS))


def put_on(pools: Sequence[MLATokenToKVPool], make: Callable[[], StagedTransfer]) -> None:
    """Give each pool a transfer of its own."""
    for pool in pools:
        pool.transfer = make()
        pool.transfer.require_pool(pool.buffer)


def twins(kind: str = "sharded", room: int = 10_000, **sizes: Any) -> list[MLATokenToKVPool]:
    """Rank 0's pool on a late transfer, and one of the same bytes that copies at once."""
    pools = [make_pools(LAYOUT, kind, **sizes)[0] for _ in range(2)]
    put_on(pools[:1], lambda: late(None, room))
    for one in pools:
        scramble([one], seed=1)
    return pools


def staged(how: str) -> list[MLATokenToKVPool]:
    """Pools whose staging is allocated, with an idle block: what is left when all is well."""
    pools = make_pools(LAYOUT)
    put_on(pools, lambda: TRANSFERS[how](40))
    scramble(pools, seed=1)
    for pool in pools:
        pool.get_cpu_copy(OLD).discard()
    return pools


def whole(backup: KvBackup) -> bytes:
    return bytes(backup.kv.contiguous().view(-1).view(torch.uint8).numpy())


def same(one: MLATokenToKVPool, other: MLATokenToKVPool) -> bool:
    return torch.equal(bits(one.buffer), bits(other.buffer))


# --- the same bytes -------------------------------------------------------------------------------


def same_as_at_once(run: Run, kind: str, dtype: torch.dtype, how: str, room: float) -> None:
    """Backup, overwriting, restore: bytes, checksums and the other rows as without staging."""
    plain, others = (make_pools(run.layout, kind, dtype=dtype) for _ in range(2))
    row = others[0].buffer.shape[2] * others[0].buffer.element_size()
    put_on(others, lambda: TRANSFERS[how](int(room * row)))
    for pools in (plain, others):
        scramble(pools, seed=1)
    want = [pool.get_cpu_copy(run.old_slots) for pool in plain]
    found = [pool.get_cpu_copy(run.old_slots, wait=room > 2) for pool in others]
    for pools in (plain, others):
        for pool in pools:
            pool.before_write()
        scramble(pools, seed=2)
    for one, other, here, there in zip(want, found, plain, others, strict=True):
        assert one.checksum == other.checksum
        assert whole(one) == whole(other)
        here.load_cpu_copy(one, run.new_slots)
        there.load_cpu_copy(other, run.new_slots)
    assert torch.equal(bits(assemble(plain)), bits(assemble(others)))
    for pool in others:
        assert pool.audit() == []
        assert pool.host.lent_bytes == 0


@given(
    run=runs(),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    how=st.sampled_from(sorted(TRANSFERS)),
    room=st.sampled_from((1, 1.5, 2, 3, 4.9, 7, 1000)),  # rows that fit staging
)
@settings(max_examples=40)
def test_bytes_checksums_and_other_rows_are_those_of_copies_at_once(
    run: Run, kind: str, dtype: torch.dtype, how: str, room: float
) -> None:
    same_as_at_once(run, kind, dtype, how, room)


@every_transfer
def test_rows_of_many_blocks_have_the_checksum_of_copies_at_once(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvlab.ops.rows._BLOCK_ROWS", 4)
    layout = DcpLayout(2, page_size=2, num_pages=12)
    old, new = slots_on(range(12, 0, -1), layout, 0, 45), slots_on(range(1, 13), layout, 0, 45)
    for room in (1, 5, 500):
        same_as_at_once(Run(layout, 0, old, new), "sharded", DTYPES[3], how, room)


def test_slots_may_be_another_requests_before_the_rows_have_been_read() -> None:
    pool, twin = twins()
    slots = torch.arange(4, 11)
    want = twin.get_cpu_copy(WidenedSlots(slots.clone()))
    rows = pool.resolve(WidenedSlots(slots))
    backups = [pool.get_cpu_copy(s, wait=False) for s in (WidenedSlots(slots), rows)]
    slots.fill_(0)
    assert [backup.checksum for backup in backups] == [want.checksum] * 2


@every_transfer
@pytest.mark.parametrize("wait", [True, False])
def test_all_ranks_and_the_state_come_back_together(how: str, wait: bool) -> None:
    pools, states = make_pools(DcpLayout(3, 2, 8), host=HostArena(grain=64)), state_pool()
    put_on(pools, lambda: TRANSFERS[how](40))
    scramble(pools, seed=1)
    old, new = taken(states), taken(states)
    states.temporal[:, old] = 7.0
    old_slots, new_slots = slots_from(6, 11), slots_from(30, 11)
    truth = assemble(pools)
    truth[:, new_slots.ids] = truth[:, old_slots.ids]
    backups = back_up_ranks(pools, old_slots, states, old, wait=wait)
    assert not wait or all(backup.done for backup in backups)
    restore_ranks(pools, backups, new_slots, states, new)
    assert torch.equal(bits(assemble(pools)), bits(truth))
    assert bool((states.temporal[:, new] == 7.0).all())
    assert pools[0].host.lent_bytes == 0


@pytest.mark.parametrize("how", [None, *sorted(TRANSFERS)])
@pytest.mark.parametrize("inside_first", [True, False])
def test_copies_begun_in_inference_mode_serve_outside_of_it_and_the_other_way_round(
    how: str | None, inside_first: bool
) -> None:
    pool, twin = twins()
    pool.transfer = HostTransfer() if how is None else TRANSFERS[how](40)
    want = twin.get_cpu_copy(OLD)
    with torch.inference_mode(inside_first):
        first = pool.get_cpu_copy(WidenedSlots(OLD.ids.clone()), wait=False)
        second = pool.get_cpu_copy(OLD, wait=False)
    with torch.inference_mode(not inside_first):
        assert second.checksum == want.checksum
        second.discard()
        pool.load_cpu_copy(first, NEW)
    with torch.inference_mode(inside_first):
        pool.get_cpu_copy(OLD).discard()
    twin.load_cpu_copy(want, NEW)
    assert same(pool, twin)


# --- orders ---------------------------------------------------------------------------------------


def store(pool: MLATokenToKVPool) -> None:
    pool.set_mla_kv_buffer(1, OLD, torch.ones(11, 2), torch.ones(11, 1))


def put(pool: MLATokenToKVPool) -> None:
    rows = pool.resolve(OLD)
    pool.put_rows(1, rows, torch.ones(len(rows), 3))


WRITES: dict[str, Callable[[MLATokenToKVPool], None]] = {
    "set_mla_kv_buffer": store,
    "put_rows": put,
    "fill": lambda pool: pool.fill(pool.resolve(OLD), 1.0),
    "move": lambda pool: pool.move_kv_cache(OLD.ids, NEW.ids),
    "restore": lambda pool: pool.load_cpu_copy(pool.get_cpu_copy(NEW, wait=False), OLD),
}


@pytest.mark.parametrize("write", sorted(WRITES))
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_write_comes_after_the_backups_in_flight(kind: str, write: str) -> None:
    for room in (12, 40, 10_000):
        pool, twin = twins(kind, room)
        want, backup = twin.get_cpu_copy(OLD), pool.get_cpu_copy(OLD, wait=False)
        assert not backup.done
        WRITES[write](twin)
        WRITES[write](pool)
        backup.wait()
        assert whole(backup) == whole(want)
        assert same(pool, twin)


def test_a_compaction_comes_after_the_backups_in_flight() -> None:
    table = PageTable(DcpLayout(2, 2, 4), physical_pages=4)
    assert table.map_pages([1, 2, 3])
    pool = pools_on(table)[0]
    put_on([pool], late)
    pool.buffer[:] = torch.arange(pool.buffer.shape[1])[:, None] + 1.0
    backup = pool.get_cpu_copy(slots_from(4, 4), wait=False)  # virtual page 1, physical page 1
    table.unmap_pages([1])
    moves = table.compact()
    assert moves == [(3, 1)]
    pool.apply_moves(moves)
    backup.wait()
    assert backup.kv[0, :, 0].tolist() == [3.0, 4.0]


@given(seed=st.integers(0, 10_000), room=st.integers(12, 200), data=st.data())
@settings(max_examples=40)
def test_whatever_overtakes_what_requests_keep_their_rows(
    seed: int, room: int, data: st.DataObject
) -> None:
    """Three requests are backed up, written over and restored in any order, by one transfer and
    in one arena."""
    pool, twin = twins()
    pool.transfer = late(seed, room)
    places = [slots_from(4, 7), slots_from(12, 8), slots_from(20, 5)]
    away: dict[int, tuple[KvBackup, KvBackup]] = {}
    for step in range(data.draw(st.integers(1, 12))):
        rid = data.draw(st.integers(0, 2))
        if rid in away:
            mine, other = away.pop(rid)
            pool.load_cpu_copy(mine, places[rid])
            twin.load_cpu_copy(other, places[rid])
            continue
        mine = pool.get_cpu_copy(places[rid], wait=data.draw(st.booleans()))
        away[rid] = mine, twin.get_cpu_copy(places[rid])
        for one in (pool, twin):
            one.fill(one.resolve(places[rid]), float(step))
    for mine, other in away.values():
        assert mine.checksum == other.checksum
        mine.discard()
    assert pool.audit() == []
    assert same(pool, twin)
    assert pool.host.lent_bytes == 0


class OneDeaf(LateStreams):
    """Of the two streams of a transfer the one of this number does not wait for the other."""

    def __init__(self, seed: int, deaf: int | None) -> None:
        super().__init__(seed)
        self.deaf = deaf

    def stream(self) -> Stream:
        stream = super().stream()
        if len(self._streams) - 1 == self.deaf:
            stream.waits = False
        return stream


@pytest.mark.parametrize("deaf", [None, 0, 1])
@pytest.mark.parametrize("restoring", [False, True])
def test_a_stream_that_does_not_wait_for_staging_spoils_copies_in_some_orders(
    deaf: int | None, restoring: bool
) -> None:
    spoilt = 0
    for seed in range(20):
        pool, twin = twins(layers=4)
        backup = twin.get_cpu_copy(OLD)
        pool.transfer = StagedTransfer(OneDeaf(seed, deaf), CPU, 24)
        try:
            if restoring:
                pool.load_cpu_copy(backup, NEW)
                twin.move_kv_cache(NEW.ids, OLD.ids)
                spoilt += not same(pool, twin)
            else:
                spoilt += whole(pool.get_cpu_copy(OLD)) != whole(backup)
        except BackupError:  # the checksum saw it
            spoilt += 1
    assert spoilt == 0 if deaf is None else spoilt > 6


# --- a whole node ---------------------------------------------------------------------------------

CONFIG = NodeConfig(DcpLayout(dcp_size=2, page_size=4, num_pages=12), reserved_decode_tokens=8)
REQUESTS = tuple(Request(i, 0.0, 8, 32) for i in range(4))


def cells(seed: int | None, room: int, host_bytes: int | None = None) -> FingerprintCells:
    how: dict[str, Any] = {"transfer": lambda: late(seed, room), "wait": False}
    return FingerprintCells(CONFIG.layout, layers=2, host_bytes=host_bytes, **how)


@pytest.mark.parametrize("host_bytes", [None, 0, 4096])
@pytest.mark.parametrize(("seed", "room"), [(None, 100), (3, 40)])
def test_the_node_does_what_one_with_copies_at_once_does(
    seed: int | None, room: int, host_bytes: int | None
) -> None:
    held = cells(seed, room, host_bytes)
    node = StepNode(CONFIG, held, check_every_step=True)
    result = node.run(REQUESTS)
    plain = FingerprintCells(CONFIG.layout, layers=2, host_bytes=host_bytes)
    assert result == StepNode(CONFIG, plain, check_every_step=True).run(REQUESTS)
    assert result.counters.retracted_requests + result.counters.declined_backups > 0
    assert node.audit() == held.audit() == []
    assert [pool.host.lent_bytes for pool in held.pools] == [0, 0]


# --- failures -------------------------------------------------------------------------------------


@contextmanager
def failing(op: str, at: int, error: BaseException) -> Iterator[None]:
    """The ``at``-th call of the op raises."""
    real, calls = getattr(ops, op), 0

    def sometimes(*given: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise error
        real(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, op, sometimes)
        yield


@every_transfer
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_gather_that_fails_loses_the_backup_and_nothing_else(how: str, at: int) -> None:
    for wait in (True, False):
        (pool, _) = staged(how)
        unchanged = untouched([pool])
        with failing("gather_rows", at, RuntimeError("device lost")):
            if wait:
                with pytest.raises(RuntimeError, match="device lost"):
                    pool.get_cpu_copy(OLD)
            else:
                backup = pool.get_cpu_copy(OLD, wait=False)
                pool.before_write()  # who writes is not told of another's failure
                for _ in range(2):
                    with pytest.raises(RuntimeError, match="device lost"):
                        backup.wait()
                assert backup.spent and backup.done
                with pytest.raises(BackupError, match="was lost on its way to the host; back the"):
                    pool.load_cpu_copy(backup, NEW)
        unchanged()
        pool.load_cpu_copy(pool.get_cpu_copy(OLD), NEW)


@every_transfer
def test_a_scatter_that_fails_can_be_tried_again(how: str) -> None:
    pools = staged(how)
    backups = back_up_ranks(pools, OLD)
    before = [pool.buffer.clone() for pool in pools]
    with (
        failing("scatter_rows", 7, RuntimeError("lost")),
        pytest.raises(RuntimeError, match="lost"),
    ):
        restore_ranks(pools, backups, NEW)
    assert not any(backup.spent for backup in backups)
    restore_ranks(pools, backups, NEW)
    for pool, was in zip(pools, before, strict=True):
        was[:, pool.resolve(NEW).ids] = was[:, pool.resolve(OLD).ids]
        assert torch.equal(bits(pool.buffer), bits(was))
        assert pool.host.lent_bytes == 0


# --- interrupts -----------------------------------------------------------------------------------


class Interrupted(LateStreams):
    """Streams of which the call number ``at``, from when it is set, is interrupted."""

    at: int | None = None

    def tick(self) -> None:
        if self.at is not None:
            self.at -= 1
            if self.at < 0:
                self.at = None
                raise KeyboardInterrupt

    def caller(self) -> Stream:
        self.tick()
        return super().caller()

    def stream(self) -> Stream:
        self._streams.append(Ticking(self))
        return self._streams[-1]

    def run(self, stream: Stream, work: Work) -> None:
        self.tick()
        super().run(stream, work)

    def keep(self, stream: Stream, tensor: torch.Tensor) -> None:
        self.tick()


class Ticking(Stream):
    def record_event(self) -> Event:
        self.streams.tick()  # type: ignore[attr-defined]
        return super().record_event()

    def wait_event(self, event: Event) -> None:
        self.streams.tick()  # type: ignore[attr-defined]
        super().wait_event(event)


def interrupted_at_every_call(
    seed: int | None, work: Callable[[MLATokenToKVPool, KvBackup], Any], used_before: bool
) -> Iterator[tuple[MLATokenToKVPool, torch.Tensor, KvBackup]]:
    """The pool after an interrupt of ``work`` at each of its calls of the streams, once nothing is
    queued any more; what it held; and a backup of OLD that was made before, at once."""
    for at in range(1000):
        (pool, twin), streams = twins(), Interrupted(seed)
        pool.transfer = StagedTransfer(streams, CPU, 60)
        backup = (pool if used_before else twin).get_cpu_copy(OLD)
        streams.at = at
        try:
            work(pool, backup)
        except KeyboardInterrupt:
            streams.at = None
        else:
            break
        held = pool.buffer.clone()
        block = pool.host.take(144)
        assert block is not None
        block.fill_(7)
        for stream in streams._streams:
            stream.record_event().synchronize()
        assert bool((block == 7).all())  # another request's backup may be here by now
        assert torch.equal(bits(pool.buffer), bits(held))
        pool.host.give(block)
        yield pool, twin.buffer, backup
    assert at > 20


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("used_before", [True, False])
def test_a_backup_that_is_interrupted_while_it_is_queued_writes_nothing_later(
    seed: int | None, used_before: bool
) -> None:
    def work(pool: MLATokenToKVPool, _: KvBackup) -> None:
        pool.get_cpu_copy(OLD, wait=False).discard()

    for pool, held, backup in interrupted_at_every_call(seed, work, used_before):
        assert torch.equal(bits(pool.buffer), bits(held))
        assert pool.host.lent_bytes == (backup.block.numel() if used_before else 0)
        assert whole(pool.get_cpu_copy(OLD)) == whole(backup)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_restore_that_is_interrupted_while_it_is_queued_writes_nothing_later(
    seed: int | None,
) -> None:
    def work(pool: MLATokenToKVPool, backup: KvBackup) -> None:
        pool.load_cpu_copy(backup, NEW)

    for pool, held, backup in interrupted_at_every_call(seed, work, used_before=True):
        assert not backup.spent
        work(pool, backup)
        held[:, pool.resolve(NEW).ids] = held[:, pool.resolve(OLD).ids]
        assert torch.equal(bits(pool.buffer), bits(held))


@every_transfer
@pytest.mark.parametrize("op", ["gather_rows", "scatter_rows"])
def test_a_copy_that_is_interrupted_while_it_runs_does_not_pass_for_whole(
    how: str, op: str
) -> None:
    for at in (0, 1, 3):
        (pool, _) = staged(how)
        made = pool.get_cpu_copy(OLD)
        with failing(op, at, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            if op == "gather_rows":
                pool.get_cpu_copy(OLD)
            else:
                pool.load_cpu_copy(made, NEW)
        assert not made.spent
        pool.load_cpu_copy(made, NEW)
        new, old = pool.resolve(NEW).ids, pool.resolve(OLD).ids
        assert torch.equal(bits(pool.buffer[:, new]), bits(pool.buffer[:, old]))
        assert pool.host.lent_bytes == 0


@every_transfer
def test_a_landing_that_is_interrupted_is_made_up_for(how: str) -> None:
    (pool, _) = staged(how)
    want, backup = pool.get_cpu_copy(OLD).checksum, pool.get_cpu_copy(OLD, wait=False)
    real, calls = backup.made.land, 0

    def once() -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        assert real is not None
        return real()

    backup.made.land = once
    with pytest.raises(KeyboardInterrupt):
        backup.wait()
    assert backup.checksum == want
    backup.discard()


# --- memory ---------------------------------------------------------------------------------------


@every_transfer
def test_a_backup_that_is_discarded_in_flight_leaves_no_trace(how: str) -> None:
    pools = staged(how)
    unchanged = untouched(pools)
    for backup in [pool.get_cpu_copy(OLD, wait=False) for pool in pools]:
        backup.discard()
        assert backup.done  # its block was not given back before the copy had ended
    unchanged()


class Watched(PromptStreams):
    """Knows what each stream was told to keep, and which of them runs."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, set[int]] = {}
        self.used: dict[int, set[int]] = {}
        self.running = 0

    def run(self, stream: Stream, work: Work) -> None:
        self.running = id(stream)
        super().run(stream, work)

    def keep(self, stream: Stream, tensor: torch.Tensor) -> None:
        self.kept.setdefault(id(stream), set()).add(tensor.untyped_storage().data_ptr())

    def uses(self, *tensors: object) -> None:
        used = self.used.setdefault(self.running, set())
        used |= {t.untyped_storage().data_ptr() for t in tensors if isinstance(t, torch.Tensor)}


@pytest.mark.parametrize("room", [40, 10_000])
def test_staging_is_allocated_once_as_large_as_told_and_side_streams_keep_what_they_use(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, stages = Watched(), []
    (pool, _) = make_pools(LAYOUT)
    pool.transfer = StagedTransfer(watched, CPU, room)
    for name in ("gather_rows", "scatter_rows"):
        real = getattr(ops, name)

        def moved(*given: Any, _real: Any = real, **options: Any) -> None:
            watched.uses(*given, options["sums"])
            stages.append(given[2].untyped_storage())
            _real(*given, **options)

        monkeypatch.setattr(ops, name, moved)
    pool.load_cpu_copy(pool.get_cpu_copy(OLD, wait=False), NEW)
    assert {(stage.data_ptr(), stage.nbytes()) for stage in stages} == {
        (stages[0].data_ptr(), room)
    }
    assert watched.used
    for stream, used in watched.used.items():
        assert len(used) == 6  # buffer, staging, and of both copies ids and sums
        assert used <= watched.kept[stream]
    assert len(set(map(frozenset, watched.kept.values()))) == 1


def test_a_transfer_that_cannot_copy_a_pools_rows_is_refused_when_the_pool_is_made() -> None:
    def make(transfer: HostTransfer, device: str = "cpu") -> MLATokenToKVPool:
        sizes: dict[str, Any] = {"layers": 1, "kv_lora_rank": 2, "qk_rope_head_dim": 1}
        sizes |= {"dtype": torch.float32, "device": device, "transfer": transfer}
        return MLATokenToKVPool(LAYOUT, 0, **sizes)

    make(late(None, 12)).get_cpu_copy(slots_from(4, 9)).discard()
    text = r"^staging memory must hold a row of one layer: got staging_bytes=11 for rows of 12 byte"
    with pytest.raises(BackupError, match=text):
        make(late(None, 11))
    with pytest.raises(PoolError, match="a transfer of cpu cannot copy rows of meta"):
        make(late(), "meta")
    with pytest.raises(PoolError, match="a HostTransfer copies rows of the CPU: got a pool"):
        make(HostTransfer(), "meta")
    with pytest.raises(LayoutError, match=r"staging_bytes must be at least 1: bytes of device mem"):
        late(None, 0)

"""A transfer decides when and by which way rows move, never which bytes arrive.

Copies beside the caller are tested on streams of the CPU: at once, as late as can be, and in odd
orders (``late``). Whatever goes wrong on the way, pool, request and arena are as they were.
"""

from collections.abc import Callable, Sequence
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
    HybridLinearKVPool,
    KvBackup,
    MLATokenToKVPool,
    PageTable,
    StagedTransfer,
    back_up_ranks,
    restore_ranks,
)
from kvlab.memory.transfer import Work

from .late import CPU, Caller, LateStreams, PromptStreams, Stream, late, prompt
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


def slots_from(first: int, n: int, start: int = 0) -> WidenedSlots:
    return WidenedSlots(ids(range(first, first + n)), start)


OLD, NEW = slots_from(4, 11), slots_from(20, 11)
TRANSFERS: dict[str, Callable[[int], StagedTransfer]] = {
    "at once": prompt,
    "late": lambda room: late(None, room),
    "shuffled": lambda room: late(1, room),
    "shuffled again": lambda room: late(2, room),
}
every_transfer = pytest.mark.parametrize("how", sorted(TRANSFERS))
either = pytest.mark.parametrize("wait", [True, False])


def put_on(
    pools: Sequence[MLATokenToKVPool], make: Callable[[], StagedTransfer]
) -> list[StagedTransfer]:
    """Give each pool a transfer of its own."""
    made = [make() for _ in pools]
    for pool, transfer in zip(pools, made, strict=True):
        transfer.require_pool(pool.buffer)
        pool.transfer = transfer
    return made


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


# --- the same bytes -------------------------------------------------------------------------------


def same_as_at_once(
    run: Run, kind: str, dtype: torch.dtype, how: str, room: float, wait: bool
) -> None:
    """Backup, overwriting, restore: bytes, checksums and the other rows as without staging."""
    plain, others = (make_pools(run.layout, kind, dtype=dtype) for _ in range(2))
    row = others[0].buffer.shape[2] * others[0].buffer.element_size()
    transfers = put_on(others, lambda: TRANSFERS[how](int(room * row)))
    for pools in (plain, others):
        scramble(pools, seed=1)
    want = [pool.get_cpu_copy(run.old_slots) for pool in plain]
    found = [pool.get_cpu_copy(run.old_slots, wait=wait) for pool in others]
    for pools in (plain, others):
        for pool in pools:
            pool.before_write()
        scramble(pools, seed=2)
    for one, other, here, there in zip(want, found, plain, others, strict=True):
        assert one.checksum == other.checksum
        assert whole(one) == whole(other)
        assert torch.equal(one.source, other.source)
        here.load_cpu_copy(one, run.new_slots)
        there.load_cpu_copy(other, run.new_slots)
        assert other.spent
    assert torch.equal(bits(assemble(plain)), bits(assemble(others)))
    for pool, transfer in zip(others, transfers, strict=True):
        assert pool.audit() == []
        assert pool.host.lent_bytes == 0
        assert transfer.allocated_bytes <= transfer.staging_bytes


@given(
    run=runs(),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    how=st.sampled_from(sorted(TRANSFERS)),
    room=st.sampled_from((1, 1.5, 2, 3, 4.9, 7, 1000)),  # rows that fit staging
    wait=st.booleans(),
)
@settings(max_examples=150)
def test_bytes_checksums_and_other_rows_are_those_of_copies_at_once(
    run: Run, kind: str, dtype: torch.dtype, how: str, room: float, wait: bool
) -> None:
    same_as_at_once(run, kind, dtype, how, room, wait)


@every_transfer
def test_rows_of_many_blocks_have_the_checksum_of_copies_at_once(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvlab.ops.rows._BLOCK_ROWS", 4)
    layout = DcpLayout(2, page_size=2, num_pages=12)
    old, new = slots_on(range(12, 0, -1), layout, 0, 45), slots_on(range(1, 13), layout, 0, 45)
    for room in (1, 5, 7, 500):
        same_as_at_once(Run(layout, 0, old, new), "sharded", DTYPES[3], how, room, wait=False)


def test_slots_may_be_another_requests_before_the_rows_have_been_read() -> None:
    for c in (1, 2):
        (pool, *_), (twin, *_) = (make_pools(DcpLayout(c, 2, 8)) for _ in range(2))
        put_on([pool], late)
        for one in (pool, twin):
            scramble([one], seed=1)
        slots = torch.arange(2 * c, 2 * c + 7)
        want = twin.get_cpu_copy(WidenedSlots(slots.clone()))
        rows = pool.resolve(WidenedSlots(slots))
        backups = [pool.get_cpu_copy(s, wait=False) for s in (WidenedSlots(slots), rows)]
        slots.fill_(0)
        assert [backup.checksum for backup in backups] == [want.checksum] * 2


@every_transfer
@either
def test_all_ranks_and_the_state_come_back_together(how: str, wait: bool) -> None:
    layout = DcpLayout(3, 2, 8)
    pools, states = make_pools(layout, host=HostArena(grain=64)), state_pool()
    put_on(pools, lambda: TRANSFERS[how](40))
    scramble(pools, seed=1)
    old, new = taken(states), taken(states)
    states.temporal[:, old] = 7.0
    old_slots, new_slots = slots_from(6, 11), slots_from(30, 11)
    truth = assemble(pools)
    truth[:, new_slots.ids] = truth[:, old_slots.ids]
    backups = back_up_ranks(pools, old_slots, states, old, wait=wait)
    assert [backup.state is not None for backup in backups] == [True, False, False]
    assert not wait or all(backup.done for backup in backups)
    restore_ranks(pools, backups, new_slots, states, new)
    assert all(backup.spent for backup in backups)
    assert torch.equal(bits(assemble(pools)), bits(truth))
    assert bool((states.temporal[:, new] == 7.0).all())
    assert pools[0].host.lent_bytes == 0
    assert [law for pool in pools for law in pool.audit()] == []


# --- orders ---------------------------------------------------------------------------------------


def writes() -> dict[str, Callable[[MLATokenToKVPool], None]]:
    def store(pool: MLATokenToKVPool) -> None:
        for layer in range(pool.layers):
            pool.set_mla_kv_buffer(layer, OLD, torch.ones(11, 2), torch.ones(11, 1))

    def put(pool: MLATokenToKVPool) -> None:
        rows = pool.resolve(OLD)
        for layer in range(pool.layers):
            pool.put_rows(layer, rows, torch.ones(len(rows), 3))

    return {
        "set_mla_kv_buffer": store,
        "put_rows": put,
        "fill": lambda pool: pool.fill(pool.resolve(OLD), 1.0),
        "move": lambda pool: pool.move_kv_cache(OLD.ids, NEW.ids),
        "restore": lambda pool: pool.load_cpu_copy(pool.get_cpu_copy(NEW, wait=False), OLD),
    }


@pytest.mark.parametrize("room", [12, 40, 10_000])
@pytest.mark.parametrize("write", sorted(writes()))
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_write_comes_after_the_backups_in_flight(
    kind: str, write: str, room: int
) -> None:
    pools, plain = make_pools(LAYOUT, kind), make_pools(LAYOUT, kind)
    put_on(pools, lambda: late(None, room))
    for group in (pools, plain):
        scramble(group, seed=1)
    for pool, twin in zip(pools, plain, strict=True):
        want = twin.get_cpu_copy(OLD)
        backup = pool.get_cpu_copy(OLD, wait=False)
        assert not backup.done
        writes()[write](twin)
        writes()[write](pool)
        backup.wait()
        assert whole(backup) == whole(want)
        assert torch.equal(bits(pool.buffer), bits(twin.buffer))


@pytest.mark.parametrize("write", sorted(set(writes()) - {"restore"}))
def test_each_of_them_would_be_too_early_if_it_did_not_ask(
    write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pool, _), (twin, _) = make_pools(LAYOUT), make_pools(LAYOUT)
    put_on([pool], late)
    monkeypatch.setattr(pool, "before_write", lambda: None)
    for one in (pool, twin):
        scramble([one], seed=1)
    want, backup = twin.get_cpu_copy(OLD), pool.get_cpu_copy(OLD, wait=False)
    writes()[write](pool)
    backup.wait()
    assert whole(backup) != whole(want)


@pytest.mark.parametrize("asks", [True, False])
def test_a_compaction_comes_after_the_backups_in_flight(
    asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PageTable(DcpLayout(2, 2, 4), physical_pages=4)
    assert table.map_pages([1, 2, 3])
    pools = pools_on(table)
    put_on(pools, late)
    for pool in pools:
        pool.buffer[:] = torch.arange(pool.buffer.shape[1])[:, None] + 1.0
    slots = slots_from(4, 4)  # virtual page 1, physical page 1
    backups = [pool.get_cpu_copy(slots, wait=False) for pool in pools]
    table.unmap_pages([1])
    moves = table.compact()
    assert moves == [(3, 1)]
    for pool, backup in zip(pools, backups, strict=True):
        if not asks:
            monkeypatch.setattr(pool, "before_write", lambda: None)
        pool.apply_moves(moves)
        backup.wait()
        assert backup.kv[0, :, 0].tolist() == ([3.0, 4.0] if asks else [7.0, 8.0])


@given(seed=st.integers(0, 10_000), room=st.integers(12, 200), data=st.data())
@settings(max_examples=100)
def test_whatever_overtakes_what_requests_keep_their_rows(
    seed: int, room: int, data: st.DataObject
) -> None:
    """Three requests are backed up, written over and restored in any order, by one transfer and
    in one arena."""
    arena, transfer = HostArena(grain=64), late(seed, room)
    (pool, *_), (twin, *_) = make_pools(LAYOUT, host=arena), make_pools(LAYOUT)
    pool.transfer = transfer
    for one in (pool, twin):
        scramble([one], seed=1)
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
    assert torch.equal(bits(pool.buffer), bits(twin.buffer))
    assert arena.lent_bytes == 0


class Deaf(Stream):
    """Its works do not wait for the other stream's."""

    def wait_event(self, event: object) -> None:
        return


class OneDeaf(LateStreams):
    """Of the two streams of a transfer the one of this number is deaf."""

    def __init__(self, seed: int, deaf: int | None) -> None:
        super().__init__(seed)
        self.deaf = deaf

    def stream(self) -> Stream:
        kind = Deaf if len(self._streams) == self.deaf else Stream
        self._streams.append(kind(self))
        return self._streams[-1]


@pytest.mark.parametrize("deaf", [None, 0, 1])
@pytest.mark.parametrize("restoring", [False, True])
def test_a_stream_that_does_not_wait_for_staging_spoils_copies_in_some_orders(
    deaf: int | None, restoring: bool
) -> None:
    spoilt = 0
    for seed in range(30):
        (pool, *_), (twin, *_) = make_pools(LAYOUT, layers=4), make_pools(LAYOUT, layers=4)
        for one in (pool, twin):
            scramble([one], seed=1)
        backup = pool.get_cpu_copy(OLD)  # at once
        pool.transfer = StagedTransfer(OneDeaf(seed, deaf), CPU, 24)
        try:
            if restoring:
                pool.load_cpu_copy(backup, NEW)
            else:
                backup = pool.get_cpu_copy(OLD)
                spoilt += whole(backup) != whole(twin.get_cpu_copy(OLD))
        except BackupError:  # the checksum saw it
            spoilt += 1
            continue
        twin.move_kv_cache(NEW.ids, OLD.ids)
        if restoring:
            spoilt += not torch.equal(bits(pool.buffer), bits(twin.buffer))
    assert spoilt == 0 if deaf is None else spoilt > 10


# --- a whole node ---------------------------------------------------------------------------------

CONFIG = NodeConfig(DcpLayout(dcp_size=4, page_size=4, num_pages=12), reserved_decode_tokens=16)
REQUESTS = tuple(Request(i, 0.0, 16, 64) for i in range(4))


def cells(seed: int | None, room: int, host_bytes: int | None = None) -> FingerprintCells:
    how: dict[str, Any] = {"transfer": lambda: late(seed, room), "wait": False}
    return FingerprintCells(CONFIG.layout, layers=2, host_bytes=host_bytes, **how)


@pytest.mark.parametrize("host_bytes", [None, 0, 4096])
@pytest.mark.parametrize(("seed", "room"), [(None, 100), (3, 40), (4, 10_000)])
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
    assert [pool.host.lent_bytes for pool in held.pools] == [0] * 4


def test_rows_that_are_written_over_in_flight_are_seen_at_the_first_restore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = cells(None, 100)
    for pool in held.pools:
        monkeypatch.setattr(pool, "before_write", lambda: None)
    with pytest.raises(PoolError, match=r"rank \d, layer 0, row \d+ holds \(request, position, l"):
        StepNode(CONFIG, held, check_every_step=True).run(REQUESTS)


# --- failures -------------------------------------------------------------------------------------


def failing(patch: pytest.MonkeyPatch, op: str, at: int, error: BaseException) -> None:
    """The ``at``-th call of the op raises."""
    real, calls = getattr(ops, op), 0

    def sometimes(*given: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise error
        real(*given, **options)

    patch.setattr(ops, op, sometimes)


@every_transfer
@either
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_gather_that_fails_loses_the_backup_and_nothing_else(
    how: str, wait: bool, at: int
) -> None:
    (pool, _) = staged(how)
    unchanged = untouched([pool])
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, "gather_rows", at, RuntimeError("device lost"))
        if wait:
            with pytest.raises(RuntimeError, match="device lost"):
                pool.get_cpu_copy(OLD)
        else:
            backup = pool.get_cpu_copy(OLD, wait=False)
            pool.before_write()  # who writes is not told of another's failure
            for _ in range(2):
                with pytest.raises(RuntimeError, match="device lost"):
                    backup.wait()
            assert backup.spent
            with pytest.raises(BackupError, match="was lost on its way to the host; back the req"):
                backup.discard()
    unchanged()
    assert pool.audit() == []
    pool.load_cpu_copy(pool.get_cpu_copy(OLD), OLD)  # and the transfer works on
    unchanged()


@every_transfer
def test_a_rank_that_fails_gives_back_what_all_took(how: str) -> None:
    pools = staged(how)
    unchanged = untouched(pools)
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, "gather_rows", 6, RuntimeError("device lost"))
        with pytest.raises(RuntimeError, match="device lost"):
            back_up_ranks(pools, OLD)
    unchanged()


@every_transfer
@either
def test_a_full_arena_declines_before_anything_is_in_flight(how: str, wait: bool) -> None:
    (pool, _) = staged(how)
    pool.host = HostArena(capacity_bytes=128, grain=64)
    unchanged = untouched([pool])
    with pytest.raises(BackupError, match="a backup must fit the host arena: 144 bytes for 11 pos"):
        pool.get_cpu_copy(OLD, wait=wait)
    unchanged()


@pytest.mark.parametrize("how", [None, *sorted(TRANSFERS)])
def test_a_host_copy_that_changed_is_found_and_no_request_has_its_rows(how: str | None) -> None:
    (pool, _) = make_pools(LAYOUT) if how is None else staged(how)
    backup = pool.get_cpu_copy(OLD)
    want = pool.buffer.clone()
    backup.kv.view(torch.uint8)[1, 2, 3] ^= 1
    text = (
        r"^the host copy changed since it was made: checksum [0-9a-f]{32}, expected "
        rf"{backup.checksum} \(6 rows\); it was written to the new rows, which hold no request: "
        r"free their slots, discard the backup, recompute the request$"
    )
    for _ in range(2):
        with pytest.raises(BackupError, match=text):
            pool.load_cpu_copy(backup, NEW)
        assert not backup.spent
    kept = torch.ones(pool.buffer.shape[1], dtype=torch.bool)
    kept[pool.resolve(NEW).ids] = False
    assert torch.equal(bits(pool.buffer[:, kept]), bits(want[:, kept]))
    assert pool.host.lent_bytes > 0
    backup.discard()
    assert pool.host.lent_bytes == 0
    assert pool.audit() == []


@every_transfer
def test_a_scatter_that_fails_can_be_tried_again(how: str) -> None:
    pools = staged(how)
    backups = back_up_ranks(pools, OLD)
    before = [pool.buffer.clone() for pool in pools]
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, "scatter_rows", 7, RuntimeError("device lost"))
        with pytest.raises(RuntimeError, match="device lost"):
            restore_ranks(pools, backups, NEW)
    assert not any(backup.spent for backup in backups)
    restore_ranks(pools, backups, NEW)
    for pool, was in zip(pools, before, strict=True):
        was[:, pool.resolve(NEW).ids] = was[:, pool.resolve(OLD).ids]
        assert torch.equal(bits(pool.buffer), bits(was))
        assert pool.audit() == []
        assert pool.host.lent_bytes == 0


@every_transfer
def test_state_and_rows_fail_together(how: str) -> None:
    (full, _), states = staged(how), state_pool()
    hybrid = HybridLinearKVPool(full, states, full_layer_ids=[3, 7])
    old, new = taken(states), taken(states)
    states.conv[:, old] = 5.0
    backup = hybrid.get_cpu_copy(OLD, old, wait=False)
    backup.wait()
    backup.kv.view(torch.uint8)[0, 0, 0] ^= 1
    with pytest.raises(BackupError, match="the host copy changed"):
        hybrid.load_cpu_copy(backup, NEW, new)
    assert not bool(states.conv[:, new].any())
    backup.kv.view(torch.uint8)[0, 0, 0] ^= 1
    hybrid.load_cpu_copy(backup, NEW, new)
    assert bool((states.conv[:, new] == 5.0).all())
    assert hybrid.audit() == []


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
    def record_event(self) -> Any:
        self.streams.tick()  # type: ignore[attr-defined]
        return super().record_event()

    def wait_event(self, event: Any) -> None:
        self.streams.tick()  # type: ignore[attr-defined]
        super().wait_event(event)


def interrupted_pool(seed: int | None) -> tuple[MLATokenToKVPool, Interrupted]:
    (pool, _), streams = make_pools(LAYOUT), Interrupted(seed)
    pool.transfer = StagedTransfer(streams, CPU, 40)
    scramble([pool], seed=1)
    return pool, streams


def time_goes_by(streams: LateStreams) -> None:
    for stream in streams._streams:
        stream.record_event().synchronize()


seeds = pytest.mark.parametrize("seed", [None, 1, 2])


@seeds
@pytest.mark.parametrize("used_before", [True, False])
def test_a_backup_that_is_interrupted_while_it_is_queued_writes_nothing_later(
    seed: int | None, used_before: bool
) -> None:
    for at in range(1000):
        pool, streams = interrupted_pool(seed)
        if used_before:
            pool.get_cpu_copy(OLD).discard()
        want = pool.buffer.clone()
        streams.at = at
        try:
            pool.get_cpu_copy(OLD, wait=False).discard()
        except KeyboardInterrupt:
            pass
        else:
            break
        streams.at = None
        assert pool.host.lent_bytes == 0
        block = pool.host.take(144)
        assert block is not None
        block.fill_(7)
        time_goes_by(streams)
        assert bool((block == 7).all())  # another request's backup may be here by now
        pool.host.give(block)
        assert pool.audit() == []
        again = pool.get_cpu_copy(OLD)
        assert torch.equal(bits(again.kv), bits(want[:, pool.resolve(OLD).ids]))
        assert torch.equal(bits(pool.buffer), bits(want))
    assert at > 20


@seeds
def test_a_restore_that_is_interrupted_while_it_is_queued_writes_nothing_later(
    seed: int | None,
) -> None:
    for at in range(1000):
        pool, streams = interrupted_pool(seed)
        backup = pool.get_cpu_copy(OLD)
        streams.at = at
        try:
            pool.load_cpu_copy(backup, NEW)
        except KeyboardInterrupt:
            pass
        else:
            break
        streams.at = None
        now = pool.buffer.clone()
        time_goes_by(streams)
        assert torch.equal(bits(pool.buffer), bits(now))
        assert not backup.spent
        pool.load_cpu_copy(backup, NEW)
        new, old = pool.resolve(NEW).ids, pool.resolve(OLD).ids
        assert torch.equal(bits(pool.buffer[:, new]), bits(pool.buffer[:, old]))
        assert pool.audit() == []
        assert pool.host.lent_bytes == 0
    assert at > 20


@every_transfer
@pytest.mark.parametrize("op", ["gather_rows", "scatter_rows"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_copy_that_is_interrupted_while_it_runs_does_not_pass_for_whole(
    how: str, op: str, at: int
) -> None:
    (pool, _) = staged(how)
    made = pool.get_cpu_copy(OLD)
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, op, at, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            if op == "gather_rows":
                pool.get_cpu_copy(OLD)
            else:
                pool.load_cpu_copy(made, NEW)
    assert not made.spent
    pool.load_cpu_copy(made, NEW)
    new, old = pool.resolve(NEW).ids, pool.resolve(OLD).ids
    assert torch.equal(bits(pool.buffer[:, new]), bits(pool.buffer[:, old]))
    assert pool.audit() == []
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


def test_a_backup_that_is_discarded_in_flight_leaves_no_trace() -> None:
    for how in TRANSFERS:
        pools = staged(how)
        unchanged = untouched(pools)
        backups = [pool.get_cpu_copy(OLD, wait=False) for pool in pools]
        for backup in backups:
            backup.discard()
            assert backup.done  # its block was not given back before the copy had ended
        unchanged()


@given(room=st.integers(12, 400), n=st.integers(1, 32), how=st.sampled_from(sorted(TRANSFERS)))
def test_staging_is_allocated_once_and_never_above_its_parameter(
    room: int, n: int, how: str
) -> None:
    (pool,) = make_pools(DcpLayout(1, 4, 8))
    (transfer,) = put_on([pool], lambda: TRANSFERS[how](room))
    stages: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        for op, at in (("gather_rows", 2), ("scatter_rows", 2)):
            real = getattr(ops, op)

            def seen(*given: Any, _real: Any = real, _at: int = at, **options: Any) -> None:
                stages.append(given[_at])
                _real(*given, **options)

            patch.setattr(ops, op, seen)
        pool.load_cpu_copy(pool.get_cpu_copy(slots_from(4, n), wait=False), slots_from(4, n))
    first = stages[0].untyped_storage()
    assert {stage.untyped_storage().data_ptr() for stage in stages} == {first.data_ptr()}
    assert first.nbytes() == transfer.allocated_bytes == room
    assert pool.audit() == []


def test_the_audit_finds_staging_above_its_parameter() -> None:
    (pool,) = make_pools(DcpLayout(1, 4, 8))
    (transfer,) = put_on([pool], lambda: prompt(64))
    pool.get_cpu_copy(slots_from(4, 3)).discard()
    transfer.staging_bytes = 63
    assert pool.audit() == ["staging holds 64 bytes, bound 63"]


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
def test_each_side_stream_keeps_all_device_memory_that_its_works_use(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    (pool, _) = make_pools(LAYOUT)
    pool.transfer = StagedTransfer(watched, CPU, room)
    for name in ("gather_rows", "scatter_rows"):
        real = getattr(ops, name)

        def moved(*given: Any, _real: Any = real, **options: Any) -> None:
            watched.uses(*given, options["sums"])
            _real(*given, **options)

        monkeypatch.setattr(ops, name, moved)
    pool.load_cpu_copy(pool.get_cpu_copy(OLD, wait=False), NEW)
    assert watched.used
    for stream, used in watched.used.items():
        assert len(used) == 6  # buffer, staging, and of both copies ids and sums
        assert used <= watched.kept[stream]
    assert len(set(map(frozenset, watched.kept.values()))) == 1


@pytest.mark.parametrize("how", [None, *sorted(TRANSFERS)])
@pytest.mark.parametrize("inside_first", [True, False])
def test_copies_begun_in_inference_mode_serve_outside_of_it_and_the_other_way_round(
    how: str | None, inside_first: bool
) -> None:
    (pool, _), (twin, _) = make_pools(LAYOUT), make_pools(LAYOUT)
    if how is not None:
        put_on([pool], lambda: TRANSFERS[how](40))
    for one in (pool, twin):
        scramble([one], seed=1)
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
    pool.get_cpu_copy(OLD).discard()
    twin.load_cpu_copy(want, NEW)
    assert torch.equal(bits(pool.buffer), bits(twin.buffer))


# --- what is refused ------------------------------------------------------------------------------


def test_a_transfer_that_cannot_copy_a_pools_rows_is_refused_when_the_pool_is_made() -> None:
    def make(transfer: HostTransfer, device: str = "cpu") -> MLATokenToKVPool:
        sizes = {"layers": 1, "kv_lora_rank": 2, "qk_rope_head_dim": 1, "device": device}
        return MLATokenToKVPool(LAYOUT, 0, dtype=torch.float32, transfer=transfer, **sizes)  # type: ignore[arg-type]

    make(late(None, 12)).get_cpu_copy(slots_from(4, 9)).discard()
    text = (
        r"^staging memory must hold at least one row of one layer: got staging_bytes=11 for rows "
        r"of 12 bytes; raise staging_bytes \(a few MiB keep the copy engine busy\)$"
    )
    with pytest.raises(BackupError, match=text):
        make(late(None, 11))
    text = r"a transfer copies rows of its own device: the transfer's is cpu, the pool's meta; make"
    with pytest.raises(PoolError, match=text):
        make(late(), "meta")
    with pytest.raises(PoolError, match="a HostTransfer copies rows of the CPU: got a pool"):
        make(HostTransfer(), "meta")
    with pytest.raises(LayoutError, match=r"staging_bytes must be at least 1: bytes of device mem"):
        late(None, 0)


# --- the streams themselves -----------------------------------------------------------------------


def test_late_streams_run_what_an_event_needs_and_nothing_else() -> None:
    streams, lines = LateStreams(), []
    a, b = streams.stream(), streams.stream()

    def run(stream: Stream, name: str) -> None:
        streams.run(stream, lambda: lines.append(name))

    run(a, "a1")
    first = a.record_event()
    run(a, "a2")
    run(b, "b1")
    b.wait_event(first)
    run(b, "b2")
    last = b.record_event()
    assert (lines, first.query(), last.query()) == ([], False, False)
    last.synchronize()
    assert (lines, first.query(), last.query()) == (["b1", "a1", "b2"], True, True)
    run(b, "b3")  # nothing orders it after a2
    b.record_event().synchronize()
    assert lines == ["b1", "a1", "b2", "b3"]
    caller = streams.caller()
    assert isinstance(caller, Caller)
    caller.wait_event(a.record_event())
    assert lines[-1] == "a2"


def test_one_seed_is_one_order_and_seeds_differ() -> None:
    def order(seed: int) -> str:
        streams, lines = LateStreams(seed), []
        sides = [streams.stream() for _ in range(3)]
        for number in range(9):
            streams.run(sides[number % 3], lambda number=number: lines.append(str(number)))  # type: ignore[misc]
        for side in sides:
            side.record_event().synchronize()
        return "".join(lines)

    assert order(5) == order(5)
    assert len({order(seed) for seed in range(20)}) > 5

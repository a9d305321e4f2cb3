"""What a GPU asks of who queues work beside the caller, held here without one."""

from typing import Any

import pytest
import torch

from kvlab import ops
from kvlab.errors import PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import DeferredLane, MLATokenToKVPool, StagedLane
from kvlab.memory import staging as works
from kvlab.memory.streams import PAST, CpuStreams, DeferredStreams, Event, Stream, Work, _CudaEvent

from .staged import LANES, put_on, slots_from, whole
from .support import KINDS, bits, make_pools, scramble, state_pool, taken

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=8)  # slots 4..35
OLD, NEW = slots_from(4, 11), slots_from(20, 11)


# --- memory: a side stream's tensors are nobody else's while it uses them -------------------------


class Watched(CpuStreams):
    """Streams that know what they were told to keep, and which of them runs."""

    def __init__(self) -> None:
        self.kept: dict[int, set[int]] = {}
        self.used: dict[int, set[int]] = {}
        self.running: int | None = None

    def stream(self) -> Stream:
        return Watcher(self, len(self.kept))

    def uses(self, *tensors: torch.Tensor) -> None:
        assert self.running is not None
        self.used[self.running] |= {memory(t) for t in tensors}


class Watcher:
    def __init__(self, owner: Watched, number: int) -> None:
        self.owner, self.number = owner, number
        owner.kept[number], owner.used[number] = set(), set()

    def run(self, work: Work) -> None:
        self.owner.running = self.number
        work()
        self.owner.running = None

    def mark(self) -> Event:
        return PAST

    def after(self, event: Event) -> None:
        event.wait()

    def keep(self, tensor: torch.Tensor) -> None:
        self.owner.kept[self.number].add(memory(tensor))


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("room", [40, 10_000])
def test_each_side_stream_keeps_all_device_memory_that_its_works_use(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    (pool, _) = make_pools(LAYOUT)
    pool.lane = StagedLane(watched, "cpu", room)
    copy = works._copy

    def copied(target: torch.Tensor, source: torch.Tensor) -> None:
        watched.uses(target if memory(source) in pool.host._lent else source)  # the device's side
        copy(target, source)

    for name in ("gather_rows", "scatter_rows"):
        real = getattr(ops, name)

        def moved(*given: Any, _real: Any = real, **options: Any) -> None:
            watched.uses(*(t for t in (*given, options["sums"]) if isinstance(t, torch.Tensor)))
            _real(*given, **options)

        monkeypatch.setattr(ops, name, moved)
    monkeypatch.setattr(works, "_copy", copied)
    backup = pool.get_cpu_copy(OLD, wait=False)
    pool.load_cpu_copy(backup, NEW)
    for number, used in watched.used.items():
        assert len(used) >= 3  # staging, sums, the flag; staging, sums, ids, rows
        assert used <= watched.kept[number]


# --- CUDA graphs: nothing is asked of an event, and nothing is waited for -------------------------


class Capturing(DeferredStreams):
    """Streams whose caller captures a graph when it is told to."""

    on = False

    def capturing(self) -> bool:
        return self.on


def test_a_capture_is_refused_with_a_copy_in_flight_and_served_once_it_was_waited_for() -> None:
    streams = Capturing()
    (pool, _), values = make_pools(LAYOUT), torch.ones(11, 3)
    pool.lane = StagedLane(streams, "cpu", 40)
    scramble([pool], seed=1)

    def write() -> None:
        pool.set_mla_kv_buffer(0, OLD, values[:, :2], values[:, 2:])

    text = (
        r"^a CUDA graph that reads or writes a pool is captured while none of its copies is in "
        r"flight: at least one is, or nobody has looked whether it ended; wait\(\) for the backups "
        r"and restores, then capture; call pool.before_write\(\) before each replay$"
    )
    backup = pool.get_cpu_copy(OLD, wait=False)
    before = pool.buffer.clone()
    streams.on = True
    with pytest.raises(PoolError, match=text):
        write()
    assert torch.equal(bits(pool.buffer), bits(before))
    pool.before_read()  # no restore is in flight
    backup.wait()
    write()
    streams.on = False
    pool.load_cpu_copy(backup, NEW, wait=False)
    streams.on = True
    for hook in (pool.before_read, pool.before_write):
        with pytest.raises(PoolError, match=text):
            hook()
    backup.wait()
    pool.before_read()
    write()
    assert pool.audit() == []


class Raw:
    """A CUDA event that has happened; how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def query(self) -> bool:
        self.asked += 1
        return True

    def synchronize(self) -> None:
        self.asked += 1


@pytest.mark.parametrize("how", ["done", "wait"])
def test_an_event_that_is_known_to_be_past_is_never_asked_again(how: str) -> None:
    raw = Raw()
    event = _CudaEvent(raw)  # type: ignore[arg-type]
    assert raw.asked == 0
    for _ in range(2):
        if how == "done":
            assert event.done
        else:
            event.wait()
        assert event.known
        event.wait()
        assert event.done
    assert raw.asked == 1


def test_after_a_wait_both_moments_of_a_copy_are_known_to_be_past() -> None:
    raws = Raw(), Raw()
    (pool, _) = make_pools(LAYOUT)
    (lane,) = put_on([pool], lambda: DeferredLane(None, 40))
    backup = pool.get_cpu_copy(OLD, wait=False)
    flight = lane._flights[0]
    flight.freed, flight.ended = (_CudaEvent(raw) for raw in raws)  # type: ignore[arg-type]
    lane._rows.mark().wait()
    lane._copies.mark().wait()
    backup.wait()
    assert flight.freed.known
    assert flight.ended.known


# --- inference mode: what is made in it must serve outside of it ----------------------------------


@pytest.mark.parametrize("lane", [None, *sorted(LANES)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside_first", [True, False])
def test_copies_begun_in_inference_mode_serve_outside_of_it_and_the_other_way_round(
    kind: str, lane: str | None, inside_first: bool
) -> None:
    (pool, _), (twin, _) = make_pools(LAYOUT, kind), make_pools(LAYOUT, kind)
    if lane is not None:
        put_on([pool], lambda: LANES[lane](40))
    for one in (pool, twin):
        scramble([one], seed=1)
    want = twin.get_cpu_copy(OLD)
    with torch.inference_mode(inside_first):
        first = pool.get_cpu_copy(WidenedSlots(OLD.ids.clone()), wait=False)
        second = pool.get_cpu_copy(OLD, wait=False)
    with torch.inference_mode(not inside_first):
        assert second.checksum == want.checksum
        assert whole(second) == whole(want)
        second.discard()
        pool.load_cpu_copy(first, NEW, wait=False)
    with torch.inference_mode(inside_first):
        first.wait()
        pool.get_cpu_copy(OLD).discard()
    pool.get_cpu_copy(OLD).discard()
    twin.load_cpu_copy(want, NEW)
    assert torch.equal(bits(pool.buffer), bits(twin.buffer))
    assert pool.audit() == []


def test_a_flag_made_in_inference_mode_is_lowered_and_cleared_outside_of_it() -> None:
    with torch.inference_mode():
        flag = ops.CheckFlag("cpu")
    flag.lower(torch.tensor([False, True]))
    assert flag.read() == 1
    flag.clear()
    assert flag.read() is None


def test_a_pool_made_in_inference_mode_is_written_and_restored_outside_of_it() -> None:
    with torch.inference_mode():
        pools: list[MLATokenToKVPool] = make_pools(LAYOUT)
    for pool in pools:
        pool.set_mla_kv_buffer(0, OLD, torch.ones(11, 2), torch.ones(11, 1))
        pool.load_cpu_copy(pool.get_cpu_copy(OLD), NEW)
        assert pool.audit() == []


def test_a_state_made_in_inference_mode_is_restored_outside_of_it() -> None:
    with torch.inference_mode():
        states = state_pool()
        slot = taken(states)
        kept = states.get_cpu_copy(slot)
    states.temporal[:, slot] = 7.0
    states.load_cpu_copy(kept, slot)
    assert not bool(states.temporal.any())

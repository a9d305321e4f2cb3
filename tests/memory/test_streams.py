"""Deferred streams run what an event needs, in an order that the events allow, and no sooner."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.memory.streams import PAST, CpuStreams, CudaStreams, DeferredStreams, Event, Stream, Work


class Log:
    """Works that write their name when they run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def work(self, name: str) -> Work:
        return lambda: self.lines.append(name)


def test_nothing_runs_before_an_event_is_waited_for_and_then_only_what_it_needs() -> None:
    streams, log = DeferredStreams(), Log()
    a, b = streams.stream(), streams.stream()
    a.run(log.work("a1"))
    first = a.mark()
    a.run(log.work("a2"))
    b.run(log.work("b1"))
    b.after(first)
    b.run(log.work("b2"))
    last = b.mark()
    assert log.lines == []
    assert (first.done, last.done) == (False, False)
    last.wait()
    assert log.lines == ["b1", "a1", "b2"]
    assert (first.done, last.done) == (True, True)
    a.mark().wait()
    assert log.lines == ["b1", "a1", "b2", "a2"]
    last.wait()
    assert len(log.lines) == 4


def test_a_work_that_nothing_orders_is_overtaken() -> None:
    streams, log = DeferredStreams(), Log()
    a, b = streams.stream(), streams.stream()
    a.run(log.work("gather"))
    b.run(log.work("copy"))  # no b.after(a.mark())
    b.mark().wait()
    assert log.lines == ["copy"]


def test_the_caller_runs_at_once_and_waits_by_running() -> None:
    streams, log = DeferredStreams(), Log()
    side, caller = streams.stream(), streams.caller()
    side.run(log.work("side"))
    caller.run(log.work("too early"))
    caller.after(side.mark())
    caller.run(log.work("in order"))
    assert log.lines == ["too early", "side", "in order"]
    side.after(caller.mark())
    assert caller.mark() is PAST
    PAST.wait()


def test_streams_of_the_cpu_run_at_once() -> None:
    streams, log = CpuStreams(), Log()
    side = streams.stream()
    side.after(streams.caller().mark())
    side.run(log.work("now"))
    assert log.lines == ["now"]
    assert side.mark().done


@given(data=st.data(), seed=st.one_of(st.none(), st.integers(0, 99)))
def test_every_order_keeps_each_stream_and_every_event(
    data: st.DataObject, seed: int | None
) -> None:
    streams, log = DeferredStreams(seed), Log()
    sides: list[Stream] = [streams.stream() for _ in range(3)]
    marks: list[tuple[Event, set[str]]] = []
    needs: dict[str, set[str]] = {}
    given_to: list[list[str]] = [[], [], []]
    ordered: list[set[str]] = [set(), set(), set()]
    for number in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(0, 2))
        what = data.draw(st.sampled_from(("run", "mark", "after")))
        if what == "run":
            name = f"{at}:{number}"
            needs[name] = ordered[at] | set(given_to[at])
            sides[at].run(log.work(name))
            given_to[at].append(name)
        elif what == "mark":
            marks.append((sides[at].mark(), ordered[at] | set(given_to[at])))
        elif marks:
            event, before = data.draw(st.sampled_from(marks))
            sides[at].after(event)
            ordered[at] |= before
    for event, before in marks:
        event.wait()
        assert event.done
        assert before <= set(log.lines)
    for side in sides:
        side.mark().wait()
    assert sorted(log.lines) == sorted(needs)
    for name, before in needs.items():
        assert before <= set(log.lines[: log.lines.index(name)])


def test_one_seed_is_one_order_and_seeds_differ() -> None:
    def order(seed: int) -> list[str]:
        streams, log = DeferredStreams(seed), Log()
        sides = [streams.stream() for _ in range(3)]
        for number in range(9):
            sides[number % 3].run(log.work(str(number)))
        for side in sides:
            side.mark().wait()
        return log.lines

    assert order(5) == order(5)
    assert len({tuple(order(seed)) for seed in range(20)}) > 5


@pytest.mark.gpu
def test_a_cuda_event_is_done_when_its_stream_has_run() -> None:
    streams = CudaStreams(torch.device("cuda", torch.cuda.current_device()))
    side, x = streams.stream(), torch.zeros(1 << 20, device="cuda")
    side.after(streams.caller().mark())

    def add() -> None:
        x.add_(1.0)

    side.run(add)
    event = side.mark()
    streams.caller().after(event)
    assert bool((x == 1.0).all())
    event.wait()
    assert event.done

"""Streams and events: in which order copies run, and the one place of this layer that knows CUDA.

A stream runs what it is given in that order. Two streams run side by side, but for the events that
one waits for. The *caller's stream* is the one on which the pool is written and read.

Three kinds: CUDA streams; streams of the CPU that run everything at once; and *deferred* ones,
which run nothing before an event is waited for. On those a forgotten wait shows, every time: with
streams a and b, ``a.run(x); b.run(y)``, nothing makes x run before y, and waiting for an event of
b runs y alone.

Source: the semantics of ``cudaStreamWaitEvent`` and ``cudaEventSynchronize``.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from kvlab.errors import PoolError

Work = Callable[[], None]


class Event(Protocol):
    """A point in a stream: all that the stream was given before it."""

    @property
    def done(self) -> bool:
        """Whether that has run. Never waits."""

    @property
    def known(self) -> bool:
        """Whether the host knows already that it has run. Never asks the device."""

    def wait(self) -> None:
        """Block the host until it has run; nothing else is waited for."""


class Stream(Protocol):
    """An order of works."""

    def run(self, work: Work) -> None:
        """Add a work. It must not raise: nobody knows when it runs."""

    def mark(self) -> Event:
        """The event after all that was added so far."""

    def after(self, event: Event) -> None:
        """What is added from here on runs after ``event``. The host does not wait."""

    def keep(self, tensor: Tensor) -> None:
        """The works use this tensor: whoever drops it, its memory is nobody else's before what
        was added until then has run."""


class Streams(Protocol):
    """Where a lane takes its streams from."""

    def caller(self) -> Stream:
        """The stream on which the pool is written and read."""

    def stream(self) -> Stream:
        """A new stream beside it."""

    def capturing(self) -> bool:
        """Whether the caller's stream records a CUDA graph instead of running."""


def order(streams: Streams, event: Event) -> Event:
    """Order the caller's stream after the event; afterwards what is left to order after.

    Errors: PoolError while the caller captures a CUDA graph, unless the event is known to be past:
    a graph cannot wait for what it does not hold, and its replays would not wait at all.
    """
    if event.known:
        return PAST
    if streams.capturing():
        raise PoolError(
            "a CUDA graph that reads or writes a pool is captured while none of its copies is in "
            "flight: at least one is, or nobody has looked whether it ended; wait() for the "
            "backups and restores, then capture; call pool.before_write() before each replay"
        )
    streams.caller().after(event)
    return PAST if event.done else event


class _Past:
    """The event of what has run already."""

    done = known = True

    def wait(self) -> None:
        return


PAST: Event = _Past()


class _AtOnce:
    """The only stream of code that runs at once."""

    def run(self, work: Work) -> None:
        work()

    def mark(self) -> Event:
        return PAST

    def after(self, event: Event) -> None:
        event.wait()

    def keep(self, tensor: Tensor) -> None:
        return


class CpuStreams:
    """Everything runs at once, on the thread that asks."""

    def caller(self) -> Stream:
        """Runs at once."""
        return _AtOnce()

    def stream(self) -> Stream:
        """Runs at once too."""
        return _AtOnce()

    def capturing(self) -> bool:
        """There are no graphs here."""
        return False


@dataclass(slots=True, eq=False)
class _CudaEvent:
    raw: torch.cuda.Event
    known: bool = False  # while a graph is captured an event must not be asked

    @property
    def done(self) -> bool:
        self.known = self.known or bool(self.raw.query())  # type: ignore[no-untyped-call]
        return self.known

    def wait(self) -> None:
        if not self.known:
            self.raw.synchronize()
            self.known = True


@dataclass(frozen=True, slots=True, eq=False)
class _CudaStream:
    raw: torch.cuda.Stream

    def run(self, work: Work) -> None:
        with torch.cuda.stream(self.raw):
            work()

    def mark(self) -> Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self.raw)
        return _CudaEvent(event)

    def after(self, event: Event) -> None:
        if isinstance(event, _CudaEvent):
            self.raw.wait_event(event.raw)
        else:
            event.wait()

    def keep(self, tensor: Tensor) -> None:
        tensor.record_stream(self.raw)


@dataclass(frozen=True, slots=True, eq=False)
class CudaStreams:
    """Streams of one CUDA device; the caller's is torch's current one when it is asked for."""

    device: torch.device

    def caller(self) -> Stream:
        """The current stream of the device."""
        return _CudaStream(torch.cuda.current_stream(self.device))

    def stream(self) -> Stream:
        """A stream of its own, from torch's pool of streams."""
        raw = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return _CudaStream(raw)

    def capturing(self) -> bool:
        """Asked of the device's current stream."""
        with torch.cuda.device(self.device):
            return bool(torch.cuda.is_current_stream_capturing())


@dataclass(frozen=True, slots=True, eq=False)
class _DeferredEvent:
    streams: "DeferredStreams"
    stream: "_DeferredStream"
    number: int

    @property
    def done(self) -> bool:
        return self.stream.ran >= self.number

    @property
    def known(self) -> bool:
        return self.done

    def wait(self) -> None:
        self.streams.run_until(self)


@dataclass(slots=True, eq=False)
class _DeferredStream:
    streams: "DeferredStreams"
    items: deque[Work | _DeferredEvent] = field(default_factory=deque)
    given: int = 0
    ran: int = 0

    def run(self, work: Work) -> None:
        self._add(work)

    def mark(self) -> Event:
        return _DeferredEvent(self.streams, self, self.given)

    def after(self, event: Event) -> None:
        if isinstance(event, _DeferredEvent):
            self._add(event)
        else:
            event.wait()

    def keep(self, tensor: Tensor) -> None:
        return  # works hold their tensors until they have run

    @property
    def waits_for(self) -> _DeferredEvent | None:
        """The event that keeps this stream from going on."""
        head = self.items[0] if self.items else None
        return head if isinstance(head, _DeferredEvent) and not head.done else None

    def step(self) -> None:
        item = self.items.popleft()
        self.ran += 1
        if not isinstance(item, _DeferredEvent):
            item()

    def _add(self, item: Work | _DeferredEvent) -> None:
        self.items.append(item)
        self.given += 1


class DeferredStreams:
    """Streams of the CPU that run when an event of theirs is waited for, and only as far.

    Args:
        seed: None runs what the event needs and nothing else, as late as can be. A number lets
            the streams overtake each other at random wherever no event forbids it; the same
            number gives the same order.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._chance = None if seed is None else random.Random(seed)
        self._streams: list[_DeferredStream] = []

    def caller(self) -> Stream:
        """Runs at once: what the caller does is done when it returns."""
        return _AtOnce()

    def stream(self) -> Stream:
        """A stream that waits to be waited for."""
        made = _DeferredStream(self)
        self._streams.append(made)
        return made

    def capturing(self) -> bool:
        """There are no graphs here."""
        return False

    def run_until(self, event: _DeferredEvent) -> None:
        """Run works, in an order that the streams allow, until the event is done."""
        while not event.done:
            if self._chance is None:
                stream = event.stream
                while (needed := stream.waits_for) is not None:
                    stream = needed.stream
            else:
                ready = [s for s in self._streams if s.items and s.waits_for is None]
                stream = self._chance.choice(ready)
            stream.step()

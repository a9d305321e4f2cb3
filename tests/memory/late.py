"""Streams of the CPU that run late on purpose, in the orders that their events allow.

They run nothing before an event is waited for. On them a forgotten wait shows, every time: with
streams a and b, ``run(a, x); run(b, y)``, nothing makes x run before y, and waiting for an event of
b runs y alone. They stand in for CUDA's: ``wait_event`` and ``record_event`` of a stream, ``query``
and ``synchronize`` of an event.
"""

import random
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.memory import CudaStreams, StagedTransfer
from kvlab.memory.transfer import STAGING_BYTES, Work

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """After ``number`` works of the stream."""

    stream: "Stream"
    number: int

    def query(self) -> bool:
        return self.stream.ran >= self.number

    def synchronize(self) -> None:
        self.stream.streams.run_until(self)


@dataclass(slots=True, eq=False)
class Stream:
    """Works, and the events that it waits for, in order."""

    streams: "LateStreams"
    items: deque[Work | Event] = field(default_factory=deque)
    given: int = 0
    ran: int = 0
    waits: bool = True

    def record_event(self) -> Event:
        return Event(self, self.given)

    def wait_event(self, event: Event) -> None:
        if self.waits:
            self.add(event)

    def add(self, item: Work | Event) -> None:
        self.items.append(item)
        self.given += 1

    @property
    def waits_for(self) -> Event | None:
        """The event that keeps this stream from going on."""
        head = self.items[0] if self.items else None
        return head if isinstance(head, Event) and not head.query() else None

    def step(self) -> None:
        item = self.items.popleft()
        self.ran += 1
        if not isinstance(item, Event):
            item()


class Caller(Stream):
    """What the caller does is done when it returns; it waits by running others."""

    def add(self, item: Work | Event) -> None:
        if isinstance(item, Event):
            item.synchronize()
        else:
            item()


class LateStreams(CudaStreams):
    """``seed`` None runs what an event needs and nothing else, as late as can be. A number lets the
    streams overtake each other at random wherever no event forbids it; one number is one order."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(CPU)
        self._chance = None if seed is None else random.Random(seed)
        self._streams: list[Stream] = []

    def caller(self) -> Stream:
        return Caller(self)

    def stream(self) -> Stream:
        self._streams.append(Stream(self))
        return self._streams[-1]

    def run(self, stream: Stream, work: Work) -> None:
        stream.add(work)

    def keep(self, stream: Stream, tensor: Tensor) -> None:
        return  # works hold their tensors until they have run

    def run_until(self, event: Event) -> None:
        while not event.query():
            if self._chance is None:
                stream = event.stream
                while (needed := stream.waits_for) is not None:
                    stream = needed.stream
            else:
                ready = [s for s in self._streams if s.items and s.waits_for is None]
                stream = self._chance.choice(ready)
            stream.step()


class PromptStreams(LateStreams):
    """Everything runs at once: the arithmetic without the orders."""

    def stream(self) -> Stream:
        return Caller(self)


def late(seed: int | None = None, staging_bytes: int = STAGING_BYTES) -> StagedTransfer:
    """A staged transfer of the CPU that runs nothing before it is waited for."""
    return StagedTransfer(LateStreams(seed), staging_bytes)


def prompt(staging_bytes: int = STAGING_BYTES) -> StagedTransfer:
    """A staged transfer of the CPU that runs everything at once."""
    return StagedTransfer(PromptStreams(), staging_bytes)

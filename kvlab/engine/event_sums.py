"""Counts and sums over a set of requests that each forward would change, kept without a forward.

The clock counts forwards. Each class stores what does not change (a remainder, an end, a value),
so that a sum at a later clock is arithmetic and not a walk over the requests.

Worked example, W = 4, two requests of phase 0 and one of phase 3: the forwards at clock 0, 1, 2, 3
open 2, 0, 0, 1 pages, and ten forwards from clock 3 on open 1 + 3 + 3 + 2 = 9.
"""

from heapq import heappop, heappush


class PageClock:
    """How many running requests open a page in which forward, by remainder modulo W."""

    def __init__(self, widened_page_size: int) -> None:
        self._width = widened_page_size
        self._due = [0] * widened_page_size
        # The same counts as 0 and 1: ``find`` skips empty forwards at the speed of memchr.
        self._any = bytearray(widened_page_size)
        self._size = 0

    def add(self, phase: int) -> None:
        """A request opens a page at every clock of this phase."""
        self._due[phase] += 1
        self._any[phase] = 1
        self._size += 1

    def remove(self, phase: int) -> None:
        """A request of this phase stops to do so."""
        self._due[phase] -= 1
        self._any[phase] = self._due[phase] > 0
        self._size -= 1

    def due(self, clock: int) -> int:
        """Pages that the forward at ``clock`` opens."""
        return self._due[clock % self._width]

    def opened(self, clock: int, forwards: int) -> int:
        """Pages that ``forwards`` forwards open from ``clock`` on."""
        rounds, rest = divmod(forwards, self._width)
        start = clock % self._width
        beyond = start + rest - self._width
        part = sum(self._due[start : start + rest])
        if beyond > 0:
            part += sum(self._due[:beyond])
        return rounds * self._size + part

    def fitting(self, clock: int, forwards: int, free: int) -> int:
        """How many of the ``forwards`` from ``clock`` on find their pages among ``free``."""
        if self.opened(clock, forwards) <= free:
            return forwards
        rounds, left = divmod(free, self._size)
        fit, at = rounds * self._width, clock % self._width
        while True:
            busy = self._any.find(1, at)
            if busy < 0:
                fit, at = fit + self._width - at, 0
                continue
            fit += busy - at
            if self._due[busy] > left:
                return fit
            left -= self._due[busy]
            fit, at = fit + 1, busy + 1


class Ramps:
    """The sum of ``max(0, end - clock)`` over a multiset of ends, for a clock that only grows."""

    def __init__(self) -> None:
        self._clock = 0
        self._count = 0
        self._total = 0
        self._copies: dict[int, int] = {}
        self._ends: list[int] = []

    def add(self, end: int) -> None:
        """Add an end; one that the clock has passed adds nothing."""
        self._change(end, 1)

    def remove(self, end: int) -> None:
        """Take back an end that was added."""
        self._change(end, -1)

    def _change(self, end: int, by: int) -> None:
        if end <= self._clock:
            return
        if end not in self._copies:
            self._copies[end] = 0
            heappush(self._ends, end)
        self._copies[end] += by
        self._count += by
        self._total += by * end

    def settle(self, clock: int) -> None:
        """Move the clock: ends that it reaches are at 0 and leave the sum."""
        self._clock = clock
        while self._ends and self._ends[0] <= clock:
            end = heappop(self._ends)
            copies = self._copies.pop(end)
            self._count -= copies
            self._total -= copies * end

    def value(self, clock: int) -> int:
        """The sum at ``clock``, which lies between the settled clock and ``next_end``."""
        return self._total - self._count * clock

    def next_end(self) -> int | None:
        """The first clock after which ``value`` needs another ``settle``; None if there is none."""
        return self._ends[0] if self._ends else None


class Largest:
    """The largest of a multiset, with lazy deletion."""

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}
        self._heap: list[int] = []

    def add(self, value: int) -> None:
        """Add a value."""
        if value not in self._copies:
            self._copies[value] = 0
            heappush(self._heap, -value)
        self._copies[value] += 1

    def remove(self, value: int) -> None:
        """Take back a value that was added."""
        self._copies[value] -= 1

    def value(self) -> int | None:
        """The largest, or None of an empty set."""
        while self._heap and not self._copies[-self._heap[0]]:
            del self._copies[-heappop(self._heap)]
        return -self._heap[0] if self._heap else None

"""Go through more inputs than a cache holds, a window of them in each timed call.

Every contender of a round is at another window, and a window comes back only when the others had
their turn: what a call reads was in no cache. Worked example, 32 inputs and three contenders: 16
windows of two; round 0 has windows 0, 1, 2, round 1 has 3, 4, 5, and round 5 has 15, 0, 1. With at
most 16 inputs every call goes through all of them.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kvlab.lab.bench.clock import Contender

WINDOWS = 16

T = TypeVar("T")


class Tour(Generic[T]):
    """Inputs for ``contenders`` contenders, added one after the other.

    More than 16 inputs are cut to a multiple of 16.
    """

    def __init__(self, inputs: Sequence[T], contenders: int) -> None:
        width = max(1, len(inputs) // WINDOWS)
        self.windows: list[Sequence[T]] = (
            [inputs]
            if len(inputs) <= WINDOWS
            else [inputs[i * width : (i + 1) * width] for i in range(WINDOWS)]
        )
        # An odd step meets every window in the end.
        self._step = contenders | 1
        self._added = 0

    def add(self, name: str, work: Callable[[T], object]) -> Contender:
        """A contender that does ``work`` on each input of a window."""
        at = self._added
        self._added += 1

        def prepare(i: int) -> Callable[[], object]:
            window = self.windows[(i * self._step + at) % len(self.windows)]

            def go() -> None:
                for each in window:
                    work(each)

            return go

        return Contender(name, prepare, calls=len(self.windows[0]))

"""Random inputs of exercises: small enough to redo at size 0, too many to remember at size 9."""

from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import TypeVar

T = TypeVar("T")
Inputs = tuple[object, ...]


class Draw(Random):
    """Random values that grow with ``size``, 0 to 9, always the same for one seed."""

    def __init__(self, seed: str, size: int) -> None:
        super().__init__(seed)
        self.size = size

    def pick(self, small: Sequence[T], large: Sequence[T]) -> T:
        """One of ``small`` below size 3, then one of ``large``."""
        return self.choice(small if self.size < 3 else large)

    @cached_property
    def c(self) -> int:
        """The DCP size of these inputs, at least 2: one rank hides every mistake."""
        return self.pick((2, 3, 4), (2, 3, 4, 5, 6, 7, 8, 16))

    @cached_property
    def P(self) -> int:
        """Their page size in rows."""
        return self.pick(range(1, 4), range(2, 8 * self.size + 1))

    @cached_property
    def rank(self) -> int:
        """One of the c ranks."""
        return self.randrange(self.c)

    def number(self, low: int = 0) -> int:
        """A whole number from ``low``: below 20 at size 0, up to 20 million at size 9."""
        return low + self.randrange(20 * 4**self.size * (4 if self.size > 5 else 1))

    def pages(self, count: int, most: int) -> list[int]:
        """``count`` different pages of 1 .. most, in no order."""
        return self.sample(range(1, most + 1), count)


def slots_of(pages: list[int], length: int, widened: int) -> list[int]:
    """The slots of positions 0 .. length-1 on those pages of W slots."""
    return [pages[p // widened] * widened + p % widened for p in range(length)]

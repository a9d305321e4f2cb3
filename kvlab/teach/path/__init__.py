"""The exercises of the path, one module a notebook; and their random inputs.

Inputs are small enough to redo at size 0, and too many to remember at size 9.
"""

from random import Random

SMALL_RANKS, RANKS = (2, 3, 4), (2, 3, 4, 5, 6, 7, 8, 16)


def ranks(rng: Random, size: int) -> int:
    """A DCP size c of at least 2: one rank hides every mistake."""
    return rng.choice(SMALL_RANKS if size < 3 else RANKS)


def page(rng: Random, size: int) -> int:
    """A page size P in rows."""
    return rng.randint(1, 3) if size < 3 else rng.randint(2, 8 * size)


def number(rng: Random, size: int, low: int = 0) -> int:
    """A whole number from ``low``: below 20 at size 0, up to 20 million at size 9."""
    return low + rng.randrange(20 * 4**size * (4 if size > 5 else 1))


def pages(rng: Random, count: int, most: int) -> list[int]:
    """``count`` different pages of 1 .. most, in no order."""
    return rng.sample(range(1, most + 1), count)


def slots_of(page_list: list[int], length: int, widened: int) -> list[int]:
    """The slots of positions 0 .. length-1 on those pages of W slots.

    A list, as a task shows it: elements of a tensor are equal and yet not the same key of a set.
    """
    return [page_list[p // widened] * widened + p % widened for p in range(length)]

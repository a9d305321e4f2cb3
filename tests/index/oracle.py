"""The rules of the index spaces once more, in plain Python, one id at a time.

Nothing here shares code or method with ``kvlab.index``: loops over ints instead of tensors, a scan
of the whole space instead of a closed form. The law tests compare the two.
"""

from functools import lru_cache

from hypothesis import strategies as st
from torch import Tensor, int64, tensor

# Powers of two take another path than the rest, and sizes past 1024 a third one.
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 64)


def ids(values: list[int]) -> Tensor:
    """An int64 ``(n,)`` tensor, also of no values."""
    return tensor(values, dtype=int64)


@lru_cache(maxsize=128)
def deal(c: int, interleave: int = 1) -> list[tuple[int, int]]:
    """(owner, row) of slots 0 .. 8191: dealt like cards, ``interleave`` to a rank in turn."""
    stored, dealt = [0] * c, []
    for turn in range(8192 // interleave + 1):
        rank = turn % c
        for _ in range(interleave):
            dealt.append((rank, stored[rank]))
            stored[rank] += 1
    return dealt[:8192]


def held(slots: list[int], c: int, rank: int, interleave: int = 1) -> list[tuple[int, int]]:
    """(element, row) of each slot that ``rank`` stores, in order."""
    places = deal(c, interleave)
    return [(at, places[v][1]) for at, v in enumerate(slots) if places[v][0] == rank]


def strided(slots: list[int], c: int, rank: int, start: int) -> list[tuple[int, int]]:
    """(element, row) that the stride takes: the elements whose *position* is of this rank."""
    return [(at, slot // c) for at, slot in enumerate(slots) if (start + at) % c == rank]


def held_positions(start: int, length: int, c: int, rank: int, interleave: int = 1) -> int:
    """How many positions of ``[start, start + length)`` the rank holds, counted one by one."""
    return sum(owner == rank for owner, _ in deal(c, interleave)[start : start + length])


@st.composite
def runs(
    draw: st.DrawFn, sizes: tuple[int, ...] = SIZES, longest: int = 60
) -> tuple[list[int], int, int, int]:
    """(slots, start, c, page_size): a request's run, on shuffled pages, from any position."""
    c = draw(st.sampled_from(sizes))
    page = draw(st.integers(1, 5))
    start = draw(st.integers(0, 3 * c * page))
    length = draw(st.integers(0, longest))
    wide = c * page
    pages = draw(st.permutations(range(1, (start + length) // wide + 3)))
    slots = [pages[p // wide] * wide + p % wide for p in range(start, start + length)]
    return slots, start, c, page

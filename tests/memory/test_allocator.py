"""The allocator: worked examples, upstream's tables, and everything it refuses."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError, LayoutError, PoolError
from kvlab.index import DcpLayout
from kvlab.memory import PagedTokenToKVPoolAllocator

from .support import ids

SMALL = DcpLayout(dcp_size=4, page_size=2, num_pages=4)  # W = 8, slots 8..39
Allocator = PagedTokenToKVPoolAllocator


def allocator(taken: int = 0) -> Allocator:
    made = Allocator(SMALL)
    assert got(made.alloc_extend(0, taken)) == list(range(8, 8 + taken))
    return made


def got(slots: Tensor | None) -> list[int]:
    assert slots is not None
    assert slots.dtype == torch.int64
    return [int(x) for x in slots]


def pages_in_order(a: Allocator) -> list[int]:
    """The pages of all that is free, in the order in which they are handed out."""
    return [slot // a.page_size for slot in got(a.alloc_extend(0, a.available_size()))[::8]]


def state(a: Allocator) -> tuple[object, ...]:
    return tuple(a._free)


def test_the_example_of_the_module() -> None:
    a, last = allocator(10), 17
    for n in range(11, 17):
        (last,) = got(a.alloc_decode([n], [last]))
        assert last == 16 + n - 9
    assert a.used_pages == 2
    assert got(a.alloc_decode([17], [last])) == [24]
    assert a.used_pages == 3


# --- frees ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[(8, 9), (9, 24)], [(9, 24), (8, 9)], [(8, 9), (9, 9), (9, 24)]])
def test_touching_ranges_free_each_page_once(order: list[tuple[int, int]]) -> None:
    # test_free_kv_row_coalesce upstream: page 8 (512 / 64), a row of 24.
    a = allocator(24)
    a.free_segments(torch.arange(8, 32), order)
    assert pages_in_order(a) == [2, 3, 4]


def test_a_page_is_freed_once() -> None:
    a, slots = allocator(24), torch.arange(8, 32)
    a.free(slots[:4])
    with pytest.raises(PoolError, match=r"page 1 \(slots 8\.\.15\) is freed already"):
        a.free(slots[4:16])
    with pytest.raises(PoolError, match="is freed already"):
        a.free_segments(slots, [(0, 24)])
    assert a.available_size() == 16
    assert a.audit() == []


# --- what is refused: nothing has changed ---------------------------------------------------------

Call = Callable[[Allocator], object]


def extend(prefix: int, length: int, last: object) -> Call:
    return lambda a: a.alloc_extend(prefix, length, last)  # type: ignore[arg-type]


def decode(lens: list[int], lasts: list[object]) -> Call:
    return lambda a: a.alloc_decode(lens, lasts)  # type: ignore[arg-type]


def free(*slots: int) -> Call:
    return lambda a: a.free(ids(slots))


def segments(*ranges: tuple[int, int], row: list[int] | None = None) -> Call:
    return lambda a: a.free_segments(ids(range(8, 27) if row is None else row), list(ranges))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (extend(3, 5, 9), PoolError, r"last_loc must be the slot of position 2: got 9, whose off"),
        (extend(3, 5, -6), PoolError, r"last_loc must be the slot of position 2: got -6"),
        (extend(3, 5, 2), PoolError, r"handed out: got 2 in page 0 of 1\.\.4 \(3 handed out\); re"),
        (extend(3, 5, 34), PoolError, r"last_loc must lie in a page that is handed out: got 34 in"),
        (extend(3, 5, 42), PoolError, r"last_loc must lie in a page that is handed out: got 42 in"),
        (extend(3, 5, 10.0), IndexSpaceError, r"last_loc must be an int: got 10\.0 \(float\)"),
        (extend(5, 3, 12), LayoutError, r"seq_len must be at least 5: .* got seq_len=3"),
        (extend(-1, 3, 8), LayoutError, r"prefix_len must be at least 0: .* got prefix_len=-1"),
        (decode([1, 4], [-1, 9]), PoolError, r"last_loc must be the slot of position 2: got 9"),
        (decode([4], [10, 10]), PoolError, r"name the same requests: got 1 and 2"),
        (decode([4, 4], [10, 10]), PoolError, r"two of the 2 requests name last_loc 10, so both"),
        (decode([0], [-1]), LayoutError, r"seq_len must be at least 1"),
        (
            free(8, 32),
            PoolError,
            r"page 4 \(slots 32\.\.39\) is freed already: one free a page; no",
        ),
        (
            free(8, 7),
            IndexSpaceError,
            r"widened slot must lie in \[8, 40\): got 7 at index 1; 1 of",
        ),
        (free(8, -1), IndexSpaceError, r"\[8, 40\): got -1 at index 1; .* only slots that the al"),
        (free(40), IndexSpaceError, r"widened slot must lie in \[8, 40\): got 40 at index 0"),
        (segments((8, 9), (12, 19)), IndexSpaceError, r"segment at 12 shares page 1 with the one"),
        (segments((9, 19)), IndexSpaceError, r"must begin on a page: got 9, page size 8"),
        (segments((8, 16), (12, 19)), IndexSpaceError, r"ranges must not overlap: \[12, 19\)"),
        (segments((16, 8)), IndexSpaceError, r"0 <= begin <= end: got \[16, 8\)"),
        (segments((8, 20)), PoolError, r"must lie in the row: it ends at 20, the row at 19"),
        (
            segments((0, 8), row=[9, *range(9, 16)]),
            PoolError,
            r"position 0 begins a page of 8, so its slot must too: got slot 9",
        ),
        (
            segments((0, 16), row=[*range(8, 16), *range(8, 16)]),
            PoolError,
            r"names one page twice among \[1, 1\]; nothing was freed",
        ),
        (
            segments((0, 8), row=[*range(8)]),
            PoolError,
            r"a page must lie in \[1, 4\]: got 0; the row names a slot that was never",
        ),
        (segments((0, 8), row=[*range(40, 48)]), PoolError, r"must lie in \[1, 4\]: got 5"),
        (segments((0, 8), row=[-8] * 8), PoolError, r"must lie in \[1, 4\]: got -1"),
        (
            segments((0, 16), row=[*range(8, 16), *range(32, 40)]),
            PoolError,
            r"page 4 \(slots 32\.\.39\) is freed already: one free",
        ),
    ],
)
def test_what_the_allocator_refuses_changes_nothing(
    call: Call, error: type[Exception], text: str
) -> None:
    a = allocator(19)
    before = state(a)
    with pytest.raises(error, match=text):
        call(a)
    assert state(a) == before


def test_the_audit_finds_the_padding_page() -> None:
    a = allocator()
    assert a.audit() == []
    a._free[0] = None
    assert a.audit() == ["pages [0] are listed as free"]

"""What a free gives back, once a page, and what it refuses: then nothing is freed."""

import pytest
import torch

from kvlab.errors import IndexSpaceError, PoolError

from .support import allocator, got, ids, pages_in_order, state


def test_a_free_gives_a_page_back_whatever_part_of_it_is_named() -> None:
    a = allocator()
    a.alloc(32)
    a.free(torch.tensor([31, 9, 9, 24], dtype=torch.int32))
    assert a.available_size() == 16
    assert pages_in_order(a) == [1, 3]


@pytest.mark.parametrize("order", [[(8, 9), (9, 24)], [(9, 24), (8, 9)], [(8, 9), (9, 9), (9, 24)]])
def test_touching_ranges_free_each_page_once(order: list[tuple[int, int]]) -> None:
    # test_free_kv_row_coalesce upstream: page 8 (512 / 64), a row of 24.
    a = allocator()
    row = torch.tensor(got(a.alloc(24)))
    a.free_segments(row, order)
    assert a.available_size() == 24
    assert pages_in_order(a) == [2, 3, 4]


def test_ranges_of_a_row_on_shuffled_pages_free_the_pages_of_that_row() -> None:
    a = allocator()
    row = torch.cat([torch.arange(24, 32), torch.arange(8, 16), torch.arange(32, 35)])
    a.alloc(32)
    a.free_segments(row.to(torch.int32), [(8, 19)])
    assert pages_in_order(a) == [1, 4]


@pytest.mark.parametrize(
    ("ranges", "error", "text"),
    [
        ([(8, 9), (12, 24)], IndexSpaceError, r"segment at 12 shares page 1 with the one ending"),
        ([(12, 24), (8, 9)], IndexSpaceError, r"segment at 12 shares page 1 with the one ending"),
        ([(9, 24)], IndexSpaceError, r"must begin on a page: got 9, page size 8; tokens 8\.\.8 s"),
        ([(8, 16), (12, 20)], IndexSpaceError, r"ranges must not overlap: \[12, 20\)"),
        ([(16, 8)], IndexSpaceError, r"0 <= begin <= end: got \[16, 8\)"),
        ([(-8, 8)], IndexSpaceError, r"0 <= begin <= end: got \[-8, 8\)"),
        ([(True, 8)], IndexSpaceError, r"begin must be an int: got True \(bool\)"),
        ([(8, 25)], PoolError, r"must lie in the row: it ends at 25, the row at 24"),
        ([(24, 32)], PoolError, r"must lie in the row: it ends at 32, the row at 24"),
        ([(0, 2**62)], PoolError, r"must lie in the row: it ends at 4611686018427387904"),
    ],
)
def test_a_range_that_cannot_be_freed_frees_nothing(
    ranges: list[tuple[int, int]], error: type[Exception], text: str
) -> None:
    a = allocator()
    row = torch.tensor(got(a.alloc(24)))
    before = state(a)
    with pytest.raises(error, match=text):
        a.free_segments(row, ranges)
    assert state(a) == before


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([9, *range(9, 16)], r"position 0 begins a page of 8, so its slot must too: got slot 9"),
        ([*range(8, 16), *range(8, 16)], r"names one page twice among \[1, 1\]; nothing was freed"),
        ([*range(8)], r"a page must lie in \[1, 4\]: got 0; the row names a slot that was never"),
        ([-8] * 8, r"a page must lie in \[1, 4\]: got -1"),
        ([-1] * 8, r"position 0 begins a page of 8, so its slot must too: got slot -1"),
        ([*range(40, 48)], r"a page must lie in \[1, 4\]: got 5"),
        ([*range(8, 16), *range(32, 40)], r"page 4 \(slots 32\.\.39\) is freed already: one free"),
    ],
)
def test_a_row_that_is_not_a_row_frees_nothing(row: list[int], text: str) -> None:
    a = allocator()
    a.alloc(24)
    before = state(a)
    with pytest.raises(PoolError, match=text):
        a.free_segments(ids(row), [(0, len(row))])
    assert state(a) == before


@pytest.mark.parametrize(
    ("slots", "error", "text"),
    [
        ([8, 32], PoolError, r"page 4 \(slots 32\.\.39\) is freed already: one free a page; noth"),
        ([8, 7], IndexSpaceError, r"widened slot must lie in \[8, 40\): got 7 at index 1; 1 of 2"),
        ([8, -1], IndexSpaceError, r"\[8, 40\): got -1 at index 1; .* only slots that the alloc"),
        ([40], IndexSpaceError, r"widened slot must lie in \[8, 40\): got 40 at index 0"),
        ([2**62], IndexSpaceError, r"must lie in \[8, 40\): got 4611686018427387904"),
    ],
)
def test_ids_that_cannot_be_freed_free_nothing(
    slots: list[int], error: type[Exception], text: str
) -> None:
    a = allocator()
    a.alloc(24)
    before = state(a)
    with pytest.raises(error, match=text):
        a.free(ids(slots))
    assert state(a) == before


def test_a_page_is_freed_once() -> None:
    a = allocator()
    slots = torch.tensor(got(a.alloc(24)))
    a.free(slots[:4])
    with pytest.raises(PoolError, match=r"page 1 \(slots 8\.\.15\) is freed already"):
        a.free(slots[4:16])
    with pytest.raises(PoolError, match="is freed already"):
        a.free_segments(slots, [(0, 24)])
    assert a.available_size() == 16
    assert a.audit() == []

"""The allocator: worked examples, upstream's tables, and everything it refuses."""

import pytest
import torch

from kvlab.errors import IndexSpaceError, LayoutError, PoolError
from kvlab.index import DcpLayout

from .support import allocator, got, ids, pages_in_order, state


@pytest.mark.parametrize(("c", "size", "page"), [(1, 1024, 64), (4, 4096, 256)])
def test_sixteen_pages_of_the_same_rows_at_any_dcp_size(c: int, size: int, page: int) -> None:
    layout = DcpLayout(c, 64, 1024 // 64)
    a = allocator(layout)
    assert (a.available_size(), a.page_size, layout.num_pages) == (size, page, 16)
    seen: list[int] = []
    for tokens in (page, 2 * page, 5 * page, 8 * page):
        slots = torch.tensor(got(a.alloc(tokens)))
        assert len(torch.unique(slots // c)) == tokens // c
        assert int((slots // c).max()) < 1024 + 64
        seen += slots.tolist()
    assert sorted(seen) == list(range(page, size + page))
    assert a.available_size() == 0
    assert a.alloc(page) is None


@pytest.mark.parametrize(
    ("tokens", "pages"),
    [(0, 0), *((n, 1) for n in (1, 2, 3, 4, 63, 64, 65, 255, 256)), (257, 2), (515, 3)],
)
def test_a_length_takes_its_pages_and_no_more(tokens: int, pages: int) -> None:
    a = allocator(DcpLayout(4, 64, 1024 // 64))
    assert got(a.alloc_extend(0, tokens)) == list(range(256, 256 + tokens))
    assert a.used_pages == pages
    assert a.available_size() == (16 - pages) * 256


def test_the_example_of_the_module() -> None:
    a = allocator()
    assert got(a.alloc_extend(0, 10)) == [*range(8, 16), 16, 17]
    last = 17
    for n in range(11, 17):
        (last,) = got(a.alloc_decode([n], [last]))
        assert last == 16 + n - 9
    assert a.used_pages == 2
    assert got(a.alloc_decode([17], [last])) == [24]
    assert a.used_pages == 3


def test_an_extend_fills_the_last_page_then_whole_pages_then_a_tail() -> None:
    a = allocator()
    first = got(a.alloc_extend(0, 3))
    other = got(a.alloc_extend(0, 1))
    assert (first, other) == ([8, 9, 10], [16])
    assert got(a.alloc_extend(3, 18, first[-1])) == [11, 12, 13, 14, 15, *range(24, 32), 32, 33]


def test_decode_opens_a_page_only_where_a_request_crosses() -> None:
    a = allocator()
    full, part = got(a.alloc_extend(0, 8)), got(a.alloc_extend(0, 7))
    assert got(a.alloc_decode([9, 8, 1], [full[-1], part[-1], -1])) == [24, 23, 32]
    assert a.available_size() == 0
    # One crosses, none is left: nobody gets a slot, not even the one that needs no page.
    before = state(a)
    assert a.alloc_decode([10, 9], [24, 23]) is None
    assert state(a) == before
    assert got(a.alloc_decode([10], [24])) == [25]


def test_nothing_is_a_valid_amount() -> None:
    a = allocator()
    assert got(a.alloc(0)) == []
    assert got(a.alloc_extend(0, 0)) == []
    assert got(a.alloc_decode([], [])) == []
    a.free(ids([]))
    a.free_segments(ids([]), [])
    a.free_segments(ids([]), [(0, 0)])
    assert a.available_size() == 32
    assert a.audit() == []


def test_freed_pages_come_back_first() -> None:
    a = allocator()
    slots = got(a.alloc(24))
    a.free(ids(slots[8:16]))  # page 2
    a.free(ids(slots[:8]))  # page 1, later: in front
    assert pages_in_order(a) == [1, 2, 4]


def test_none_changes_nothing_not_even_the_order() -> None:
    a = allocator()
    slots = got(a.alloc(24))
    a.free(ids(slots[8:24]))
    before = state(a)
    assert a.alloc(40) is None
    assert a.alloc_extend(8, 40, slots[7]) is None
    assert a.alloc_decode([9, 1, 1, 1], [slots[7], -1, -1, -1]) is None
    assert state(a) == before


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        (7, PoolError, r"whole pages of 8 slots: got 7 tokens; use 8, or alloc_extend"),
        (9, PoolError, r"got 9 tokens; use 16"),
        (-8, LayoutError, r"tokens must be at least 0: .* got tokens=-8"),
        (8.0, LayoutError, r"tokens must be an int: .* got 8\.0 \(float\)"),
        (True, LayoutError, r"tokens must be an int: .* got True \(bool\)"),
        (2**64, LayoutError, r"tokens must fit int64"),
    ],
)
def test_an_amount_that_is_no_number_of_pages(
    tokens: int, error: type[Exception], text: str
) -> None:
    a = allocator()
    with pytest.raises(error, match=text):
        a.alloc(tokens)
    assert a.available_size() == 32


@pytest.mark.parametrize(
    ("prefix", "length", "last", "error", "text"),
    [
        (3, 5, 9, PoolError, r"last_loc must be the slot of position 2: got 9, whose offset 1 in"),
        (8, 9, 14, PoolError, r"slot of position 7: got 14, whose offset 6 .* is not 7"),
        (3, 5, -1, PoolError, r"last_loc must be the slot of position 2: got -1"),
        (3, 5, -6, PoolError, r"last_loc must be the slot of position 2: got -6"),
        (3, 5, 2, PoolError, r"handed out: got 2 in page 0 of 1\.\.4 \(1 handed out\); read it"),
        (3, 5, 18, PoolError, r"last_loc must lie in a page that is handed out: got 18 in page 2"),
        (3, 5, 42, PoolError, r"last_loc must lie in a page that is handed out: got 42 in page 5"),
        (3, 5, 2**70 + 2, PoolError, r"last_loc must lie in a page that is handed out"),
        (3, 5, 10.0, IndexSpaceError, r"last_loc must be an int: got 10\.0 \(float\)"),
        (3, 5, None, IndexSpaceError, r"last_loc must be an int: got None"),
        (5, 3, 12, LayoutError, r"seq_len must be at least 5: .* got seq_len=3"),
        (-1, 3, 8, LayoutError, r"prefix_len must be at least 0: .* got prefix_len=-1"),
        (True, 3, 8, LayoutError, r"prefix_len must be an int"),
        (0, 3.0, -1, LayoutError, r"seq_len must be an int"),
    ],
)
def test_an_extend_from_where_no_prefix_ends(
    prefix: int, length: int, last: int, error: type[Exception], text: str
) -> None:
    a = allocator()
    assert got(a.alloc_extend(0, 3)) == [8, 9, 10]
    before = state(a)
    with pytest.raises(error, match=text):
        a.alloc_extend(prefix, length, last)
    if error is not LayoutError:  # the same last_loc in a decode step, after a good request
        with pytest.raises(error, match=text):
            a.alloc_decode([1, prefix + 1], [-1, last])
    assert state(a) == before


@pytest.mark.parametrize(
    ("lens", "lasts", "error", "text"),
    [
        ([4], [10, 10], PoolError, r"seq_lens and last_locs name the same requests: got 1 and 2"),
        ([4, 4], [10, 10], PoolError, r"two of the 2 requests name last_loc 10, so both would get"),
        ([0], [-1], LayoutError, r"seq_len must be at least 1"),
        ([4, True], [10, -1], LayoutError, r"seq_len must be an int"),
        ([5], [10], PoolError, r"last_loc must be the slot of position 3: got 10"),
    ],
)
def test_a_decode_step_that_is_none(
    lens: list[int], lasts: list[int], error: type[Exception], text: str
) -> None:
    a = allocator()
    assert got(a.alloc_extend(0, 3)) == [8, 9, 10]
    before = state(a)
    with pytest.raises(error, match=text):
        a.alloc_decode(lens, lasts)
    assert state(a) == before


def test_requests_may_share_a_whole_prefix_page_and_open_pages_of_their_own() -> None:
    a = allocator()
    assert got(a.alloc(8))[-1] == 15
    assert got(a.alloc_decode([9, 9], [15, 15])) == [16, 24]


def test_last_locs_as_torch_gives_them() -> None:
    a = allocator()
    slots = a.alloc_extend(0, 3)
    assert slots is not None
    assert got(a.alloc_extend(3, 4, slots[-1])) == [11]  # type: ignore[arg-type]
    assert got(a.alloc_decode([5], ids([11]))) == [12]  # type: ignore[arg-type]


@pytest.mark.parametrize("break_it", ["twice", "map", "padding", "lost"])
def test_the_audit_finds_each_corruption(break_it: str) -> None:
    a = allocator()
    slots = got(a.alloc(16))
    a.free(ids(slots))
    assert a.audit() == []
    if break_it == "twice":
        a._free.append(a._free[0])
        text = "a page is listed as free twice"
    elif break_it == "map":
        a._is_free[1] = False
        text = "the free list and the page map disagree"
    elif break_it == "padding":
        a._free.append(0)
        text = "the padding page is listed as free"
    else:
        a._free.pop()
        text = "the free list and the page map disagree"
    assert text in a.audit()

"""Laws of pages and capacity, against sets of tokens counted one by one."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import IndexSpaceError
from kvlab.index import (
    DcpLayout,
    RawUse,
    merge_touching,
    pages_of_free,
    raw_use_census,
    raw_use_of_page,
)

Range = tuple[int, int]
ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=6).map(
    lambda drawn: [(begin, begin + n) for begin, n in drawn]
)


def tokens_of(parts: list[Range]) -> list[int]:
    return sorted(t for begin, end in parts for t in range(begin, end))


@given(ranges)
@settings(max_examples=100)
def test_merged_ranges_hold_the_same_tokens_and_neither_touch_nor_overlap(
    drawn: list[Range],
) -> None:
    tokens = tokens_of(drawn)
    if len(tokens) != len(set(tokens)):
        with pytest.raises(IndexSpaceError, match="ranges must not overlap"):
            merge_touching(drawn)
        return
    merged = merge_touching(drawn)
    assert tokens_of(merged) == tokens
    assert all(begin < end for begin, end in merged)
    assert all(a[1] < b[0] for a, b in pairwise(merged))


@given(ranges, st.integers(1, 9))
@settings(max_examples=100)
def test_a_free_gives_each_page_of_its_tokens_once_or_is_refused(
    drawn: list[Range], page: int
) -> None:
    tokens = set(tokens_of(drawn))
    if len(tokens) != len(tokens_of(drawn)):
        return  # overlaps: refused above
    # A run of tokens is legal when it begins on a page and no other run is on its last page.
    begins = sorted(t for t in tokens if t - 1 not in tokens)
    if all(begin % page == 0 for begin in begins):
        assert pages_of_free(drawn, page) == sorted({t // page for t in tokens})
    else:
        with pytest.raises(IndexSpaceError, match=r"begin on a page|shares page"):
            pages_of_free(drawn, page)


@given(ranges, st.integers(1, 9), st.data())
@settings(max_examples=60)
def test_the_order_of_the_ranges_does_not_matter(
    drawn: list[Range], page: int, data: st.DataObject
) -> None:
    def outcome(parts: list[Range]) -> object:
        try:
            return pages_of_free(parts, page)
        except IndexSpaceError as refused:
            return str(refused)

    assert outcome(drawn) == outcome(data.draw(st.permutations(drawn)))


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 12))
@settings(max_examples=100)
def test_the_census_of_raw_use_is_a_count_page_by_page(pages: int, page: int, c: int) -> None:
    layout = DcpLayout(c, page, pages)
    kinds = []
    for q in range(1, pages + 1):
        inside = [v < layout.row_end for v in range(q * page * c, (q + 1) * page * c)]
        kinds.append("silent" if all(inside) else "straddling" if any(inside) else "out_of_range")
    assert [raw_use_of_page(layout, q) for q in range(1, pages + 1)] == kinds
    assert raw_use_census(layout) == RawUse(
        *(kinds.count(kind) for kind in ("silent", "straddling", "out_of_range"))
    )


def test_a_pool_of_fewer_pages_than_ranks_has_no_silent_page() -> None:
    assert raw_use_census(DcpLayout(4, 1, num_pages=1)) == RawUse(0, 0, 1)
    assert raw_use_census(DcpLayout(8, 64, num_pages=6)) == RawUse(0, 0, 6)
    assert raw_use_census(DcpLayout(8, 64, num_pages=8)) == RawUse(0, 1, 7)

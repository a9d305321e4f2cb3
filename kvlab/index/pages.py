"""Pages: which pages a free gives back, and what a raw use of slots would hit.

A length from the physical grid (multiples of P) may cut a widened page (W = P*c) in two. Freed as
two ranges, the page is freed twice; so ranges that touch are merged first.

Worked example, page 8: ranges [8, 9) and [9, 24) touch and free pages 1 and 2, once each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.errors import IndexSpaceError
from kvlab.index.layout import DcpLayout, require_index, require_int

Range = tuple[int, int]


def merge_touching(ranges: Sequence[Range]) -> list[Range]:
    """The half-open ranges in order, empty ones dropped, those that touch joined."""
    merged: list[Range] = []
    exact = [(require_index("begin", b), require_index("end", e)) for b, e in ranges]
    for begin, end in sorted(exact):
        if begin < 0 or end < begin:
            raise IndexSpaceError(
                f"a range must be [begin, end) with 0 <= begin <= end: got [{begin}, {end})"
            )
        if begin == end:
            continue
        if merged and begin < merged[-1][1]:
            raise IndexSpaceError(
                f"ranges must not overlap: [{begin}, {end}) begins inside "
                f"[{merged[-1][0]}, {merged[-1][1]}); each slot is freed once"
            )
        if merged and begin == merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def pages_of_free(ranges: Sequence[Range], page: int) -> list[int]:
    """The pages that a free of these half-open ranges of tokens gives back, each once.

    ``page``: tokens of one *allocator* page (W under DCP). Errors: IndexSpaceError when a merged
    range does not begin on a page, or shares one with the range before it.
    """
    require_int("page", page, 1, "tokens of one allocator page")
    pages: list[int] = []
    for begin, end in merge_touching(ranges):
        if pages and begin // page == pages[-1]:
            raise IndexSpaceError(
                f"segment at {begin} shares page {begin // page} with the one ending in it "
                f"(page size {page}): freed apart, the page would be freed twice; merge the "
                f"ranges or align the length to {page} first"
            )
        if begin % page:
            raise IndexSpaceError(
                f"a free must begin on a page: got {begin}, page size {page}; tokens "
                f"{begin // page * page}..{begin - 1} still live in page {begin // page}; "
                f"begin at {-(-begin // page) * page}"
            )
        pages.extend(range(begin // page, -(-end // page)))
    return pages


@dataclass(frozen=True, slots=True)
class RawUse:
    """What happens to each handed-out page if its slots are used as rows. Units: pages."""

    silent: int
    straddling: int
    out_of_range: int


def raw_use_of_page(layout: DcpLayout, page: int) -> str:
    """'silent', 'straddling' or 'out_of_range' for one page whose slots are used as rows; silent:
    every slot is below the row bound."""
    page = require_index("page", page)
    if not 1 <= page <= layout.num_pages:
        raise IndexSpaceError(
            f"page must lie in [1, {layout.num_pages}]: got {page}; page 0 is the padding page"
        )
    first = page * layout.widened_page_size
    if first + layout.widened_page_size <= layout.row_end:
        return "silent"
    return "out_of_range" if first >= layout.row_end else "straddling"


def raw_use_census(layout: DcpLayout) -> RawUse:
    """How many pages are silent, straddling and out of range under raw use. Closed form."""
    whole, broken = divmod(layout.row_end, layout.widened_page_size)
    # Page 0 is counted among the whole ones, or, in a pool of fewer pages than ranks, is the
    # broken one itself: no page that was handed out is then in range at all.
    silent = max(whole - 1, 0)
    straddling = 1 if broken and 1 <= whole <= layout.num_pages else 0
    return RawUse(silent, straddling, layout.num_pages - silent - straddling)

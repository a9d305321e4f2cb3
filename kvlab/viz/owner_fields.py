"""Owner maps and rank buffers, drawn on given axes: what figures and explorer share.

``draw_owners`` draws the slots of a run with the owner of each, ``draw_buffers`` the rows of all
ranks with the slot of each; both return the entries of their legend. Worked example, c=2, P=2,
pages (3,): the run's first slot 12 is a cell "0", and on rank 0 the cell of row 6 says "12".

A figure holds ``MOST_LINES`` lines of slots and ``MOST_ROWS`` rows; pages past them are left out.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from kvlab.index import Shard
from kvlab.lab.owners import OwnerStudy, buffer_map
from kvlab.viz.spaces import (
    OUTSIDE,
    PADDED,
    Look,
    Mark,
    font_size,
    key,
    look_of,
    outline,
    rank_look,
    row_field,
    slot_field,
)
from kvlab.viz.style import OTHER, OWNED

ROW_IN, TALL_IN = 0.16, 0.28  # height of a cell of one line of text, and of two
MOST_LINES, MOST_ROWS = 64, 256


def draw_owners(
    ax: Axes, study: OwnerStudy, rank: int | None, columns: int, size: tuple[float, float]
) -> list[Patch]:
    """Draw an owner map; return the entries of its legend."""
    table, c = study.table(), study.layout.dcp_size
    owners = dict(zip(table["slot"], table["owner"], strict=True))
    texts = {slot: f"{owner}" for slot, owner in owners.items()}
    if size[1] > ROW_IN:
        texts = {slot: f"{slot}\nr{owner}" for slot, owner in owners.items()}
    hatched = font_size(texts.values(), *size) is None
    looks = _rank_looks(c, rank, hatched)
    marks = {slot: (looks[owner], texts[slot]) for slot, owner in owners.items()}
    slot_field(ax, study.layout, shown_pages(study, columns), marks, columns, size)
    if rank is None:
        return [key(look, f"rank {r}") for r, look in enumerate(looks)] if hatched else []
    return _rank_keys(rank)


def draw_buffers(
    ax: Axes,
    study: OwnerStudy,
    rank: int | None,
    pages: list[int],
    size: tuple[float, float],
    raw: bool,
) -> list[Patch]:
    """Draw the buffers at ``pages``; return the entries of their legend."""
    layout = study.layout
    looks, slots = _rank_looks(layout.dcp_size, rank, False), set(study.table()["slot"])
    held = pd.concat([buffer_map(layout, page, 1) for page in pages])
    marks: dict[tuple[int, int], Mark] = {}
    for r, row, page, slot in zip(
        held["rank"], held["row"], held["page"], held["slot"], strict=True
    ):
        look = PADDED if not page else looks[r] if slot in slots else OUTSIDE
        marks[r, row] = (look, str(slot) if page else "")
    tops = row_field(ax, layout, pages, marks, size)
    keys = [] if rank is None else _rank_keys(rank)
    if not raw:
        return keys
    hit = [divmod(slot, layout.page_size) for slot in slots if slot < layout.row_end]
    boxes = [
        Rectangle((r, tops[page] + row), 1, 1)
        for page, row in hit
        if page in tops
        for r in range(layout.dcp_size)
    ]
    mark = outline(ax, boxes)
    mark.set_label("row hit by raw use")
    return [*keys, mark]


def _rank_looks(dcp_size: int, rank: int | None, hatched: bool) -> list[Look]:
    if rank is None:
        return [rank_look(r, dcp_size, hatched) for r in range(dcp_size)]
    Shard(dcp_size, rank)  # refuses a rank outside
    return [look_of(OWNED if r == rank else OTHER) for r in range(dcp_size)]


def _rank_keys(rank: int) -> list[Patch]:
    return [
        key(look_of(OWNED), f"slot of rank {rank}"),
        key(look_of(OTHER), "slot of another rank"),
    ]


def shown_pages(study: OwnerStudy, columns: int) -> list[int]:
    """The pages of the run in position order, as many as make ``MOST_LINES`` lines."""
    w = study.layout.widened_page_size
    used = study.page_list[study.start // w : study.layout.pages_for(study.start + study.length)]
    return list(used[: max(1, MOST_LINES * columns // w)])


def buffer_pages(study: OwnerStudy, raw: bool) -> list[int]:
    """The padding page, the pages of the run, and those that raw use reaches; ascending."""
    lay = study.layout
    w, end = lay.widened_page_size, study.start + study.length
    used = set(study.page_list[study.start // w : lay.pages_for(end)])
    if raw:
        used |= {slot // lay.page_size for slot in study.table()["slot"] if slot < lay.row_end}
    return [0, *sorted(used)[: max(1, MOST_ROWS // lay.page_size)]]


def left_out(study: OwnerStudy, pages: list[int]) -> str:
    """What a title adds when not all pages are shown: " (first 2 of 5 pages)", else ""."""
    w = study.layout.widened_page_size
    total = study.layout.pages_for(study.start + study.length) - study.start // w
    return "" if len(pages) == total else f" (first {len(pages)} of {total} pages)"

"""Owner map: which rank owns a slot, in which row, and what a raw use of its number would hit.

Left the slots of the run's pages, coloured by owner; right the rows of every rank's buffer with the
slot that each stores. The slot under the cursor is outlined on both sides, and a cross marks the
row that its number would hit if it were used as a row.

Worked example: c=4, P=4, pages 3, 1: slot 21 is position 21, rank 1, row 5; used raw it would read
row 21 of rank 1, which holds slot 85 of page 5.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from kvlab.index import DcpLayout
from kvlab.lab.owners import (
    ENGINE_RULES,
    OwnerStudy,
    SlotFacts,
    describe,
    parse_sizes,
    position_of,
    rule_interleave,
    slot_facts,
)
from kvlab.viz.exported import publishable
from kvlab.viz.panel import Panel
from kvlab.viz.panel_html import Spot
from kvlab.viz.spaces import OUTSIDE, PADDED, line_slots, rank_look
from kvlab.viz.style import VERMILLION
from kvlab.viz.widgets.canvas import Box, Canvas, Width

NAME = "owner-explorer"
SIZES = [1, 2, 4, 8, 16]
NUM_PAGES = 12
RULE = next(iter(ENGINE_RULES))
BY_HAND = "the interleave of the slider"
DEFINITION = (
    "Left: slots of the run's pages, a line of slots in order, coloured and named by the rank that "
    "owns them, slot // I % c with interleave I; white: not of the run. Right: rows of each rank's "
    "buffer with the slot that each stores; hatched: padding page. Dashed: the slot under the "
    "cursor; cross: the row that its number would hit if used as a row. Computed from the layout."
)
TOP_IN, ROW_IN, LINES, GAP_IN = 0.5, 0.165, 34, 0.09


@dataclass(frozen=True, slots=True)
class Place:
    """A cell of the picture: the slot in it, and its box in inches. ``rank``, ``row``: of a row."""

    slot: int
    box: Box
    rank: int | None = None
    row: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything stands: cells of slots and of rows, page headings, height in inches."""

    slots: tuple[Place, ...]
    rows: tuple[Place, ...]
    heads: tuple[tuple[float, float, str], ...]
    left_out: int
    height: float


def study_of(
    dcp_size: int = 4,
    page_size: int = 4,
    pages: str = "3, 1",
    start: int = 0,
    length: int = 27,
    rule: str = RULE,
    interleave: int = 1,
) -> OwnerStudy:
    """The run that the controls describe. Errors: KvlabError for what does not fit together."""
    turns = interleave if rule == BY_HAND else rule_interleave(rule, page_size)
    layout = DcpLayout(dcp_size, page_size, NUM_PAGES, turns)
    return OwnerStudy(layout, length, start, parse_sizes(pages, "pages"))


@lru_cache(maxsize=64)
def plan(study: OwnerStudy, width: Width, hit: int | None = None) -> Plan:
    """Where the cells stand; pages past the 34th line are left out. ``hit``: a page whose rows are
    shown beside those of the run."""
    lay = study.layout
    w, c, p = lay.widened_page_size, lay.dcp_size, lay.page_size
    used = study.page_list[study.start // w : lay.pages_for(study.start + study.length)]
    columns = line_slots(lay, 16)
    per_page = w // columns
    mine = list(used[: max(1, LINES // max(per_page, p))])
    beside = width == "double"
    room = 3.2 if beside else 2.2
    wide = min(0.26, room / columns)
    slots, rows, heads = [], [], []
    y = TOP_IN
    for page in mine:
        heads.append((0.62 + columns * wide + 0.06, y + per_page * ROW_IN / 2, f"page {page}"))
        for line in range(per_page):
            first = page * w + line * columns
            heads.append((-0.56, y + ROW_IN / 2, f"{first}"))
            for at in range(columns):
                box = (0.62 + at * wide, y, wide, ROW_IN)
                slots.append(Place(first + at, box))
            y += ROW_IN
        y += GAP_IN
    bottom = y
    left, y = (4.95, TOP_IN) if beside else (0.62, y + 0.36)
    cell = min(0.36, (1.7 if beside else 2.2) / c)
    for page in sorted({0, *mine, *([] if hit is None else [hit])}):
        lines = 1 if page == 0 else p
        heads.append((left + c * cell + 0.06, y + lines * ROW_IN / 2,
                      f"page {page}" if page else "padding"))  # fmt: skip
        for line in range(lines):
            row = page * p + line
            heads.append((-left + 0.06, y + ROW_IN / 2, f"{row}"))
            for rank in range(c):
                box = (left + rank * cell, y, cell, ROW_IN)
                rows.append(Place(lay.slot(rank, row), box, rank, row))
            y += ROW_IN
        y += GAP_IN
    return Plan(tuple(slots), tuple(rows), tuple(heads), len(used) - len(mine), max(bottom, y))


def owner_table(slot: int = 21, **run: Any) -> pd.DataFrame:
    """One row a position of the run: slot, page, owner, row, and what raw use would hit."""
    return _table(study_of(**run)).copy()


def owner_hover(slot: int = 21, **run: Any) -> list[Spot]:
    """A box a cell, with all that is to be said of its slot."""
    study = study_of(**run)
    return list(_spots(study, _hit(study, slot)))


def _hit(study: OwnerStudy, slot: int) -> int | None:
    """The page of rows that the number of ``slot`` names, None past the last."""
    page = slot // study.layout.page_size
    return page if page <= study.layout.num_pages else None


def _draw(slot: int, width: Width = "double", **run: Any) -> tuple[Figure, str]:
    study = study_of(**run)
    facts, where = slot_facts(study, slot), plan(study, width, _hit(study, slot))
    return _picture(study, facts, where, width), f"{facts.sentence()} {_told(study)}"


def _picture(study: OwnerStudy, facts: SlotFacts, where: Plan, width: Width) -> Figure:
    lay = study.layout
    left_out = f" ({where.left_out} more pages not drawn)" if where.left_out else ""
    canvas = Canvas(width, where.height + 0.05, f"Slots by owner, rows by slot{left_out}")
    looks = [rank_look(rank, lay.dcp_size) for rank in range(lay.dcp_size)]
    high = where.slots[0].box[1] - 0.09
    canvas.text(0.62, high, "rank that owns the slot (first slot of the line at the left)", 7)
    high = where.rows[0].box[1] - 0.09
    for place in where.rows[: lay.dcp_size : 1 if lay.dcp_size <= 8 else 3]:
        canvas.text(place.box[0] + place.box[2] / 2, high, f"{place.rank}", 7, align="center")
    canvas.text(where.rows[0].box[0], high - 0.12, "slot in each row, a column a rank", 7)
    for place in where.slots:
        inside = position_of(study, place.slot) is not None
        owner = lay.owner(place.slot)
        look = looks[owner] if inside else OUTSIDE
        canvas.cell(*place.box, look, str(owner) if inside else "")
    for place in where.rows:
        if place.row is not None and place.row < lay.first_row:
            canvas.box(*place.box, PADDED)
            continue
        inside = position_of(study, place.slot) is not None
        owner = lay.owner(place.slot)
        canvas.cell(*place.box, looks[owner] if inside else OUTSIDE, str(place.slot))
    for x, y, text in where.heads:
        canvas.text(abs(x), y, text, 7, align="right" if x < 0 else "left")
    row = 0 if facts.raw == "padding" else facts.slot
    for place in (*where.slots, *where.rows):
        if place.slot == facts.slot and (place.row is None or facts.page):
            canvas.outline(place.box)
        if (place.rank, place.row) == (facts.owner, row):
            x, y, wide, tall = place.box
            canvas.mark(x + wide / 2, y + tall / 2, "X", VERMILLION, 8)
    return canvas.finish()


@lru_cache(maxsize=64)
def _table(study: OwnerStudy) -> pd.DataFrame:
    return study.table()


@lru_cache(maxsize=64)
def _told(study: OwnerStudy) -> str:
    return describe(study)


@lru_cache(maxsize=64)
def _spots(study: OwnerStudy, hit: int | None) -> tuple[Spot, ...]:
    where = plan(study, "double", hit)
    return tuple(
        Spot(*place.box, slot_facts(study, place.slot).sentence())
        for place in (*where.slots, *where.rows)
        if place.row is None or place.row >= study.layout.first_row
    )


def _bounds(dcp_size: int, page_size: int, **_: object) -> dict[str, tuple[int, int]]:
    return {"slot": (0, (NUM_PAGES + 1) * page_size * dcp_size - 1)}


def owner_explorer() -> Panel:
    """Drag layout, pages, run, rule and slot; what does not fit is said in words."""

    def slider(low: int, high: int, value: int) -> widgets.IntSlider:
        return widgets.IntSlider(min=low, max=high, value=value)

    return Panel(
        _draw,
        name=NAME,
        table=owner_table,
        hover=owner_hover,
        steps="slot",
        bounds=_bounds,
        definition=DEFINITION,
        dcp_size=widgets.SelectionSlider(
            options=SIZES, value=4, tooltip="c: ranks that share each page"
        ),
        page_size=widgets.SelectionSlider(
            options=SIZES, value=4, tooltip="P: rows of a page on each rank"
        ),
        pages=widgets.Text(
            value="3, 1", placeholder="pages in position order", tooltip="pages of the run, 1 to 12"
        ),
        start=slider(0, 64, 0),
        length=slider(1, 128, 27),
        rule=[*ENGINE_RULES, BY_HAND],
        interleave=widgets.SelectionSlider(
            options=SIZES, value=1, tooltip="I: slots a rank takes in turn; must divide P"
        ),
        slot=slider(0, 207, 21),
    )


def owner_explorer_figure(
    dcp_size: int = 4,
    page_size: int = 4,
    pages: str = "3, 1",
    start: int = 0,
    length: int = 27,
    rule: str = RULE,
    interleave: int = 1,
    slot: int = 21,
    *,
    width: Width = "double",
) -> Figure:
    """The picture of ``owner_explorer`` with its caption; arguments are the controls.

    Errors: KvlabError for what does not fit together.
    """
    values = {
        **{"dcp_size": dcp_size, "page_size": page_size, "pages": pages, "start": start},
        **{"length": length, "rule": rule, "interleave": interleave, "slot": slot},
    }
    return publishable(_draw, values, NAME, DEFINITION, width)[0]

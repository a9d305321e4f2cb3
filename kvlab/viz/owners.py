"""Who owns which slot, drawn: figures over the tables of ``kvlab.lab.owners``.

    owner_map      the slots of a run, page by page, with the owner of each
    owner_atlas    several owner maps beside each other
    rank_buffers   one column a rank: the slot that each row stores, the padding page hatched
    page_map       allocator page q is physical page q of every rank
    raw_use_map    what each slot would hit if it were used as a row

To drag them, see ``kvlab.viz.widgets``, whose ``owner_explorer`` is named here too. Each returns a
figure without a caption. ``DEFINITIONS`` has the sentence for the caption:

    fig = caption(owner_map(study), DEFINITIONS["owner-slots"], origin)
"""

from collections.abc import Mapping
from typing import Literal

from matplotlib.figure import Figure

from kvlab.errors import KvlabError
from kvlab.index import DcpLayout
from kvlab.lab.owners import OwnerStudy
from kvlab.lab.owners import describe as describe
from kvlab.viz.owner_fields import (
    ROW_IN,
    TALL_IN,
    buffer_pages,
    draw_buffers,
    draw_owners,
    left_out,
    shown_pages,
)
from kvlab.viz.spaces import (
    OUTSIDE,
    PADDED,
    Cell,
    draw_cells,
    frame,
    key,
    legend_below,
    line_slots,
    look_of,
    rank_look,
    row_lines,
    slot_field,
    slot_lines,
)
from kvlab.viz.style import ASSERT, OWNED, SILENT, WIDTH_IN, figure
from kvlab.viz.widgets.owner import owner_explorer as owner_explorer

DEFINITIONS: Mapping[str, str] = {
    "owner-slots": "Each cell is a widened slot and names the rank that stores it, slot // I % c "
    "with interleave I. Lines follow the request's pages in position order. White: slots of these "
    "pages outside the run.",
    "rank-buffers": "Each column is a rank, each cell a row of its buffer. The number is the "
    "widened slot that the row stores. Filled: slots of the run. Hatched: the padding page.",
    "page-map": "Each line is a page. Left: the allocator's widened page of W = P * c slots, "
    "striped by owner. Right: the physical page of P rows on each rank. Hatched: the padding page.",
    "raw-use-map": "Each cell is a widened slot v of the run, used by its owner as a row number, "
    "and names the slot that row v stores. Black cells lie past the buffer's (N + 1) * P rows.",
}

LINE_SLOTS, ATLAS_SLOTS = 32, 16  # slots a line at most
SIZES = [1, 2, 4, 8, 16]  # that the explorer offers
BESIDE_IN, AROUND_IN = 1.05, 0.75  # labels beside a field, and above and below it
FIELD_IN = 6.4  # height of a field at most
Width = Literal["single", "double"]


def owner_map(study: OwnerStudy, rank: int | None = None) -> Figure:
    """The owner of each slot of the run; ``rank`` puts one in front of the others.

    Pages past the 64th line are left out, and the title says so.
    """
    columns, width = _columns(study.layout)
    pages = shown_pages(study, columns)
    size = _cell(width, columns, slot_lines(study.layout, pages, columns), two_lines=True)
    fig = figure(width, AROUND_IN + 0.2 + size[1] * slot_lines(study.layout, pages, columns))
    keys = draw_owners(fig.subplots(), study, rank, columns, size)
    fig.axes[0].set_title("Owner of each slot" + left_out(study, pages))
    legend_below(fig.axes[0], keys, 8)
    return fig


def owner_atlas(studies: Mapping[str, OwnerStudy], title: str, across: int = 2) -> Figure:
    """Owner maps beside each other, each under its name, all cells of one size.

    Errors: KvlabError for no study at all.
    """
    if not studies:
        raise KvlabError(
            "an atlas shows at least one study: got none; pass e.g. {'c = 2': OwnerStudy(...)}"
        )
    most = max(line_slots(study.layout, ATLAS_SLOTS) for study in studies.values())
    panels = []
    for name, study in studies.items():
        columns = line_slots(study.layout, ATLAS_SLOTS)
        panels.append((name, study, columns, shown_pages(study, columns)))
    tall = [slot_lines(study.layout, pages, columns) for _, study, columns, pages in panels]
    bands = [max(tall[at : at + across]) for at in range(0, len(tall), across)]
    wide = (WIDTH_IN["double"] - BESIDE_IN * across) / across / most
    size = (wide, min(ROW_IN, (12 - AROUND_IN * len(bands)) / sum(bands)))
    fig = figure("double", 0.25 + sum(band * size[1] + AROUND_IN for band in bands))
    fig.suptitle(title, x=0.01, ha="left")
    grid = fig.subplots(len(bands), across, squeeze=False, height_ratios=bands)
    for ax in grid.flat[len(panels) :]:
        ax.set_axis_off()
    for at, (ax, (name, study, columns, pages)) in enumerate(zip(grid.flat, panels, strict=False)):
        draw_owners(ax, study, None, columns, size)
        ax.set_title(name + left_out(study, pages))
        ax.set_xlim(0, most)
        ax.set_xlabel(ax.get_xlabel(), loc="left")
        ax.set_box_aspect(tall[at] * size[1] / (most * size[0]))
        ax.set_anchor("NW")
    return fig


def rank_buffers(study: OwnerStudy, rank: int | None = None, raw: bool = False) -> Figure:
    """The buffers of all ranks at the padding page and the pages of the run.

    ``raw``: outline the rows that each rank touches when it uses all slots of the run as rows.
    """
    layout, pages = study.layout, buffer_pages(study, raw)
    width: Width = "single" if layout.dcp_size <= 8 else "double"
    lines = row_lines(layout, pages)
    size = _cell(width, layout.dcp_size, lines)
    fig = figure(width, AROUND_IN + 0.4 + size[1] * lines)
    keys = draw_buffers(fig.subplots(), study, rank, pages, size, raw)
    fig.axes[0].set_title("Slot that each row stores")
    legend_below(fig.axes[0], keys, 2)
    return fig


def page_map(study: OwnerStudy) -> Figure:
    """Widened page q beside physical page q of each rank; the pages of the run are filled."""
    lay, c = study.layout, study.layout.dcp_size
    w, p, left = lay.widened_page_size, lay.page_size, max(4.0, 0.8 * c)
    order = study.page_list[: lay.pages_for(study.start + study.length)]
    pages = buffer_pages(study, raw=False)
    cells, rows, headings = [], {}, {}
    for y, page in enumerate(pages):
        rows[y + 0.5] = f"slots {page * w}..{(page + 1) * w - 1}"
        headings[y + 0.5] = f"rows {page * p}..{(page + 1) * p - 1}"
        if page:
            low = order.index(page) * w
            last = min(study.start + study.length, low + w) - 1
            rows[y + 0.5] += f"\npositions {max(study.start, low)}..{last}"
        turns = w // lay.interleave
        stripes = turns if page and turns <= 64 else 1
        for s in range(stripes):
            look = PADDED if not page else rank_look(s % c, c) if turns <= 64 else OUTSIDE
            text = f"{w} slots" if page and turns > 64 else ""
            wide = left / stripes
            cells.append(Cell(s * wide, y + 0.12, look, text, wide, 0.76))
        for r in range(c):
            look = rank_look(r, c) if page else PADDED
            cells.append(Cell(left + 1 + r, y + 0.12, look, f"{page}", 1.0, 0.76))
    fig = figure("double", AROUND_IN + 0.36 * len(pages))
    ax = fig.subplots()
    draw_cells(ax, cells, (WIDTH_IN["double"] - 2.2) / (left + 1 + c), 0.36)
    for y in range(len(pages)):
        ends = (left + 0.95, y + 0.5), (left + 0.05, y + 0.5)
        ax.annotate("", *ends, arrowprops={"arrowstyle": "->"})
    columns = {left / 2: "allocator", **{left + 1.5 + r: f"{r}" for r in range(c)}}
    frame(ax, (left + 1 + c, len(pages)), rows, columns, 0.36, headings)
    ax.set_xlabel("rank", x=(left + 1 + c / 2) / (left + 1 + c))
    ax.set_title("Page q of the allocator is page q of every rank")
    return fig


def raw_use_map(study: OwnerStudy) -> Figure:
    """What each slot of the run hits when its owner uses it as a row number."""
    looks = {
        "right": (look_of(OWNED), "the right row"),
        "another slot": (look_of(SILENT), "another slot's row, no error"),
        "out of range": (look_of(ASSERT), "out of range"),
    }
    table = study.table()
    columns, width = _columns(study.layout)
    pages = shown_pages(study, columns)
    lines = slot_lines(study.layout, pages, columns)
    size = _cell(width, columns, lines, two_lines=lines < 8)
    above = size[1] > ROW_IN  # room for the slot above what it hits
    marks = {}
    for slot, raw, hit in zip(table["slot"], table["raw"], table["raw_slot"], strict=True):
        text = "" if raw == "out of range" else f"{hit}"
        marks[slot] = (looks[raw][0], f"{slot}\n→{text or ' none'}" if above else text)
    fig = figure(width, AROUND_IN + 0.2 + size[1] * lines)
    ax = fig.subplots()
    slot_field(ax, study.layout, pages, marks, columns, size)
    ax.set_title("Slot hit when a slot is used as a row" + left_out(study, pages))
    found = set(table["raw"])
    legend_below(ax, [key(*look) for raw, look in looks.items() if raw in found], 3)
    return fig


def _columns(layout: DcpLayout) -> tuple[int, Width]:
    columns = line_slots(layout, LINE_SLOTS)
    return columns, "single" if columns <= 12 else "double"


def _cell(width: Width, across: int, lines: float, two_lines: bool = False) -> tuple[float, float]:
    """Inches of a cell: as wide as the field allows, as high as one or two lines of text."""
    wide = (WIDTH_IN[width] - BESIDE_IN) / across
    return wide, min(TALL_IN if two_lines and wide >= 0.28 else ROW_IN, FIELD_IN / lines)

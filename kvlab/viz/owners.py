"""Who owns which slot, drawn: figures over the tables of ``kvlab.lab.owners``, and the explorer.

    owner_map        the slots of a run, page by page, with the owner of each
    owner_atlas      several owner maps beside each other
    rank_buffers     one column a rank: the slot that each row stores, the padding page hatched
    page_map         allocator page q is physical page q of every rank
    raw_use_map      what each slot would hit if it were used as a row
    owner_explorer   slots and rows beside each other, to be dragged

All are made of two fields of cells: slots line by line, and rows rank by rank. The first five
return a figure without a caption. ``DEFINITIONS`` has the sentence for it:

    fig = caption(owner_map(study), DEFINITIONS["owner-slots"], origin)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import ipywidgets as widgets
from matplotlib.figure import Figure

from kvlab.index import DcpLayout
from kvlab.lab.owners import (
    ENGINE_RULES,
    OwnerStudy,
    describe,
    parse_sizes,
    rule_interleave,
    slot_sentence,
)
from kvlab.viz import style
from kvlab.viz.canvas import MARGIN_IN, OUTSIDE, Box, Canvas, Key, rank_role
from kvlab.viz.panel import Drawing, Panel, Spot, twin
from kvlab.viz.style import Role, Width

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

#: What the row hits whose number is a slot.
RAW_LOOKS: Mapping[str, Role] = {
    "right": replace(style.OWNED, label="the right row"),
    "another slot": replace(style.SILENT, label="another slot's row, no error"),
    "out of range": replace(style.ASSERT, label="out of range"),
}
LEFT_IN, TOP_IN, GAP_IN, BESIDE_IN = 0.62, 0.5, 0.09, 1.3
ROW_IN, TALL_IN = 0.165, 0.28  # height of a cell of one line of text, and of two
LINE_SLOTS, ATLAS_SLOTS = 32, 16
HEADING = "slots in order, the first of each line at the left"

NAME = "owner-explorer"
SIZES = [1, 2, 4, 8, 16]
NUM_PAGES, EXPLORER_LINES = 12, 34
RULE = next(iter(ENGINE_RULES))
BY_HAND = "the interleave of the slider"
DEFINITION = (
    "Left: slots of the run's pages, a line of slots in order, colored and named by the rank that "
    "owns them, slot // I % c with interleave I; white: not of the run. Right: rows of each rank's "
    "buffer with the slot that each stores; hatched: padding page. Dashed: the slot under the "
    "cursor; cross: the row that its number would hit if used as a row. Computed from the layout."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A slot and its box in inches. ``rank``, ``row``: of a row that stores the slot."""

    slot: int
    box: Box
    rank: int | None = None
    row: int | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """Cells, and the words beside them: x, y, text, align."""

    cells: tuple[Cell, ...]
    words: tuple[tuple[float, float, str, str], ...]
    bottom: float


def line_slots(layout: DcpLayout, most: int) -> int:
    """Slots a line: the widest multiple of c up to ``most`` that divides W; c if none does."""
    c, size = layout.dcp_size, layout.page_size
    return max((c * k for k in range(1, size + 1) if size % k == 0 and c * k <= most), default=c)


def slot_field(
    layout: DcpLayout, pages: Sequence[int], columns: int, at: tuple[float, float],
    size: tuple[float, float],
) -> Field:  # fmt: skip
    """The slots of ``pages`` from ``at`` on, ``columns`` a line; ``size``: inches of a cell."""
    (left, y), (wide, high) = at, size
    cells, words = [], []
    for page in pages:
        first = page * layout.widened_page_size
        middle = y + layout.widened_page_size // columns * high / 2
        words.append((left + columns * wide + 0.06, middle, f"page {page}", "left"))
        for begin in range(first, first + layout.widened_page_size, columns):
            words.append((left - 0.06, y + high / 2, f"{begin}", "right"))
            cells += [Cell(begin + i, (left + i * wide, y, wide, high)) for i in range(columns)]
            y += high
        y += GAP_IN
    return Field(tuple(cells), tuple(words), y)


def row_field(
    layout: DcpLayout, pages: Sequence[int], at: tuple[float, float], size: tuple[float, float]
) -> Field:
    """The rows of ``pages`` from ``at`` on, a column a rank; the padding page is one line."""
    (left, y), (wide, high) = at, size
    p, ranks = layout.page_size, range(layout.dcp_size)
    cells, words = [], []
    for page in pages:
        rows = range(page * p, page * p + (p if page else 1))
        heading = f"page {page}" if page else "padding"
        right = left + layout.dcp_size * wide + 0.06
        words.append((right, y + len(rows) * high / 2, heading, "left"))
        for row in rows:
            words.append((left - 0.06, y + high / 2, f"{row}", "right"))
            cells += [
                Cell(layout.slot(rank, row), (left + rank * wide, y, wide, high), rank, row)
                for rank in ranks
            ]
            y += high
        y += GAP_IN
    return Field(tuple(cells), tuple(words), y)


def draw_field(canvas: Canvas, field: Field, mark: Callable[[Cell], tuple[Role, str]]) -> None:
    """Draw the cells, each as ``mark`` says: its look and its text."""
    for cell in field.cells:
        canvas.cell(cell.box, *mark(cell))
    for x, y, text, align in field.words:
        canvas.text(x, y, text, 7, align=align)


def run_pages(study: OwnerStudy) -> list[int]:
    """The pages of the run, in position order."""
    first = study.start // study.layout.widened_page_size
    return list(study.page_list[first : study.layout.pages_for(study.start + study.length)])


#: What a slot of the run looks like: its role and its text.
Marks = Mapping[int, tuple[Role, str]]


def owner_map(study: OwnerStudy) -> Figure:
    """The owner of each slot of the run."""
    return _slots_figure(study, "Owner of each slot", _owner_marks, ())


def raw_use_map(study: OwnerStudy) -> Figure:
    """What each slot of the run hits when its owner uses it as a row number."""
    raws = set(study.table()["raw"])
    legend = [role for raw, role in RAW_LOOKS.items() if raw in raws]
    return _slots_figure(study, "Slot hit when a slot is used as a row", _raw_marks, legend)


def _slots_figure(
    study: OwnerStudy,
    title: str,
    marks: Callable[[OwnerStudy, bool], Marks],
    legend: Sequence[Role],
) -> Figure:
    """The slots of the run over the whole width, as ``marks`` says for cells of one or two lines
    of text."""
    columns = line_slots(study.layout, LINE_SLOTS)
    width: Width = "single" if columns <= 12 else "double"
    wide = (style.WIDTH_IN[width] - BESIDE_IN) / columns
    pages = run_pages(study)
    two = wide >= 0.28 and study.layout.widened_page_size // columns * len(pages) < 8
    canvas = Canvas(width, title)
    canvas.text(LEFT_IN, TOP_IN - 0.12, HEADING, 7)
    size = (wide, TALL_IN if two else ROW_IN)
    field = slot_field(study.layout, pages, columns, (LEFT_IN, TOP_IN), size)
    draw_field(canvas, field, _by_slot(marks(study, two)))
    return _finished(canvas, field, [(role, role.label) for role in legend])


def _by_slot(looks: Marks) -> Callable[[Cell], tuple[Role, str]]:
    return lambda cell: looks.get(cell.slot, (OUTSIDE, ""))


def _finished(canvas: Canvas, field: Field, entries: Sequence[tuple[Key, str]]) -> Figure:
    """The figure of one field, with a legend below it."""
    keys_in = canvas.keys(field.bottom + 0.08, entries) if entries else 0.0
    return canvas.finish(field.bottom + keys_in)


def _owner_marks(study: OwnerStudy, two: bool) -> Marks:
    """The owner of each slot; in tall cells below the slot itself."""
    c, table = study.layout.dcp_size, study.table()
    return {
        slot: (rank_role(owner, c), f"{slot}\nr{owner}" if two else f"{owner}")
        for slot, owner in zip(table["slot"], table["owner"], strict=True)
    }


def _raw_marks(study: OwnerStudy, two: bool) -> Marks:
    """The slot that is hit; in tall cells below the slot itself."""
    table, marks = study.table(), {}
    for slot, raw, hit in zip(table["slot"], table["raw"], table["raw_slot"], strict=True):
        text = "" if raw == "out of range" else f"{hit}"
        marks[slot] = (RAW_LOOKS[raw], f"{slot}\n→{text or ' none'}" if two else text)
    return marks


def owner_atlas(studies: Mapping[str, OwnerStudy], title: str, across: int = 2) -> Figure:
    """Owner maps beside each other, each under its name, all cells of one size."""
    columns = {name: line_slots(study.layout, ATLAS_SLOTS) for name, study in studies.items()}
    column_in = (style.WIDTH_IN["double"] - MARGIN_IN) / across
    wide = min(0.26, (column_in - BESIDE_IN) / max(columns.values()))
    canvas = Canvas("double", title)
    canvas.text(MARGIN_IN, 0.33, HEADING, 7)
    top, bottom = TOP_IN, TOP_IN
    for number, (name, study) in enumerate(studies.items()):
        if number % across == 0:
            top = bottom + 0.12
        left = number % across * column_in
        canvas.text(left + MARGIN_IN, top - 0.12, name, 8.5, bold=True)
        at = (left + LEFT_IN, top)
        field = slot_field(study.layout, run_pages(study), columns[name], at, (wide, ROW_IN))
        draw_field(canvas, field, _by_slot(_owner_marks(study, two=False)))
        bottom = max(bottom, field.bottom + 0.2)
    return canvas.finish(bottom - 0.15)


def rank_buffers(study: OwnerStudy, rank: int | None = None, raw: bool = False) -> Figure:
    """The buffers of all ranks at the padding page and the pages of the run.

    Args:
        rank: puts one in front of the others.
        raw: outline the rows that each rank touches when it uses all slots of the run as rows.
    """
    lay, slots = study.layout, study.table()["slot"].tolist()
    hit = {slot for slot in slots if slot < lay.row_end} if raw else set()
    pages = sorted({*run_pages(study), *(row // lay.page_size for row in hit)} - {0})
    width: Width = "single" if lay.dcp_size <= 8 else "double"
    wide = min(0.6, (style.WIDTH_IN[width] - BESIDE_IN) / lay.dcp_size)
    field = row_field(lay, [0, *pages], (LEFT_IN, TOP_IN), (wide, ROW_IN))
    canvas = Canvas(width, "Slot that each row stores")
    canvas.text(LEFT_IN - 0.06, TOP_IN - 0.1, "row, rank", 7, align="right")
    _name_ranks(canvas, field, lay.dcp_size)
    mine = set(slots)

    def mark(cell: Cell) -> tuple[Role, str]:
        if cell.row is not None and cell.row < lay.first_row:
            return style.PADDING, ""
        role = rank_role(cell.rank or 0, lay.dcp_size)
        if rank is not None:
            role = style.OWNED if cell.rank == rank else style.OTHER
        return (role if cell.slot in mine else OUTSIDE), str(cell.slot)

    draw_field(canvas, field, mark)
    keys: list[tuple[Key, str]] = []
    if rank is not None:
        keys = [(style.OWNED, f"slot of rank {rank}"), (style.OTHER, "slot of another rank")]
    for cell in field.cells if raw else ():
        if cell.row in hit:
            canvas.outline(cell.box, 1.5)
    if raw:
        keys.append((("s", style.VERMILLION), "framed: row hit by raw use"))
    return _finished(canvas, field, keys)


def _name_ranks(canvas: Canvas, field: Field, dcp_size: int) -> None:
    for cell in field.cells[: dcp_size : 1 if dcp_size <= 8 else 3]:
        x, y, wide, _ = cell.box
        canvas.text(x + wide / 2, y - 0.09, f"{cell.rank}", 7, align="center")


def page_map(study: OwnerStudy) -> Figure:
    """Widened page q beside physical page q of each rank; the pages of the run are filled."""
    lay, c = study.layout, study.layout.dcp_size
    w, p = lay.widened_page_size, lay.page_size
    left, allocator_in, high, line_in = 1.3, 2.2, 0.26, 0.36
    ranks_at = left + allocator_in + 0.4
    wide = min(0.5, (style.WIDTH_IN["double"] - ranks_at - 0.9) / c)
    canvas = Canvas("double", "Page q of the allocator is page q of every rank")
    y = TOP_IN
    canvas.text(left + allocator_in / 2, y - 0.1, "allocator", 8, align="center")
    canvas.text(ranks_at + c * wide / 2, y - 0.1, "rank 0 ..", 8, align="center")
    for page in [0, *sorted(run_pages(study))]:
        low = study.page_list.index(page) * w if page else 0
        ends = max(study.start, low), min(study.start + study.length, low + w) - 1
        words = [f"slots {page * w}..{(page + 1) * w - 1}"]
        words += [f"positions {ends[0]}..{ends[1]}"] if page else []
        for i, text in enumerate(words):
            at = y + high * (2 * i + 1) / (2 * len(words))
            canvas.text(left - 0.06, at, text, 7, align="right")
        turns = w // lay.interleave if page else 1
        for turn in range(turns):
            role = rank_role(turn % c, c) if page else style.PADDING
            stripe = allocator_in / turns
            canvas.box((left + turn * stripe, y, stripe, high), role)
        canvas.text(left + allocator_in + 0.2, y + high / 2, "→", 11, align="center")
        for rank in range(c):
            role = rank_role(rank, c) if page else style.PADDING
            canvas.cell((ranks_at + rank * wide, y, wide, high), role, f"{page}")
        canvas.text(
            ranks_at + c * wide + 0.06, y + high / 2, f"rows {page * p}..{(page + 1) * p - 1}", 7
        )
        y += line_in
    return canvas.finish(y)


def fields(study: OwnerStudy, width: Width, hit: int | None) -> tuple[Field, Field, int]:
    """Slots, rows, and how many pages are left out: those past the 34th line.

    ``hit``: a page whose rows are shown beside those of the run.
    """
    lay = study.layout
    pages, columns = run_pages(study), line_slots(study.layout, ATLAS_SLOTS)
    lines = max(lay.widened_page_size // columns, lay.page_size)
    shown = pages[: max(1, EXPLORER_LINES // lines)]
    beside = width == "double"
    wide = min(0.26, (3.2 if beside else 2.2) / columns)
    slots = slot_field(lay, shown, columns, (LEFT_IN, TOP_IN), (wide, ROW_IN))
    at = (4.95, TOP_IN) if beside else (LEFT_IN, slots.bottom + 0.36)
    cell = (min(0.36, (1.7 if beside else 2.2) / lay.dcp_size), ROW_IN)
    both = sorted({0, *shown, *([] if hit is None else [hit])})
    return slots, row_field(lay, both, at, cell), len(pages) - len(shown)


def draw_owner(
    dcp_size: int = 4,
    page_size: int = 4,
    pages: str = "3, 1",
    start: int = 0,
    length: int = 27,
    rule: str = RULE,
    interleave: int = 1,
    slot: int = 21,
    width: Width = "double",
) -> Drawing:
    """Which rank owns a slot, in which row, and what a raw use of its number would hit.

    Left the slots of the run's pages, right the rows of every rank's buffer. The slot under the
    cursor is outlined on both sides, a cross marks the row that its number would hit if it were
    used as a row. Table: one row a position of the run. Errors: KvlabError for what does not fit
    together.
    """
    turns = interleave if rule == BY_HAND else rule_interleave(rule, page_size)
    layout = DcpLayout(dcp_size, page_size, NUM_PAGES, turns)
    study = OwnerStudy(layout, length, start, parse_sizes(pages, "pages"))
    lay, told = layout, slot_sentence(study, slot)
    hit = slot // page_size  # the page of rows that the number of the slot names
    slots, rows, left_out = fields(study, width, hit if hit <= NUM_PAGES else None)
    more = f" ({left_out} more pages not drawn)" if left_out else ""
    canvas = Canvas(width, f"Slots by owner, rows by slot{more}")
    heading = "rank that owns the slot (first slot of the line at the left)"
    canvas.text(LEFT_IN, slots.cells[0].box[1] - 0.09, heading, 7)
    x, y, _, _ = rows.cells[0].box
    canvas.text(x, y - 0.21, "slot in each row, a column a rank", 7)
    _name_ranks(canvas, rows, lay.dcp_size)

    def mark(cell: Cell) -> tuple[Role, str]:
        if cell.row is not None and cell.row < lay.first_row:
            return style.PADDING, ""
        owner = lay.owner(cell.slot)
        inside = study.position_of(cell.slot) is not None
        text = str(cell.slot) if cell.row is not None else str(owner) if inside else ""
        return (rank_role(owner, lay.dcp_size) if inside else OUTSIDE), text

    draw_field(canvas, slots, mark)
    draw_field(canvas, rows, mark)
    owner, row = lay.owner(slot), 0 if slot < lay.first_row else slot
    for cell in (*slots.cells, *rows.cells):
        if cell.slot == slot and (cell.row is None or slot >= lay.first_slot):
            canvas.outline(cell.box)
        if (cell.rank, cell.row) == (owner, row):
            x, y, wide, high = cell.box
            canvas.mark(x + wide / 2, y + high / 2, "X", style.VERMILLION, 8)
    fig = canvas.finish(max(slots.bottom, rows.bottom) + 0.05)
    spots = [
        Spot(*cell.box, slot_sentence(study, cell.slot))
        for cell in (*slots.cells, *rows.cells)
        if cell.row is None or cell.row >= lay.first_row
    ]
    return Drawing(fig, f"{told} {describe(study)}", study.table(), spots)


def _bounds(dcp_size: int, page_size: int, **_: object) -> dict[str, tuple[int, int]]:
    return {"slot": (0, (NUM_PAGES + 1) * page_size * dcp_size - 1)}


def owner_explorer() -> Panel:
    """Drag layout, pages, run, rule and slot; what does not fit is said in words."""
    return Panel(
        draw_owner,
        name=NAME,
        steps="slot",
        bounds=_bounds,
        definition=DEFINITION,
        dcp_size=(SIZES, "c: ranks that share each page"),
        page_size=(SIZES, "P: rows of a page on each rank"),
        pages=(widgets.Text(placeholder="pages in position order"), "pages of the run, 1 to 12"),
        start=range(65),
        length=range(1, 129),
        rule=[*ENGINE_RULES, BY_HAND],
        interleave=(SIZES, "I: slots a rank takes in turn; must divide P"),
        slot=range(208),
    )


owner_explorer_figure = twin(draw_owner, NAME, DEFINITION)

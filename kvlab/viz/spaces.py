"""Fields of cells: slots line by line, rows rank by rank. The bricks of the owner figures.

A cell has a *look* (fill, hatch, ink) that says what it is, and a text, the number itself. Numbers
are drawn while all of them fit their cells; where they do not, odd ranks are hatched, so that
colour never stands alone. Worked example, cells of 0.2 x 0.16 inch:

    >>> font_size(["21", "9"], 0.2, 0.16), font_size(["24575"], 0.2, 0.16)
    (7.5, None)

Ranks are ordered, so their colours are a scale (cividis, made for colour-blind readers) from dark
to light and not a set of hues: hues are for the roles of ``kvlab.viz.style``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import ScaledTranslation

from kvlab.index import DcpLayout
from kvlab.viz.style import BLACK, DARK_GREY, LIGHT_GREY, PADDING, VERMILLION, Role

SMALLEST_PT, LARGEST_PT = 5.0, 7.5
DIGIT_EM, LINE_EM = 0.64, 1.2  # width and height of a digit of DejaVu Sans, in units of its size
TICK_IN = 0.125  # height of a tick label
LEGEND_DOWN_IN = 0.4  # tick labels and label of the x axis
SHARE_OF_GAP = 1 / 20  # of a page; and at least a third of a cell

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Look:
    """How a cell is filled: ``face`` and ``hatch``; ``ink`` is the colour of text on it."""

    face: str
    ink: str
    hatch: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with its upper left corner at (x, y); ``wide`` and ``high`` in units of the axes."""

    x: float
    y: float
    look: Look
    text: str = ""
    wide: float = 1.0
    high: float = 1.0


#: What a cell shows: its look and its text.
Mark = tuple[Look, str]

OUTSIDE = Look("#FFFFFF", DARK_GREY)
PADDED = Look(PADDING.color, PADDING.ink, PADDING.hatch)


def look_of(role: Role) -> Look:
    """The look of an area of this role."""
    return Look(role.color, role.ink, role.hatch)


def rank_look(rank: int, dcp_size: int, hatched: bool = False) -> Look:
    """The look of what ``rank`` of ``dcp_size`` owns; odd ranks are hatched on demand."""
    at = rank / max(1, dcp_size - 1)
    face = to_hex(mpl.colormaps["cividis"](0.08 + 0.88 * at))
    return Look(face, ink_on(face), "////" if hatched and rank % 2 else "")


def ink_on(face: str) -> str:
    """Black or white, whichever has more contrast on ``face`` (at least 4.5 on any colour)."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(face)]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return BLACK if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "#FFFFFF"


def font_size(texts: Iterable[str], width: float, height: float) -> float | None:
    """The size in points at which every text fits a cell of this size in inches; None if none."""
    lines = [text.split("\n") for text in texts if text]
    longest = max((len(line) for text in lines for line in text), default=1)
    most = max((len(text) for text in lines), default=1)
    by_width, by_height = 0.94 * width / (DIGIT_EM * longest), 0.98 * height / (LINE_EM * most)
    size = min(LARGEST_PT, 72 * by_width, 72 * by_height)
    return size if size >= SMALLEST_PT else None


def draw_cells(ax: Axes, cells: Sequence[Cell], width: float, height: float) -> None:
    """Draw the cells, and the texts of those of one size if all of them fit.

    Args:
        width, height: inches of one unit of the axes.
    """
    for look, group in _grouped(cells, lambda c: c.look).items():
        boxes = [Rectangle((c.x, c.y), c.wide, c.high) for c in group]
        edge = DARK_GREY if look.hatch or look == OUTSIDE else "#FFFFFF"
        drawn = PatchCollection(boxes, facecolor=look.face, edgecolor=edge, linewidth=0.4)
        drawn.set(clip_on=False, zorder=2 if edge == DARK_GREY else 1)
        drawn.set_hatch(look.hatch)
        ax.add_collection(drawn)
    for (wide, high), group in _grouped(cells, lambda c: (c.wide, c.high)).items():
        size = font_size([c.text for c in group], wide * width, high * height)
        for cell in group if size is not None else ():
            if cell.text:
                x, y, ink = cell.x + wide / 2, cell.y + high / 2, cell.look.ink
                text = ax.text(x, y, cell.text, color=ink, size=size, ha="center", va="center")
                text.set_in_layout(False)  # it is inside by construction; asking costs a second
                if cell.look.hatch:
                    text.set_bbox({"facecolor": cell.look.face, "edgecolor": "none", "pad": 0.6})


def outline(ax: Axes, boxes: Iterable[Rectangle]) -> Patch:
    """Mark boxes with a thick dashed line, whatever fills them; returns the entry of a legend."""
    mark = Patch(facecolor="none", edgecolor=VERMILLION, linewidth=1.5, linestyle=(0, (3, 1)))
    marked = PatchCollection(list(boxes), zorder=3)
    marked.set(facecolor="none", edgecolor=VERMILLION, linewidth=1.5, linestyle=(0, (3, 1)))
    ax.add_collection(marked)
    return mark


def key(look: Look, label: str) -> Patch:
    """The entry of a look in a legend."""
    edge = DARK_GREY if look.hatch or look == OUTSIDE else LIGHT_GREY
    return Patch(
        facecolor=look.face, edgecolor=edge, hatch=look.hatch or None, linewidth=0.4, label=label
    )


def legend_below(ax: Axes, keys: Sequence[Patch], columns: int) -> None:
    """A legend under the labels of ``ax``, inside its layout, so that a caption finds room."""
    if keys:
        down = ScaledTranslation(0, -LEGEND_DOWN_IN, ax.figure.dpi_scale_trans)
        ax.legend(
            handles=list(keys),
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=ax.transAxes + down,
            borderaxespad=0,
            handlelength=1.6,
            columnspacing=1.2,
            ncols=columns,
        )


def line_slots(layout: DcpLayout, most: int) -> int:
    """Slots a line: the widest multiple of c up to ``most`` that divides W; c if none does."""
    c, size = layout.dcp_size, layout.page_size
    return max((c * k for k in range(1, size + 1) if size % k == 0 and c * k <= most), default=c)


def page_gap(lines: int) -> float:
    """Between two pages of so many lines, in cells."""
    return max(1 / 3, lines * SHARE_OF_GAP)


def slot_lines(layout: DcpLayout, pages: Sequence[int], columns: int) -> float:
    """Height of ``slot_field``, in cells."""
    lines = layout.widened_page_size // columns
    return len(pages) * (lines + page_gap(lines))


def slot_field(
    ax: Axes,
    layout: DcpLayout,
    pages: Sequence[int],
    marks: Mapping[int, Mark],
    columns: int,
    size: tuple[float, float],
) -> None:
    """The slots of ``pages``, ``columns`` a line: ``marks`` has what is drawn for a slot.

    Args:
        size: inches of a cell, wide and high.
    """
    cells, rows, headings = [], {}, {}
    lines = layout.widened_page_size // columns
    for at, page in enumerate(pages):
        top = at * (lines + page_gap(lines))
        headings[top + lines / 2] = f"page {page}"
        for line in range(lines):
            first = page * layout.widened_page_size + line * columns
            rows[top + line + 0.5] = str(first)
            for x in range(columns):
                look, text = marks.get(first + x, (OUTSIDE, ""))
                cells.append(Cell(x, top + line, look, text))
    draw_cells(ax, cells, *size)
    every = next(n for n in (1, 2, 4, 8, columns) if n * size[0] >= 0.2 or n == columns)
    ticks = {x + 0.5: str(x) for x in range(0, columns, every)}
    height = slot_lines(layout, pages, columns) - page_gap(lines)
    frame(ax, (columns, height), rows, ticks, size[1], headings)
    ax.set(xlabel="slot within the line", ylabel="first slot" if height * size[1] > 0.6 else "slot")


def row_lines(layout: DcpLayout, pages: Sequence[int]) -> float:
    """Height of ``row_field``, in cells; the padding page is less high than the others."""
    high = layout.page_size
    return sum((high if page else _padding_lines(high)) + page_gap(high) for page in pages)


def row_field(
    ax: Axes,
    layout: DcpLayout,
    pages: Sequence[int],
    marks: Mapping[tuple[int, int], Mark],
    size: tuple[float, float],
) -> dict[int, float]:
    """The rows of ``pages``, a column a rank: ``marks`` has what is drawn for (rank, row).

    Where the texts do not fit, rows of one look become one block that says its first and last
    text. Returns the top of each page but the padding page, in cells.
    """
    high, ranks = layout.page_size, range(layout.dcp_size)
    whole = font_size([text for _, text in marks.values()], *size) is not None
    cells, rows, headings, tops = [], {}, {}, {}
    top = 0.0
    for page in pages:
        lines = high if page else _padding_lines(high)
        headings[top + lines / 2] = f"page {page}" if page else "padding"
        if not page:
            rows[lines / 2] = f"0..{high - 1}" if high > 1 else "0"
            cells += [Cell(rank, top, PADDED, "", 1.0, lines) for rank in ranks]
        else:
            tops[page] = top
            shown = range(high) if whole else (0,)
            rows |= {top + line + 0.5: str(page * high + line) for line in shown}
            for rank in ranks:
                held = [marks[rank, page * high + line] for line in range(high)]
                cells += _stack(rank, top, held, whole)
        top += lines + page_gap(high)
    draw_cells(ax, cells, *size)
    ticks = {rank + 0.5: str(rank) for rank in ranks}
    frame(ax, (layout.dcp_size, top - page_gap(high)), rows, ticks, size[1], headings)
    ax.set(xlabel="rank", ylabel="row of the buffer" if top * size[1] > 1 else "row")
    return tops


def _padding_lines(page_size: int) -> int:
    return max(1, page_size // 10)


def _stack(x: float, top: float, marks: Sequence[Mark], whole: bool) -> list[Cell]:
    """One cell a mark, or one for each run of marks that look alike."""
    cells = []
    for _, group in groupby(enumerate(marks), lambda m: (m[1][0], m[0] * whole)):
        (first, (look, text)), *rest = group
        if rest:
            text = f"{text}\n…\n{rest[-1][1][1]}"
        cells.append(Cell(x, top + first, look, text, 1.0, 1.0 + len(rest)))
    return cells


def frame(
    ax: Axes,
    size: tuple[float, float],
    rows: Mapping[float, str],
    columns: Mapping[float, str],
    row_in: float,
    headings: Mapping[float, str],
) -> None:
    """Limits, ticks and headings of a field of ``size`` cells; y grows downwards.

    Args:
        rows, columns: centre of a cell to its tick label.
        row_in: inches of one cell; labels that would overlap are left out.
        headings: y to the text that stands right of the field.
    """
    ax.set(xlim=(0, size[0]), ylim=(size[1], 0))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, pad=2)
    ax.set_xticks(list(columns), list(columns.values()))
    kept: list[float] = []
    for y in rows:
        if not kept or (y - kept[-1]) * row_in >= TICK_IN * (rows[y].count("\n") + 1):
            kept.append(y)
    ax.set_yticks(kept, [rows[y] for y in kept])
    for y, text in headings.items():
        ax.text(size[0], y, f" {text}", fontsize=7.5, va="center", ha="left")


def _grouped(cells: Sequence[Cell], of: Callable[[Cell], K]) -> dict[K, list[Cell]]:
    groups: dict[K, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(of(cell), []).append(cell)
    return groups

"""How a value shows itself: facts and strips, as HTML for a notebook cell and as lines of text.

A value makes its tables, and shows them in a line:

    def _repr_html_(self) -> str:
        told = facts("Pool of rank 0", [("rows", span(0, 8)), ("pages", many(4, "page"))])
        columns = [("1", "free"), ("2", Cell("out", color=0)), "... (5 more)"]
        return html(told, strip("Its pages", ("page", "state"), columns))

A column has one cell a name; a text, or None, stands for columns that are left out. ``cut`` leaves
out the middle of a sequence, ``elements`` that of a tensor. ``str`` of a table is its text.

Nothing here waits: values are read of plain CPU tensors only, at most a strip of them. What lies on
a device, or has no values at all (fake tensors), is shown by its length.

Borders and text take the color of the page, fills are mostly transparent, so that both themes are
readable; a fill never stands without its text. Colors: Okabe and Ito, "Color Universal Design".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")

FIRST, LAST = 12, 4  # columns of a strip before and after what is left out
GAP = "..."
FILLS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
ALPHA = "55"  # a third: text of the page keeps its contrast on every fill
_HATCH = "background:repeating-linear-gradient(45deg,#8886 0 1px,#0000 1px 6px)"
_CELL = "padding:1px 6px"
_LEFT = f"{_CELL};text-align:left"
_CAPTION = "text-align:left;font-weight:bold;white-space:nowrap"
_TABLE = "border-collapse:collapse;color:inherit;margin:2px 0 6px"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than its text. ``color``: number of its fill, for an owner its rank;
    ``hatched``: of the padding page; ``edge``: a page, or a run, begins at its left."""

    text: object
    color: int | None = None
    hatched: bool = False
    edge: bool = False

    def __str__(self) -> str:
        return str(self.text)


@dataclass(frozen=True, slots=True)
class Table:
    """Lines under a caption, the name of each line first. ``headed``: the first names columns."""

    caption: str
    lines: tuple[tuple[object, ...], ...]
    headed: bool = False

    def html(self) -> str:
        """The table as HTML; all text is escaped."""
        cut = 1 if self.headed else 0
        head, body = (
            "".join(f"<tr>{_line(line, top)}</tr>" for line in lines)
            for top, lines in ((True, self.lines[:cut]), (False, self.lines[cut:]))
        )
        return (
            f'<table style="{_TABLE}"><caption style="{_CAPTION}">{escape(self.caption)}</caption>'
            f"{f'<thead>{head}</thead>' if head else ''}<tbody>{body}</tbody></table>"
        )

    def __str__(self) -> str:
        lines = [[str(cell) for cell in line] for line in self.lines]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        told = ["  ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([self.caption, *(f"  {line}".rstrip() for line in told)])


def facts(caption: str, pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values, one pair a line."""
    return Table(caption, tuple(pairs))


def strip(
    caption: str, names: Sequence[str], columns: Iterable[Sequence[object] | str | None]
) -> Table:
    """One line a name; a column has a cell for each. A text stands at the head of a column that
    is left out, None for no text."""
    full = [
        (column or GAP, *[GAP] * (len(names) - 1))
        if column is None or isinstance(column, str)
        else column
        for column in columns
    ]
    lines = [(name, *(column[i] for column in full)) for i, name in enumerate(names)]
    return Table(caption, tuple(lines), headed=True)


def html(*tables: Table) -> str:
    """The tables, one under the other, for ``_repr_html_``."""
    return f"<div>{''.join(table.html() for table in tables)}</div>"


def cut(items: Sequence[T], first: int = FIRST, last: int = LAST) -> list[T | None]:
    """The items that a strip shows; one None where others are left out."""
    if len(items) <= first + last + 1:
        return list(items)
    return [*items[:first], None, *items[-last:]]


def elements(ids: Tensor) -> list[tuple[int, int] | None] | None:
    """(index, value) of what a strip shows of a 1-D tensor, as ``cut``. None where reading would
    wait for a device, or where there are no values (a fake tensor). Never raises."""
    if type(ids) is not Tensor or ids.device.type != "cpu":  # a subclass may have no values
        return None
    try:
        shown = cut(range(len(ids)))
        return [None if at is None else (at, int(ids[at])) for at in shown]
    except Exception:  # under a mode or a transform of torch (fake tensors, vmap): no values either
        return None


def listed(ids: Tensor) -> str:
    """A 1-D tensor on one line, cut in the middle, for ``__repr__``.

    >>> import torch
    >>> listed(torch.arange(4)), listed(torch.arange(100))
    ('[0, 1, 2, 3]', '[0, 1, 2, 3, ..., 98, 99] (100)')
    """
    shown = elements(ids)
    if shown is None:
        return f"{length(ids)} ids on {ids.device}"
    known = [str(pair[1]) for pair in shown if pair is not None]
    if len(ids) <= 8:
        return f"[{', '.join(known)}]"
    return f"[{', '.join([*known[:4], GAP, *known[-2:]])}] ({length(ids)})"


def length(ids: Tensor) -> str:
    """How many elements a 1-D tensor has, in words; symbolic where its shape is."""
    count: object = ids.shape[0]
    return f"{count:,}" if isinstance(count, int) else str(count)


def place(tensor: Tensor) -> str:
    """Where a tensor lies, its type, and whether ``elements`` reads it."""
    read = "" if elements(tensor) is not None else ", not read"
    return f"{tensor.device}, {str(tensor.dtype).removeprefix('torch.')}{read}"


def span(begin: int, end: int) -> str:
    """The whole numbers from ``begin`` to ``end - 1``, in words.

    >>> span(4, 8), span(4, 5), span(4, 4)
    ('4 .. 7', '4', 'none')
    """
    if end - begin < 2:
        return "none" if end <= begin else str(begin)
    return f"{begin} .. {end - 1}"


def many(count: int, name: str) -> str:
    """A count with its noun.

    >>> many(1, "page"), many(2000, "page")
    ('1 page', '2,000 pages')
    """
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def fill(color: int) -> str:
    """A color, two thirds transparent. There are six: the text of a cell tells more apart."""
    return FILLS[color % len(FILLS)] + ALPHA


def _line(line: Sequence[object], top: bool) -> str:
    name, *cells = line
    left = len(cells) == 1 and not top
    head = f'<th scope="row" style="{_LEFT}">{escape(str(name))}</th>'
    return head + "".join(_cell(cell, top, _LEFT if left else _CELL) for cell in cells)


def _cell(given: object, top: bool, style: str) -> str:
    cell = given if isinstance(given, Cell) else Cell(given)
    if cell.color is not None:
        style += f";background:{fill(cell.color)}"
    if cell.hatched:
        style += f";{_HATCH}"
    if cell.edge:
        style += ";border-left:2px solid"
    tag, scope = ("th", ' scope="col"') if top else ("td", "")
    return f'<{tag}{scope} style="{style}">{escape(str(cell))}</{tag}>'

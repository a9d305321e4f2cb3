"""What a value shows of itself in a notebook cell: facts and strips, as plain HTML tables.

Readable in light and dark: borders and text take the colour of the page, fills are mostly
transparent, and an owner's colour never stands without its number. A strip is a table of columns:
over the slots of page 1 of ``DcpLayout(2, 2, 3)``

    slot   4  5  6  7
    owner  0  1  0  1
    row    2  2  3  3

Nothing here waits: values are read of CPU tensors only, at most ``MOST_READ`` of them. What lies
on a device, or has no values at all (fake tensors), is shown by shape.

Colours: Okabe and Ito, "Color Universal Design" (2008), as in the figures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from torch import Tensor

MOST_READ = 64
FIRST, LAST = 12, 4  # columns of a strip before and after what is left out
GAP = "..."
FILLS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
ALPHA = "55"  # a third: text of the page keeps its contrast on every fill
HATCH = "background:repeating-linear-gradient(45deg,#8886 0 1px,#0000 1px 6px)"
_CELL = "padding:1px 6px"
_LEFT = f"{_CELL};text-align:left"
_PAGE = "border-left:2px solid"
_TABLE = "border-collapse:collapse;color:inherit;margin:2px 0 6px"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a strip: its text; ``color``: number of its colour, for an owner its rank;
    ``hatched``: of the padding page; ``edge``: a page (or a run) begins at its left."""

    text: object
    color: int | None = None
    hatched: bool = False
    edge: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One element of a 1-D tensor: its index and its value."""

    at: int
    value: int


def facts(caption: str, rows: Iterable[tuple[str, object]]) -> str:
    """A table of two columns, name and value, under a caption; all text is escaped."""
    lines = "".join(
        f'<tr><th scope="row" style="{_LEFT}">{escape(name)}</th>'
        f'<td style="{_LEFT}">{escape(str(value))}</td></tr>'
        for name, value in rows
    )
    return f'<table style="{_TABLE}">{_caption(caption)}<tbody>{lines}</tbody></table>'


def strip(caption: str, lines: Sequence[tuple[str, Sequence[Cell]]]) -> str:
    """A table whose first line names the columns and whose others say what stands there."""
    (name, heads), *others = lines
    top = "".join(_cell(head, "th", ' scope="col"') for head in heads)
    body = "".join(
        f"<tr>{_head(name)}{''.join(_cell(c, 'td') for c in cells)}</tr>" for name, cells in others
    )
    return (
        f'<table style="{_TABLE}">{_caption(caption)}<thead><tr>{_head(name)}{top}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def block(*tables: str) -> str:
    """The tables, one under the other."""
    return f"<div>{''.join(tables)}</div>"


def cut(count: int) -> list[int | None]:
    """The indices of ``count`` things that a strip shows, None where others are left out."""
    if count <= FIRST + LAST + 1:
        return list(range(count))
    return [*range(FIRST), None, *range(count - LAST, count)]


def columns(ids: Tensor) -> list[Column | None] | None:
    """What a strip shows of a 1-D tensor, None for what is left out; None: its values are not at
    hand. Reads at most ``FIRST + LAST + 1`` values of a plain CPU tensor, none of any other."""
    head, tail = peek(ids, 0, FIRST + LAST + 1), peek(ids, -LAST, None)
    if head is None or tail is None:
        return None
    values = dict(enumerate(head))
    count = int(ids.shape[0])
    values |= {count - len(tail) + i: value for i, value in enumerate(tail)}
    return [None if at is None else Column(at, values[at]) for at in cut(count)]


def peek(ids: Tensor, begin: int, end: int | None) -> list[int] | None:
    """The values of ``ids[begin:end]``, at most ``MOST_READ``; None where reading them would wait
    for a device, or where there are none. Never raises."""
    if type(ids) is not Tensor or ids.device.type != "cpu":  # a subclass may have no values
        return None
    try:
        part = ids[begin:end][:MOST_READ]
        return [int(x) for x in part.tolist()] if type(part) is Tensor else None
    except Exception:  # under a mode or transform of torch (fake tensors, vmap): no values either
        return None


def length(ids: Tensor) -> str:
    """How many elements a 1-D tensor has, in words; symbolic where its shape is."""
    count: object = ids.shape[0]
    return f"{count:,}" if isinstance(count, int) else str(count)


def listed(ids: Tensor) -> str:
    """The values of a 1-D tensor on one line, cut in the middle, for ``__repr__``.

    >>> import torch
    >>> listed(torch.arange(4)), listed(torch.arange(100))
    ('[0, 1, 2, 3]', '[0, 1, 2, 3, ..., 98, 99] (100)')
    """
    shown = columns(ids)
    if shown is None:
        return f"{length(ids)} ids on {ids.device}"
    known = [str(column.value) for column in shown if column is not None]
    if int(ids.shape[0]) <= 8:
        return f"[{', '.join(known)}]"
    return f"[{', '.join(known[:4])}, {GAP}, {', '.join(known[-2:])}] ({length(ids)})"


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


def size(nbytes: int) -> str:
    """Bytes, exact, and in the largest unit of which there is at least one.

    >>> size(96), size(3 * 2**20)
    ('96 bytes', '3,145,728 bytes (3.0 MiB)')
    """
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 2**power:
            return f"{nbytes:,} bytes ({nbytes / 2**power:.1f} {unit})"
    return f"{nbytes:,} bytes"


def fill(color: int) -> str:
    """A colour, two thirds transparent. There are six: what is written in a cell tells it apart."""
    return FILLS[color % len(FILLS)] + ALPHA


def _caption(text: str) -> str:
    style = "text-align:left;font-weight:bold;white-space:nowrap"
    return f'<caption style="{style}">{escape(text)}</caption>'


def _head(name: str) -> str:
    return f'<th scope="row" style="{_LEFT}">{escape(name)}</th>'


def _cell(cell: Cell, tag: str, scope: str = "") -> str:
    parts = [_CELL]
    if cell.color is not None:
        parts.append(f"background:{fill(cell.color)}")
    if cell.hatched:
        parts.append(HATCH)
    if cell.edge:
        parts.append(_PAGE)
    return f'<{tag}{scope} style="{";".join(parts)}">{escape(str(cell.text))}</{tag}>'

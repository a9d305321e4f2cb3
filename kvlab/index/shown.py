"""How a layout, a run of slots and the rows of one rank show themselves in a notebook cell.

A layout shows both ranges side by side, page by page, and who owns the slots of page 1. Rows of a
rank know their layout, so their strip has the borders of pages; slots alone do not, so theirs marks
where a slot does not follow the one before it.

The types call these functions, so they stand below them and ask for no more than ``Spaces``.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from kvlab.index.reprs import (
    GAP,
    Cell,
    Column,
    block,
    columns,
    cut,
    facts,
    length,
    many,
    span,
    strip,
)

_NO_VALUES = "on the device, or without values: not read"


class Spaces(Protocol):
    """What a ``DcpLayout`` says of itself; for the meaning of each name see there."""

    @property
    def dcp_size(self) -> int: ...
    @property
    def page_size(self) -> int: ...
    @property
    def num_pages(self) -> int: ...
    @property
    def interleave(self) -> int: ...
    @property
    def widened_page_size(self) -> int: ...
    @property
    def first_slot(self) -> int: ...
    @property
    def slot_end(self) -> int: ...
    @property
    def first_row(self) -> int: ...
    @property
    def row_end(self) -> int: ...
    @property
    def capacity_tokens(self) -> int: ...

    def owner(self, slot: int) -> int: ...
    def row(self, slot: int) -> int: ...


def layout_name(lay: Spaces) -> str:
    """The four numbers of a layout, in words."""
    turn = "" if lay.interleave == 1 else f", {lay.interleave:,} slots in turn"
    ranks, pages = many(lay.dcp_size, "rank"), many(lay.num_pages, "page")
    return f"{ranks}, {pages} of {many(lay.page_size, 'row')}{turn}"


def layout_html(lay: Spaces) -> str:
    """The ranges of slots and rows, page by page, and the owners of page 1."""
    wide, page = lay.widened_page_size, lay.page_size
    told = facts(
        f"Layout: {layout_name(lay)}",
        [
            ("slots of a page (W)", f"{wide:,}"),
            ("slots handed out", span(lay.first_slot, lay.slot_end)),
            ("rows of each rank", span(lay.first_row, lay.row_end)),
            ("tokens, all ranks", f"{lay.capacity_tokens:,}"),
        ],
    )
    sizes = [("slots", wide), ("rows of each rank", page)]
    both = pages_strip("Both ranges", lay.num_pages, sizes)
    return block(told, both, _owners(lay))


def pages_strip(caption: str, num_pages: int, sizes: Sequence[tuple[str, int]]) -> str:
    """Pages 0 (padding, hatched) to ``num_pages``, with what each holds of every named space, whose
    pages are ``size`` long."""
    pages = list(range(num_pages + 1)) if num_pages < 5 else [0, 1, 2, None, num_pages]
    heads = [Cell("0 (padding)", edge=True)]
    heads += [Cell(f"{GAP} ({num_pages - 3:,} more)" if p is None else p) for p in pages[1:]]
    lines = [("page", heads)]
    for name, size in sizes:
        cells = [
            Cell(GAP) if p is None else Cell(span(p * size, (p + 1) * size), None, p == 0, True)
            for p in pages
        ]
        lines.append((name, cells))
    return strip(caption, lines)


def slots_html(ids: Tensor, start: int) -> str:
    """Ids and positions of a run of slots, with a line before each slot that follows no other."""
    count, shown = length(ids), columns(ids)
    told: list[tuple[str, object]] = [("slots", count), ("positions", _positions(ids, start))]
    told.append(("device", f"{ids.device}, {_dtype(ids)}"))
    if shown is None:
        told.append(("ids", _NO_VALUES))
    elif any(column is None for column in shown):
        told.append(("consecutive", f"{_runs(shown)} (of the slots that are shown)"))
    elif shown:
        told.append(("consecutive", _runs(shown)))
    table = facts("Widened slots: not rows, localize them first", told)
    if not shown:
        return block(table)
    heads, cells, before = [], [], None
    for column in shown:
        edge = column is not None and (before is None or column.value != before.value + 1)
        heads.append(Cell(GAP if column is None else start + column.at, edge=edge))
        cells.append(Cell(GAP if column is None else column.value, edge=edge))
        before = column
    return block(table, strip(f"The run ({count} slots)", [("position", heads), ("slot", cells)]))


def rows_html(
    ids: Tensor,
    source: Tensor,
    rank: int,
    lay: Spaces,
    run: tuple[int, int],
    resolved_at: int | None,
) -> str:
    """Rows of one rank with their positions, page by page, and how full the last page is.

    ``run``: start and count of the positions that all ranks together hold.
    """
    start, count = run
    told: list[tuple[str, object]] = [
        ("rows", f"{length(ids)} of {count:,} positions"),
        ("positions of all ranks", span(start, start + count)),
        ("layout", layout_name(lay)),
        ("device", f"{ids.device}, {_dtype(ids)}"),
    ]
    if resolved_at is not None:
        told.append(("looked up in edition", f"{resolved_at} of the page table"))
    shown, places = columns(ids), columns(source)
    title = f"Physical rows of rank {rank} of {lay.dcp_size}"
    if not shown or places is None or len(places) != len(shown):
        known = [] if shown is not None and places is not None else [("ids", _NO_VALUES)]
        return block(facts(title, [*told, *known]))
    last = shown[-1]
    if last is not None:
        told.append(
            ("last row", f"{last.value % lay.page_size + 1} of {lay.page_size} of its page")
        )
    heads, cells, pages, before = [], [], [], None
    for column, place in zip(shown, places, strict=True):
        if column is None or place is None:
            heads.append(Cell(GAP))
            cells.append(Cell(GAP))
            pages.append(Cell(GAP))
            before = None
            continue
        page = column.value // lay.page_size
        heads.append(Cell(start + place.value, edge=page != before))
        cells.append(Cell(column.value, color=rank, edge=page != before))
        pages.append(Cell(page, hatched=page == 0, edge=page != before))
        before = page
    owned = f"r{rank} row"
    lines = [("position", heads), (owned, cells), ("page", pages)]
    return block(facts(title, told), strip(f"The rows ({length(ids)})", lines))


def _owners(lay: Spaces) -> str:
    """Page 1, one column for the slots that a rank stores in turn."""
    wide, turn = lay.widened_page_size, lay.interleave
    heads, owners, rows = [], [], []
    for at in cut(wide // turn):
        if at is None:
            heads.append(Cell(GAP))
            owners.append(Cell(GAP))
            rows.append(Cell(GAP))
            continue
        slot = lay.first_slot + at * turn
        owner, row = lay.owner(slot), lay.row(slot)
        heads.append(Cell(span(slot, slot + turn)))
        owners.append(Cell(owner, color=owner))
        rows.append(Cell(span(row, row + turn)))
    lines = [("slot", heads), ("owner", owners), ("row", rows)]
    return strip(f"Owners of page 1 ({many(wide, 'slot')})", lines)


def _runs(shown: list[Column | None]) -> str:
    """The stretches of slots that follow each other: "8 .. 15, 24 .. 27"."""
    runs: list[list[int]] = []
    before: Column | None = None
    for column in shown:
        if column is not None:
            if before is not None and column.value == before.value + 1:
                runs[-1][1] = column.value
            else:
                runs.append([column.value, column.value])
        before = column
    told = [span(low, high + 1) for low, high in runs[:6]]
    return ", ".join([*told, f"{GAP} ({len(runs)} stretches)"] if len(runs) > 6 else told)


def _positions(ids: Tensor, start: int) -> str:
    count: object = ids.shape[0]
    return span(start, start + count) if isinstance(count, int) else f"{count} from {start}"


def _dtype(ids: Tensor) -> str:
    return str(ids.dtype).removeprefix("torch.")

"""How pools, the allocator and backups show themselves in a notebook cell, as HTML.

Counts, shapes and states only: a pool's rows are not read, nothing is waited for, and a device is
asked no more than whether an event has passed (not even that while a CUDA graph is captured).
"""

from collections.abc import Iterable, Sequence

from torch import Tensor

from kvlab.index import DcpLayout
from kvlab.index.reprs import (
    GAP,
    Cell,
    block,
    facts,
    many,
    size,
    span,
    strip,
)
from kvlab.index.shown import layout_name, pages_strip

MOST_RUNS = 12  # runs of pages that are all free, or all handed out
MOST_REQUESTS = 16

_SPACES = {
    "sharded": "sharded: each rank stores the slots it owns",
    "replicated": "replicated: each rank stores every slot",
    "resolved": "resolved: a page table says where a page lies",
}


def pool_html(
    name: str,
    layout: DcpLayout,
    rank: int,
    space: str,
    rows: int,
    page_size: int,
    buffer: Tensor,
    told: Iterable[tuple[str, object]],
) -> str:
    """Sizes of a pool and the rows of its pages. ``page_size``: rows of a page of this pool."""
    layers, _, elements = buffer.shape
    nbytes = buffer.numel() * buffer.element_size()
    dtype = str(buffer.dtype).removeprefix("torch.")
    lines = [
        ("space", _SPACES.get(space, space)),
        ("layout", layout_name(layout)),
        ("buffer", f"{many(layers, 'layer')} x {many(rows, 'row')} x {elements} {dtype}"),
        ("memory", f"{size(nbytes)} on {buffer.device}"),
        *told,
    ]
    pages = pages_strip("Its rows", rows // page_size - 1, [("rows", page_size)])
    return block(facts(f"{name} of rank {rank} of {layout.dcp_size}", lines), pages)


def allocator_html(
    layout: DcpLayout, is_free: Sequence[bool], staged: int, need_sort: bool, free: int
) -> str:
    """Counts of free pages, and which pages are handed out. ``is_free``: one flag a page; cost: a
    look at the pages of the runs shown."""
    wide = layout.widened_page_size
    told = [
        ("layout", layout_name(layout)),
        ("pages", f"{free:,} of {layout.num_pages:,} free, {layout.num_pages - free:,} handed out"),
        ("tokens that fit", f"{free * wide:,} of {layout.capacity_tokens:,}"),
        ("freed pages", f"sorted when short ({staged:,} wait)" if need_sort else "reused first"),
    ]
    heads, cells, slots = [Cell("0 (padding)", edge=True)], [Cell("never", hatched=True)], []
    slots.append(Cell(span(0, wide), hatched=True))
    begin = 1
    while begin <= layout.num_pages and len(heads) <= MOST_RUNS:
        state = is_free[begin]
        end = _run_end(is_free, begin)
        heads.append(Cell(span(begin, end), edge=True))
        cells.append(Cell("free" if state else "out", color=None if state else 0))
        slots.append(Cell(span(begin * wide, end * wide)))
        begin = end
    if begin <= layout.num_pages:
        heads.append(Cell(f"{GAP} ({layout.num_pages + 1 - begin:,} more)"))
        cells.append(Cell(GAP))
        slots.append(Cell(GAP))
    pages = strip("Its pages", [("pages", heads), ("state", cells), ("slots", slots)])
    return block(facts("Paged allocator", told), pages)


def table_html(size: int, max_context: int, cells: Tensor, lens: dict[int, int]) -> str:
    """Rows of a request table in use, and how many positions of each are written."""
    told = [
        ("rows in use", f"{len(lens):,} of {size:,}"),
        ("positions of a row", f"{max_context:,} at most"),
        ("cells", f"{str(cells.dtype).removeprefix('torch.')} on {cells.device}, -1 where unused"),
    ]
    used = sorted(lens.items())
    heads = [Cell(req) for req, _ in used[:MOST_REQUESTS]]
    filled = [Cell(have) for _, have in used[:MOST_REQUESTS]]
    if len(used) > MOST_REQUESTS:
        heads.append(Cell(f"{GAP} ({len(used) - MOST_REQUESTS:,} more)"))
        filled.append(Cell(GAP))
    requests = strip("Rows in use", [("row", heads), ("positions", filled)]) if used else ""
    return block(facts("Request table", told), requests)


def state_html(slots: int, used: Sequence[int], conv: Tensor, temporal: Tensor) -> str:
    """Slots of a state pool in use, and the sizes of its two parts."""
    shown = ", ".join(str(slot) for slot in used[:MOST_REQUESTS])
    more = f", {GAP} ({len(used) - MOST_REQUESTS:,} more)" if len(used) > MOST_REQUESTS else ""
    nbytes = sum(part.numel() * part.element_size() for part in (conv, temporal))
    told = [
        ("state slots", f"1 .. {slots} (0 is reserved)" if slots > 1 else "1 (0 is reserved)"),
        ("in use", f"{len(used):,} of {slots:,}"),
        ("which", f"{shown}{more}" if used else "none"),
        ("conv of a slot", f"{conv.shape[0]} layers x {tuple(conv.shape[2:])}"),
        ("temporal of a slot", f"{temporal.shape[0]} layers x {tuple(temporal.shape[2:])}"),
        ("memory", f"{size(nbytes)} on {conv.device}"),
    ]
    return block(facts("State pool: one slot a request, never sharded by DCP", told))


def _run_end(is_free: Sequence[bool], begin: int) -> int:
    """One past the pages from ``begin`` on that are all free, or all handed out."""
    try:
        return is_free.index(not is_free[begin], begin)
    except ValueError:
        return len(is_free)

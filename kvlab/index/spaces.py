"""Two int64 tensors that look alike, kept apart by type.

``WidenedSlots`` is what ``req_to_token`` holds; ``PhysicalRows`` is what a buffer understands.
Neither *is* a tensor: indexing a buffer with slots is refused by Python itself.

Worked example, dcp_size=2, page_size=2: positions 0, 1, 2 of a request in page 2 are
``WidenedSlots([8, 9, 10], start=0)``; rank 0 stores them in ``PhysicalRows([4, 5])``, which are
elements 0 and 2 of the run (``source``).
"""

from dataclasses import InitVar, dataclass, field

import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError
from kvlab.index.layout import DcpLayout, Shard
from kvlab.show import Cell, elements, facts, html, length, listed, place, span, strip

_FROM_LOCALIZE = object()
_NO_INDEX = (
    "WidenedSlots is not an index: a buffer has physical rows, not widened slots; "
    "call localize(slots, layout, rank)"
)


def as_ids(ids: object, what: str) -> Tensor:
    """Return ``ids``, an int64 or int32 ``(n,)`` tensor, as int64 (not copied), or raise
    IndexSpaceError: int32 is widened first, so that no later product can wrap."""
    found = as_id_tensor(ids, what)
    if found.dim() != 1:
        raise IndexSpaceError(
            f"{what} must have shape (n,), got {tuple(found.shape)}; flatten one request at a time"
        )
    return found


def as_id_tensor(ids: object, what: str) -> Tensor:
    """Like ``as_ids``, for ids of any shape (tables, top-k lists)."""
    if isinstance(ids, PhysicalRows):
        raise IndexSpaceError(
            f"{what} must be raw ids, got PhysicalRows of rank {ids.rank}: they are localized "
            f"already; a second localization would keep {int(ids.shard.owns(ids.ids).sum())} of "
            f"{len(ids)} rows. Index the pool of rank {ids.rank} with them"
        )
    if isinstance(ids, WidenedSlots):
        raise IndexSpaceError(
            f"{what} must be a raw tensor, got WidenedSlots; pass .ids, or call localize()"
        )
    if not isinstance(ids, Tensor):
        raise IndexSpaceError(
            f"{what} must be an int64 tensor of shape (n,), got {type(ids).__name__}; "
            f"use torch.tensor(..., dtype=torch.int64)"
        )
    if ids.layout != torch.strided:
        raise IndexSpaceError(f"{what} must be a dense tensor, got {ids.layout}; use .to_dense()")
    if ids.dtype not in (torch.int64, torch.int32):
        raise IndexSpaceError(
            f"{what} must be int64 or int32, got {ids.dtype}: a float id is exact only below 2**24 "
            f"(float32); use ids.to(torch.int64)"
        )
    return ids.to(torch.int64)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WidenedSlots:
    """The slots of consecutive positions ``start .. start+n-1`` of one request.

    Args:
        ids: int64 ``(n,)`` (int32 is widened), as read from ``req_to_token``; not copied.
        start: position of ``ids[0]`` in the request, unit tokens.

    Not an index: ``pool.buffer[:, slots]`` is refused. Call ``localize(slots, layout, rank)``,
    which looks at the values, since it knows their bounds.
    """

    ids: Tensor
    start: int = 0
    _known: tuple[DcpLayout, int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", as_ids(self.ids, "WidenedSlots.ids"))
        start: object = self.start
        if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start < 2**63:
            raise IndexSpaceError(
                f"start must be the position of the first id, a Python int in [0, 2**63): "
                f"got {start!r} ({type(start).__name__})"
            )

    def __len__(self) -> int:
        return int(self.ids.numel())

    def __array__(self, *_: object, **__: object) -> None:
        raise TypeError(_NO_INDEX)

    def __index__(self) -> int:
        raise TypeError(_NO_INDEX)

    @classmethod
    def of_table(cls, ids: Tensor, start: int, layout: DcpLayout) -> "WidenedSlots":
        """A run whose ids a request table looked at as it wrote them (``require_run``).

        ``ids`` is a copy of the table's own, so that no later write to the table reaches it.
        """
        slots = cls(ids, start)
        # Ids made under inference mode do not count their writes: they are looked at each time.
        if not slots.ids.is_inference():
            object.__setattr__(slots, "_known", (layout, slots.ids._version))
        return slots

    def verified_for(self, layout: DcpLayout) -> bool:
        """Whether these ids come from a request table over ``layout``, and torch has not written to
        them since (a write through NumPy or ``.data`` is not seen)."""
        return self._known is not None and self._known == (layout, self.ids._version)

    def chunk(self, begin: int, end: int) -> "WidenedSlots":
        """The slots of elements ``begin .. end-1``, with the start moved along."""
        if not 0 <= begin <= end <= len(self):
            raise IndexSpaceError(
                f"a chunk must lie inside the run: got [{begin}, {end}) of [0, {len(self)})"
            )
        part = WidenedSlots(self.ids[begin:end], self.start + begin)
        object.__setattr__(part, "_known", self._known)  # a view counts the writes of its base
        return part

    def __repr__(self) -> str:
        return f"WidenedSlots({listed(self.ids)}, start={self.start})"

    def _repr_html_(self) -> str:
        count: object = self.ids.shape[0]  # symbolic where the shape is
        end = span(self.start, self.start + count) if isinstance(count, int) else f"{count} of them"
        told = facts(
            "Widened slots: not rows, localize them first",
            [("slots", length(self.ids)), ("positions", end), ("device", place(self.ids))],
        )
        columns = [pair and (self.start + pair[0], pair[1]) for pair in elements(self.ids) or ()]
        if not columns:
            return html(told)
        run = strip(f"The run ({length(self.ids)} slots)", ("position", "slot"), columns)
        return html(told, run)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PhysicalRows:
    """Rows of one rank's buffer and, for each, the element of the run that it came from.

    ``ids`` int64 ``(m,)``; ``rank`` and ``layout`` whose pool takes them; ``start`` and
    ``positions`` of the run, which all ranks together hold. Made by ``localize``, by a pool with a
    page table (``resolved_at``: the edition they are good for), or by ``assume_physical``.
    """

    ids: Tensor
    _source: Tensor | None
    rank: int
    layout: DcpLayout
    start: int
    positions: int
    resolved_at: int | None = None
    _made_by: InitVar[object] = None

    def __post_init__(self, _made_by: object) -> None:
        if _made_by is not _FROM_LOCALIZE:
            raise IndexSpaceError(
                "PhysicalRows cannot be built from raw ids: nothing shows that they were "
                "localized. Call localize(slots, layout, rank), or, where ids are known to be "
                "rows, PhysicalRows.assume_physical(ids, layout, rank)"
            )

    def __len__(self) -> int:
        return int(self.ids.numel())

    @property
    def shard(self) -> Shard:
        """What the rank holds."""
        return self.layout.shard(self.rank)

    @property
    def source(self) -> Tensor:
        """The elements of the slot run, int64 ``(m,)``; of an aligned run, its positions tell."""
        if self._source is not None:
            return self._source
        return self.shard.elements(self.positions, self.start, self.ids.device)

    def same_elements(self, other: "PhysicalRows") -> bool:
        """Whether both have rows of the same elements, given the same rank and positions."""
        aligned = self._source is None and other._source is None
        return aligned or torch.equal(self.source, other.source)

    def to(self, device: torch.device) -> "PhysicalRows":
        """The same rows on ``device`` (themselves when they are there already)."""
        if self.ids.device == device:
            return self
        run = (self.start, self.positions, self.resolved_at)
        ids, source = self.ids.to(device), self._source
        source = None if source is None else source.to(device)
        return PhysicalRows(ids, source, self.rank, self.layout, *run, _FROM_LOCALIZE)

    @classmethod
    def assume_physical(cls, ids: Tensor, layout: DcpLayout, rank: int) -> "PhysicalRows":
        """Declare that ``ids`` are rows of ``rank``, in bounds: the explicit, greppable unwrap."""
        rows = as_ids(ids, "rows")
        layout.shard(rank)
        require_within(rows, 0, layout.row_end, "row", "a widened slot must be localized first")
        source = torch.arange(len(rows), device=rows.device)
        return cls(rows, source, rank, layout, 0, len(rows), None, _FROM_LOCALIZE)

    def __repr__(self) -> str:
        run = span(self.start, self.start + self.positions)
        return (
            f"PhysicalRows({listed(self.ids)}, rank {self.rank} of {self.layout.dcp_size}, "
            f"positions {run})"
        )

    def _repr_html_(self) -> str:
        lay = self.layout
        told: list[tuple[str, object]] = [
            ("rows", f"{length(self.ids)} of {self.positions:,} positions"),
            ("positions of all ranks", span(self.start, self.start + self.positions)),
            ("layout", lay.in_words()),
            ("device", place(self.ids)),
        ]
        if self.resolved_at is not None:
            told.append(("looked up in edition", f"{self.resolved_at} of the page table"))
        table = facts(f"Physical rows of rank {self.rank} of {lay.dcp_size}", told)
        columns: list[tuple[object, ...] | None] = []
        pairs = zip(elements(self.ids) or (), elements(self.source) or (), strict=False)
        for row, element in pairs:
            columns.append(None)
            if row is not None and element is not None:
                page = row[1] // lay.page_size
                shown = (Cell(row[1], color=self.rank), Cell(page, hatched=page == 0))
                columns[-1] = (self.start + element[1], *shown)
        if not columns:
            return html(table)
        names = ("position", f"r{self.rank} row", "page")
        return html(table, strip(f"The rows ({length(self.ids)})", names, columns))


def make_rows(
    ids: Tensor,
    source: Tensor | None,
    rank: int,
    layout: DcpLayout,
    slots: WidenedSlots,
    resolved_at: int | None = None,
) -> PhysicalRows:
    """``PhysicalRows`` of a run that the package has localized; ``source`` None: slots and
    positions agree about the owner."""
    run = (slots.start, int(slots.ids.shape[0]))
    return PhysicalRows(ids, source, rank, layout, *run, resolved_at, _FROM_LOCALIZE)


def bounds(ids: Tensor) -> tuple[int, int]:
    """The least and the largest of some ids. NumPy's are vectorized, ``torch.aminmax`` is not."""
    if ids.is_cpu:
        array = ids.numpy()
        return int(array.min()), int(array.max())
    least, most = torch.aminmax(ids)
    return int(least), int(most)


def require_within(ids: Tensor, low: int, end: int, what: str, instead: str) -> None:
    """Raise IndexSpaceError unless every id lies in ``[low, end)``."""
    if ids.numel() == 0:
        return
    least, most = bounds(ids)
    if least >= low and most < end:
        return
    bad = torch.nonzero((ids < low) | (ids >= end)).flatten()
    at = int(bad[0])
    raise IndexSpaceError(
        f"{what} must lie in [{low}, {end}): got {int(ids[at])} at index {at}; "
        f"{len(bad)} of {len(ids)} ids are outside; {instead}"
    )

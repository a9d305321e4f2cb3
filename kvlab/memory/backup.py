"""The host copy of a retracted request's KV on one rank: made once, restored once.

A backup remembers how it was made (layout, rank, space, first position, count), so that it can
refuse every place it does not belong to *before* a byte is written. Its sums are looked at while it
is written: a backup that changed on the host raises, and the new rows then hold no request.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab import ops
from kvlab.errors import BackupError
from kvlab.index import DcpLayout, PhysicalRows
from kvlab.memory.arena import HostArena
from kvlab.memory.transfer import PendingCopy, checksum_of
from kvlab.show import Cell, elements, facts, html, many, size, span, strip

_DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StateBackup:
    """Recurrent state of one request on the host: ``conv`` and ``temporal``, all layers.

    ``checksum`` is that of the two parts when the backup was made.
    """

    conv: Tensor
    temporal: Tensor
    checksum: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "checksum", self._sum())

    def verify(self) -> None:
        """Errors: BackupError when a part no longer has the checksum it was made with."""
        if self._sum() != self.checksum:
            raise BackupError(
                f"the host copy of a state changed since it was made: checksum {self._sum()}, "
                f"expected {self.checksum}; do not restore it: recompute the request"
            )

    def __repr__(self) -> str:
        conv, temporal = tuple(self.conv.shape), tuple(self.temporal.shape)
        return f"StateBackup(conv {conv}, temporal {temporal}, checksum={self.checksum!r})"

    def _sum(self) -> str:
        parts = (self.conv, self.temporal)
        # An empty layer axis has no element to view; the shape still counts.
        flat = (part.contiguous().view(len(part), 1, -1) for part in parts if part.numel())
        return "-".join(checksum_of(ops.sum_blocks(part, 1), part) for part in flat)


@dataclass(slots=True, eq=False, repr=False)
class KvBackup:
    """Rows of one rank for positions ``start .. start+positions-1``.

    Fields: ``layout`` and ``rank`` of the pool; ``space`` ("sharded", "replicated", "resolved");
    ``row_format``: what the bytes of a row mean; ``came_from``: the rows that were copied; ``kv``
    ``(layers, rows, elements)`` on the host, in the pool's storage dtype; ``page_size``: of the
    rows; ``arena`` and ``block``: whose memory ``kv`` is; ``made``: the copy that filled it;
    ``state`` of a hybrid pool.

    Made with ``wait=False`` it is *in flight*: its bytes are on their way, and ``kv`` holds them
    after ``wait()``. Everything else here that needs them waits by itself.
    """

    layout: DcpLayout
    rank: int
    space: str
    row_format: str
    came_from: PhysicalRows
    kv: Tensor
    page_size: int
    arena: HostArena
    block: Tensor
    made: PendingCopy
    state: StateBackup | None = None
    _spent: str | None = None

    @property
    def start(self) -> int:
        """The first position."""
        return self.came_from.start

    @property
    def positions(self) -> int:
        """Positions that all ranks together hold."""
        return self.came_from.positions

    @property
    def source(self) -> Tensor:
        """Which positions this rank holds, counted from ``start``: int64 ``(rows,)``."""
        return self.came_from.source

    @property
    def rows(self) -> int:
        """Rows of this rank that the backup holds."""
        return int(self.kv.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of KV on the host (state not counted)."""
        return self.kv.numel() * self.kv.element_size()

    @property
    def sums(self) -> Tensor:
        """The sums of the bytes that were backed up; waits for them. Errors: as ``wait``."""
        if self.made.sums is not None:
            return self.made.sums
        try:
            return self.made.wait()
        except Exception:
            if self._spent is None:
                self.close("lost on its way to the host")
            raise

    @property
    def checksum(self) -> str:
        """Of the bytes that were backed up; waits for them. Errors: as ``wait``."""
        return checksum_of(self.sums, self.kv)

    @property
    def spent(self) -> bool:
        """Whether it was restored, discarded or lost; its host memory may hold another backup."""
        return self._spent is not None

    @property
    def done(self) -> bool:
        """Whether all bytes are on the host, or lost. Never waits."""
        return self.made.done

    def wait(self) -> None:
        """Wait until it is no longer in flight; can be called again. Errors: what the copy met
        (the backup is then lost, and its host memory given back); BackupError for a discarded
        one."""
        if self._spent == _DISCARDED:
            self._require_unspent()
        self.sums  # noqa: B018  # which waits

    def verify(self) -> None:
        """Errors: BackupError when the host copy no longer has the checksum it was made with."""
        self._require_unspent()
        found = ops.sum_blocks(self.kv, ops.summed_rows(self.page_size))
        if not torch.equal(found, self.sums):
            raise BackupError(
                f"the host copy changed since it was made: checksum {checksum_of(found, self.kv)}, "
                f"expected {self.checksum} ({self.rows} rows of rank {self.rank}); do not restore "
                f"it: recompute the request"
            )

    def discard(self) -> None:
        """Give the host memory back without restoring. Waits while it is in flight.

        Errors: BackupError when spent."""
        self._require_unspent()
        self.close(_DISCARDED)

    def close(self, why: str) -> None:
        """Mark as spent and give the host memory back, once nothing is in flight: the block's next
        owner would find these bytes in it."""
        if self.made.land is not None:
            self.made.settle()
        self._spent = why
        self.arena.give(self.block)

    def require_fits(
        self,
        rows: PhysicalRows,
        buffer: Tensor,
        belongs: tuple[DcpLayout, int, str, str],
        first_row: int,
    ) -> None:
        """Errors: BackupError unless it can be restored now, into these rows of ``buffer``, each of
        them one row of its own position that can hold a token. ``belongs``: (layout, rank, space,
        row format) of the pool."""
        self._require_unspent()
        here = self.came_from
        mine = (self.layout, self.rank, self.space, self.row_format, here.start, here.positions)
        place = (*belongs, rows.start, rows.positions)
        if mine != place:
            at = next(i for i in range(len(place)) if mine[i] != place[i])
            what, instead = _BELONGS[at]
            raise BackupError(
                f"a backup is restored where it belongs: its {what} is {mine[at]}, the place's is "
                f"{place[at]}; {instead}; nothing was written"
            )
        count = int(rows.ids.shape[0])
        shape = (buffer.shape[0], count, buffer.shape[2])
        if tuple(self.kv.shape) != shape or self.kv.dtype != buffer.dtype:
            raise BackupError(
                f"row counts must match on both sides: backup {tuple(self.kv.shape)} "
                f"{self.kv.dtype}, place {shape} {buffer.dtype} (layers, rows, elements); "
                f"nothing was written"
            )
        # Equal counts are not enough: in a run out of phase each rank has as many rows of other
        # tokens.
        if not here.same_elements(rows):
            at = int(torch.nonzero(self.source != rows.source)[0])
            raise BackupError(
                f"a row goes back to its own position: row {at} of the backup is of position "
                f"{self.start + int(self.source[at])}, of the place of position "
                f"{self.start + int(rows.source[at])}; new slots must have the owners of the old "
                f"ones, as slots in page order have; nothing was written"
            )
        different = torch.unique(rows.ids)
        if len(different) != count:
            raise BackupError(
                f"each position needs a row of its own: {count} rows, {len(different)} "
                f"different; pass newly allocated slots; nothing was written"
            )
        if count and int(different[0]) < first_row:
            raise BackupError(
                f"a row that is restored must lie past the padding page of {first_row} rows: got "
                f"row {int(different[0])}; pass rows of slots that the allocator handed out; "
                f"nothing was written"
            )

    def _require_unspent(self) -> None:
        if self._spent is not None:
            raise BackupError(
                f"a backup is consumed once: this one ({self.positions} positions of rank "
                f"{self.rank}) was {self._spent}; back the request up again"
            )

    def __repr__(self) -> str:
        sums = self.made.sums
        return (
            f"KvBackup(layout={self.layout}, rank={self.rank}, space={self.space!r}, "
            f"row_format={self.row_format!r}, start={self.start}, positions={self.positions}, "
            f"checksum={'in flight' if sums is None else repr(checksum_of(sums, self.kv))}, "
            f"page_size={self.page_size})"
        )

    def _repr_html_(self) -> str:
        """Where it is, and what it holds, for a notebook cell. Waits for nothing."""
        state = self._spent or ("in flight" if self.made.sums is None else "on the host")
        told = [
            ("state", state),
            ("positions of all ranks", span(self.start, self.start + self.positions)),
            ("rows of this rank", f"{self.rows:,} of {many(self.positions, 'position')}"),
            ("copy", f"{size(self.nbytes)} on the host, {self.row_format}, {self.space}"),
            ("recurrent state", "on the host too" if self.state is not None else "none"),
            ("layout", self.layout.in_words()),
        ]
        held = elements(self.source) or []
        columns = [pair and (self.start + pair[1], Cell(pair[0], color=self.rank)) for pair in held]
        rows = strip("Positions that it holds", ("position", "row of the copy"), columns)
        return html(facts(f"Backup of rank {self.rank} of {self.layout.dcp_size}", told), rows)


# What a backup and a place must have in common, and what to do where they differ.
_BELONGS = (
    ("layout", "restore it into a pool of its own layout"),
    ("rank", "each rank restores its own backup"),
    ("space", "restore it into the kind of pool it came from"),
    ("row format", "the same bytes would mean other values"),
    ("first position", "pass the slots of the same positions"),
    ("position count", "allocate as many slots as it has"),
)

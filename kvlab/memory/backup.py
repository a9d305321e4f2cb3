"""The host copy of a retracted request's KV on one rank: made once, restored once.

A backup remembers how it was made (layout, rank, space, first position, count), so that it can
refuse every place it does not belong to *before* a byte is written.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.errors import BackupError
from kvlab.index import DcpLayout, PhysicalRows
from kvlab.memory.host import HostArena
from kvlab.memory.rows import checksum, gather_rows


@dataclass(frozen=True, slots=True, eq=False)
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

    def _sum(self) -> str:
        parts = (self.conv, self.temporal)
        # An empty layer axis has no element to view; the shape still counts.
        flat = (p.contiguous().view(len(p), 1, -1) for p in parts if p.numel())
        return "-".join(checksum(part, 1) for part in flat)


@dataclass(frozen=True, slots=True, eq=False)
class KvBackup:
    """Rows of one rank for positions ``start .. start+positions-1``.

    Fields: ``layout`` and ``rank`` of the pool; ``space`` ("sharded", "replicated", "resolved");
    ``row_format``: what the bytes of a row mean; ``rows`` this rank holds of the positions, and in
    ``source`` int64 ``(rows,)`` which of them, counted from ``start``; ``kv`` ``(layers, rows,
    elements)`` on the host, in the pool's storage dtype; ``checksum`` of kv, taken in blocks of
    ``page_size``; ``state`` of a hybrid pool.
    """

    layout: DcpLayout
    rank: int
    space: str
    row_format: str
    start: int
    positions: int
    source: Tensor = field(repr=False)
    kv: Tensor = field(repr=False)
    checksum: str
    page_size: int
    state: StateBackup | None = field(default=None, repr=False)
    _arena: HostArena | None = field(default=None, repr=False)
    _block: Tensor | None = field(default=None, repr=False)
    _spent: list[str] = field(default_factory=list, repr=False)

    @property
    def rows(self) -> int:
        """Rows of this rank that the backup holds."""
        return int(self.kv.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of KV on the host (state not counted)."""
        return self.kv.numel() * self.kv.element_size()

    @property
    def spent(self) -> bool:
        """Whether it was restored or discarded; its host memory may hold another backup now."""
        return bool(self._spent)

    def require_unspent(self) -> None:
        """Errors: BackupError when the backup was restored or discarded before."""
        if self._spent:
            raise BackupError(
                f"a backup is consumed once: this one ({self.positions} positions of rank "
                f"{self.rank}) was {self._spent[0]}; back the request up again"
            )

    def verify(self) -> None:
        """Errors: BackupError when the host copy no longer has the checksum it was made with."""
        self.require_unspent()
        found = checksum(self.kv, self.page_size)
        if found != self.checksum:
            raise BackupError(
                f"the host copy changed since it was made: checksum {found}, expected "
                f"{self.checksum} ({self.rows} rows of rank {self.rank}); do not restore it: "
                f"recompute the request"
            )

    def discard(self) -> None:
        """Give the host memory back without restoring. Errors: BackupError when spent."""
        self.require_unspent()
        self.close("discarded")

    def close(self, why: str) -> None:
        """Mark as spent and give the host memory back (for the pool that restored it)."""
        self._spent.append(why)
        if self._arena is not None and self._block is not None:
            self._arena.give(self._block)


def require_fits(
    backup: KvBackup,
    rows: PhysicalRows,
    *,
    layout: DcpLayout,
    rank: int,
    space: str,
    row_format: str,
) -> None:
    """Raise BackupError unless the backup belongs to this pool and exactly these positions."""
    backup.require_unspent()
    for what, has, want, instead in (
        ("layout", backup.layout, layout, "restore it into a pool of its own layout"),
        ("rank", backup.rank, rank, "each rank restores its own backup"),
        ("space", backup.space, space, "restore it into the kind of pool it came from"),
        ("row format", backup.row_format, row_format, "the same bytes would mean other values"),
        ("first position", backup.start, rows.start, "pass the slots of the same positions"),
        ("position count", backup.positions, rows.positions, "allocate as many slots as it has"),
    ):
        if has != want:
            raise BackupError(
                f"a backup is restored where it belongs: its {what} is {has}, the place's is "
                f"{want}; {instead}; nothing was written"
            )


def require_same_rows(backup: KvBackup, rows: PhysicalRows, buffer: Tensor, first_row: int) -> None:
    """Raise BackupError unless backup and place have rows of the same positions, each of them one
    row that can hold a token. A plain KV pool cannot restore a state: the hybrid pool can."""
    if backup.state is not None:
        raise BackupError(
            f"rows and state of a request are restored together: the backup of {backup.positions} "
            f"positions has a state, and this pool keeps none; restore it through the "
            f"HybridLinearKVPool that made it; nothing was written"
        )
    place = (buffer.shape[0], len(rows), buffer.shape[2])
    if tuple(backup.kv.shape) != place or backup.kv.dtype != buffer.dtype:
        raise BackupError(
            f"row counts must match on both sides: backup {tuple(backup.kv.shape)} "
            f"{backup.kv.dtype}, place {place} {buffer.dtype} (layers, rows, elements); "
            f"nothing was written"
        )
    # Equal counts are not enough: in a run out of phase each rank has as many rows of other tokens.
    bad = torch.nonzero(backup.source != rows.source.to(backup.source.device)).flatten()
    if len(bad):
        at = int(bad[0])
        raise BackupError(
            f"a row goes back to its own position: row {at} of the backup is of position "
            f"{backup.start + int(backup.source[at])}, of the place of position "
            f"{backup.start + int(rows.source[at])}; new slots must have the owners of the old "
            f"ones, as slots in page order have; nothing was written"
        )
    different = len(torch.unique(rows.ids))
    if different != len(rows):
        raise BackupError(
            f"each position needs a row of its own: {len(rows)} rows, {different} different; "
            f"pass newly allocated slots; nothing was written"
        )
    if len(rows) and int(rows.ids.min()) < first_row:
        raise BackupError(
            f"a row that is restored must lie past the padding page of {first_row} rows: got row "
            f"{int(rows.ids.min())}; pass rows of slots that the allocator handed out; nothing "
            f"was written"
        )


def back_up(
    buffer: Tensor,
    rows: PhysicalRows,
    *,
    layout: DcpLayout,
    rank: int,
    space: str,
    row_format: str,
    page_size: int,
    arena: HostArena,
) -> KvBackup:
    """Copy localized rows of all layers into a block of the arena; ``page_size`` in rows.

    Errors: BackupError when the arena is full; then nothing was taken.
    """
    layers, _, elements = buffer.shape
    size = layers * len(rows) * elements * buffer.element_size()
    block = arena.take(size)
    if block is None:
        raise BackupError(
            f"a backup must fit the host arena: {size} bytes for {rows.positions} positions of "
            f"rank {rank}, in blocks of {arena.grain}; {arena.lent_bytes} of "
            f"{arena.capacity_bytes} bytes are lent; restore or discard backups, or raise "
            f"capacity_bytes; nothing was changed"
        )
    kv = block[:size].view(buffer.dtype).view(layers, len(rows), elements)
    try:
        digest = gather_rows(buffer, rows.ids, kv, page_size)
    except BaseException:
        arena.give(block)
        raise
    return KvBackup(
        layout=layout,
        rank=rank,
        space=space,
        row_format=row_format,
        start=rows.start,
        positions=rows.positions,
        source=rows.source,
        kv=kv,
        checksum=digest,
        page_size=page_size,
        _arena=arena,
        _block=block,
    )

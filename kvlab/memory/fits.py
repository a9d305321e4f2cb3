"""Does a backup belong where it is to be restored? Asked before a byte is written.

A backup of rank 1 of a layout of two goes back to rank 1 of that layout, to rows of the same
positions, each of them one row that can hold a token.
"""

import torch
from torch import Tensor

from kvlab.errors import BackupError
from kvlab.index import DcpLayout, PhysicalRows
from kvlab.memory.backup import KvBackup


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
    backup.require_here()
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
    source = backup.source.to(rows.source.device)
    bad = torch.nonzero(source != rows.source).flatten()
    if len(bad):
        at = int(bad[0])
        raise BackupError(
            f"a row goes back to its own position: row {at} of the backup is of position "
            f"{backup.start + int(source[at])}, of the place of position "
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

"""What of a request is on the host: memory for it, the copies there and back, one rank's backup.

Fresh memory costs a page fault every 4 KiB, which is most of the time of a naive backup: the arena
keeps the blocks that spent backups give back. A backup remembers how it was made, so that it can
refuse every place it does not belong to *before* a byte is written. Its sums are looked at while it
is written: if it changed on the host, the restore raises, and the new rows hold no request.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvlab import ops
from kvlab.errors import BackupError, PoolError
from kvlab.index import PhysicalRows
from kvlab.index.layout import require_int

# Blocks are whole multiples of this, so that requests of similar length fit each other's blocks.
_GRAIN = 2 * 2**20


@dataclass(slots=True, eq=False)
class HostArena:
    """At most ``capacity_bytes`` of host memory (None: no bound); ``pinned`` for CUDA copies.

    Torch takes pinned memory in powers of two and keeps what is freed. So pinned blocks are powers
    of two here, which the bound then counts whole, and torch is told to let go of dropped ones.
    """

    capacity_bytes: int | None = None
    pinned: bool = False
    grain: int = _GRAIN
    _idle: list[Tensor] = field(default_factory=list, repr=False)
    _lent: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_int("grain", self.grain, 1, "bytes that block sizes are rounded up to")
        if self.capacity_bytes is not None:
            require_int("capacity_bytes", self.capacity_bytes, 0, "bytes of host memory")
        if self.pinned and not torch.cuda.is_available():
            raise BackupError("pinned host memory needs a CUDA device; use pinned=False")

    @property
    def lent_bytes(self) -> int:
        """Bytes of blocks that live backups hold."""
        return sum(block.numel() for block in self._lent.values())

    @property
    def idle_bytes(self) -> int:
        """Bytes of blocks that wait for the next backup."""
        return sum(block.numel() for block in self._idle)

    def take(self, nbytes: int) -> Tensor | None:
        """A uint8 block of at least ``nbytes``, or None when the bound would be passed.

        The smallest idle block of at most twice the size is reused; else idle blocks are dropped,
        the oldest first, until a new one fits. Errors: BackupError when the machine has no memory.
        """
        size = max(1, -(-nbytes // self.grain)) * self.grain
        if self.pinned:
            size = 1 << (size - 1).bit_length()
        fitting = [i for i, block in enumerate(self._idle) if size <= block.numel() <= 2 * size]
        if fitting:
            block = self._idle.pop(min(fitting, key=lambda i: self._idle[i].numel()))
        else:
            if self.capacity_bytes is not None:
                room = self.capacity_bytes - self.lent_bytes - size
                if room < 0:
                    return None
                held = len(self._idle)
                while self.idle_bytes > room:
                    del self._idle[0]
                if self.pinned and len(self._idle) < held:
                    # Gives what is freed back to the system; by the name that this torch has.
                    release: Any = getattr(torch.accelerator, "empty_host_cache", None)
                    (release or torch._C._host_emptyCache)()
            try:
                with torch.inference_mode(False):  # to be written to outside of it as well
                    block = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
            except RuntimeError as error:
                raise BackupError(
                    f"a block of host memory must fit the machine: {size} bytes were refused; "
                    f"bound the arena lower than capacity_bytes={self.capacity_bytes}"
                ) from error
        self._lent[block.data_ptr()] = block
        return block

    def give(self, block: Tensor) -> None:
        """Take a block back. Errors: BackupError for one that is not lent (given back twice)."""
        # The block itself, not another view of its memory: that could be shorter.
        if self._lent.get(block.data_ptr()) is not block:
            raise BackupError(
                f"only a lent block can be given back: got a block of {block.numel()} bytes that "
                f"is not among the {len(self._lent)} lent ones; a backup gives its block back once"
            )
        self._idle.append(self._lent.pop(block.data_ptr()))

    def audit(self) -> list[str]:
        """The broken laws: blocks are lent or idle, never both, and keep under the bound."""
        broken = []
        both = {block.data_ptr() for block in self._idle} & set(self._lent)
        if both:
            broken.append(f"{len(both)} host blocks are lent and idle at once")
        total = self.lent_bytes + self.idle_bytes
        if self.capacity_bytes is not None and total > self.capacity_bytes:
            broken.append(f"the arena holds {total} bytes, bound {self.capacity_bytes}")
        return broken


def default_arena(buffer: Tensor) -> HostArena:
    """The arena of a pool that is given none: no bound on the CPU. Pinned memory of a CUDA pool
    cannot be paged out: at most the bytes of the pool, and a quarter of the machine's memory."""
    if buffer.device.type != "cuda":
        return HostArena()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bound = min(buffer.nbytes, machine // 4) // _GRAIN * _GRAIN
    return HostArena(max(_GRAIN, bound), pinned=True)


@dataclass(slots=True, eq=False)
class PendingCopy:
    """One copy between a pool and the host: in flight, landed, or lost.

    After the event ``ended`` (None: there is none to wait for) ``land`` returns the sums of the
    copy, or raises what went wrong; called again, after an interrupt, it does the same. Without
    ``land`` it has landed, and the host memory may be used by others.
    """

    sums: Tensor | None = None
    ended: Any = None
    land: Callable[[], Tensor] | None = field(default=None, repr=False)
    error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether all bytes have moved. Never waits."""
        return self.land is None or (self.ended is not None and bool(self.ended.query()))

    def settle(self) -> None:
        """Wait until the bytes have moved. What went wrong is kept for ``wait``."""
        if self.land is None:
            return
        if self.ended is not None:
            self.ended.synchronize()
        try:
            self.sums = self.land()
        except Exception as error:
            self.error = error
        # Last: after an interrupt it lands once more, to the same end.
        self.land = None

    def wait(self) -> Tensor:
        """The sums of the bytes, once they have moved. Errors: what went wrong, every time."""
        if self.land is not None:
            self.settle()
        if self.error is not None:
            raise self.error
        assert self.sums is not None
        return self.sums


class HostTransfer:
    """Copies on the caller's thread, at once. The contract of all transfers: a pool calls them
    with rows and host copies that it has checked."""

    def require_pool(self, buffer: Tensor) -> None:
        """Errors: PoolError for a pool whose rows this transfer cannot copy."""
        if buffer.device.type != "cpu":
            raise PoolError(f"a HostTransfer copies rows of the CPU: got a pool on {buffer.device}")

    def copy(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, want: Tensor | None = None
    ) -> PendingCopy:
        """Back up: copy ``buffer[:, rows]`` to ``kv`` ``(layers, m, e)`` on the host. With ``want``
        restore: copy ``kv`` to ``buffer[:, rows]``; the bytes are summed as they are written, and
        other sums than ``want`` are an error, here or of the pending copy."""
        sums, flat, options = plan_copy(kv, page_size)
        op = ops.gather_rows if want is None else ops.scatter_rows
        op(buffer, rows, flat, sums=sums, **options)
        return PendingCopy(sums if want is None else verified(sums, want, kv))

    def before_write(self) -> None:
        """What the caller's stream does next may overwrite any row. The host does not wait."""


def plan_copy(
    kv: Tensor, page_size: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Of a copy ``kv`` ``(layers, m, e)``: zeros for its sums, int64 ``(layers, blocks)``; its flat
    rows ``(layers * m, e)``; and the sizes that the ops want."""
    block_rows = ops.summed_rows(page_size)
    shape = (kv.shape[0], -(-kv.shape[1] // block_rows))
    sums = torch.zeros(shape, dtype=torch.int64, device=device)
    return sums, kv.view(-1, kv.shape[2]), {"block_rows": block_rows, "page_size": page_size}


def checksum_of(sums: Tensor, kv: Tensor) -> str:
    """The checksum of a copy ``kv`` from its sums: 32 hexadecimal digits."""
    values, shape = sums.numpy().tobytes(), f"{tuple(kv.shape)}{kv.dtype}".encode()
    return hashlib.blake2b(values + shape, digest_size=16).hexdigest()


def verified(sums: Tensor, want: Tensor, kv: Tensor) -> Tensor:
    """The sums of a copy that was written. Errors: BackupError where they are not ``want``."""
    if not torch.equal(sums, want):
        raise BackupError(
            f"the host copy changed since it was made: checksum {checksum_of(sums, kv)}, expected "
            f"{checksum_of(want, kv)} ({kv.shape[1]} rows); it was written to the new rows, which "
            f"hold no request: free their slots, discard the backup, recompute the request"
        )
    return sums


@dataclass(frozen=True, slots=True, eq=False)
class StateBackup:
    """Recurrent state of one request on the host, with the checksum it was made with."""

    conv: Tensor = field(repr=False)
    temporal: Tensor = field(repr=False)
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
        flat = (part.contiguous().view(len(part), 1, -1) for part in (self.conv, self.temporal))
        return "-".join(checksum_of(ops.sum_blocks(part, 1), part) for part in flat)


@dataclass(slots=True, eq=False, repr=False)
class KvBackup:
    """Rows of one rank for a run of positions: ``kv`` ``(layers, rows, elements)``, stored bytes.

    ``came_from``: the rows that were copied; ``space`` of the pool; ``row_format``: what the bytes
    of a row mean; ``arena`` and ``block``: whose memory ``kv`` is; ``made``: the copy that filled
    it; ``state`` of a hybrid pool. Made with ``wait=False`` it is *in flight*: ``kv`` holds its
    bytes after ``wait()``; everything else here that needs them waits by itself.
    """

    came_from: PhysicalRows
    space: str
    row_format: str
    kv: Tensor
    arena: HostArena
    block: Tensor
    made: PendingCopy
    state: StateBackup | None = None
    _spent: str | None = None

    @property
    def rows(self) -> int:
        """Rows of this rank that the backup holds."""
        return int(self.kv.shape[1])

    @property
    def sums(self) -> Tensor:
        """The sums of the bytes; waits for them. Errors: as ``wait``."""
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
        """32 hexadecimal digits; waits for the bytes. Errors: as ``wait``."""
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
        """Wait until it is no longer in flight. Errors: what the copy met, each time (the backup is
        then lost, its host memory given back); BackupError for a discarded one."""
        if self._spent == "discarded":
            self._require_unspent()
        self.sums  # noqa: B018  # which waits

    def discard(self) -> None:
        """Give the host memory back without restoring, once it has landed. Errors: BackupError."""
        self._require_unspent()
        self.close("discarded")

    def close(self, why: str) -> None:
        """Mark as spent and give the host memory back, once nothing is in flight: the block's next
        owner would find these bytes in it."""
        if self.made.land is not None:
            self.made.settle()
        self._spent = why
        self.arena.give(self.block)

    def require_fits(self, rows: PhysicalRows, buffer: Tensor, space: str, row_format: str) -> None:
        """Errors: BackupError unless it can be restored now, into these rows of ``buffer``, each of
        them one row of its own position that can hold a token."""
        self._require_unspent()
        here = self.came_from
        for what, mine, place, instead in (
            ("layout", here.layout, rows.layout, "restore it into a pool of its own layout"),
            ("rank", here.rank, rows.rank, "each rank restores its own backup"),
            ("space", self.space, space, "restore it into the kind of pool it came from"),
            ("row format", self.row_format, row_format, "the same bytes would mean other values"),
            ("first position", here.start, rows.start, "pass the slots of the same positions"),
            ("position count", here.positions, rows.positions, "allocate as many slots as it has"),
        ):
            if mine != place:
                raise BackupError(
                    f"a backup is restored where it belongs: its {what} is {mine}, the place's is "
                    f"{place}; {instead}; nothing was written"
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
            at = int(torch.nonzero(here.source != rows.source)[0])
            raise BackupError(
                f"a row goes back to its own position: row {at} of the backup is of position "
                f"{here.start + int(here.source[at])}, of the place of position "
                f"{rows.start + int(rows.source[at])}; new slots must have the owners of the old "
                f"ones, as slots in page order have; nothing was written"
            )
        different, first_row = torch.unique(rows.ids), rows.layout.first_row
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
                f"a backup is consumed once: this one ({self.came_from.positions} positions of "
                f"rank {self.came_from.rank}) was {self._spent}; back the request up again"
            )

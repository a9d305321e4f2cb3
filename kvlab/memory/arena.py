"""Bounded host memory for backups, reused instead of freed.

Fresh memory costs a page fault every 4 KiB, which is most of the time of a naive backup. The arena
keeps the blocks that consumed backups give back and hands them to the next one. A backup that
does not fit is declined (None), so that the caller can abort or recompute; nothing is lost.
"""

import os
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.errors import BackupError
from kvlab.index.layout import require_int

# Blocks are whole multiples of this, so that requests of similar length fit each other's blocks.
_GRAIN = 2 * 1024 * 1024


@dataclass(slots=True, eq=False)
class HostArena:
    """At most ``capacity_bytes`` of host memory (None: no bound); ``pinned`` for CUDA copies.

    Torch takes pinned memory in powers of two and keeps what is freed. So pinned blocks are powers
    of two here, which the bound then counts whole, and torch is told to let go of dropped ones.

    Errors: LayoutError for a size below its bound, BackupError for pinned memory without a CUDA
    device.
    """

    capacity_bytes: int | None = None
    pinned: bool = False
    grain: int = _GRAIN
    _idle: list[Tensor] = field(default_factory=list)
    _lent: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_int("grain", self.grain, 1, "bytes that block sizes are rounded up to")
        if self.capacity_bytes is not None:
            require_int("capacity_bytes", self.capacity_bytes, 0, "bytes of host memory")
        if self.pinned and not torch.cuda.is_available():
            raise BackupError(
                f"pinned host memory needs a CUDA device: got pinned={self.pinned!r} and "
                f"{torch.cuda.device_count()} devices that can be used; use HostArena(pinned=False)"
            )

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

        The smallest idle block that is large enough is reused; else idle blocks are dropped, the
        oldest first, until a new one fits under the bound. Errors: BackupError when the machine
        has no such memory.
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
                self._drop_idle(room)
            block = self._new(size)
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

    def __repr__(self) -> str:
        bound = "no bound" if self.capacity_bytes is None else f"bound {self.capacity_bytes:,}"
        return (
            f"HostArena({self.lent_bytes:,} bytes lent in {len(self._lent)} blocks, "
            f"{self.idle_bytes:,} idle, {bound}{', pinned' if self.pinned else ''})"
        )

    def _new(self, size: int) -> Tensor:
        try:
            with torch.inference_mode(False):  # to be written to outside of it as well
                return torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
        except RuntimeError as error:
            kind = "pinned " if self.pinned else ""
            raise BackupError(
                f"a block of host memory must fit the machine: got {size} bytes of {kind}memory"
                f" beside {self.lent_bytes + self.idle_bytes} in the arena (capacity_bytes="
                f"{self.capacity_bytes}), refused by the system; bound the arena lower"
            ) from error

    def _drop_idle(self, room: int) -> None:
        dropped = False
        while self.idle_bytes > room:
            self._idle.pop(0)
            dropped = True
        if dropped and self.pinned:
            # Gives freed pinned memory back to the system; by the name that this torch has for it.
            for home, name in (
                (torch.accelerator, "empty_host_cache"),
                (torch._C, "_host_emptyCache"),
            ):
                if hasattr(home, name):
                    getattr(home, name)()
                    return


def default_arena(buffer: Tensor) -> HostArena:
    """The arena of a pool that is given none: no bound on the CPU. Pinned memory of a CUDA pool
    cannot be paged out, so it is bounded: by the bytes of the pool, and a quarter of the machine's
    memory."""
    if buffer.device.type != "cuda":
        return HostArena()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return HostArena(pinned_bound(buffer.numel() * buffer.element_size(), machine), pinned=True)


def pinned_bound(pool_bytes: int, machine_bytes: int) -> int:
    """Bytes of pinned memory that a pool takes at most unless told otherwise: at least one block.

    >>> pinned_bound(pool_bytes=8 * 2**30, machine_bytes=16 * 2**30) == 4 * 2**30
    True
    """
    return max(_GRAIN, min(pool_bytes, machine_bytes // 4) // _GRAIN * _GRAIN)

"""Recurrent state of linear-attention layers: one slot a request, never localized, never sharded.

A KDA layer keeps, for each request, a short convolution window and a matrix a head; every DCP rank
holds the whole state. Source: SGLang ``MambaPool`` (``mem_cache/memory_pool.py``).
"""

from collections.abc import Sequence
from typing import Any

import torch

from kvlab.errors import BackupError, PoolError
from kvlab.index.layout import require_index, require_int
from kvlab.memory.backup import StateBackup


class StatePool:
    """``slots`` states of all KDA layers: conv ``(layers, slots+1, *conv_shape)`` and temporal
    ``(layers, slots+1, *temporal_shape)``; slot 0 is reserved. Errors: LayoutError."""

    def __init__(
        self,
        slots: int,
        *,
        layers: int,
        conv_shape: Sequence[int],
        temporal_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        require_int("slots", slots, 1, "requests whose state the pool can hold")
        require_int("layers", layers, 1, "layers with recurrent state")
        for length in (*conv_shape, *temporal_shape):
            require_int("a length of conv_shape or temporal_shape", length, 1, "of one layer")
        self.slots, self.layers = slots, layers
        how: dict[str, Any] = {"dtype": dtype, "device": device}
        with torch.inference_mode(False):  # to be written to outside of it as well
            self.conv = torch.zeros(layers, slots + 1, *conv_shape, **how)
            self.temporal = torch.zeros(layers, slots + 1, *temporal_shape, **how)
        self._used: set[int] = set()

    def alloc(self) -> int | None:
        """A state slot, zeroed, or None when all are in use."""
        slot = next((s for s in range(1, self.slots + 1) if s not in self._used), None)
        if slot is not None:
            self._used.add(slot)
            self.conv[:, slot] = 0
            self.temporal[:, slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back. Errors: PoolError for one that is not in use."""
        self._used.remove(self.require_used(slot))

    def require_used(self, slot: int) -> int:
        """The slot, when it is in use. Errors: PoolError for one that nobody holds."""
        slot = require_index("state slot", slot)  # True would pass for 1 and index otherwise
        if slot not in self._used:
            raise PoolError(
                f"a state slot must be in use: got {slot} of 1..{self.slots} "
                f"({len(self._used)} in use); slot 0 is reserved; call alloc() first"
            )
        return slot

    def get_cpu_copy(self, slot: int) -> StateBackup:
        """Copy one request's state to the host. Errors: PoolError for an unused slot."""
        slot = self.require_used(slot)
        return StateBackup(self.conv[:, slot].cpu().clone(), self.temporal[:, slot].cpu().clone())

    def load_cpu_copy(self, backup: StateBackup, slot: int) -> None:
        """Write a state into a newly allocated slot. Errors: PoolError, BackupError for shapes."""
        slot = self.check_load(backup, slot)
        self.conv[:, slot] = backup.conv.to(self.conv.device)
        self.temporal[:, slot] = backup.temporal.to(self.temporal.device)

    def check_load(self, backup: StateBackup, slot: int) -> int:
        """The slot, once nothing stands against ``load_cpu_copy``; writes nothing."""
        slot = self.require_used(slot)
        for has, place in ((backup.conv, self.conv), (backup.temporal, self.temporal)):
            want = place[:, slot]
            if has.shape != want.shape or has.dtype != want.dtype:
                raise BackupError(
                    f"a state is restored into a pool of its own shape: got {tuple(has.shape)} "
                    f"{has.dtype} for {tuple(want.shape)} {want.dtype}; nothing was written"
                )
        backup.verify()
        return slot

    def audit(self) -> list[str]:
        """The broken law: slot 0 holds nothing."""
        written = bool(self.conv[:, 0].any()) or bool(self.temporal[:, 0].any())
        return ["the reserved state slot 0 was written"] if written else []

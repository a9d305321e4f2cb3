"""The memory of one model on c ranks in one process: rows on every rank, state once.

Every rank of a real node holds the whole recurrent state (DCP does not shard it), and computes it
from the same input. In one process one copy stands for all c: it travels with rank 0's backup.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.engine.model.checkpoint import ModelShape
from kvlab.errors import PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.index.layout import require_int
from kvlab.memory import (
    HostArena,
    KvBackup,
    MLATokenToKVPool,
    StatePool,
    back_up_ranks,
    default_transfer,
    restore_ranks,
)

# A row of a small model is a few bytes: blocks of the host arena need not be large.
_GRAIN = 4096


class ModelPools:
    """``ranks``: one ``MLATokenToKVPool`` a rank; ``states``: None for a model without KDA layers.

    Args:
        shape: of the model.
        layout: the two index spaces.
        requests: how many requests may hold a state at once.
        dtype: of the rows; fp8 rows have a float32 scale each (``pool.scales``). State is float32
            whatever the model computes in.
        host_bytes: host memory for the backups of each rank; None means no bound.

    Errors: LayoutError for a count below 1, PoolError for a dtype that cannot be stored.
    """

    def __init__(
        self,
        shape: ModelShape,
        layout: DcpLayout,
        *,
        requests: int,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        host_bytes: int | None = None,
    ) -> None:
        require_int("requests", requests, 1, "requests that may hold a state at once")
        self.shape, self.layout = shape, layout
        pinned = torch.device(device).type == "cuda"
        transfer = default_transfer(torch.device(device))  # one staging memory for all ranks
        self.ranks = [
            MLATokenToKVPool(
                layout,
                rank,
                layers=len(shape.full_layers),
                kv_lora_rank=shape.kv_lora_rank,
                qk_rope_head_dim=shape.qk_rope_head_dim,
                dtype=dtype,
                scaled=dtype in (torch.float8_e4m3fn, torch.float8_e5m2),
                device=device,
                host=HostArena(host_bytes, pinned=pinned, grain=_GRAIN),
                transfer=transfer,
            )
            for rank in range(layout.dcp_size)
        ]
        self.states: StatePool | None = None
        if shape.conv_shape is not None and shape.temporal_shape is not None:
            self.states = StatePool(
                requests,
                layers=len(shape.linear_layers),
                conv_shape=shape.conv_shape,
                temporal_shape=shape.temporal_shape,
                device=device,
            )
        self.dense = {layer: i for i, layer in enumerate(shape.full_layers)}
        self.linear = {layer: i for i, layer in enumerate(shape.linear_layers)}

    def alloc_state(self) -> int | None:
        """A zeroed state slot, or None for a model without state. Errors: PoolError when full."""
        if self.states is None:
            return None
        slot = self.states.alloc()
        if slot is None:
            raise PoolError(
                f"every running request needs a state slot: all {self.states.slots} are taken; "
                f"make the pools with more requests, or bound NodeConfig.max_running"
            )
        return slot

    def free_state(self, slot: int | None) -> None:
        """Give a state slot back."""
        if self.states is not None and slot is not None:
            self.states.free(slot)

    def back_up(self, slots: WidenedSlots, state_slot: int | None) -> list[KvBackup]:
        """One backup a rank, the first with the state. A failed one discards those before it."""
        return back_up_ranks(self.ranks, slots, self.states, state_slot)

    def restore(self, backups: list[KvBackup], slots: WidenedSlots, state_slot: int | None) -> None:
        """Rows of all ranks and the state; everything is checked before the first byte."""
        restore_ranks(self.ranks, backups, slots, self.states, state_slot)

    def fill(self, slots: WidenedSlots, value: float) -> None:
        """Overwrite the rows of slots on every rank: what a freed row may hold is no one's."""
        for pool in self.ranks:
            pool.fill(pool.resolve(slots), value)

    def audit(self) -> list[str]:
        """The broken laws of all pools."""
        broken = [law for pool in self.ranks for law in pool.audit()]
        return broken + (self.states.audit() if self.states is not None else [])


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """``rows`` uint8 ``(layers, positions, bytes)``; ``state``: (conv, temporal), or None."""

    rows: Tensor
    state: tuple[Tensor, Tensor] | None

    def require_equal(self, other: "Snapshot", who: str) -> None:
        """Errors: PoolError with the first part that differs, and the first position in rows."""
        ours, theirs = self._parts(), other._parts()
        shapes = [{name: tuple(part.shape) for name, part in p.items()} for p in (ours, theirs)]
        if shapes[0] != shapes[1]:
            raise PoolError(f"{who} must come back as it left: it had {shapes[0]}, now {shapes[1]}")
        for name, part in ours.items():
            wrong = part != theirs[name]
            if bool(wrong.any()):
                at = torch.nonzero(wrong)[0].tolist()
                raise PoolError(
                    f"{who} must come back as it left: {int(wrong.sum())} of {wrong.numel()} "
                    f"elements of its {name} differ, first at {at}"
                )

    def _parts(self) -> dict[str, Tensor]:
        """Bits, not values: a NaN equals itself, and -0 is not 0."""
        state = zip(("conv state", "temporal state"), self.state or (), strict=False)
        return {"rows": self.rows} | {name: part.view(torch.int32) for name, part in state}


def take_snapshot(pools: ModelPools, slots: WidenedSlots, state_slot: int | None) -> Snapshot:
    """Copy a request's rows of all ranks and its state. Errors: PoolError unless the ranks hold
    each position once and the state slot is in use."""
    first = pools.ranks[0]
    width = first.buffer.shape[2] * first.buffer.element_size()
    rows = torch.zeros(first.layers, len(slots), width, dtype=torch.uint8, device=first.device)
    seen = torch.zeros(len(slots), dtype=torch.int64, device=first.device)
    for pool in pools.ranks:
        here = pool.resolve(slots)
        rows[:, here.source] = pool.buffer[:, here.ids].view(torch.uint8)
        seen[here.source] += 1
    if bool((seen != 1).any()):
        raise PoolError(
            f"the ranks must hold each position once: {int((seen != 1).sum())} of {len(slots)} "
            f"are held by none or by two"
        )
    if pools.states is None or state_slot is None:
        return Snapshot(rows, None)
    state = pools.states
    state.require_used(state_slot)
    parts = (state.conv[:, state_slot].clone(), state.temporal[:, state_slot].clone())
    return Snapshot(rows, parts)

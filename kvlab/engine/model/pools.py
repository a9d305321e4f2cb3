"""The memory of one model on c ranks in one process: rows on every rank, state once.

Every rank of a real node holds the whole recurrent state (DCP does not shard it), and computes it
from the same input. In one process one copy stands for all c: it travels with rank 0's backup.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.engine.backends import pools_of_ranks
from kvlab.engine.model.checkpoint import ModelShape
from kvlab.errors import PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.index.layout import require_int
from kvlab.memory import KvBackup, StatePool, back_up_ranks, restore_ranks


class ModelPools:
    """``ranks``: one ``MLATokenToKVPool`` a rank; ``states``: None for a model without KDA layers.

    Args:
        requests: how many requests may hold a state at once.
        dtype: of the rows; fp8 rows have a float32 scale each. State is float32 always.
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
        self.ranks = pools_of_ranks(
            layout,
            host_bytes,
            device,
            layers=len(shape.full_layers),
            kv_lora_rank=shape.kv_lora_rank,
            qk_rope_head_dim=shape.qk_rope_head_dim,
            dtype=dtype,
            scaled=dtype in (torch.float8_e4m3fn, torch.float8_e5m2),
        )
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
        if self.rows.shape != other.rows.shape or (self.state is None) != (other.state is None):
            raise PoolError(f"{who} must come back as it left: its rows or its state were lost")
        parts = [("rows", self.rows, other.rows)]
        for name, ours, theirs in zip(
            ("conv state", "temporal state"), self.state or (), other.state or (), strict=False
        ):
            # Bits, not values: a NaN equals itself, and -0 is not 0.
            parts.append((name, ours.view(torch.int32), theirs.view(torch.int32)))
        for name, ours, theirs in parts:
            wrong = torch.nonzero(ours != theirs)
            if len(wrong):
                raise PoolError(
                    f"{who} must come back as it left: {len(wrong)} of {ours.numel()} elements of "
                    f"its {name} differ, first at {wrong[0].tolist()}"
                )


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
        raise PoolError(f"the ranks must hold each of {len(slots)} positions once")
    state = pools.states
    if state is None or state_slot is None:
        return Snapshot(rows, None)
    state.require_used(state_slot)
    return Snapshot(
        rows, (state.conv[:, state_slot].clone(), state.temporal[:, state_slot].clone())
    )

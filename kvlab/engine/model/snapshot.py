"""All that the pools hold of one request, in the order of its positions: for comparing bit by bit.

Independent of where the rows lie, so a request that was retracted and restored elsewhere must have
the same snapshot.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.engine.model.pools import ModelPools
from kvlab.errors import PoolError
from kvlab.index import WidenedSlots


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """``rows`` uint8 ``(layers, positions, bytes)``; ``state``: (conv, temporal), or None."""

    rows: Tensor
    state: tuple[Tensor, Tensor] | None

    def require_equal(self, other: "Snapshot", who: str) -> None:
        """Errors: PoolError with the first position, or the part of the state, that differs."""
        if self.rows.shape != other.rows.shape:
            raise PoolError(
                f"{who} must come back as it left: it had {tuple(self.rows.shape)} (layers, "
                f"positions, bytes), now {tuple(other.rows.shape)}"
            )
        wrong = (self.rows != other.rows).any(dim=2)
        if bool(wrong.any()):
            layer, position = (int(x) for x in torch.nonzero(wrong)[0])
            raise PoolError(
                f"{who} must come back as it left: layer {layer} differs at position {position}; "
                f"{int(wrong.sum())} of {wrong.numel()} rows do"
            )
        if self.state is None or other.state is None:
            if self.state is not other.state:
                raise PoolError(
                    f"{who} must come back as it left: it had "
                    f"{'no' if self.state is None else 'a'} state, now "
                    f"{'none' if other.state is None else 'one'}"
                )
            return
        for name, a, b in zip(("conv", "temporal"), self.state, other.state, strict=True):
            # Bits, not values: a NaN equals itself, and -0 is not 0.
            differ = int((_bits(a) != _bits(b)).sum()) if a.shape == b.shape else a.numel()
            if differ:
                raise PoolError(
                    f"{who} must come back as it left: {differ} of {a.numel()} "
                    f"elements of its {name} state differ"
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


def _bits(part: Tensor) -> Tensor:
    return part.view(torch.int32)

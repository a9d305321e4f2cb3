"""From a prefill node to a decode node: which row of which page goes to which row of which rank.

The prefill node runs at DCP 1, so its rows are its slots. The decode node's pages are c times as
wide. Worked example, P=2, three positions in the prefill's pages 1 and 2, decode c=2 page 1:

    position   prefill row   decode slot   decode rank, row
       0            2             4             0, 2
       1            3             5             1, 2
       2            4             6             0, 3

Supported as upstream: DCP 1 to DCP c. Source: SGLang PD transfer under DCP (PR 32837).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.engine.model.pools import ModelPools
from kvlab.errors import LayoutError, PoolError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.memory.backup import StateBackup


@dataclass(frozen=True, slots=True, eq=False)
class RankMoves:
    """What one decode rank receives: ``source`` rows of the prefill pool go to ``target`` rows of
    rank ``target.rank``, whose slots are ``slots`` int64 ``(m,)``."""

    source: PhysicalRows
    target: PhysicalRows
    slots: Tensor


def token_plan(
    source: WidenedSlots, source_layout: DcpLayout, target: WidenedSlots, target_layout: DcpLayout
) -> tuple[RankMoves, ...]:
    """The moves of each decode rank; together they name each position once.

    Errors: LayoutError for a prefill node of more than one rank, PoolError for runs of different
    positions, IndexSpaceError for slots outside their layout.
    """
    if source_layout.dcp_size != 1:
        raise LayoutError(
            f"a hand-over goes from DCP 1 to DCP c: the prefill node has dcp_size "
            f"{source_layout.dcp_size}; prefill on one rank, or restore a backup instead"
        )
    if (source.start, len(source)) != (target.start, len(target)):
        raise PoolError(
            f"both nodes must name the same positions: the prefill node has {len(source)} from "
            f"{source.start}, the decode node {len(target)} from {target.start}"
        )
    here = localize(source, source_layout, 0)
    moves = []
    for rank in range(target_layout.dcp_size):
        rows = localize(target, target_layout, rank)
        # Rows already: at DCP 1 they are all of one rank's, in the order of positions.
        at = PhysicalRows.assume_physical(here.ids[rows.source], source_layout, 0)
        moves.append(RankMoves(at, rows, target.ids[rows.source]))
    return tuple(moves)


def hand_over(
    prefill: ModelPools,
    source: WidenedSlots,
    source_state: int | None,
    decode: ModelPools,
    target: WidenedSlots,
    target_state: int | None,
) -> None:
    """Copy a request's rows and state from one node's pools to another's, bit for bit.

    Everything is checked before the first byte. Errors: PoolError when rows or state of the two
    nodes mean different things, a state slot is missing or nobody's, or two positions have one
    target; as ``token_plan``.
    """
    first, there = prefill.ranks[0], decode.ranks[0]
    if first.row_format != there.row_format or first.layers != there.layers:
        raise PoolError(
            f"both nodes must run one model with one row format: prefill {first.layers} layers of "
            f"{first.row_format}, decode {there.layers} of {there.row_format}"
        )
    plan = token_plan(source, prefill.layout, target, decode.layout)
    different = len(torch.unique(target.ids))
    if different != len(target):
        raise PoolError(
            f"each position needs a slot of its own: {len(target)} target slots, {different} "
            f"different; pass newly allocated slots; nothing was written"
        )
    state = _sent_state(prefill, source_state, decode, target_state)
    for pool, moves in zip(decode.ranks, plan, strict=True):
        # Bytes, not values: what a row is made of beside its elements comes along.
        pool.before_write()
        sent = first.buffer[:, moves.source.ids.to(first.device)]
        pool.buffer[:, moves.target.ids.to(pool.device)] = sent.to(pool.device)
    if state is not None and decode.states is not None and target_state is not None:
        decode.states.load_cpu_copy(state, target_state)


def _sent_state(
    prefill: ModelPools, source_state: int | None, decode: ModelPools, target_state: int | None
) -> StateBackup | None:
    """The state, once nothing stands against writing it; None for a model without."""
    if (prefill.states is None) != (decode.states is None):
        raise PoolError(
            f"both nodes must run one model: the {'prefill' if decode.states is None else 'decode'}"
            f" node's keeps a state a request, the other's none; nothing was written"
        )
    if prefill.states is None or decode.states is None:
        return None
    if source_state is None or target_state is None:
        raise PoolError(
            f"rows and state of a request move together: the state slots are {source_state} "
            f"(prefill) and {target_state} (decode); nothing was written"
        )
    state = prefill.states.get_cpu_copy(source_state)
    decode.states.check_load(state, target_state)
    return state

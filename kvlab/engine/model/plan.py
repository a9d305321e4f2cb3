"""The plan of one step: which rows each rank reads for each request, and where new rows go.

Made once a step and shared by all layers. Slots are verified as ``localize`` does, and then turn
after turn of positions lies on the ranks in order, so one table serves all of them. Example, c=2,
P=2, a decode step of slots [4, 5, 6] and [8, 9]: rank 0 reads rows [2, 3] and [4, -], rank 1 reads
[2] and [4]; "-" is row 0 of the padding page, and hidden. New tokens go to slots 6 and 9.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
from kvlab.index.layout import require_index
from kvlab.index.localize import require_run


@dataclass(frozen=True, slots=True, eq=False)
class RankPlan:
    """One rank's part of a step.

    ``rows`` it reads (B * L of them, request after request); ``visible`` bool ``(B, T, L)``: which
    of them each new token may see (a later position or padding: no); ``padding`` int64: which
    elements of ``rows`` stand for no position, None when none does; ``new`` int64: which of the
    B * T new tokens it stores, in ``new_rows``; both None when it stores none of them.
    """

    rows: PhysicalRows
    visible: Tensor
    padding: Tensor | None
    new: Tensor | None
    new_rows: PhysicalRows | None

    @property
    def keys(self) -> int:
        """L: rows a request, padding included."""
        return int(self.visible.shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """B requests with T new tokens each.

    ``lens`` int64 ``(B,)``: positions of each request, the new ones included; ``positions`` int64
    ``(B, T)``; ``visible`` bool ``(c, B, T, longest L)``: that of all ranks, False past a rank's
    own L; ``state_slots`` int64 ``(B,)``, None for a model without state.
    """

    layout: DcpLayout
    lens: Tensor
    positions: Tensor
    ranks: tuple[RankPlan, ...]
    visible: Tensor
    state_slots: Tensor | None

    @property
    def batch(self) -> int:
        """B: requests of the step."""
        return int(self.positions.shape[0])

    @property
    def new_tokens(self) -> int:
        """T: new tokens of each request."""
        return int(self.positions.shape[1])


def plan_step(
    slots: Sequence[WidenedSlots],
    new_tokens: int,
    layout: DcpLayout,
    *,
    state_slots: Sequence[int] | None = None,
    device: str | torch.device = "cpu",
) -> StepPlan:
    """The plan of a step.

    Args:
        slots: of each request all positions from 0, the new ones last.
        new_tokens: T.
        state_slots: of each request, for a model with recurrent state.

    Cost: a dozen operations on all ids, five a rank. Errors: IndexSpaceError for a request shorter
    than T or not from position 0, slots that are never handed out or whose owner is not that of
    their position, a new token whose slot holds another position (rows that are only read may be
    shared), and state slots that are not B different ones.
    """
    lengths = require_apart(slots, new_tokens, state_slots)
    for run in slots:
        if not run.verified_for(layout):
            require_run(run.ids, 0, layout)
    longest, lens = max(lengths), torch.tensor(lengths)[:, None]
    shard = layout.shard(0)
    place = torch.arange(longest + -longest % shard.turn)
    ids = pad_sequence([run.ids for run in slots], batch_first=True)
    ids = pad(ids, (0, len(place) - longest))  # past a request: 0, in the padding page

    def by_rank(of_positions: Tensor) -> Tensor:
        """``(..., n)`` to ``(c, ..., n / c)``: each rank's positions."""
        shape = (*of_positions.shape[:-1], -1, layout.dcp_size, layout.interleave)
        return of_positions.view(shape).movedim(-2, 0).flatten(-2)

    rows, unused = by_rank(shard.row(ids)), by_rank(place >= lens)
    keys = [layout.shard(rank).held(longest) for rank in range(layout.dcp_size)]
    positions = lens - new_tokens + torch.arange(new_tokens)
    visible = by_rank(place)[:, None, None, : keys[0]] <= positions[:, :, None]
    visible = visible.to(device)
    owner = shard.owner(positions).flatten()
    fresh = shard.row(ids.gather(1, positions)).flatten()

    def rows_of(rank: int, found: Tensor) -> PhysicalRows:
        return PhysicalRows.assume_physical(found.to(device), layout, rank)

    ranks, ragged, storing = [], min(lengths) < longest, set(owner.tolist())
    for rank, most in enumerate(keys):
        padding = new = None
        if ragged and bool((here := unused[rank, :, :most].flatten()).any()):
            padding = torch.nonzero(here).flatten().to(device)
        if rank in storing:
            new = torch.nonzero(owner == rank).flatten()
        ranks.append(
            RankPlan(
                rows=rows_of(rank, rows[rank, :, :most].flatten()),
                visible=visible[rank, :, :, :most],
                padding=padding,
                new=None if new is None else new.to(device),
                new_rows=None if new is None else rows_of(rank, fresh[new]),
            )
        )
    states = None if state_slots is None else torch.tensor(list(state_slots), device=device)
    return StepPlan(layout, lens.flatten(), positions.to(device), tuple(ranks), visible, states)


def require_apart(
    slots: Sequence[WidenedSlots], new_tokens: int, state_slots: Sequence[int] | None
) -> list[int]:
    """The length of each request, once what one of them writes is not what another one holds."""
    if not slots or require_index("new_tokens", new_tokens) < 1:
        raise IndexSpaceError(
            f"a step has at least one request and one new token: got {len(slots)} requests, "
            f"{new_tokens} new tokens"
        )
    for i, run in enumerate(slots):
        if run.start != 0 or len(run) < new_tokens:
            raise IndexSpaceError(
                f"a request names all its positions from 0, its {new_tokens} new ones last: "
                f"request {i} of {len(slots)} has {len(run)} from position {run.start}; pass "
                f"table.slots(row)"
            )
    if state_slots is not None and len({*state_slots} - {0}) != len(slots):
        raise IndexSpaceError(
            f"each request has a state slot of its own, from 1: got {list(state_slots)} for "
            f"{len(slots)} requests; call pools.alloc_state() for each"
        )
    ids = torch.cat([run.ids for run in slots])
    written = torch.cat([run.ids[-new_tokens:] for run in slots])
    # Each new slot stands once: a second position would read it.
    if int(torch.isin(ids, written).sum()) != len(torch.unique(written)):
        different, times = torch.unique(ids, return_counts=True)
        bad = int(different[torch.isin(different, written) & (times > 1)][0])
        raise IndexSpaceError(
            f"a new token is written to a slot of its own: slot {bad} stands at "
            f"{int((ids == bad).sum())} positions of the step's {len(ids)}"
        )
    return [len(run) for run in slots]

"""The plan of one step: which rows each rank reads for each request, and where new rows go.

Made once a step and shared by all layers. All requests of a step have the same number of new
tokens (1 in a decode step, a chunk in a prefill), and lengths as ragged as they come. The rows are
those that ``localize`` gives: one call a rank, for the runs of all requests joined.

Worked example, c=2, P=2, a decode step of two requests with 3 and 2 tokens, in pages 1 and 2:
their slots are [4, 5, 6] and [8, 9]. Rank 0 reads rows [2, 3] and [4, -], rank 1 reads rows [2]
and [4]; "-" is row 0 of the padding page, and hidden. The new tokens go to slots 6 and 9.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.index.layout import require_index

_NEVER = 2**62  # the position of padding: after every other


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
    ``(B, T)``; ``visible`` bool ``(c, B, T, longest L)``: that of all ranks in one tensor, False
    past a rank's own L; ``state_slots`` int64 ``(B,)``, None for a model without state.
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

    Cost: a dozen operations on all ids a rank. Errors: IndexSpaceError for a request shorter than
    T or one that does not start at position 0, a slot that is never handed out, a new token whose
    slot holds another position (rows that are only read may be shared), and state slots that are
    not B different ones.
    """
    lens = torch.tensor(require_apart(slots, new_tokens, state_slots))[:, None]
    ids = torch.cat([run.ids for run in slots])
    ends = lens.flatten().cumsum(0)
    request = torch.repeat_interleave(torch.arange(len(slots)), lens.flatten())
    position = torch.arange(len(ids)) - (ends[:, None] - lens).flatten()[request]
    first_new = lens - new_tokens
    positions = first_new + torch.arange(new_tokens)
    joined = WidenedSlots(ids)
    found = [localize(joined, layout, rank) for rank in range(layout.dcp_size)]
    # All ranks at once from here: a line of the table is one request on one rank.
    source = torch.cat([rows.source for rows in found])
    owner = torch.repeat_interleave(torch.tensor([len(rows) for rows in found]))
    mine, at = request[source], position[source]
    line = owner * len(slots) + mine
    counts = torch.bincount(line, minlength=layout.dcp_size * len(slots))
    place = torch.arange(len(source)) - (counts.cumsum(0) - counts)[line]
    table = torch.zeros(len(counts), int(counts.max()), dtype=torch.int64)
    places = torch.full_like(table, _NEVER)
    table[line, place], places[line, place] = torch.cat([rows.ids for rows in found]), at
    shape = (layout.dcp_size, len(slots), -1)
    table, places = table.view(shape), places.view(shape)
    visible = (places[:, :, None] <= positions[:, :, None]).to(device)
    fresh = at >= first_new[mine, 0]
    tokens, own = (mine * new_tokens + at - first_new[mine, 0])[fresh], owner[fresh]
    ranks = []
    for rank, most in enumerate(counts.view(shape).amax(1).flatten().tolist()):
        unused = torch.nonzero(places[rank, :, :most].flatten() == _NEVER).flatten()
        new = tokens[own == rank]
        new_rows = found[rank].ids[fresh[owner == rank]]
        ranks.append(
            RankPlan(
                rows=_rows(table[rank, :, :most].flatten(), layout, rank, device),
                visible=visible[rank, :, :, :most],
                padding=unused.to(device) if len(unused) else None,
                new=new.to(device) if len(new) else None,
                new_rows=_rows(new_rows, layout, rank, device) if len(new) else None,
            )
        )
    states = None if state_slots is None else torch.tensor(list(state_slots), device=device)
    return StepPlan(
        layout,
        lens.flatten(),
        positions.to(device),
        tuple(ranks),
        visible,
        states,
    )


def _rows(ids: Tensor, layout: DcpLayout, rank: int, device: str | torch.device) -> PhysicalRows:
    return PhysicalRows.assume_physical(ids.to(device), layout, rank)


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
            f"{int((ids == bad).sum())} positions of the step's {len(ids)}; pass slots that the "
            f"allocator handed out for these tokens"
        )
    return [len(run) for run in slots]

"""The plan of one step: which rows each rank reads for each request, and where new rows go.

Made once a step and shared by all layers. All requests of a step have the same number of new
tokens (1 in a decode step, a chunk in a prefill), and lengths as ragged as they come.

Worked example, c=2, P=2, a decode step of two requests with 3 and 2 tokens, in pages 1 and 2:
their slots are [4, 5, 6] and [8, 9]. Rank 0 reads rows [2, 3] and [4, -], rank 1 reads rows [2]
and [4]; "-" is row 0 of the padding page, and hidden. The new tokens go to slots 6 and 9.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, owner_of, row_of
from kvlab.index.spaces import require_within


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """One rank's part of a step: ``rows`` (B * L of them, request after request), ``visible`` bool
    ``(B, T, L)``: which of its rows each new token may see (a later position or padding: no), and
    ``padding`` int64: which elements of ``rows`` stand for no position; None when none does."""

    rows: PhysicalRows
    visible: Tensor
    padding: Tensor | None

    @property
    def keys(self) -> int:
        """L: rows a request, padding included."""
        return int(self.visible.shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """B requests with T new tokens each.

    ``lens`` int64 ``(B,)``: positions of each request, the new ones included; ``write_slots`` int64
    ``(B * T,)``: widened slots of the new tokens (``out_cache_loc``); ``positions`` int64 ``(B,
    T)``; ``shards``: one a rank; ``state_slots`` int64 ``(B,)``, None for a model without state.
    """

    layout: DcpLayout
    lens: Tensor
    write_slots: Tensor
    positions: Tensor
    shards: tuple[Shard, ...]
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

    Cost: a few operations on ``(B, longest)`` a rank. Errors: IndexSpaceError for a request shorter
    than T or one that does not start at position 0, a slot that is never handed out, a run whose
    slots and positions disagree about the owner, and a count of state slots that is not B.
    """
    lens = _checked_lens(slots, new_tokens)
    if state_slots is not None and len(state_slots) != len(slots):
        raise IndexSpaceError(
            f"each request has one state slot: got {len(state_slots)} for {len(slots)} requests"
        )
    table = torch.zeros(len(slots), max(lens), dtype=torch.int64)
    for i, run in enumerate(slots):
        table[i, : lens[i]] = run.ids
    length = torch.tensor(lens)[:, None]
    every = torch.arange(max(lens))
    owners = _checked_owners(table, every < length, layout)
    positions = length - new_tokens + torch.arange(new_tokens)
    seen = every <= positions[:, :, None]
    ragged = min(lens) < max(lens)
    shards = []
    for rank in range(layout.dcp_size):
        mine = torch.nonzero(owners == rank).flatten()
        flat = table[:, mine].reshape(-1)
        ids = row_of(flat, layout.dcp_size, layout.interleave).to(device)
        # Padding became row 0, so these are not a run that localize() could take; the owners of
        # all of them were checked above.
        rows = PhysicalRows.assume_physical(ids, layout, rank)
        empty = torch.nonzero((mine >= length).reshape(-1)).flatten() if ragged else mine[:0]
        padding = empty.to(device) if len(empty) else None
        shards.append(Shard(rows, seen[:, :, mine].to(device), padding))
    return StepPlan(
        layout=layout,
        lens=length.flatten(),
        write_slots=torch.gather(table, 1, positions).reshape(-1).to(device),
        positions=positions.to(device),
        shards=tuple(shards),
        state_slots=None if state_slots is None else torch.tensor(list(state_slots), device=device),
    )


def _checked_lens(slots: Sequence[WidenedSlots], new_tokens: int) -> list[int]:
    if not slots or new_tokens < 1:
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
    return [len(run) for run in slots]


def _checked_owners(table: Tensor, written: Tensor, layout: DcpLayout) -> Tensor:
    """The owner of each position; every request's slots must agree with it."""
    instead = "pass slots that the allocator handed out"
    first, end = layout.first_slot, layout.slot_end
    require_within(table[written], first, end, "widened slot", instead)
    by_position = torch.arange(table.shape[1]) // layout.interleave % layout.dcp_size
    by_slot = owner_of(table.reshape(-1), layout.dcp_size, layout.interleave).view_as(table)
    wrong = torch.nonzero(written & (by_slot != by_position))
    if len(wrong):
        i, p = (int(x) for x in wrong[0])
        raise IndexSpaceError(
            f"slot and position must agree about the owner: request {i} has slot "
            f"{int(table[i, p])} (rank {int(by_slot[i, p])}) at position {p} (rank "
            f"{int(by_position[p])}); pages must begin on a multiple of {layout.widened_page_size}"
        )
    return by_position

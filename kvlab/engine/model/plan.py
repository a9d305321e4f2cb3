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
from kvlab.index.layout import require_index
from kvlab.index.spaces import require_within


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
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

    ``lens`` int64 ``(B,)``: positions of each request, the new ones included; ``write_slots`` int64
    ``(B * T,)``: widened slots of the new tokens (``out_cache_loc``); ``positions`` int64 ``(B,
    T)``; ``shards``: one a rank; ``visible`` bool ``(c, B, T, longest L)``: theirs in one tensor,
    False past a rank's own L; ``state_slots`` int64 ``(B,)``, None for a model without state.
    """

    layout: DcpLayout
    lens: Tensor
    write_slots: Tensor
    positions: Tensor
    shards: tuple[Shard, ...]
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

    Cost: a few operations on ``(B, longest)`` a rank. Errors: IndexSpaceError for a request shorter
    than T or one that does not start at position 0, a slot that is never handed out, a run whose
    slots and positions disagree about the owner, a new token whose slot holds another position
    (rows that are only read may be shared), and state slots that are not B different ones.
    """
    lens = _checked_lens(slots, new_tokens)
    states = None if state_slots is None else _checked_states(state_slots, len(slots))
    length, longest = torch.tensor(lens)[:, None], max(lens)
    c, turn = layout.dcp_size, layout.interleave
    columns = -(-longest // (c * turn)) * turn  # positions of the rank that holds most
    table = torch.zeros(len(slots), c * columns, dtype=torch.int64)
    for line, run in zip(table, slots, strict=True):
        line[: len(run)] = run.ids
    every = torch.arange(c * columns)
    owners = every // turn % c
    _check_owners(table[:, :longest], every[:longest] < length, owners[:longest], layout)
    positions = length - new_tokens + torch.arange(new_tokens)
    written = torch.gather(table, 1, positions).reshape(-1)
    _check_written(table[every < length], written)
    # Rank after rank: (c, L) positions and (c, B, L) rows.
    grid = every.view(-1, c, turn).transpose(0, 1).reshape(c, columns)
    by_rank = table.view(len(slots), -1, c, turn).permute(2, 0, 1, 3).reshape(c, -1)
    ids = row_of(by_rank.reshape(-1), c, turn).view(c, len(slots), columns)
    seen = grid[:, None, None] <= positions[:, :, None]
    padded = grid[:, None] >= length if min(lens) < longest else None
    stored: list[list[int]] = [[] for _ in range(c)]
    for token, owner in enumerate(owners[positions].view(-1).tolist()):
        stored[owner].append(token)
    shards = []
    held = _keys(longest, c, turn)
    for rank, (tokens, keys) in enumerate(zip(stored, held, strict=True)):
        # Padding became row 0, so these are not a run that localize() could take; the owners of
        # all of them were checked above.
        mine = ids[rank, :, :keys].reshape(-1).to(device)
        empty = new = new_rows = None
        if padded is not None and bool(padded[rank, :, :keys].any()):
            empty = torch.nonzero(padded[rank, :, :keys].reshape(-1)).view(-1).to(device)
        if tokens:
            new = torch.tensor(tokens)
            at = row_of(written[new], c, turn).to(device)
            new, new_rows = new.to(device), PhysicalRows.assume_physical(at, layout, rank)
        shards.append(
            Shard(
                rows=PhysicalRows.assume_physical(mine, layout, rank),
                visible=seen[rank, :, :, :keys].to(device),
                padding=empty,
                new=new,
                new_rows=new_rows,
            )
        )
    return StepPlan(
        layout=layout,
        lens=length.flatten(),
        write_slots=written.to(device),
        positions=positions.to(device),
        shards=tuple(shards),
        # With turns of more than one position the last one may be cut short on every rank.
        visible=seen[..., : max(held)].to(device),
        state_slots=None if states is None else torch.tensor(states, device=device),
    )


def require_apart(slots: Sequence[WidenedSlots], state_slots: Sequence[int] | None) -> None:
    """That requests of one decode step which run one after another could run together: what one of
    them writes is not what another one holds. Errors: IndexSpaceError as ``plan_step``."""
    lens = _checked_lens(slots, 1)
    if state_slots is not None:
        _checked_states(state_slots, len(slots))
    ids = torch.cat([run.ids for run in slots])
    _check_written(ids, ids[torch.tensor(lens, device=ids.device).cumsum(0) - 1])


def _keys(longest: int, c: int, turn: int) -> list[int]:
    """How many of the first ``longest`` positions each rank owns."""
    full, rest = divmod(longest, c * turn)
    return [full * turn + min(max(rest - rank * turn, 0), turn) for rank in range(c)]


def _checked_lens(slots: Sequence[WidenedSlots], new_tokens: int) -> list[int]:
    if not slots or require_index("new_tokens", new_tokens) < 1:
        raise IndexSpaceError(
            f"a step has at least one request and one new token: got {len(slots)} requests, "
            f"{new_tokens} new tokens"
        )
    for i, run in enumerate(slots):
        given: object = run
        if not isinstance(given, WidenedSlots):
            raise IndexSpaceError(
                f"a request names its slots as WidenedSlots: request {i} of {len(slots)} has a "
                f"{type(given).__name__}; pass table.slots(row)"
            )
        if run.start != 0 or len(run) < new_tokens:
            raise IndexSpaceError(
                f"a request names all its positions from 0, its {new_tokens} new ones last: "
                f"request {i} of {len(slots)} has {len(run)} from position {run.start}; pass "
                f"table.slots(row)"
            )
    return [len(run) for run in slots]


def _checked_states(state_slots: Sequence[int], requests: int) -> list[int]:
    found = [require_index("state slot", slot) for slot in state_slots]
    if len(found) != requests:
        raise IndexSpaceError(
            f"each request has one state slot: got {len(found)} for {requests} requests"
        )
    twice = [slot for i, slot in enumerate(found) if slot in found[:i]]
    if twice or min(found) < 1:
        raise IndexSpaceError(
            f"each request has a state slot of its own, from 1: got "
            f"{f'{twice[0]} for two requests' if twice else min(found)} among {requests}; call "
            f"pools.alloc_state() for each"
        )
    return found


def _check_written(all_slots: Tensor, written: Tensor) -> None:
    """A slot that is written holds one position of one request: a second one would read it."""
    once = len(set(written.tolist())) == len(written)
    if once and int(torch.isin(all_slots, written).sum()) == len(written):
        return
    slots, times = torch.unique(all_slots, return_counts=True)
    bad = int(slots[torch.isin(slots, written) & (times > 1)][0])
    raise IndexSpaceError(
        f"a new token is written to a slot of its own: slot {bad} stands at "
        f"{int((all_slots == bad).sum())} positions of the step's {len(all_slots)}; pass slots "
        f"that the allocator handed out for these tokens"
    )


def _check_owners(table: Tensor, written: Tensor, by_position: Tensor, layout: DcpLayout) -> None:
    """Every request's slots must agree with the owners of the positions, and be handed out."""
    instead = "pass slots that the allocator handed out"
    first, end = layout.first_slot, layout.slot_end
    require_within(table[written], first, end, "widened slot", instead)
    by_slot = owner_of(table.reshape(-1), layout.dcp_size, layout.interleave).view_as(table)
    wrong = written & (by_slot != by_position)
    if bool(wrong.any()):
        i, p = (int(x) for x in torch.nonzero(wrong)[0])
        raise IndexSpaceError(
            f"slot and position must agree about the owner: request {i} has slot "
            f"{int(table[i, p])} (rank {int(by_slot[i, p])}) at position {p} (rank "
            f"{int(by_position[p])}); pages must begin on a multiple of {layout.widened_page_size}"
        )

"""From a prefill node to a decode node: which row of which page goes to which row of which rank.

The prefill node runs at DCP 1, so its rows are its slots. The decode node's pages are c times as
wide: with P=2, three positions in the prefill's rows [2, 3, 4] go to slots [4, 5, 6] of c=2, that
is to row 2 of rank 0, row 2 of rank 1, row 3 of rank 0. Source: SGLang PD transfer (PR 32837).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.engine.model.pools import ModelPools
from kvlab.engine.model.runner import ShardedModel
from kvlab.errors import LayoutError, PoolError, StudyError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.index.layout import require_index
from kvlab.memory import PagedTokenToKVPoolAllocator


def token_plan(
    source: WidenedSlots, source_layout: DcpLayout, target: WidenedSlots, target_layout: DcpLayout
) -> tuple[tuple[Tensor, PhysicalRows], ...]:
    """What each decode rank receives: rows of the prefill pool, int64 ``(m,)``, and the rows of its
    own that they go to; all ranks together name each position once.

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
    here = localize(source, source_layout, 0).ids
    ranks = [localize(target, target_layout, rank) for rank in range(target_layout.dcp_size)]
    return tuple((here[rows.source], rows) for rows in ranks)


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
    kinds = [
        (pools.ranks[0].row_format, pools.ranks[0].layers, pools.states is None)
        for pools in (prefill, decode)
    ]
    if kinds[0] != kinds[1]:
        raise PoolError(
            f"both nodes must run one model with one row format: (row format, layers, no state) "
            f"are {kinds[0]} at the prefill node, {kinds[1]} at the decode node"
        )
    plan = token_plan(source, prefill.layout, target, decode.layout)
    if len(torch.unique(target.ids)) != len(target):
        raise PoolError(f"each of the {len(target)} positions needs a target slot of its own")
    state = None
    if prefill.states is not None and decode.states is not None:
        if source_state is None or target_state is None:
            raise PoolError(
                f"rows and state of a request move together: the state slots are {source_state} "
                f"(prefill) and {target_state} (decode)"
            )
        state = prefill.states.get_cpu_copy(source_state)
        decode.states.check_load(state, target_state)
    buffer = prefill.ranks[0].buffer
    for pool, (rows, target_rows) in zip(decode.ranks, plan, strict=True):
        # Bytes, not values: what a row is made of beside its elements comes along.
        pool.before_write()
        sent = buffer[:, rows.to(buffer.device)]
        pool.buffer[:, target_rows.ids.to(pool.device)] = sent.to(pool.device)
    if state is not None and decode.states is not None and target_state is not None:
        decode.states.load_cpu_copy(state, target_state)


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """A finished prefill: the pools that hold it, where it lies in them, and its ``tokens``.

    ``logits`` ``(1, vocabulary)`` of the last token.
    """

    pools: ModelPools
    slots: WidenedSlots
    state: int | None
    tokens: tuple[int, ...]
    logits: Tensor

    def hand_over(self, pools: ModelPools, slots: WidenedSlots, state: int | None) -> None:
        """Copy rows and state to another node, bit for bit. Errors: as ``hand_over``."""
        hand_over(self.pools, self.slots, self.state, pools, slots, state)


def prefill_apart(
    sharded: ShardedModel, tokens: list[int], *, dcp_size: int, chunk_tokens: int | None = None
) -> Prefill:
    """Prefill on ``dcp_size`` ranks with new pools that hold this one request. Errors: StudyError
    for no tokens, IndexSpaceError for what is no id; as ``ShardedModel.prefill``."""
    tokens = [require_index("token", token) for token in tokens]
    if not tokens:
        raise StudyError("a prefill has at least one token: got none; pass the prompt")
    page = sharded.layout.page_size
    # One rank has every slot; more take turns as the decode node's do.
    turn = sharded.layout.interleave if dcp_size > 1 else 1
    layout = DcpLayout(dcp_size, page, -(-len(tokens) // (page * dcp_size)), turn)
    node = sharded.like(layout, requests=1)
    ids = PagedTokenToKVPoolAllocator(layout).alloc_extend(0, len(tokens))
    assert ids is not None  # the layout was made for it
    slots, state = WidenedSlots(ids), node.pools.alloc_state()
    logits = node.prefill(torch.tensor(tokens), slots, state, chunk_tokens=chunk_tokens)
    return Prefill(node.pools, slots, state, tuple(tokens), logits)


class Prefilled:
    """Prefills at DCP 1 by request, of one model, row format, form, chunk size and set of prompts.

    Memory: the rows of every prompt, once.
    """

    def __init__(self) -> None:
        self._made: dict[int, Prefill] = {}
        self._settings: tuple[object, ...] | None = None
        self.runs = 0

    def get(
        self, sharded: ShardedModel, rid: int, tokens: list[int], chunk_tokens: int | None = None
    ) -> Prefill:
        """The prefill of a request; run at the first call, and counted in ``runs``.

        Errors: StudyError for another model, row format, form, chunk size or prompt than before, or
        weights that were written since (through ``.data``, which torch does not count: not seen).
        """
        weights = sharded.model.parameters()
        writes = tuple(None if w.is_inference() else w._version for w in weights)
        kind = (sharded.pools.ranks[0].row_format, sharded.form, chunk_tokens)
        found = (sharded.model, writes, *kind)
        if self._settings is not None and found != self._settings:
            raise StudyError(
                f"kept prefills are of one model, whose weights are not written, and its settings: "
                f"these are of {self._settings[2:]}, asked for {kind}; use a new Prefilled()"
            )
        if rid not in self._made:
            self._made[rid] = prefill_apart(sharded, tokens, dcp_size=1, chunk_tokens=chunk_tokens)
            self.runs += 1
            self._settings = found  # not before: a prefill that failed has none
        kept = self._made[rid]
        if kept.tokens != tuple(tokens):
            raise StudyError(
                f"kept prefills are of one set of prompts: request {rid} was prefilled with other "
                f"tokens; use a new Prefilled()"
            )
        return kept

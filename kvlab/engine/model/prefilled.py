"""A prefill on a node of its own, done once and handed over as often as it is asked for.

A study runs the same prompts many times, through many decode nodes. What a prefill node at DCP 1
leaves (rows, state, logits of the last token) depends on none of them, so it is kept: a second
hand-over copies the same bits and runs no model.

    kept = Prefilled()
    ModelCells(sharded, prompts, handover=True, prefilled=kept)   # and the next, and the next
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.engine.model.handover import hand_over
from kvlab.engine.model.pools import ModelPools
from kvlab.engine.model.runner import ShardedModel
from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.index.layout import require_index
from kvlab.memory import PagedTokenToKVPoolAllocator


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

    def __len__(self) -> int:
        return len(self._made)

    def get(
        self, sharded: ShardedModel, rid: int, tokens: list[int], chunk_tokens: int | None = None
    ) -> Prefill:
        """The prefill of a request; run at the first call, and counted in ``runs``.

        Errors: StudyError for another model, row format, form, chunk size or prompt than before, or
        weights that were written since (through ``.data``, which torch does not count: not seen).
        """
        found = self._settings_of(sharded, chunk_tokens)
        if self._settings is not None and found != self._settings:
            raise StudyError(
                f"kept prefills are of one model and its settings: these are of "
                f"{self._settings[2:]}, asked for {found[2:]} (row format, form, tokens of a "
                f"chunk; or the model is another, or its weights were written since); use a new "
                f"Prefilled()"
            )
        if rid not in self._made:
            self._made[rid] = prefill_apart(sharded, tokens, dcp_size=1, chunk_tokens=chunk_tokens)
            self.runs += 1
            self._settings = found  # not before: a prefill that failed has none
        kept = self._made[rid]
        if kept.tokens != tuple(tokens):
            raise StudyError(
                f"kept prefills are of one set of prompts: request {rid} was prefilled with "
                f"{len(kept.tokens)} tokens, asked for {len(tokens)}, and they are not the same; "
                f"use a new Prefilled()"
            )
        return kept

    @staticmethod
    def _settings_of(sharded: ShardedModel, chunk_tokens: int | None) -> tuple[object, ...]:
        first = sharded.pools.ranks[0]
        weights = sharded.model.parameters()
        writes = tuple(None if w.is_inference() else w._version for w in weights)
        return (sharded.model, writes, first.row_format, sharded.form, chunk_tokens)

"""A model of transformers over the pools: its attention function, its cache, and their step.

The step travels as one keyword argument of the model call, so the model keeps nothing of it. The
attention makes one ``Partial`` a rank over that rank's rows, and merges them. *Expanded*: each row
becomes keys and values of each head. *Absorbed*: with ``kv_b_proj`` cut into ``K_h`` and ``V_h``,
``q . (K_h l) = (q K_h) . l`` and ``sum_i a_i V_h l_i = V_h sum_i a_i l_i``, so queries go into the
latent space once, and no key is expanded. Source: ``models/kimi_linear`` of transformers 5.24.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache

from kvlab.attn import Partial, partial_attention
from kvlab.engine.model.plan import StepPlan
from kvlab.engine.model.pools import ModelPools
from kvlab.errors import PoolError
from kvlab.memory import StatePool
from kvlab.ops import merge_partials, merge_stacked

# The name under which models find the function (``config._attn_implementation``).
NAME = "kvlab_dcp"
# The keyword argument of the model call that carries the step.
STEP = "kvlab_step"
Form = Literal["absorbed", "expanded"]
# How the partials of more than one rank become one.
Merge = Callable[[Sequence[Partial]], Partial]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """``merge``: of the ranks' partials; one rank merges nothing. ``select_padding``: padding rows
    of a ragged batch are 0 in the copy that is read, so that nothing in the padding page can reach
    a token. A study that shows what goes wrong otherwise passes another merge, or False.
    """

    pools: ModelPools
    plan: StepPlan
    form: Form = "absorbed"
    merge: Merge = merge_partials
    select_padding: bool = True

    def write(self, layer: int, latent: Tensor, rope: Tensor) -> None:
        """Store the new rows ``(B, 1, T, width)`` of a global layer, each on the rank that owns
        its slot."""
        rows = torch.cat([latent, rope], dim=-1).flatten(0, 2)
        for pool, shard in zip(self.pools.ranks, self.plan.ranks, strict=True):
            if shard.new is not None and shard.new_rows is not None:
                pool.put_rows(self.pools.dense[layer], shard.new_rows, rows[shard.new])

    def read(self, layer: int, rank: int) -> Tensor:
        """What a rank holds for the requests of the step, a copy: ``(B, L, elements)``, the latent
        part of each row first."""
        shard = self.plan.ranks[rank]
        stored = self.pools.ranks[rank].get_rows(self.pools.dense[layer], shard.rows)
        if self.select_padding and shard.padding is not None:
            stored.index_fill_(0, shard.padding, 0)
        # The width is named: a rank that holds nothing yet has no elements to infer it from.
        return stored.view(self.plan.batch, shard.keys, stored.shape[1])

    def read_ranks(self, layer: int) -> Tensor:
        """What each rank holds, side by side: ``(c, B, longest L, elements)``, 0 past a rank's own
        L. So one operation serves all ranks of the process."""
        parts = [self.read(layer, rank) for rank in range(self.plan.layout.dcp_size)]
        if len({part.shape for part in parts}) == 1:
            return torch.stack(parts) if len(parts) > 1 else parts[0][None]
        batch, keys, elements = max(part.shape for part in parts)
        rows = parts[0].new_zeros(len(parts), batch, keys, elements)
        for line, part in zip(rows, parts, strict=True):
            line[:, : part.shape[1]] = part
        return rows

    def read_all(self, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rows of all ranks, rank after rank: ``(B, 1, sum of L, width)`` of each part."""
        parts = [self.read(layer, rank) for rank in range(self.plan.layout.dcp_size)]
        rows = torch.cat(parts, dim=1)[:, None].to(dtype)
        cut = self.pools.shape.kv_lora_rank
        return rows[..., :cut], rows[..., cut:]


class StepCache(Cache):
    """The cache of one step: rows of MLA layers on c ranks, state of KDA layers in the
    ``StatePool``. ``dtype`` is what the model computes in. A request without history has a state of
    zeros, as the layer itself would assume.
    """

    def __init__(self, step: Step, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        self.step, self.dtype = step, dtype
        # Windows that were handed out. The layer's decode path changes its window in place and
        # says nothing; they are stored with the matrix, which every path hands over last.
        self._windows: dict[int, Tensor] = {}

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Store the new rows; ``key_states`` is the latent part, ``value_states`` the rope part."""
        self.step.write(layer_idx, key_states, value_states)
        if self.step.form == "expanded":
            return self.step.read_all(layer_idx, key_states.dtype)
        # expand_kv cannot take no rows at all (a view with -1), so it gets one.
        return key_states[:1, :, :1], value_states[:1, :, :1]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The convolution windows ``(B, channels, kernel)``, a copy."""
        states, slots, layer = self._state(layer_idx)
        window = states.conv[layer, slots].to(self.dtype)
        self._windows[layer_idx] = window
        return window

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object
    ) -> Tensor:
        """Old window and new inputs side by side ``(B, channels, kernel + T)``; the last kernel
        columns are the new window."""
        both = torch.cat([self._windows[layer_idx], conv_states], dim=-1)
        self._windows[layer_idx] = both[..., -self._windows[layer_idx].shape[-1] :]
        return both

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The matrices ``(B, heads, d, d)``, float32, a copy."""
        states, slots, layer = self._state(layer_idx)
        return states.temporal[layer, slots]

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object
    ) -> Tensor:
        """Store the matrices, and with them the windows of the layer."""
        states, slots, layer = self._state(layer_idx)
        states.temporal[layer, slots] = recurrent_states.to(states.temporal.dtype)
        states.conv[layer, slots] = self._windows.pop(layer_idx).to(states.conv.dtype)
        return recurrent_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions of the longest request before this step."""
        return int(self.step.plan.lens.max()) - self.step.plan.new_tokens

    def _state(self, layer_idx: int) -> tuple[StatePool, Tensor, int]:
        states, slots = self.step.pools.states, self.step.plan.state_slots
        if states is None or slots is None:
            raise PoolError(f"layer {layer_idx} keeps a state: the step names no state slots")
        return states, slots, self.step.pools.linear[layer_idx]


class MlaLayer(Protocol):
    """What is used of the library's attention module."""

    layer_idx: int
    kv_b_proj: nn.Linear


def register() -> None:
    """Make the function known to transformers under ``NAME``; twice is once."""
    AttentionInterface.register(NAME, dcp_attention)


def dcp_attention(
    module: MlaLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention of the new tokens over the rows of all ranks: ``(B, T, heads, v_head_dim)``.

    ``query`` ``(B, heads, T, nope + rope)``; ``key`` and ``value`` are read in the expanded form
    only. Which rows and which of them are seen comes from the step in ``kwargs``, not from
    ``attention_mask``. Errors: PoolError for a call without a step, with a mask, or with dropout.
    """
    step = kwargs.get(STEP)
    if not isinstance(step, Step):
        raise PoolError(
            f"attention {NAME!r} needs the step of the call: got {type(step).__name__} as {STEP}; "
            f"call the model through ShardedModel, or set another attn_implementation"
        )
    if attention_mask is not None or dropout:
        raise PoolError(
            f"what a token sees is in the step's plan: got attention_mask="
            f"{type(attention_mask).__name__}, dropout={dropout}; pass neither"
        )
    if step.form == "absorbed":
        return _absorbed(module, step, query, scaling), None
    # Keys and values lie rank after rank, as the cache handed them out.
    partials, start = [], 0
    for shard in step.plan.ranks:
        k, v = (kv[:, :, start : start + shard.keys] for kv in (key, value))
        partials.append(partial_attention(query, k, v, shard.visible[:, None], scaling))
        start += shard.keys
    merged = partials[0] if len(partials) == 1 else step.merge(partials)
    return merged.out.to(query.dtype).transpose(1, 2).contiguous(), None


def _absorbed(module: MlaLayer, step: Step, query: Tensor, scaling: float) -> Tensor:
    """``(B, T, heads, v)``; reads the pools of the ranks itself, and computes all ranks at once."""
    shape = step.pools.shape
    batch, heads, new, _ = query.shape
    cut, rank = shape.qk_nope_head_dim, shape.kv_lora_rank
    by_head = module.kv_b_proj.weight.view(heads, cut + shape.v_head_dim, rank)
    # Heads first: the weights of a head meet all tokens in one product, and are not copied.
    nope = query[..., :cut].transpose(0, 1).reshape(heads, batch * new, cut) @ by_head[:, :cut]
    nope = nope.view(heads, batch, new, rank).transpose(0, 1)
    # All heads ask the same rows: they stand in one line with the tokens.
    asked = torch.cat([nope, query[..., cut:]], dim=-1).view(batch, heads * new, -1)
    keys, visible = step.read_ranks(module.layer_idx), step.plan.visible
    if new > 1:
        visible = visible[:, :, None].expand(-1, -1, heads, -1, -1).flatten(2, 3)
    found = partial_attention(asked, keys, keys[..., :rank], visible, scaling)
    if len(keys) == 1:  # one rank's partial is whole
        out = found.out[0]
    elif step.merge is merge_partials:
        out = merge_stacked(found.out, found.lse).out
    else:
        ranks = zip(found.out, found.lse, strict=True)
        out = step.merge([Partial(o, lse) for o, lse in ranks]).out
    out = out.view(batch, heads, new, rank).to(query.dtype)
    out = out.transpose(0, 1).reshape(heads, batch * new, rank) @ by_head[:, cut:].transpose(1, 2)
    return out.view(heads, batch, new, -1).permute(1, 2, 0, 3).contiguous()

"""The attention function: one ``Partial`` a rank over that rank's rows, then the merge.

Two forms that agree. *Expanded*: the layer has turned every row into keys and values of each head
(``kv_b_proj``), and each rank takes its share of them. *Absorbed*: with ``kv_b_proj`` cut into
``K_h`` (nope, rank) and ``V_h`` (value, rank) for each head,

    q_nope . (K_h l)  =  (q_nope K_h) . l        score of a row with latent l, rope part added
    sum_i a_i V_h l_i =  V_h sum_i a_i l_i       value of the attended rows

so that queries go into the latent space once, ranks exchange ``Partial`` of latent width, and no
key is expanded. That is what long contexts use.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from kvlab.attn import Partial, partial_attention
from kvlab.engine.model.step import STEP, Step
from kvlab.errors import PoolError
from kvlab.ops import merge_partials, merge_stacked

# The name under which models find the function (``config._attn_implementation``).
NAME = "kvlab_dcp"


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
            f"what a token sees is in the step's plan, and an engine drops nothing: got "
            f"{'a mask' if attention_mask is not None else f'dropout {dropout}'}; pass no "
            f"attention_mask and call model.eval()"
        )
    form = _absorbed if step.form == "absorbed" else _expanded
    return form(module, step, query, key, value, scaling), None


def _expanded(
    module: MlaLayer, step: Step, query: Tensor, key: Tensor, value: Tensor, scaling: float
) -> Tensor:
    """``(B, T, heads, v)``; keys and values lie rank after rank, as the cache handed them out."""
    partials, start = [], 0
    for shard in step.plan.shards:
        end = start + shard.keys
        k, v = key[:, :, start:end], value[:, :, start:end]
        partials.append(partial_attention(query, k, v, shard.visible[:, None], scaling))
        start = end
    merged = partials[0] if len(partials) == 1 else step.merge(partials)
    return merged.out.to(query.dtype).transpose(1, 2).contiguous()


def _absorbed(
    module: MlaLayer, step: Step, query: Tensor, key: Tensor, value: Tensor, scaling: float
) -> Tensor:
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
    merged = _merged(step, partial_attention(asked, keys, keys[..., :rank], visible, scaling))
    out = merged.view(batch, heads, new, rank).to(query.dtype)
    out = out.transpose(0, 1).reshape(heads, batch * new, rank) @ by_head[:, cut:].transpose(1, 2)
    return out.view(heads, batch, new, -1).permute(1, 2, 0, 3).contiguous()


def _merged(step: Step, ranks: Partial) -> Tensor:
    """The output over all ranks, of partials stacked by rank. One rank has nothing to merge: its
    partial is whole."""
    if len(ranks.out) == 1:
        return ranks.out[0]
    if step.merge is merge_partials:
        return merge_stacked(ranks.out, ranks.lse).out
    return step.merge([Partial(o, lse) for o, lse in zip(ranks.out, ranks.lse, strict=True)]).out

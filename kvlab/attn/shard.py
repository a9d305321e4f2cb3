"""Attention of queries over the keys of one rank: the ``Partial`` that the merge takes.

Worked example, one query, two keys with scores ln 1 and ln 3, the second on another rank: this
rank's partial is ``out = v_0, lse = 0``; the other's ``out = v_1, lse = ln 3``; merged they weigh
1/4 and 3/4.
"""

import math

import torch
from torch import Tensor

from kvlab.attn.partial import Partial
from kvlab.errors import IndexSpaceError


def partial_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Partial:
    """Softmax attention over the keys that a query may see; computed in float32 (float64 stays).

    Args:
        q: ``(..., Q, d)``; k: ``(..., L, d)``; v: ``(..., L, dv)``: one rank's keys, L may be 0.
        visible: bool, broadcastable to ``(..., Q, L)``; False hides a key, or a row of padding. A
            hidden row weighs 0, so it must be finite: 0 * NaN is NaN.
        scale: factor of the scores.

    Returns out ``(..., Q, dv)`` and lse ``(..., Q)`` in nats. A query that sees no key is an empty
    shard: out 0, lse -inf. Errors: IndexSpaceError for ``visible`` of another dtype than bool.
    """
    if visible.dtype != torch.bool:
        raise IndexSpaceError(
            f"visible must be a bool mask, True where a key is seen: got {visible.dtype}; "
            f"compare positions first"
        )
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    if k.shape[-2] == 0:
        return Partial.empty(q.new_empty(*q.shape[:-1], v.shape[-1]))
    scores = (q @ k.transpose(-1, -2)) * scale
    scores = scores.masked_fill(~visible, -math.inf)
    top = scores.amax(dim=-1, keepdim=True)
    # Where a key is seen the largest weight is 1, so a total below 1 is a total of 0.
    weights = torch.exp(scores - top.clamp_min(torch.finfo(wide).min))
    total = weights.sum(dim=-1, keepdim=True)
    sure = total.clamp_min(1.0)
    # An empty shard: top is -inf, and so is its lse.
    return Partial((weights / sure) @ v, (top + torch.log(sure)).squeeze(-1))

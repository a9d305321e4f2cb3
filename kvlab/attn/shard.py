"""Attention of queries over the keys of one rank: the ``Partial`` that the merge takes.

Worked example, one query, two keys with scores ln 1 and ln 3, the second on another rank: this
rank's partial is ``out = v_0, lse = 0``; the other's ``out = v_1, lse = ln 3``; merged they weigh
1/4 and 3/4.
"""

import math
from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from kvlab.attn.partial import Partial, require_floats
from kvlab.errors import IndexSpaceError


def partial_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Partial:
    """Softmax attention over the keys that a query may see; computed in float32 (float64 stays).

    Args:
        q: ``(..., Q, d)``; k: ``(..., L, d)``; v: ``(..., L, dv)``: one rank's keys, L may be 0.
        visible: bool, broadcastable to ``(..., Q, L)``; False hides a key, or a row of padding. A
            hidden row weighs 0, so it must be finite: 0 * NaN is NaN.
        scale: factor of the scores.

    Returns out ``(..., Q, dv)`` and lse ``(..., Q)`` in nats. A query that sees no key is an empty
    shard: out 0, lse -inf.
    """
    given: object = visible
    if not isinstance(given, Tensor) or given.dtype != torch.bool:
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise IndexSpaceError(
            f"visible must be a bool mask, True where a key is seen: got {kind}; "
            f"compare positions first"
        )
    many = _require_shapes(q, k, v, visible)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    if k.shape[-2] == 0:
        return Partial.empty(q.new_empty(*many, q.shape[-2], v.shape[-1]))
    scores = (q @ k.transpose(-1, -2)) * scale
    scores = scores.masked_fill(~visible, -math.inf)
    top = scores.amax(dim=-1, keepdim=True)
    # Where a key is seen the largest weight is 1, so a total below 1 is a total of 0.
    weights = torch.exp(scores - top.clamp_min(torch.finfo(wide).min))
    total = weights.sum(dim=-1, keepdim=True)
    sure = total.clamp_min(1.0)
    # Empty by what is seen and not by its scores: a key of infinite numbers may score -inf.
    least = top.clamp_min(torch.finfo(wide).min).masked_fill(~visible.any(-1, True), -math.inf)
    return Partial((weights / sure) @ v, (least + torch.log(sure)).squeeze(-1))


def _require_shapes(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[int, ...]:
    """The axes before the last two of q, k and v together."""
    for name, given in (("q", q), ("k", k), ("v", v)):
        require_floats(name, given)
    many = None
    if min(q.dim(), k.dim(), v.dim()) >= 2:
        many = _together(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    if many is not None and q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2]:
        scores = (*many, q.shape[-2], k.shape[-2])
        if _together(scores, visible.shape) == scores:
            return many
    raise IndexSpaceError(
        f"q (..., Q, d), k (..., L, d), v (..., L, dv) and visible (..., Q, L) must go together: "
        f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, visible "
        f"{tuple(visible.shape)}; name the axes in this order"
    )


def _together(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that these broadcast to, None for none (torch's own function costs 0.1 ms)."""
    axes = []
    for lengths in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        more = {length for length in lengths if length != 1}
        if len(more) > 1:
            return None
        axes.append(more.pop() if more else 1)
    return tuple(reversed(axes))

"""How many tokens each rank holds: of positions ``start .. end-1``, ``held(end) - held(start)``.

Worked example, c=2: 11 tokens give (6, 5); rejecting one token of 7 takes (4, 3) to (3, 3).
"""

import torch
from torch import Tensor

from kvlab.errors import LayoutError
from kvlab.index.layout import Shard, require_int


def get_dcp_lens(lens: Tensor, shard: Shard, start: Tensor | None = None) -> Tensor:
    """Tokens that the rank holds of each run, the shape and dtype of ``lens``.

    Args:
        lens: int64 or int32, any shape; tokens of each run.
        start: position of each run's first token, broadcastable to ``lens``; None means 0.

    Sums to ``lens`` over the ranks; dcp_size 1 returns ``lens`` itself. Source: upstream function
    of this name.
    """
    _require_counts("lens", lens)
    if start is not None:
        _require_counts("start", start)
        pairs = zip(reversed(start.shape), reversed(lens.shape), strict=False)
        if start.dim() > lens.dim() or any(s not in (1, n) for s, n in pairs):
            raise LayoutError(
                f"start must have the shape of lens, or broadcast to it: got start "
                f"{tuple(start.shape)}, lens {tuple(lens.shape)}"
            )
    if shard.dcp_size == 1:
        return lens
    end = lens.to(torch.int64)
    if start is None:
        return shard.held(end).to(lens.dtype)
    first = start.to(torch.int64)
    end = end + first
    if end.numel() and int(end.min()) < 0:
        at = int(torch.nonzero(end.flatten() < 0)[0])
        raise LayoutError(
            f"start + lens must fit int64, at most {2**63 - 1}: got a length of "
            f"{int(lens.flatten()[at])} at index {at}; a position is below 2**63"
        )
    return (shard.held(end) - shard.held(first)).to(lens.dtype)


def get_dcp_chunk_lens(
    tokens: int, chunk_tokens: int, dcp_size: int, interleave: int = 1
) -> Tensor:
    """Tokens of each chunk on each rank, int64 ``(chunks, dcp_size)``: ``chunk_tokens`` positions a
    chunk, the last one ragged. No tokens are one chunk of none."""
    require_int("tokens", tokens, 0, "a token count")
    require_int("chunk_tokens", chunk_tokens, 1, "positions of one chunk")
    require_int("dcp_size", dcp_size, 1, "the number of ranks that share one request's KV")
    chunks = max(-(-tokens // chunk_tokens), 1)  # torch.arange with a step wraps near 2**63
    start = torch.arange(chunks) * chunk_tokens
    lens = torch.clamp(tokens - start, max=chunk_tokens)
    ranks = (Shard(dcp_size, rank, interleave) for rank in range(dcp_size))
    return torch.stack([get_dcp_lens(lens, shard, start) for shard in ranks], dim=1)


def _require_counts(name: str, values: Tensor) -> None:
    given: object = values
    if not isinstance(given, Tensor) or given.dtype not in (torch.int64, torch.int32):
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise LayoutError(
            f"{name} must be an int64 or int32 tensor of token counts: got {kind}; use "
            f"torch.tensor(..., dtype=torch.int64)"
        )
    if values.numel() and int(values.min()) < 0:
        at = int(torch.nonzero(values.flatten() < 0)[0])
        raise LayoutError(
            f"{name} must be at least 0: got {int(values.flatten()[at])} at index {at}; "
            f"a token count has no sign"
        )

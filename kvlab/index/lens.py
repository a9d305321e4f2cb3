"""How many tokens each rank holds.

Of positions ``start .. start+len-1`` rank ``r`` holds ``before(start+len) - before(start)``, where
``before(e)`` counts the positions below e that r owns: whole turns of ``c * I`` positions give it I
each, the broken turn what is left after the ranks before it.

Worked example, c=2, I=1: 11 tokens give (6, 5); rejecting one token of 7 takes (4, 3) to (3, 3), so
rank 0 alone loses a row.
"""

import torch
from torch import Tensor

from kvlab.errors import LayoutError
from kvlab.index.layout import require_int, require_rank, require_turn


def get_dcp_lens(
    lens: Tensor,
    dcp_size: int,
    dcp_rank: int,
    start: Tensor | None = None,
    interleave: int = 1,
) -> Tensor:
    """Tokens that ``dcp_rank`` holds of each run, the shape and dtype of ``lens``.

    Args:
        lens: int64 or int32, any shape; tokens of each run.
        start: position of each run's first token, broadcastable to ``lens``; None means 0.
        interleave: positions stored in turn by one rank.

    Sums to ``lens`` over the ranks. dcp_size 1 returns ``lens`` itself. Errors: LayoutError for a
    negative length or start, a start of another shape, a bad rank or interleave. Source: upstream
    function of this name.
    """
    require_rank(dcp_size, dcp_rank)
    require_turn(dcp_size, interleave)
    _require_counts("lens", lens)
    if start is not None:
        _require_counts("start", start)
        pairs = zip(reversed(start.shape), reversed(lens.shape), strict=False)
        if start.dim() > lens.dim() or any(s not in (1, n) for s, n in pairs):
            raise LayoutError(
                f"start must have the shape of lens, or broadcast to it: got start "
                f"{tuple(start.shape)}, lens {tuple(lens.shape)}"
            )
    if dcp_size == 1:
        return lens
    if start is None:
        return _before(lens, dcp_size, dcp_rank, interleave).to(lens.dtype)
    first = start.to(torch.int64)
    end = first + lens.to(torch.int64)
    held = _before(end, dcp_size, dcp_rank, interleave)
    return (held - _before(first, dcp_size, dcp_rank, interleave)).to(lens.dtype)


def get_dcp_chunk_lens(
    tokens: int, chunk_tokens: int, dcp_size: int, interleave: int = 1
) -> Tensor:
    """Tokens of each chunk on each rank, int64 ``(chunks, dcp_size)``.

    ``chunk_tokens`` positions a chunk, the last one ragged. Over the chunks a column sums to the
    rank's ``get_dcp_lens`` of the whole, over the ranks a row sums to the chunk's length. No tokens
    are one chunk of none.
    """
    require_int("tokens", tokens, 0, "a token count")
    require_int("chunk_tokens", chunk_tokens, 1, "positions of one chunk")
    require_turn(dcp_size, interleave)
    start = torch.arange(0, max(tokens, 1), chunk_tokens)
    lens = torch.clamp(tokens - start, max=chunk_tokens)
    ranks = range(dcp_size)
    return torch.stack([get_dcp_lens(lens, dcp_size, r, start, interleave) for r in ranks], dim=1)


def visible_keys(tokens: int, queries: int, dcp_size: int, dcp_rank: int) -> Tensor:
    """Local keys that each of the last ``queries`` query tokens may see, int64 ``(queries,)``.

    The causal bound is stated in global positions: query q (from 0) sees the first
    ``tokens - queries + 1 + q`` positions, of which the rank holds its share. Counting back from
    the rank's own length is wrong. Source: tokenspeed PR 364, ``get_dcp_chain_spec_lens``.
    """
    require_int("queries", queries, 1, "the number of newest tokens that ask")
    require_int("tokens", tokens, queries, "the request's length, its queries included")
    seen = torch.arange(tokens - queries + 1, tokens + 1)
    return get_dcp_lens(seen, dcp_size, dcp_rank)


def _before(end: Tensor, dcp_size: int, dcp_rank: int, interleave: int) -> Tensor:
    end = end.to(torch.int64)
    turn = dcp_size * interleave
    broken = torch.clamp(end % turn - dcp_rank * interleave, 0, interleave)
    return end // turn * interleave + broken


def _require_counts(name: str, values: Tensor) -> None:
    given: object = values
    if not isinstance(given, Tensor):
        raise LayoutError(
            f"{name} must be an int64 tensor of token counts, got {type(given).__name__}; "
            f"use torch.tensor(..., dtype=torch.int64)"
        )
    if values.dtype not in (torch.int64, torch.int32):
        raise LayoutError(f"{name} must be int64 or int32 token counts, got {values.dtype}")
    if values.numel() and int(values.min()) < 0:
        at = int(torch.nonzero(values.flatten() < 0)[0])
        raise LayoutError(
            f"{name} must be at least 0: got {int(values.flatten()[at])} at index {at}; "
            f"a token count has no sign"
        )

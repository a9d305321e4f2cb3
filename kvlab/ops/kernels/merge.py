"""Twin of ``merge_stacked``: the c partials are read once, the result is written once.

A program takes some rows and a stretch of their elements. The weights come from c numbers a row,
which are read again for each stretch; an empty shard (lse -inf) has weight 0, and its output is not
read, so whatever it holds reaches nothing. A NaN of any other shard reaches the result. The loops
over the ranks are unrolled: c is small, and the loads of all ranks are then under way at once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.ops.kernels import on_device_of, power_of_two

_TILE_ELEMENTS = 2048
_LONGEST_STRETCH = 512
# The least finite float32: a row of empty shards subtracts this and not -inf, which gives NaN.
_LEAST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _lse(lse_ptr, at, inside):
    return tl.load(lse_ptr + at, mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def _merge(
    out_ptr, lse_ptr, merged_ptr, merged_lse_ptr, rows,
    D: tl.constexpr, RANKS: tl.constexpr, TILE: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < rows
    top = tl.full([TILE], float("-inf"), dtype=tl.float32)
    at = i  # of rank 0, then of the next: an int64 sum, where rank * rows might wrap
    for _ in tl.static_range(RANKS):
        top = tl.maximum(top, _lse(lse_ptr, at, inside))
        at += rows
    least = tl.maximum(top, _LEAST)
    total = tl.zeros([TILE], dtype=tl.float32)
    at = i
    for _ in tl.static_range(RANKS):
        total += tl.exp(_lse(lse_ptr, at, inside) - least)
        at += rows
    # Where a shard is not empty the largest weight is 1. Not tl.maximum, which drops a NaN.
    sure = tl.where(total < 1.0, 1.0, total)
    e = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    merged = tl.zeros([TILE, STRETCH], dtype=tl.float32)
    at = i
    for _ in tl.static_range(RANKS):
        lse = _lse(lse_ptr, at, inside)
        share = tl.exp(lse - least) / sure
        live = (lse != float("-inf"))[:, None] & (e < D)[None, :]
        out = tl.load(out_ptr + at[:, None] * D + e[None, :], mask=live, other=0.0)
        merged += share[:, None] * out.to(tl.float32)
        at += rows
    kept = inside[:, None] & (e < D)[None, :]
    tl.store(merged_ptr + i[:, None] * D + e[None, :], merged, mask=kept)
    if tl.program_id(1) == 0:
        whole = tl.where(total == 0, float("-inf"), top + tl.log(sure))
        tl.store(merged_lse_ptr + i, whole, mask=inside)


def merge_stacked(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """As ``kvlab.ops.merge_stacked``, which has checked the arguments: out and lse."""
    out, lse = out.contiguous(), lse.contiguous()
    merged = torch.empty_like(out[0])
    merged_lse = torch.empty(lse.shape[1:], dtype=torch.float32, device=lse.device)
    rows, d = merged_lse.numel(), out.shape[-1]
    if rows:
        stretch = min(power_of_two(d), _LONGEST_STRETCH)
        tile = max(1, _TILE_ELEMENTS // stretch)
        with on_device_of(out):
            _merge[(triton.cdiv(rows, tile), max(1, triton.cdiv(d, stretch)))](
                out, lse, merged, merged_lse, rows,
                D=d, RANKS=len(out), TILE=tile, STRETCH=stretch,
            )  # fmt: skip
    return merged, merged_lse

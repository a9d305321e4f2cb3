"""Twin of ``kvlab.ops.remap_topk``: one program a list, compacted by a running count.

The reference sorts a list by "is a hole", stably. Here the place of a survivor is the number of
survivors before it, and a hole goes behind them all; so every place is written once, and a list
longer than a block is walked through twice: once to count, once to place.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.ops.kernels.launch import on_device_of, power_of_two

_LONGEST_BLOCK = 4096


@triton.jit(do_not_specialize=["k", "rank"])
def _remap(ids_ptr, rows_ptr, k, rank, C: tl.constexpr, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * k
    lane = tl.arange(0, BLOCK)
    survivors = tl.program_id(0) * 0
    for at in range(0, k, BLOCK):
        ids = tl.load(ids_ptr + base + at + lane, mask=at + lane < k, other=-1)
        survivors += tl.sum(((ids >= 0) & (ids % C == rank)).to(tl.int32), axis=0)
    front = survivors * 0
    for at in range(0, k, BLOCK):
        inside = at + lane < k
        ids = tl.load(ids_ptr + base + at + lane, mask=inside, other=-1)
        own = (ids >= 0) & (ids % C == rank)
        seen = front + tl.cumsum(own.to(tl.int32), axis=0)  # survivors up to and with this one
        place = tl.where(own, seen - 1, survivors + at + lane - seen)
        tl.store(rows_ptr + base + place, tl.where(own, ids // C, -1), mask=inside)
        front += tl.sum(own.to(tl.int32), axis=0)


def remap_topk(topk: Tensor, dcp_size: int, dcp_rank: int) -> Tensor:
    """As ``kvlab.ops.remap_topk``, which has checked the arguments."""
    topk, k = topk.contiguous(), topk.shape[-1]
    rows = torch.empty_like(topk)
    if topk.numel():
        block = min(power_of_two(k), _LONGEST_BLOCK)
        with on_device_of(topk):
            _remap[(topk.numel() // k,)](topk, rows, k, dcp_rank, C=dcp_size, BLOCK=block)
    return rows

"""Twins of ``kvlab.ops.localize``: one thread a slot, nothing that depends on a value but values.

``C`` and ``I`` are constants of a compiled kernel, so that a division by a power of two is a shift;
lengths are specialized, since one that 16 divides lets Triton move 16 bytes at a time. A top-k list
is compacted by a running count, one program a list: once through to count, once to place.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.index import Shard
from kvlab.ops.kernels import on_device_of, power_of_two

_BLOCK = 1024
_LONGEST_BLOCK = 4096  # of a top-k list


@triton.jit
def row_of(ids, C: tl.constexpr, I: tl.constexpr):  # noqa: E741
    """The row of each slot (at least 0) in its owner's buffer."""
    return ids // (C * I) * I + ids % I


@triton.jit
def owns(ids, rank, C: tl.constexpr, I: tl.constexpr):  # noqa: E741
    """Whether the rank stores each slot; a hole is nobody's."""
    return (ids >= 0) & (ids // I % C == rank)


@triton.jit(do_not_specialize=["rank", "phase", "skipped"])
def _run(
    ids_ptr, rows_ptr, m, rank, phase, skipped,
    C: tl.constexpr, I: tl.constexpr, BLOCK: tl.constexpr,  # noqa: E741
):  # fmt: skip
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = j < m
    g = j + skipped  # this rank's g-th position from the start of the turn
    # 64 bits: a rank and an interleave that fit 32 may have a product that does not.
    element = g // I * (C * I) + g % I + rank.to(tl.int64) * I - phase
    ids = tl.load(ids_ptr + element, mask=inside, other=0)
    tl.store(rows_ptr + j, row_of(ids, C, I), mask=inside)


@triton.jit(do_not_specialize=["rank"])
def _fixed_shape(
    ids_ptr, rows_ptr, n, rank,
    HOLE: tl.constexpr, C: tl.constexpr, I: tl.constexpr, BLOCK: tl.constexpr,  # noqa: E741
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    ids = tl.load(ids_ptr + i, mask=inside, other=-1)
    tl.store(rows_ptr + i, tl.where(owns(ids, rank, C, I), row_of(ids, C, I), HOLE), mask=inside)


@triton.jit(do_not_specialize=["k", "rank"])
def _remap(
    ids_ptr, rows_ptr, k, rank,
    C: tl.constexpr, I: tl.constexpr, BLOCK: tl.constexpr,  # noqa: E741
):  # fmt: skip
    base = tl.program_id(0).to(tl.int64) * k
    lane = tl.arange(0, BLOCK)
    survivors = tl.program_id(0) * 0
    for at in range(0, k, BLOCK):
        ids = tl.load(ids_ptr + base + at + lane, mask=at + lane < k, other=-1)
        survivors += tl.sum(owns(ids, rank, C, I).to(tl.int32), axis=0)
    front = survivors * 0
    for at in range(0, k, BLOCK):
        inside = at + lane < k
        ids = tl.load(ids_ptr + base + at + lane, mask=inside, other=-1)
        own = owns(ids, rank, C, I)
        seen = front + tl.cumsum(own.to(tl.int32), axis=0)  # survivors up to and with this one
        place = tl.where(own, seen - 1, survivors + at + lane - seen)
        tl.store(rows_ptr + base + place, tl.where(own, row_of(ids, C, I), -1), mask=inside)
        front += tl.sum(own.to(tl.int32), axis=0)


def localize_run(ids: Tensor, shard: Shard, start: int) -> Tensor:
    """As ``kvlab.ops.localize_run``, which has checked the arguments."""
    ids, phase = ids.contiguous(), start % shard.turn
    skipped = shard.held(phase)
    m = shard.held(phase + len(ids)) - skipped
    rows = torch.empty(m, dtype=torch.int64, device=ids.device)
    if m:
        with on_device_of(ids):
            _run[(triton.cdiv(m, _BLOCK),)](
                ids, rows, m, shard.rank, phase, skipped,
                C=shard.dcp_size, I=shard.interleave, BLOCK=_BLOCK,
            )  # fmt: skip
    return rows


def localize_fixed_shape(ids: Tensor, shard: Shard, hole: int) -> Tensor:
    """As ``kvlab.ops.localize_fixed_shape``, which has checked the arguments."""
    ids, n = ids.contiguous(), len(ids)
    rows = torch.empty(n, dtype=torch.int64, device=ids.device)
    if n:
        with on_device_of(ids):
            _fixed_shape[(triton.cdiv(n, _BLOCK),)](
                ids, rows, n, shard.rank,
                HOLE=hole, C=shard.dcp_size, I=shard.interleave, BLOCK=_BLOCK,
            )  # fmt: skip
    return rows


def remap_topk(topk: Tensor, shard: Shard) -> Tensor:
    """As ``kvlab.ops.remap_topk``, which has checked the arguments."""
    topk, k = topk.contiguous(), topk.shape[-1]
    rows = torch.empty_like(topk)
    if topk.numel():
        block = min(power_of_two(k), _LONGEST_BLOCK)
        with on_device_of(topk):
            _remap[(topk.numel() // k,)](
                topk, rows, k, shard.rank, C=shard.dcp_size, I=shard.interleave, BLOCK=block
            )
    return rows

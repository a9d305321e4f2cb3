"""Twins of ``kvlab.ops.localize``: one thread a slot, nothing that depends on a value but values.

The unchecked run reads only the elements that the rank owns; the checked one reads all, stores the
rank's, and lowers the flag once a program. ``C`` and ``I`` are constants of a compiled kernel, so
that a division by a power of two is a shift; lengths are not named among the arguments that Triton
must not specialize, since a length that 16 divides lets it move 16 bytes at a time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.ops.flag import CheckFlag
from kvlab.ops.kernels.launch import on_device_of
from kvlab.ops.localize import before

_BLOCK = 1024
_CLEAR = tl.constexpr(2**63 - 1)


@triton.jit
def row_of(ids, C: tl.constexpr, I: tl.constexpr):  # noqa: E741
    """The row of each slot (at least 0) in its owner's buffer."""
    return ids // (C * I) * I + ids % I


@triton.jit
def lower(flag_ptr, bad, index):
    """Lower the flag to the first index that is bad. One atomic a program, none if all is well."""
    first = tl.min(tl.where(bad, index, _CLEAR), axis=0)
    if first < _CLEAR:
        tl.atomic_min(flag_ptr, first)


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


@triton.jit(do_not_specialize=["rank", "phase", "skipped", "low", "end"])
def _checked_run(
    ids_ptr, rows_ptr, flag_ptr, n, rank, phase, skipped, low, end,
    C: tl.constexpr, I: tl.constexpr, BLOCK: tl.constexpr,  # noqa: E741
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    ids = tl.load(ids_ptr + i, mask=inside, other=0)
    position = i + phase
    owner = position // I % C
    # A negative id divides differently here and in Python; it is below `low` and bad either way.
    bad = inside & ((ids < low) | (ids >= end) | (ids // I % C != owner))
    within = tl.minimum(tl.maximum(position % (C * I) - rank.to(tl.int64) * I, 0), I)
    j = position // (C * I) * I + within - skipped
    rows = tl.where(bad, 0, row_of(ids, C, I))
    tl.store(rows_ptr + j, rows, mask=inside & (owner == rank))
    lower(flag_ptr, bad, i)


@triton.jit(do_not_specialize=["rank"])
def _fixed_shape(
    ids_ptr, rows_ptr, n, rank,
    HOLE: tl.constexpr, C: tl.constexpr, I: tl.constexpr, BLOCK: tl.constexpr,  # noqa: E741
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    ids = tl.load(ids_ptr + i, mask=inside, other=-1)
    own = (ids >= 0) & (ids // I % C == rank)
    tl.store(rows_ptr + i, tl.where(own, row_of(ids, C, I), HOLE), mask=inside)


def localize_run(
    ids: Tensor,
    m: int,
    dcp_size: int,
    dcp_rank: int,
    start: int,
    interleave: int,
    bounds: tuple[int, int],
    flag: CheckFlag | None,
) -> Tensor:
    """As ``kvlab.ops.localize_run``, which has checked the arguments; ``m`` is its length."""
    ids, n = ids.contiguous(), len(ids)
    rows = torch.empty(m, dtype=torch.int64, device=ids.device)
    phase = start % (dcp_size * interleave)
    place = (dcp_rank, phase, before(phase, dcp_size, dcp_rank, interleave))
    turn = {"C": dcp_size, "I": interleave, "BLOCK": _BLOCK}
    with on_device_of(ids):
        if flag is not None and n:
            grid = (triton.cdiv(n, _BLOCK),)
            _checked_run[grid](ids, rows, flag.value, n, *place, *bounds, **turn)
        elif m:
            _run[(triton.cdiv(m, _BLOCK),)](ids, rows, m, *place, **turn)
    return rows


def localize_fixed_shape(
    ids: Tensor, dcp_size: int, dcp_rank: int, interleave: int, hole: int
) -> Tensor:
    """As ``kvlab.ops.localize_fixed_shape``, which has checked the arguments."""
    ids, n = ids.contiguous(), len(ids)
    rows = torch.empty(n, dtype=torch.int64, device=ids.device)
    if n:
        with on_device_of(ids):
            _fixed_shape[(triton.cdiv(n, _BLOCK),)](
                ids, rows, n, dcp_rank, HOLE=hole, C=dcp_size, I=interleave, BLOCK=_BLOCK
            )
    return rows

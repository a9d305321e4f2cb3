"""Twin of ``set_mla_kv_buffer``: a program looks at some ids and moves the rows that are its own.

What another rank owns is neither read nor written: its lanes are masked, so the cost is the ids and
this rank's rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.index import Shard
from kvlab.ops.kernels import on_device_of, power_of_two
from kvlab.ops.kernels.localize import owns, row_of

_TILE = 8  # ids of one program
_LONGEST_CHUNK = 256
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


@triton.jit
def _part(
    layer_ptr, part_ptr, row, i, own, stride,
    ROW: tl.constexpr, AT: tl.constexpr, WORDS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    for at in range(0, WORDS, CHUNK):
        w = at + tl.arange(0, CHUNK)
        moved = own[:, None] & (w < WORDS)[None, :]
        words = tl.load(part_ptr + i[:, None] * stride + w[None, :], mask=moved, other=0)
        tl.store(layer_ptr + row[:, None] * ROW + AT + w[None, :], words, mask=moved)


@triton.jit(do_not_specialize=["n", "rank", "low", "end"])
def _write(
    layer_ptr, ids_ptr, nope_ptr, rope_ptr,
    n, rank, low, end, nope_stride, rope_stride,
    C: tl.constexpr, I: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr,  # noqa: E741
    NOPE_CHUNK: tl.constexpr, ROPE_CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    ids = tl.load(ids_ptr + i, mask=i < n, other=-1)
    own = (ids >= low) & (ids < end) & owns(ids, rank, C, I) & (i < n)
    row = row_of(ids, C, I)
    width: tl.constexpr = NOPE + ROPE
    _part(layer_ptr, nope_ptr, row, i, own, nope_stride, width, 0, NOPE, NOPE_CHUNK)
    _part(layer_ptr, rope_ptr, row, i, own, rope_stride, width, NOPE, ROPE, ROPE_CHUNK)


def set_mla_kv_buffer(
    layer: Tensor,
    ids: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    shard: Shard,
    bounds: tuple[int, int],
) -> None:
    """As ``kvlab.ops.set_mla_kv_buffer``, which has checked the arguments."""
    ids, n = ids.contiguous(), len(ids)
    if not n:
        return
    kind = _common_word(layer, k_nope, k_rope)
    table, nope, rope = (_seen_as(t, kind) for t in (layer, k_nope, k_rope))
    chunks = [min(power_of_two(part.shape[1]), _LONGEST_CHUNK) for part in (nope, rope)]
    with on_device_of(layer):
        _write[(triton.cdiv(n, _TILE),)](
            table, ids, nope, rope,
            n, shard.rank, *bounds, nope.stride(0), rope.stride(0),
            C=shard.dcp_size, I=shard.interleave, NOPE=nope.shape[1], ROPE=rope.shape[1],
            NOPE_CHUNK=chunks[0], ROPE_CHUNK=chunks[1], TILE=_TILE,
        )  # fmt: skip


def _common_word(*tensors: Tensor) -> torch.dtype:
    """The widest integer in which the rows of all these tensors begin, end, and are spaced."""
    size = tensors[0].element_size()
    facts = [
        fact
        for t in tensors
        if t.numel()
        for fact in (t.data_ptr(), t.shape[1] * size, t.stride(0) * size)
    ]
    return next(kind for word, kind in _WORDS if all(fact % word == 0 for fact in facts))


def _seen_as(tensor: Tensor, kind: torch.dtype) -> Tensor:
    if not tensor.numel():
        return tensor.new_empty(tensor.shape, dtype=kind)
    # A single row may have any stride; torch asks for one that the word divides.
    return tensor.view(torch.uint8).view(kind) if tensor.is_contiguous() else tensor.view(kind)

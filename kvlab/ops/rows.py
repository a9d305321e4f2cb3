"""Copy rows of all layers in one launch, and sum them on the way.

A request's rows, over all layers, are one flat list: flat row ``f`` is row ``rows[f % m]`` of layer
``f // m``. A copy of flat rows ``begin .. end-1`` is what one staging buffer holds of it. Bytes
move as words, the widest integer that divides a row; the sum of a block of rows, as words, is what
a checksum is made of, so a copy that passes through here needs no second read for it.

Worked example, 2 layers, rows [4, 5, 9], m = 3: flat rows 2 .. 4 are row 9 of layer 0, then rows 4
and 5 of layer 1. With ``block_rows`` 2 a layer has blocks [4, 5] and [9]; this copy adds to
``sums[0, 1]`` and ``sums[1, 0]``.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kvlab.errors import LayoutError
from kvlab.index.layout import require_int
from kvlab.index.spaces import as_ids
from kvlab.ops.backend import Backend, choose

_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


class Piece(NamedTuple):
    """Rows ``begin .. end-1`` of ``layer``, within one block; ``at`` is their place in the copy."""

    layer: int
    block: int
    begin: int
    end: int
    at: int


def gather_rows(
    buffer: Tensor,
    rows: Tensor,
    out: Tensor,
    begin: int = 0,
    end: int | None = None,
    *,
    sums: Tensor | None = None,
    block_rows: int,
    page_size: int,
    backend: Backend | None = None,
) -> None:
    """Copy flat rows ``begin .. end-1`` of ``buffer`` into ``out``; add their sums to ``sums``.

    Args:
        buffer: ``(L, R, e)``, contiguous.
        rows: int64 ``(m,)`` in ``[0, R)``; the caller has checked, the twin does not.
        out: ``(end - begin, e)``, contiguous, same dtype and device.
        begin, end: flat rows; end None means ``L * m``.
        sums: int64 ``(L, ceil(m / block_rows))``, added to, wrapping; None: nothing is summed.
        block_rows: rows that are summed together.
        page_size: rows of a page; rows that come in whole pages are copied as pages.

    One launch, no synchronisation. Cost: (end - begin) rows read, as many written. Errors:
    LayoutError for shapes, types, or a range that do not fit; IndexSpaceError for rows of another
    type; BackendError.
    """
    end = _require(buffer, rows, out, begin, end, sums, block_rows, page_size)
    if choose(backend, buffer, rows, out, *([] if sums is None else [sums])) == "triton":
        from kvlab.ops.kernels import rows as twin

        twin.copy_rows(buffer, rows, out, begin, end, sums, block_rows, page_size, to_buffer=False)
        return
    words, flat = as_words(buffer), as_words(out)
    for p in pieces(len(rows), begin, end, block_rows):
        part = flat[p.at : p.at + p.end - p.begin]
        torch.index_select(words[p.layer], 0, rows[p.begin : p.end], out=part)
        if sums is not None:
            sums[p.layer, p.block] += part.sum(dtype=torch.int64)


def scatter_rows(
    buffer: Tensor,
    rows: Tensor,
    source: Tensor,
    begin: int = 0,
    end: int | None = None,
    *,
    sums: Tensor | None = None,
    block_rows: int,
    page_size: int,
    backend: Backend | None = None,
) -> None:
    """Write ``source`` to flat rows ``begin .. end-1``: the mirror image of ``gather_rows``.

    ``source`` ``(end - begin, e)``; ``sums`` get the sums of what is written. The rows must be
    distinct. Cost and errors: as ``gather_rows``.
    """
    end = _require(buffer, rows, source, begin, end, sums, block_rows, page_size)
    if choose(backend, buffer, rows, source, *([] if sums is None else [sums])) == "triton":
        from kvlab.ops.kernels import rows as twin

        twin.copy_rows(
            buffer, rows, source, begin, end, sums, block_rows, page_size, to_buffer=True
        )
        return
    words, flat = as_words(buffer), as_words(source)
    for p in pieces(len(rows), begin, end, block_rows):
        part = flat[p.at : p.at + p.end - p.begin]
        words[p.layer].index_copy_(0, rows[p.begin : p.end], part)
        if sums is not None:
            sums[p.layer, p.block] += part.sum(dtype=torch.int64)


def as_words(tensor: Tensor) -> Tensor:
    """``tensor`` ``(..., e)`` seen as the widest integers that divide a row: ``(..., words)``.

    int64, int32, int16, or uint8; a view. Errors: LayoutError for a tensor whose rows do not begin
    at a multiple of the word, for then two views of equal bytes would have unequal sums.
    """
    row_bytes = tensor.shape[-1] * tensor.element_size()
    size, kind = next(word for word in _WORDS if row_bytes % word[0] == 0)
    if tensor.data_ptr() % size:
        raise LayoutError(
            f"rows of {row_bytes} bytes move as words of {size} bytes and must begin at a multiple "
            f"of them: got an address {tensor.data_ptr() % size} bytes past one; copy the tensor"
        )
    return tensor.view(torch.uint8).view(kind)


def pieces(m: int, begin: int, end: int, block_rows: int) -> Iterator[Piece]:
    """The pieces of flat rows ``begin .. end-1``, none across a layer or a block."""
    at = begin
    while at < end:
        layer, row = divmod(at, m)
        block = row // block_rows
        stop = min((block + 1) * block_rows, m, row + end - at)
        yield Piece(layer, block, row, stop, at - begin)
        at += stop - row


def _require(
    buffer: Tensor,
    rows: Tensor,
    flat: Tensor,
    begin: int,
    end: int | None,
    sums: Tensor | None,
    block_rows: int,
    page_size: int,
) -> int:
    """The end of the range, after every check that the shapes allow without a synchronisation."""
    as_ids(rows, "rows")
    require_int("block_rows", block_rows, 1, "rows that are summed together")
    require_int("page_size", page_size, 1, "rows of one page in one rank's buffer")
    require_int("begin", begin, 0, "the first flat row")
    for name, tensor, dims in (("buffer", buffer, 3), ("the copy", flat, 2)):
        if tensor.dim() != dims or not tensor.is_contiguous():
            shape = "(layers, rows, elements)" if dims == 3 else "(flat rows, elements)"
            raise LayoutError(
                f"{name} must be {shape} and contiguous: got {tuple(tensor.shape)} with strides "
                f"{tensor.stride()}; use .contiguous()"
            )
    if rows.dtype != torch.int64 or not rows.is_contiguous():
        raise LayoutError(
            f"rows must be contiguous int64: got {rows.dtype} with strides {rows.stride()}; "
            f"use rows.to(torch.int64).contiguous()"
        )
    whole = buffer.shape[0] * len(rows)
    end = whole if end is None else require_int("end", end, begin, "one past the last flat row")
    if end > whole:
        raise LayoutError(
            f"flat rows must lie in [0, {whole}), {buffer.shape[0]} layers of {len(rows)} rows: "
            f"got [{begin}, {end}); shorten the range"
        )
    want = (end - begin, buffer.shape[2])
    if tuple(flat.shape) != want or flat.dtype != buffer.dtype:
        raise LayoutError(
            f"the copy of flat rows [{begin}, {end}) must be {want} of {buffer.dtype}: got "
            f"{tuple(flat.shape)} of {flat.dtype}; give it that shape"
        )
    blocks = (buffer.shape[0], -(-len(rows) // block_rows))
    if sums is not None and (
        tuple(sums.shape) != blocks or sums.dtype != torch.int64 or not sums.is_contiguous()
    ):
        raise LayoutError(
            f"sums must be contiguous int64 {blocks}, a layer and a block of {block_rows} rows "
            f"each: got {sums.dtype} {tuple(sums.shape)}; use torch.zeros"
        )
    return end

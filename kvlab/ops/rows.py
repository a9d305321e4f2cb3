"""Copy rows of all layers in one call, and sum them on the way: the one row copy there is.

A request's rows, over all layers, are one flat list: flat row ``f`` is row ``rows[f % m]`` of layer
``f // m``; a staging buffer holds flat rows ``begin .. end-1``. Rows in whole pages move page by
page, the ragged rest row by row, as words, and each block of rows is summed while it is in the
cache. Sums find a changed, lost or doubled element and any exchange of blocks or layers.
"""

from math import gcd

import torch
from torch import Tensor

from kvlab.errors import LayoutError
from kvlab.index.layout import require_int
from kvlab.index.spaces import as_ids, require_within
from kvlab.ops.backend import Backend, choose

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
# Rows that are summed together: enough to keep the calls few, few enough for the cache.
_BLOCK_ROWS = 4096


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
        buffer: ``(L, R, e)``; out: ``(end - begin, e)``; contiguous, of one dtype and device.
        rows: int64 ``(m,)`` in ``[0, R)``; the reference looks at them, the twin does not.
        begin, end: flat rows; end None means ``L * m``.
        sums: int64 ``(L, ceil(m / block_rows))``, added to, wrapping; None: nothing is summed.

    The twin is one launch and does not synchronize. Errors: LayoutError for what does not fit;
    IndexSpaceError for a row that the buffer lacks; BackendError.
    """
    _copy(buffer, rows, out, (begin, end), sums, block_rows, page_size, backend, to_buffer=False)


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
    _copy(buffer, rows, source, (begin, end), sums, block_rows, page_size, backend, to_buffer=True)


def sum_blocks(copy: Tensor, block_rows: int) -> Tensor:
    """The sums, int64 ``(L, ceil(m / block_rows))``, that a copy ``(L, m, e)`` was made with."""
    words, blocks = as_words(copy), -(-copy.shape[1] // block_rows)
    sums = torch.zeros(copy.shape[0], blocks, dtype=torch.int64, device=copy.device)
    for i in range(blocks):
        sums[:, i] = words[:, i * block_rows : (i + 1) * block_rows].sum(dim=(1, 2))
    return sums


def summed_rows(page_size: int) -> int:
    """Rows of one block, which a backup sums together: whole pages."""
    return max(1, _BLOCK_ROWS // page_size) * page_size


def as_words(tensor: Tensor) -> Tensor:
    """``tensor`` ``(..., e)`` seen as the widest integers that divide a row: ``(..., words)``.

    int64, int32, int16, or uint8; a view. Errors: LayoutError for a tensor whose rows do not begin
    at a multiple of the word, for then two views of equal bytes would have unequal sums.
    """
    row_bytes = tensor.shape[-1] * tensor.element_size()
    size = gcd(row_bytes, 8)
    if tensor.data_ptr() % size:
        raise LayoutError(
            f"rows of {row_bytes} bytes move as words of {size} bytes and must begin at a multiple "
            f"of them: got an address {tensor.data_ptr() % size} bytes past one; copy the tensor"
        )
    return tensor.view(torch.uint8).view(_WORDS[size])


def whole_pages(rows: Tensor, page_size: int) -> int:
    """How many leading rows form whole pages, each in order: a multiple of ``page_size``, or 0."""
    full = len(rows) // page_size * page_size
    if not full:
        return 0
    lines = rows[:full].view(-1, page_size)
    inside = torch.arange(page_size, device=rows.device)
    aligned = bool((lines[:, 0] % page_size == 0).all())
    return full if aligned and torch.equal(lines, lines[:, :1] + inside) else 0


def _copy(
    buffer: Tensor,
    rows: Tensor,
    flat: Tensor,
    span: tuple[int, int | None],
    sums: Tensor | None,
    block_rows: int,
    page_size: int,
    backend: Backend | None,
    *,
    to_buffer: bool,
) -> None:
    if min(block_rows, page_size) < 1:
        require_int("block_rows", block_rows, 1, "rows that are summed together")
        require_int("page_size", page_size, 1, "rows of one page in one rank's buffer")
    for name, tensor, shape, dims in (
        ("buffer", buffer, "(layers, rows, elements)", 3),
        ("the copy", flat, "(flat rows, elements)", 2),
    ):
        if tensor.dim() != dims or not tensor.is_contiguous():
            raise LayoutError(
                f"{name} must be {shape} and contiguous: got {tuple(tensor.shape)} with strides "
                f"{tensor.stride()}"
            )
    if rows.dtype != torch.int64 or not rows.is_contiguous():
        as_ids(rows, "rows")
        raise LayoutError(f"rows must be contiguous int64: got {rows.dtype}, {rows.stride()}")
    whole, (begin, stop) = buffer.shape[0] * len(rows), span
    end = whole if stop is None else stop
    if not 0 <= begin <= end <= whole:
        raise LayoutError(
            f"flat rows must lie in [0, {whole}), {buffer.shape[0]} layers of {len(rows)} rows: "
            f"got [{begin}, {end}); shorten the range"
        )
    want = (end - begin, buffer.shape[2])
    if tuple(flat.shape) != want or flat.dtype != buffer.dtype:
        raise LayoutError(
            f"the copy of flat rows [{begin}, {end}) must be {want} of {buffer.dtype}: got "
            f"{tuple(flat.shape)} of {flat.dtype}"
        )
    blocks = (buffer.shape[0], -(-len(rows) // block_rows))
    if sums is not None and (tuple(sums.shape) != blocks or sums.dtype != torch.int64):
        raise LayoutError(
            f"sums must be contiguous int64 {blocks}, a layer and a block of {block_rows} rows "
            f"each: got {sums.dtype} {tuple(sums.shape)}"
        )
    given = [buffer, rows, flat] if sums is None else [buffer, rows, flat, sums]
    if (buffer.is_cuda or backend is not None) and choose(backend, *given) == "triton":
        from kvlab.ops.kernels import rows as twin

        how = (sums, block_rows, page_size)
        twin.copy_rows(buffer, rows, flat, begin, end, *how, to_buffer=to_buffer)
        return
    require_within(rows, 0, buffer.shape[1], "row", "the buffer has no such row")
    words, copy = as_words(buffer), as_words(flat)
    paged = whole_pages(rows, page_size)
    pages = rows[:paged:page_size] // page_size
    count, line = buffer.shape[1] // page_size, page_size * words.shape[2]
    in_pages = words[:, : count * page_size].view(-1, count, line)
    cut = len(rows) if sums is None else block_rows  # fewer calls where nothing is summed
    for layer, block, first, last, at in _blocks(len(rows), begin, end, cut):
        part = copy[at : at + last - first]
        if to_buffer and sums is not None:
            sums[layer, block] += part.sum(dtype=torch.int64)
        # Single rows up to a page, whole pages, single rows again; any of them may be empty.
        head = min(-(-first // page_size) * page_size, last)
        tail = max(min(last, paged) // page_size * page_size, head)
        index = pages[head // page_size : tail // page_size]
        for table, places, moved in (
            (words[layer], rows[first:head], part[: head - first]),
            (in_pages[layer], index, part[head - first : tail - first].view(len(index), line)),
            (words[layer], rows[tail:last], part[tail - first :]),
        ):
            if not len(places):
                continue
            if not to_buffer:
                torch.index_select(table, 0, places, out=moved)
            elif table.is_cuda:
                table.index_copy_(0, places, moved)
            else:  # NumPy copies a page at once; index_copy_ goes word by word, in twice the time.
                table.numpy()[places.numpy()] = moved.numpy()
        if not to_buffer and sums is not None:
            sums[layer, block] += part.sum(dtype=torch.int64)


def _blocks(m: int, begin: int, end: int, block_rows: int) -> list[tuple[int, int, int, int, int]]:
    """Flat rows ``begin .. end-1`` as (layer, block, first row, one past the last, place in the
    copy), none across a layer or a block."""
    found, at = [], begin
    while at < end:
        layer, row = divmod(at, m)
        block = row // block_rows
        stop = min((block + 1) * block_rows, m, row + end - at)
        found.append((layer, block, row, stop, at - begin))
        at += stop - row
    return found

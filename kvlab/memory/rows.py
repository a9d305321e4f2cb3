"""Copy rows of all layers between a buffer and the host: one gather, one scatter.

Upstream copies per layer and per chunk of 8192 ids with advanced indexing, each chunk into fresh
memory. Here the layers are one tensor ``(layers, rows, elements)``; rows that come in whole pages
move as pages, and bytes move as the widest integer that divides a row.

A block is summed while it is still in the cache, so the checksum costs a fourth of the copy, not
half. It finds a changed, lost or doubled element and any exchange of blocks or layers; not an
exchange of two rows within one block.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.index.spaces import require_within

# Rows of one block: large enough to keep the call overhead small, small enough for the cache.
_BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows ``begin .. end-1`` of a copy and the index that names them: pages or single rows."""

    begin: int
    end: int
    index: Tensor
    page_rows: int


def gather_rows(buffer: Tensor, rows: Tensor, out: Tensor, page_size: int) -> str:
    """Copy ``buffer[:, rows]`` into ``out`` and return the checksum of what was copied.

    Args:
        buffer: ``(layers, R, e)``, contiguous, on any device.
        rows: int64 ``(m,)``, in bounds (the caller's pool has checked).
        out: ``(layers, m, e)`` on the host, same dtype, contiguous.
        page_size: rows of one page, for the page-wise path.
    """
    if buffer.device.type != "cpu":
        out.copy_(torch.index_select(buffer, 1, rows))
        return checksum(out, page_size)
    plan = _plan(rows, page_size)
    sums = []
    for layer, host in zip(_widest(buffer), _widest(out), strict=True):
        for block in plan:
            for piece in block:
                source, target = _views(layer, host, piece)
                torch.index_select(source, 0, piece.index, out=target)
            sums.append(host[block[0].begin : block[-1].end].sum(dtype=torch.int64))
    return _digest(sums, out)


def scatter_rows(buffer: Tensor, rows: Tensor, host: Tensor, page_size: int) -> None:
    """Copy ``host`` ``(layers, m, e)`` to ``buffer[:, rows]``: the mirror of ``gather_rows``.

    On CPU by NumPy's assignment, which copies a page at once; ``index_copy_`` copies element by
    element and takes 1.7 times as long on one thread. Errors: IndexSpaceError for a row outside
    the buffer, which NumPy would count from the end; nothing was written.
    """
    if buffer.device.type != "cpu":
        buffer.index_copy_(1, rows, host.to(buffer.device))
        return
    require_within(rows, 0, buffer.shape[1], "row", "the buffer has no such row")
    full = whole_pages(rows, page_size)
    pages = _Piece(0, full, rows[:full:page_size] // page_size, page_size)
    singles = _Piece(full, len(rows), rows[full:], 1)
    for layer, host_layer in zip(_widest(buffer), _widest(host), strict=True):
        for piece in (pages, singles):
            if piece.begin < piece.end:
                target, source = _views(layer, host_layer, piece)
                target.numpy()[piece.index.numpy()] = source.numpy()


def checksum(host: Tensor, page_size: int) -> str:
    """The checksum that ``gather_rows`` returns for these bytes ``(layers, m, e)``."""
    step = block_rows(page_size)
    sums = [
        layer[begin : begin + step].sum(dtype=torch.int64)
        for layer in _widest(host)
        for begin in range(0, layer.shape[0], step)
    ]
    return _digest(sums, host)


def whole_pages(rows: Tensor, page_size: int) -> int:
    """How many leading rows form whole pages, each in order: a multiple of ``page_size``, or 0."""
    full = len(rows) // page_size * page_size
    if not full:
        return 0
    lines = rows[:full].view(-1, page_size)
    inside = torch.arange(page_size, device=rows.device)
    aligned = bool((lines[:, 0] % page_size == 0).all())
    return full if aligned and torch.equal(lines, lines[:, :1] + inside) else 0


def block_rows(page_size: int) -> int:
    """Rows of one block, which are summed together: whole pages."""
    return max(1, _BLOCK_ROWS // page_size) * page_size


def _plan(rows: Tensor, page_size: int) -> list[list[_Piece]]:
    """The blocks of a copy, each summed as one: its whole pages first, then single rows."""
    rows = rows.contiguous()
    full, step = whole_pages(rows, page_size), block_rows(page_size)
    blocks = []
    for begin in range(0, len(rows), step):
        end = min(begin + step, len(rows))
        paged = min(max(full, begin), end)
        block = []
        if begin < paged:
            pages = rows[begin:paged:page_size] // page_size
            block.append(_Piece(begin, paged, pages, page_size))
        if paged < end:
            block.append(_Piece(paged, end, rows[paged:end], 1))
        blocks.append(block)
    return blocks


def _views(layer: Tensor, host: Tensor, piece: _Piece) -> tuple[Tensor, Tensor]:
    """(buffer, host) as tables whose lines are what ``piece.index`` names."""
    line = piece.page_rows * layer.shape[1]
    return layer.view(-1, line), host[piece.begin : piece.end].view(-1, line)


def _widest(tensor: Tensor) -> Tensor:
    row_bytes = tensor.shape[-1] * tensor.element_size()
    for kind, size in ((torch.int64, 8), (torch.int32, 4), (torch.int16, 2)):
        if row_bytes % size == 0 and tensor.data_ptr() % size == 0:
            return tensor.view(torch.uint8).view(kind)
    return tensor.view(torch.uint8)


def _digest(sums: list[Tensor], host: Tensor) -> str:
    return digest(torch.stack(sums) if sums else torch.empty(0), host)


def digest(sums: Tensor, host: Tensor) -> str:
    """The checksum of ``host`` ``(layers, m, e)`` from its sums, int64, layer by layer and block by
    block, on the CPU, wherever they were taken."""
    values = sums.numpy().tobytes()
    shape = f"{tuple(host.shape)}{host.dtype}".encode()
    return hashlib.blake2b(values + shape, digest_size=16).hexdigest()

"""Twin of ``gather_rows`` and ``scatter_rows``: one launch over the tiles of all layers.

A program copies a tile, some rows of one block of one layer, as one flat run of words. It looks at
its row ids first: if they follow each other, as the rows of a page do, the copy is contiguous on
both sides; else each word finds its row. Tiles divide a page where that is possible, so whole pages
take the first way, and the host need not be asked. A program adds its sum to its block's once.
"""

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from kvlab.ops.kernels import on_device_of, power_of_two
from kvlab.ops.rows import as_words

_CHUNK = 1024  # words that a program moves at once
_TILE_WORDS = 4096  # words of a tile, about


@triton.jit
def _move(in_buffer, in_copy, inside, TO_BUFFER: tl.constexpr):
    """Move the words one way; what was moved, for the sum."""
    if TO_BUFFER:
        moved = tl.load(in_copy, mask=inside, other=0)
        tl.store(in_buffer, moved, mask=inside)
    else:
        moved = tl.load(in_buffer, mask=inside, other=0)
        tl.store(in_copy, moved, mask=inside)
    return moved.to(tl.int64)


@triton.jit(
    do_not_specialize=["m", "begin", "end", "block_rows", "first_block", "tiles", "layer_rows"]
)
def _copy(
    buffer_ptr, rows_ptr, flat_ptr, sums_ptr,
    m, begin, end, block_rows, first_block, tiles, layer_rows,
    WORDS: tl.constexpr, TILE: tl.constexpr, LANES: tl.constexpr, CHUNK: tl.constexpr,
    TO_BUFFER: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    flat_block = program // tiles + first_block
    blocks = (m + block_rows - 1) // block_rows
    layer, block = flat_block // blocks, flat_block % blocks
    # Rows of this layer, clipped to the block, to the layer, and to the range.
    head = block * block_rows + program % tiles * TILE
    stop = tl.minimum(head + TILE, (block + 1) * block_rows)
    stop = tl.minimum(tl.minimum(stop, m), end - layer * m)
    head = tl.maximum(head, begin - layer * m)
    if head < stop:
        lane = tl.arange(0, LANES)
        ids = tl.load(rows_ptr + head + lane, mask=head + lane < stop, other=0)
        first = tl.load(rows_ptr + head)
        broken = tl.sum(((ids != first + lane) & (head + lane < stop)).to(tl.int32), axis=0)
        flat = flat_ptr + (layer * m + head - begin) * WORDS
        buffer = buffer_ptr + layer * layer_rows * WORDS
        words = (stop - head).to(tl.int32) * WORDS
        total = tl.zeros([CHUNK], dtype=tl.int64)
        # Two loops, not a choice inside of one: the compiler sees that the first is contiguous.
        if broken == 0:
            for at in range(0, words, CHUNK):
                w = at + tl.arange(0, CHUNK)
                total += _move(buffer + first * WORDS + w, flat + w, w < words, TO_BUFFER)
        else:
            for at in range(0, words, CHUNK):
                w = at + tl.arange(0, CHUNK)
                row = tl.load(rows_ptr + head + w // WORDS, mask=w < words, other=0)
                place = buffer + row * WORDS + w % WORDS
                total += _move(place, flat + w, w < words, TO_BUFFER)
        if SUM:
            tl.atomic_add(sums_ptr + flat_block, tl.sum(total, axis=0))


def copy_rows(
    buffer: Tensor,
    rows: Tensor,
    flat: Tensor,
    begin: int,
    end: int,
    sums: Tensor | None,
    block_rows: int,
    page_size: int,
    *,
    to_buffer: bool,
) -> None:
    """Flat rows ``begin .. end-1``, from ``buffer`` to ``flat`` or back; both have been checked."""
    if begin == end or not buffer.shape[2]:
        return
    m, blocks = len(rows), -(-len(rows) // block_rows)
    moved, copy = as_words(buffer), as_words(flat)
    words = moved.shape[2]
    tile = _tile_rows(words, page_size)
    tiles = -(-min(block_rows, m) // tile)
    first, last = ((f // m) * blocks + f % m // block_rows for f in (begin, end - 1))
    with on_device_of(buffer):
        _copy[((last - first + 1) * tiles,)](
            moved, rows, copy, copy if sums is None else sums,
            m, begin, end, block_rows, first, tiles, moved.shape[1],
            WORDS=words, TILE=tile, LANES=power_of_two(tile), CHUNK=_CHUNK,
            TO_BUFFER=to_buffer, SUM=sums is not None,
        )  # fmt: skip


@cache
def _tile_rows(words: int, page_size: int) -> int:
    """Rows of a tile: about ``_TILE_WORDS``, and a divisor of the page if one is near that."""
    about = min(power_of_two(max(4, _TILE_WORDS // words)), 512)
    divisor = max(d for d in range(1, about + 1) if page_size % d == 0)
    return divisor if divisor * 4 >= about else about

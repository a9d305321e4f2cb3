"""What one rank does of a write: which elements of the ids, which rows, which values.

Pure functions of tensors and a layout. A pool adds its bounds, its page table if it has one, and
the copy itself.

Worked example, c=2, page_size=2: of a write to slots [0, 8, 9, 10, -1] rank 0 stores elements
[1, 3] in rows [4, 5]; slot 0 (padding) and -1 (hole) are stored by nobody.
"""

import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError, PoolError, RankMismatchError
from kvlab.index import DcpLayout, PhysicalRows, owned_elements
from kvlab.memory.codec import RowCodec


def write_plan(ids: Tensor, layout: DcpLayout, rank: int) -> tuple[Tensor, Tensor]:
    """(elements, rows) that ``rank`` stores of in-bounds ids: int64 ``(m,)`` each."""
    live = torch.nonzero(ids >= layout.first_slot).flatten()
    shard = layout.shard(rank)
    mine = live[owned_elements(ids[live], shard)]
    return mine, shard.row(ids[mine])


def pack_rows(
    k_nope: Tensor,
    k_rope: Tensor,
    n: int,
    widths: tuple[int, int],
    elements: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """The rows ``(m, sum(widths))`` that a rank stores of ``elements``, both parts, in ``dtype``.

    Errors: PoolError unless the parts are ``(n, width)`` tensors of a float dtype.
    """
    parts = []
    for name, part, width in zip(("k_nope", "k_rope"), (k_nope, k_rope), widths, strict=True):
        require_part(name, part, n, width)
        # A pool holds values, not the graph that made them.
        parts.append(part.detach().to(elements.device)[elements].to(dtype))
    return torch.cat(parts, dim=1)


def require_part(name: str, part: Tensor, n: int, width: int) -> None:
    """Raise PoolError unless the part is an ``(n, width)`` tensor of a float dtype."""
    given: object = part
    if not isinstance(given, Tensor) or not given.is_floating_point():
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise PoolError(f"{name} must be a tensor of a float dtype: got {kind}")
    if tuple(part.shape) != (n, width):
        raise PoolError(
            f"{name} must have shape ({n}, {width}), one row a slot: got {tuple(part.shape)}"
        )


def whole_rows(values: Tensor, n: int, codec: RowCodec, device: torch.device) -> Tensor:
    """``n`` rows of values in the dtype and on the device where they are stored.

    Errors: PoolError unless they are ``(n, elements)`` of a float dtype.
    """
    given: object = values
    if not isinstance(given, Tensor) or not given.is_floating_point():
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise PoolError(f"rows must be a tensor of a float dtype: got {kind}")
    if tuple(given.shape) != (n, codec.elements):
        raise PoolError(
            f"rows must have shape ({n}, {codec.elements}), all elements of each: got "
            f"{tuple(given.shape)}"
        )
    # A pool holds values, not the graph that made them.
    return given.detach().to(device, codec.taken)


def require_own_rows(
    rows: PhysicalRows, rank: int, layout: DcpLayout, resolved_at: int | None
) -> None:
    """Raise unless ``rows`` were localized for this rank and layout, in this edition of the page
    table: IndexSpaceError for anything else than rows or another edition, RankMismatchError."""
    given: object = rows
    if not isinstance(given, PhysicalRows):
        raise IndexSpaceError(
            f"a read takes PhysicalRows, got {type(given).__name__}: a buffer has rows, not "
            f"slots; call pool.resolve(slots) first"
        )
    if given.rank != rank or given.layout != layout:
        raise RankMismatchError(
            f"rows of rank {given.rank} ({given.layout}) cannot index the pool of rank "
            f"{rank} ({layout}); each rank localizes for itself"
        )
    if given.resolved_at != resolved_at:
        raise IndexSpaceError(
            f"rows must come from this pool's own resolve: these were "
            f"{_looked_up(given.resolved_at)}, the pool wants rows {_looked_up(resolved_at)}; "
            f"call pool.resolve(slots)"
        )


def _looked_up(resolved_at: int | None) -> str:
    if resolved_at is None:
        return "not looked up in a page table"
    return f"looked up in edition {resolved_at} of a page table"

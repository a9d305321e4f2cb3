"""Localization whose output has the shape of its input: what captured graphs and kernels need.

A mask gives a shape that depends on the values; a CUDA graph cannot capture that. The fixed-shape
forms send what this rank does not own to a stand-in: -1 (a hole) for reads, row 0 (the padding
page, which nobody reads) for writes.

The sentinel is tested *before* the division: in Python ``-1 % c == c - 1`` and ``-1 // c == -1``,
so an untested hole looks like a token of the last rank in the last row of the buffer.
"""

import torch
from torch import Tensor

from kvlab.index.layout import require_int, require_rank, require_turn
from kvlab.index.localize import owned_elements
from kvlab.index.spaces import as_id_tensor, as_ids


def localize_fixed_shape(
    ids: Tensor, dcp_size: int, dcp_rank: int, interleave: int = 1, hole: int = -1
) -> Tensor:
    """The row of each owned id, ``hole`` elsewhere; int64, same shape ``(n,)``.

    Negative ids are holes on every rank. No synchronisation, no data-dependent shape. Source:
    ``localize_dcp_indices`` upstream.
    """
    require_rank(dcp_size, dcp_rank)
    require_turn(dcp_size, interleave)
    require_int("hole", hole, -1, "a hole (-1) or a row of the padding page")
    ids = as_ids(ids, "ids")
    owned = (ids >= 0) & (ids // interleave % dcp_size == dcp_rank)
    rows = ids // (dcp_size * interleave) * interleave + ids % interleave
    return torch.where(owned, rows, hole)


def remap_dcp_write_locations_fixed_shape(ids: Tensor, dcp_size: int, dcp_rank: int) -> Tensor:
    """Write rows of a captured step: owned ids divided, all others row 0 of the padding page.

    Errors: LayoutError for a size below 1 or a rank outside it. Source: upstream function of this
    name.
    """
    return localize_fixed_shape(ids, dcp_size, dcp_rank, hole=0)


def plan_dcp_owner_write(ids: Tensor, dcp_size: int, dcp_rank: int) -> tuple[Tensor, Tensor]:
    """Which elements of ``ids`` this rank writes, and into which rows: two int64 ``(m,)``.

    Over all ranks the elements partition ``range(n)``. Uses nonzero, so the shape depends on the
    values: not for a captured graph. Source: upstream function of this name.
    """
    elements = owned_elements(ids, dcp_size, dcp_rank)
    return elements, torch.div(ids.to(torch.int64)[elements], dcp_size, rounding_mode="floor")


def remap_dcp_local_topk_indices(topk: Tensor, dcp_size: int, dcp_rank: int) -> Tensor:
    """Global top-k ids to this rank's rows, survivors in front in their order, then -1.

    ``topk`` int64 or int32 ``(..., k)``; same shape out, int64. Compaction is by a stable integer
    sort: the float32 key used elsewhere is exact only below 2**24 ids.
    """
    require_rank(dcp_size, dcp_rank)
    topk = as_id_tensor(topk, "topk")
    rows = localize_fixed_shape(topk.reshape(-1), dcp_size, dcp_rank).reshape(topk.shape)
    order = torch.sort((rows < 0).to(torch.int8), dim=-1, stable=True).indices
    return torch.gather(rows, -1, order)

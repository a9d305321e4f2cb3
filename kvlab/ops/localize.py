"""Localize a run without asking the device anything: the position alone says how much is whose.

In a run where slot and position agree about the owner, which elements a rank holds follows from the
position alone (``Shard.elements``, ``Shard.held``). So the shape of the result needs no look at the
ids. That they agree is checked into a flag that is read later.

Worked example, c=2, I=2, start=3, 5 positions 3 4 5 6 7: rank 1 owns 3, 6 and 7, elements
[0, 3, 4]; ``held(8) - held(3) = 4 - 1 = 3``.
"""

import torch
from torch import Tensor

from kvlab import index
from kvlab.errors import LayoutError
from kvlab.index import Shard, localize_strided, remap_dcp_local_topk_indices, run_is_aligned
from kvlab.index.layout import require_int
from kvlab.index.spaces import as_id_tensor, as_ids
from kvlab.ops.backend import Backend, choose
from kvlab.ops.flag import CheckFlag


def localize_run(
    ids: Tensor,
    shard: Shard,
    start: int = 0,
    *,
    bounds: tuple[int, int] | None = None,
    flag: CheckFlag | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """The rows that the rank holds of a run of consecutive positions: int64 ``(m,)``, fresh.

    Args:
        ids: int64 ``(n,)`` (int32 is widened), slots of positions ``start .. start+n-1``.
        start: position of ``ids[0]``.
        bounds: (low, end) of a right slot; None means (0, 2**63 - 1). Only with a flag.
        flag: takes the index of the first id that is out of bounds or disagrees with its position
            about the owner. All n ids are looked at, also those of other ranks. A bad id of this
            rank gives row 0, in the padding page, so nothing later leaves the buffer.

    No synchronization. Without a flag the ids must be right: of a run that does not agree with its
    positions the answer is silently wrong. Cost: 8n/c bytes read and 8n/c written, with a flag 8n
    read. Errors: LayoutError for a bad start or bounds; IndexSpaceError for other than int ids;
    BackendError.
    """
    ids = as_ids(ids, "ids")
    require_int("start", start, 0, "the position of ids[0]")
    low, end = _require_bounds(bounds, flag)
    if choose(backend, ids, *([] if flag is None else [flag.value])) == "triton":
        from kvlab.ops.kernels import localize as twin

        return twin.localize_run(ids, shard, start, (low, end), flag)
    if flag is not None and ids.device.type == "cpu" and _is_right(ids, shard, start, low, end):
        flag = None  # nothing to note: two fast passes found no bad id
    if flag is None:
        rows = localize_strided(ids, shard, start, check=False)
        return rows.clone() if rows.data_ptr() == ids.data_ptr() else rows
    mine = shard.elements(len(ids), start, ids.device)
    rows = shard.row(ids[mine])
    phase = start % shard.turn
    position = torch.arange(phase, phase + len(ids), device=ids.device)
    bad = (ids < low) | (ids >= end) | (shard.owner(ids) != shard.owner(position))
    flag.lower(bad)
    return torch.where(bad[mine], 0, rows)


def localize_fixed_shape(
    ids: Tensor, shard: Shard, hole: int = -1, *, backend: Backend | None = None
) -> Tensor:
    """The row of each owned id, ``hole`` elsewhere: int64, the shape ``(n,)`` of ``ids``.

    Negative ids are holes on every rank. No synchronization; a CUDA graph can capture it. Errors:
    as ``kvlab.index.localize_fixed_shape``, which is the reference; BackendError.
    """
    ids = as_ids(ids, "ids")
    if choose(backend, ids) == "torch":
        return index.localize_fixed_shape(ids, shard, hole)
    from kvlab.ops.kernels import localize as twin

    require_int("hole", hole, -1, "a hole (-1) or a row of the padding page")
    return twin.localize_fixed_shape(ids, shard, hole)


def remap_topk(topk: Tensor, shard: Shard, *, backend: Backend | None = None) -> Tensor:
    """Global top-k ids to this rank's rows, survivors in front in their order, then -1.

    ``topk`` int64 or int32 ``(..., k)``; same shape out, int64. No synchronization. Errors: as
    ``kvlab.index.remap_dcp_local_topk_indices``, which is the reference; BackendError.
    """
    topk = as_id_tensor(topk, "topk")
    if topk.dim() == 0 or choose(backend, topk) == "torch":
        return remap_dcp_local_topk_indices(topk, shard)
    from kvlab.ops.kernels import localize as twin

    return twin.remap_topk(topk, shard)


def _is_right(ids: Tensor, shard: Shard, start: int, low: int, end: int) -> bool:
    """Whether no id of a run on the host is bad; False also where only a longer look can tell."""
    if not ids.numel():
        return True
    least, most = torch.aminmax(ids)
    return low <= int(least) and int(most) < end and run_is_aligned(ids, shard.turn, start)


def _require_bounds(bounds: tuple[int, int] | None, flag: CheckFlag | None) -> tuple[int, int]:
    if bounds is None:
        return 0, 2**63 - 1
    if flag is None:
        raise LayoutError(
            f"bounds are checked into a flag: got bounds={bounds} and no flag; pass "
            f"flag=CheckFlag(ids.device), or leave the bounds out"
        )
    low, end = bounds
    require_int("bounds[0]", low, 0, "the lowest slot that is right")
    require_int("bounds[1]", end, low, "one past the highest slot that is right")
    return low, end

"""Localize on either backend: a run, ids in any order, lists of a top-k.

Which elements of a run a rank holds follows from the position alone (``Shard.elements``), so the
shape of the result needs no look at the ids, and the host waits for no device.
"""

from torch import Tensor

from kvlab import index
from kvlab.index import Shard, localize_strided, remap_dcp_local_topk_indices
from kvlab.index.layout import require_int
from kvlab.index.spaces import as_id_tensor, as_ids
from kvlab.ops.backend import Backend, choose


def localize_run(
    ids: Tensor, shard: Shard, start: int = 0, *, backend: Backend | None = None
) -> Tensor:
    """The rows that the rank holds of a run of consecutive positions: int64 ``(m,)``, fresh.

    ``ids`` int64 ``(n,)``, slots of positions ``start .. start+n-1``. No synchronization, and no
    check: of a run that does not agree with its positions the answer is silently wrong.
    """
    ids = as_ids(ids, "ids")
    require_int("start", start, 0, "the position of ids[0]")
    if choose(backend, ids) == "triton":
        from kvlab.ops.kernels import localize as twin

        return twin.localize_run(ids, shard, start)
    rows = localize_strided(ids, shard, start, check=False)
    return rows.clone() if rows.data_ptr() == ids.data_ptr() else rows


def localize_fixed_shape(
    ids: Tensor, shard: Shard, hole: int = -1, *, backend: Backend | None = None
) -> Tensor:
    """The row of each owned id, ``hole`` elsewhere: int64, the shape ``(n,)`` of ``ids``.

    Negative ids are holes on every rank. No synchronization; a CUDA graph can capture it.
    """
    ids = as_ids(ids, "ids")
    if choose(backend, ids) == "torch":
        return index.localize_fixed_shape(ids, shard, hole)
    from kvlab.ops.kernels import localize as twin

    require_int("hole", hole, -1, "a hole (-1) or a row of the padding page")
    return twin.localize_fixed_shape(ids, shard, hole)


def remap_topk(topk: Tensor, shard: Shard, *, backend: Backend | None = None) -> Tensor:
    """Global top-k ids to this rank's rows, survivors in front in their order, then -1.

    ``topk`` int64 or int32 ``(..., k)``; same shape out, int64. No synchronization.
    """
    topk = as_id_tensor(topk, "topk")
    if topk.dim() == 0 or choose(backend, topk) == "torch":
        return remap_dcp_local_topk_indices(topk, shard)
    from kvlab.ops.kernels import localize as twin

    return twin.remap_topk(topk, shard)

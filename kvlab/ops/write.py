"""Write the new tokens of a step into one layer, each on the rank that owns its slot.

Every rank is handed the same ids and rows, and stores those whose slot is its own. A write of
other ranks' rows to a stand-in row would cost c times the bytes.

Worked example, c=2, W=4, ids [4, 5, -1, 2]: rank 0 stores element 0 in row 2, rank 1 element 1 in
row 2; -1 and slot 2 are padding (below ``first_slot`` 4) and are stored by nobody.
"""

import torch
from torch import Tensor

from kvlab.errors import LayoutError
from kvlab.index import Shard
from kvlab.index.layout import require_int
from kvlab.index.spaces import as_ids
from kvlab.ops.backend import Backend, choose


def set_mla_kv_buffer(
    layer: Tensor,
    ids: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    shard: Shard,
    *,
    first_slot: int,
    slot_end: int,
    backend: Backend | None = None,
) -> None:
    """Store the rows of this rank's ids: ``layer[row] = [k_nope | k_rope]``.

    Args:
        layer: ``(R, d1 + d2)``, contiguous, one layer of this rank's buffer.
        ids: int64 ``(n,)`` (int32 is widened), widened slots, those that are stored distinct.
        k_nope, k_rope: ``(n, d1)``, ``(n, d2)`` in the dtype of ``layer``; rows may be strided.
        first_slot, slot_end: ids in between are stored by their owner, all others by nobody.

    The twin does not synchronize. Errors: LayoutError for what does not fit; BackendError.
    """
    ids = as_ids(ids, "ids")
    _require(layer, ids, k_nope, k_rope)
    require_int("first_slot", first_slot, 0, "the lowest slot that is stored")
    require_int("slot_end", slot_end, first_slot, "one past the highest slot")
    if shard.held(slot_end) > len(layer):
        raise LayoutError(
            f"the buffer must have a row for every slot below slot_end: got {len(layer)} rows for "
            f"slot_end={slot_end}, {shard}; pass the layout's slot_end"
        )
    if choose(backend, layer, ids, k_nope, k_rope) == "triton":
        from kvlab.ops.kernels import owner_write as twin

        twin.set_mla_kv_buffer(layer, ids, k_nope, k_rope, shard, (first_slot, slot_end))
        return
    mine = torch.nonzero((ids >= first_slot) & (ids < slot_end) & shard.owns(ids)).flatten()
    rows, width = shard.row(ids[mine]), k_nope.shape[1]
    layer[rows, :width] = k_nope[mine]
    layer[rows, width:] = k_rope[mine]


def _require(layer: Tensor, ids: Tensor, k_nope: Tensor, k_rope: Tensor) -> None:
    if layer.dim() != 2 or not layer.is_contiguous():
        raise LayoutError(
            f"layer must be (rows, elements) and contiguous: got {tuple(layer.shape)} with strides "
            f"{layer.stride()}"
        )
    for name, part in (("k_nope", k_nope), ("k_rope", k_rope)):
        if part.dim() != 2 or len(part) != len(ids) or part.dtype != layer.dtype:
            raise LayoutError(
                f"{name} must be ({len(ids)}, elements) of {layer.dtype}, a row for each id: got "
                f"{tuple(part.shape)} of {part.dtype}"
            )
        if part.shape[1] > 1 and part.stride(1) != 1:
            raise LayoutError(
                f"{name} must have the elements of a row adjacent: got strides {part.stride()}"
            )
    if k_nope.shape[1] + k_rope.shape[1] != layer.shape[1]:
        raise LayoutError(
            f"k_nope and k_rope must make a whole row: got {k_nope.shape[1]} and "
            f"{k_rope.shape[1]} elements for rows of {layer.shape[1]}"
        )

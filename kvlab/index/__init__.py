"""Index spaces of a KV cache under decode context parallelism: pure functions on tensors."""

from kvlab.index.layout import DcpLayout, Shard
from kvlab.index.lengths import get_dcp_chunk_lens, get_dcp_lens
from kvlab.index.localize import (
    localize,
    localize_fixed_shape,
    localize_masked,
    localize_strided,
    owned_elements,
    owner_of,
    require_run,
    row_of,
    run_is_aligned,
)
from kvlab.index.pages import (
    RawUse,
    merge_touching,
    pages_of_free,
    raw_use_census,
    raw_use_of_page,
)
from kvlab.index.spaces import PhysicalRows, WidenedSlots
from kvlab.index.upstream import (
    dcp_local_kv_block_table,
    filter_dcp_local_chunk_kv_indices,
    localize_move,
    localize_virtual,
    look_up_rows,
    maybe_dcp_kernel_indices,
    plan_dcp_owner_write,
    remap_dcp_local_topk_indices,
    remap_dcp_write_locations_fixed_shape,
    slots_of_blocks,
)

__all__ = [
    "DcpLayout",
    "PhysicalRows",
    "RawUse",
    "Shard",
    "WidenedSlots",
    "dcp_local_kv_block_table",
    "filter_dcp_local_chunk_kv_indices",
    "get_dcp_chunk_lens",
    "get_dcp_lens",
    "localize",
    "localize_fixed_shape",
    "localize_masked",
    "localize_move",
    "localize_strided",
    "localize_virtual",
    "look_up_rows",
    "maybe_dcp_kernel_indices",
    "merge_touching",
    "owned_elements",
    "owner_of",
    "pages_of_free",
    "plan_dcp_owner_write",
    "raw_use_census",
    "raw_use_of_page",
    "remap_dcp_local_topk_indices",
    "remap_dcp_write_locations_fixed_shape",
    "require_run",
    "row_of",
    "run_is_aligned",
    "slots_of_blocks",
]

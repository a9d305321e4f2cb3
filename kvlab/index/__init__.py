"""Index spaces of a KV cache under decode context parallelism: pure functions on tensors."""

from kvlab.index.filters import (
    dcp_indexer_block_table,
    dcp_local_kv_block_table,
    expand_kernel_blocks,
    filter_dcp_local_chunk_kv_indices,
    filter_dcp_local_kv_indices,
    maybe_dcp_kernel_indices,
    require_paired,
    slots_of_blocks,
)
from kvlab.index.fixed import (
    localize_fixed_shape,
    plan_dcp_owner_write,
    remap_dcp_local_topk_indices,
    remap_dcp_write_locations_fixed_shape,
)
from kvlab.index.layout import DcpLayout
from kvlab.index.lens import get_dcp_chunk_lens, get_dcp_lens, visible_keys
from kvlab.index.localize import (
    localize,
    localize_masked,
    localize_strided,
    owned_elements,
    owner_of,
    row_of,
    run_is_aligned,
    slot_of,
)
from kvlab.index.moves import localize_move, localize_virtual, look_up_rows
from kvlab.index.pages import (
    RawUse,
    first_row_beyond_int32,
    fits,
    layout_for_rows,
    merge_touching,
    pages_of_free,
    raw_use_census,
    raw_use_of_page,
    replicated_rows,
    rows_for_tokens,
)
from kvlab.index.spaces import PhysicalRows, WidenedSlots

__all__ = [
    "DcpLayout",
    "PhysicalRows",
    "RawUse",
    "WidenedSlots",
    "dcp_indexer_block_table",
    "dcp_local_kv_block_table",
    "expand_kernel_blocks",
    "filter_dcp_local_chunk_kv_indices",
    "filter_dcp_local_kv_indices",
    "first_row_beyond_int32",
    "fits",
    "get_dcp_chunk_lens",
    "get_dcp_lens",
    "layout_for_rows",
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
    "replicated_rows",
    "require_paired",
    "row_of",
    "rows_for_tokens",
    "run_is_aligned",
    "slot_of",
    "slots_of_blocks",
    "visible_keys",
]

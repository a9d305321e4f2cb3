"""One entry an op: the torch reference, or its Triton twin, chosen by where the tensors are.

``SPECS`` says of every op how inputs are made, what is compared and how many bytes must move.
Triton is optional.

``localize_run(torch.tensor([8, 9, 10, 11]), Shard(2, rank=1))`` is
``tensor([4, 5])`` on every device; on a GPU with Triton one kernel made it.
"""

from kvlab.ops.backend import Backend, OpsStatus, choose, status
from kvlab.ops.localize import localize_fixed_shape, localize_run, remap_topk
from kvlab.ops.merge import merge_partials, merge_stacked
from kvlab.ops.rows import as_words, gather_rows, scatter_rows, sum_blocks, summed_rows
from kvlab.ops.specs import SPECS, OpSpec
from kvlab.ops.write import set_mla_kv_buffer

__all__ = [
    "SPECS",
    "Backend",
    "OpSpec",
    "OpsStatus",
    "as_words",
    "choose",
    "gather_rows",
    "localize_fixed_shape",
    "localize_run",
    "merge_partials",
    "merge_stacked",
    "remap_topk",
    "scatter_rows",
    "set_mla_kv_buffer",
    "status",
    "sum_blocks",
    "summed_rows",
]

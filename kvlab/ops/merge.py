"""Merge the ranks' partial attention outputs: as ``kvlab.attn``, and by one kernel on CUDA.

The twin reads the c partials once and writes the result once, which is all that has to move.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvlab import attn
from kvlab.attn import Partial
from kvlab.ops.backend import Backend, choose

# What the twin takes: a device need not have arithmetic of another type.
_TAKEN = (torch.float32, torch.bfloat16, torch.float16)


def merge_stacked(out: Tensor, lse: Tensor, *, backend: Backend | None = None) -> Partial:
    """As ``kvlab.attn.merge_stacked``: ``out`` ``(c, ..., d)``, ``lse`` ``(c, ...)`` in nats.

    float64, fp8, and tensors whose gradient is wanted are merged by torch whatever the backend.
    """
    served = out.dtype in _TAKEN and lse.dtype in _TAKEN
    graded = torch.is_grad_enabled() and (out.requires_grad or lse.requires_grad)
    if choose(backend, out, lse) == "torch" or not served or graded:
        return attn.merge_stacked(out, lse)
    from kvlab.ops.kernels import merge as twin

    attn.require_stacked(out, lse)
    return Partial(*twin.merge_stacked(out, lse))


def merge_partials(partials: Sequence[Partial], *, backend: Backend | None = None) -> Partial:
    """As ``kvlab.attn.merge_partials``: partials, one a rank, are stacked first (a copy)."""
    out, lse = attn.stack_partials(partials)
    return merge_stacked(out, lse, backend=backend)

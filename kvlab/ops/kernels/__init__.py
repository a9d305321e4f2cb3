"""The Triton twins, one module a subject. Imported lazily: Triton may be absent.

Rules of every kernel here: offsets are 64-bit, since a pool passes 2**31 elements; what a kernel
does not own it neither reads nor writes; only language that Triton has had since 3.0. Here stands
what all launches share.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor


@triton.jit
def _nothing():
    pass


# Triton decides when it decorates: TRITON_INTERPRET set later changes nothing.
INTERPRETED: bool = not isinstance(_nothing, triton.runtime.JITFunction)


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """A launch goes to the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def power_of_two(n: int) -> int:
    """The least power of two that is at least n, and at least 1: the length of a ``tl.arange``."""
    return 1 << max(n - 1, 0).bit_length()

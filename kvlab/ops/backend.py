"""Which of two implementations serves an op: the torch reference, or its Triton twin.

CUDA tensors go to Triton when it can be imported, all else to torch; a caller may ask for one by
name. Triton's interpreter (``TRITON_INTERPRET=1`` before the kernels are first imported) runs the
twins on CPU tensors, slowly: it is served when asked for by name and never chosen.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from kvlab.errors import BackendError

Backend = Literal["torch", "triton"]


@dataclass(frozen=True, slots=True)
class OpsStatus:
    """What serves the ops on this machine: versions (None: cannot be imported), names of the CUDA
    devices, whether the twins run in Triton's CPU interpreter, what CUDA tensors get when no
    backend is named, and why, in one sentence."""

    torch: str
    triton: str | None
    devices: tuple[str, ...]
    interpreted: bool
    backend_for_cuda: Backend
    why: str

    def backend_for(self, device_type: str) -> Backend:
        """What tensors on ``device_type`` ("cpu", "cuda") get when no backend is named."""
        return self.backend_for_cuda if device_type == "cuda" else "torch"


def status() -> OpsStatus:
    """What serves the ops here and why. Imports Triton if it is there (about a second, once)."""
    version, missing = _triton()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = tuple(torch.cuda.get_device_name(i) for i in range(count))
    simulated = version is not None and interpreted()
    backend: Backend = "triton" if version is not None and not simulated else "torch"
    if version is None:
        why = f"torch serves every op: {missing}"
    elif simulated:
        why = (
            f"torch serves every op: TRITON_INTERPRET is set, so the twins of triton {version} run "
            f"in its CPU interpreter, and only when they are asked for by name"
        )
    elif not devices:
        why = f"torch serves every op: no CUDA device is here; triton {version} would serve one"
    else:
        why = f"triton {version} serves CUDA tensors, torch all others"
    return OpsStatus(torch.__version__, version, devices, simulated, backend, why)


def choose(backend: Backend | None, *tensors: Tensor) -> Backend:
    """The backend of an op on these tensors. Errors: BackendError."""
    device = tensors[0].device
    other = next((tensor.device for tensor in tensors if tensor.device != device), None)
    if other is not None:
        raise BackendError(
            f"the tensors of one op must be on one device: got one on {device} and one on {other}; "
            f"move them with .to()"
        )
    if backend is None:
        usable = device.type == "cuda" and _triton()[0] is not None and not interpreted()
        return "triton" if usable else "torch"
    if backend not in ("torch", "triton"):
        raise BackendError(
            f"backend must be 'torch', 'triton' or None: got {backend!r}; None chooses by the "
            f"device of the tensors"
        )
    if backend == "torch":
        return backend
    version, missing = _triton()
    if version is None:
        raise BackendError(
            f"backend 'triton' needs triton, and {missing}; use backend='torch', or None, which "
            f"takes torch here"
        )
    if device.type != "cuda" and not interpreted():
        raise BackendError(
            f"backend 'triton' takes CUDA tensors: got tensors on {device}; move them, use "
            f"backend='torch', or set TRITON_INTERPRET=1 before the kernels are first used"
        )
    return backend


def interpreted() -> bool:
    """Whether the twins run under Triton's CPU interpreter. Needs Triton; settled at first call."""
    from kvlab.ops.kernels import INTERPRETED

    return INTERPRETED


@cache
def _triton() -> tuple[str | None, str]:
    """(version, "") of Triton, or (None, why there is none)."""
    try:
        import triton

        return str(triton.__version__), ""
    except ImportError as error:
        return None, f"triton cannot be imported ({error})"
    except Exception as error:  # something under it is broken: torch serves all the same
        return None, f"triton cannot be imported ({type(error).__name__}: {error})"

"""What this machine's CUDA devices are, without waking one: no context is made, nothing is run."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

#: Where the NVIDIA kernel module tells its version.
DRIVER_FILE = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device: ``capability`` (major, minor), ``memory_gib`` in GiB."""

    index: int
    name: str
    capability: tuple[int, int]
    memory_gib: float

    @property
    def architecture(self) -> str:
        """As torch names it: "sm_90"."""
        return "sm_{}{}".format(*self.capability)


def devices() -> tuple[Gpu, ...]:
    """The CUDA devices that torch sees."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    seen = [(index, torch.cuda.get_device_properties(index)) for index in range(count)]
    return tuple(Gpu(i, x.name, (x.major, x.minor), x.total_memory / 2**30) for i, x in seen)


def has_kernels(gpu: Gpu, architectures: list[str]) -> bool:
    """Whether torch's own kernels run there. ``architectures``: ``torch.cuda.get_arch_list()``.

    A binary for sm_80 runs on 8.0 to 8.9, code for compute_80 on 8.0 and everything later.
    """
    for kind, major, minor in re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(architectures)):
        built = (int(major), int(minor))
        if built <= gpu.capability and (kind == "compute" or built[0] == gpu.capability[0]):
            return True
    return False


def driver() -> str | None:
    """Version of the NVIDIA driver, or None where none is loaded or none tells."""
    try:
        told = DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"\b\d{3,}(\.\d+)+\b", told):
            return found[0]
        asked = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0")
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(said.stdout.split()), None)

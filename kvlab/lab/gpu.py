"""What this machine's CUDA devices are, without waking one: no context is made, nothing is run.

Worked example: with torch built for CUDA 12.8 and one H200,

    devices()  ->  (Gpu(index=0, name='NVIDIA H200', capability=(9, 0), memory_gib=139.8),)
    driver()   ->  '570.124.06'

Sources: ``torch.cuda.get_device_properties``, and the file in which the NVIDIA kernel module tells
its version.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

DRIVER_FILE = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)*\b")


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
    """The CUDA devices that torch sees; none where there are none."""
    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        capability = (int(facts.major), int(facts.minor))
        found.append(Gpu(index, str(facts.name), capability, facts.total_memory / 2**30))
    return tuple(found)


def has_kernels(gpu: Gpu, architectures: list[str]) -> bool:
    """Whether torch's own kernels run there. ``architectures``: ``torch.cuda.get_arch_list()``.

    A binary for sm_80 runs on 8.0 to 8.9, code for compute_80 on 8.0 and everything later.
    """
    for name in architectures:
        kind, _, number = name.partition("_")
        digits = re.match(r"\d+", number)
        if digits is None:
            continue
        built = (int(digits[0][:-1]), int(digits[0][-1]))
        same = built[0] == gpu.capability[0]
        if built <= gpu.capability and (same or kind == "compute"):
            return True
    return False


def driver() -> str | None:
    """Version of the NVIDIA driver, or None where none is loaded or none tells."""
    try:
        found = _VERSION.search(DRIVER_FILE.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found[0]
        asked = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0")
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = said.stdout.split()
    return lines[0] if lines else None

"""Where a benchmark runs: device, how to wait for it, its caches, its memory, its backends.

A CPU call has done its work when it returns. A CUDA call has only queued it, on its own stream or
on those beside it, so the clock waits for the device before it starts and before it stops. Worked
example: a cache of 32 MiB and inputs that touch 9 MiB each; eight of them are gone through in turn
(``sets``), 72 MiB, so that each has left the cache before its next turn.
"""

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from kvlab.errors import StudyError
from kvlab.lab.bench.tour import WINDOWS
from kvlab.ops import Backend, status

_UNITS = {"K": 2**10, "M": 2**20}
#: Where the system does not say how large its last cache is.
_USUAL_CACHE = 64 * 2**20
_MOST_SETS = 16_384


def _done() -> None:
    """Nothing is queued on a CPU."""


@dataclass(frozen=True, slots=True)
class Place:
    """A device that can be timed.

    Args:
        device: "cpu", or a CUDA device with its number.
        wait: returns when the device has done what was queued on any of its streams.
        backends: of the ops, in the order they are timed; the first is there everywhere.
        cache_bytes: the last-level cache of the device.
        host_bytes: memory of the machine that this process may have.
        device_bytes: memory of the accelerator; None on a CPU, where all is host memory.
    """

    device: torch.device
    wait: Callable[[], None]
    backends: tuple[Backend, ...]
    cache_bytes: int
    host_bytes: int
    device_bytes: int | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether calls return when their work is done."""
        return self.device.type == "cpu"

    @property
    def backend(self) -> Backend:
        """What serves the ops here when none is named."""
        return self.backends[-1]

    def sets(self, touched_bytes: int, least: int = 2) -> int:
        """How many inputs of ``touched_bytes`` each to go through, to find none in the cache: a
        multiple of 16 where more than 16, as a ``Tour`` has it."""
        count = min(_MOST_SETS, -(-2 * self.cache_bytes // max(1, touched_bytes)))
        return max(least, count if count <= WINDOWS else -(-count // WINDOWS) * WINDOWS)

    def lacks(self, host_bytes: int, device_bytes: int) -> str | None:
        """Why a case that needs these bytes is left out; None when three quarters of what is here
        suffice. On a CPU both needs are one memory's."""
        if self.device_bytes is None:
            needs = [(host_bytes + device_bytes, self.host_bytes, "memory")]
        else:
            needs = [
                (host_bytes, self.host_bytes, "host memory"),
                (device_bytes, self.device_bytes, "device memory"),
            ]
        for need, have, kind in needs:
            bound = have * 3 // 4
            if need > bound:
                return (
                    f"a timing must not swap: it takes {need / 2**30:.2f} GiB of {kind}, at most "
                    f"{bound / 2**30:.2f} may be taken, three quarters of {have / 2**30:.2f}"
                )
        return None


def open_place(device: str = "cpu") -> Place:
    """The place that "cpu", "cuda" or "cuda:N" names. Errors: StudyError where it is not there."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise StudyError(
            f"a benchmark runs on 'cpu', 'cuda' or 'cuda:N': got {device!r}; name one of these"
        )
    if device == "cpu":
        return Place(torch.device("cpu"), _done, ("torch",), cpu_cache_bytes(), machine_bytes())
    index = int(device.partition(":")[2] or 0)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= found:
        raise StudyError(
            f"a benchmark needs the device it is asked for: got {device!r}, torch "
            f"{torch.__version__} can use {found} CUDA devices; run it with --device cpu"
        )
    place = torch.device("cuda", index)
    torch.cuda.set_device(place)
    properties = torch.cuda.get_device_properties(place)
    twins: tuple[Backend, ...] = ("triton",) if status().backend_for("cuda") == "triton" else ()
    return Place(
        place,
        lambda: torch.cuda.synchronize(place),
        ("torch", *twins),
        properties.L2_cache_size,
        machine_bytes(),
        properties.total_memory,
    )


def device_slug(place: Place) -> str:
    """The name of the device in the name of a file: "cpu", or "nvidia-h200"."""
    return "cpu" if place.on_cpu else slug(torch.cuda.get_device_name(place.device))


def slug(name: str) -> str:
    """Lower case, with one hyphen for whatever is no letter or digit: "NVIDIA H200" as
    "nvidia-h200". Errors: StudyError for a name without any."""
    found = "-".join(re.findall(r"[a-z0-9]+", name.lower()))
    if not found:
        raise StudyError(
            f"a device is named with letters or digits: got {name!r}; name the file with --csv"
        )
    return found


def cpu_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache of the first core as Linux tells it, else 64 MiB."""
    sizes = []
    for file in folder.glob("index*/size"):
        told = re.fullmatch(r"(\d+)([KM]?)", file.read_text(encoding="ascii").strip())
        if told is not None:
            sizes.append(int(told[1]) * _UNITS.get(told[2], 1))
    return max(sizes, default=_USUAL_CACHE)


def machine_bytes(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Memory of the machine, or of the container where that is less."""
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    return min(have, int(told)) if told.isdigit() else have


def give_memory_back() -> bool:
    """Have the C library give its free memory to the system; False where it cannot (no glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and trim(0) >= 0

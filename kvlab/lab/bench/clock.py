"""Where a benchmark runs, and its clock: contenders take turns, one call of each a repetition.

Contenders a, b, c and three repetitions: a b c, then b c a, then c a b, so that a burst of other
work meets each of them. Inputs take turns too: with a cache of 32 MiB and inputs of 9 MiB there are
eight (``Place.sets``), and each has left the cache before it comes again.
"""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from kvlab.errors import StudyError
from kvlab.ops import Backend, status

CALLS = 16  # of one contender, until it has met all inputs
_MOST_SETS = 16_384
T = TypeVar("T")
Wait = Callable[[], None]


def _nothing(*_: object) -> None:
    """A CPU call has done its work when it returns; most results are let go."""


@dataclass(frozen=True, slots=True)
class Place:
    """A device that can be timed.

    ``wait`` returns when the device has done what was queued; ``backends`` of the ops, in the order
    they are timed; ``device_bytes`` is None on a CPU, where all is host memory.
    """

    device: torch.device
    wait: Wait
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

    @property
    def slug(self) -> str:
        """The device in the name of a file: "cpu", or "nvidia-h200"."""
        name = "cpu" if self.on_cpu else torch.cuda.get_device_name(self.device)
        return "-".join(re.findall(r"[a-z0-9]+", name.lower()))

    def sets(self, touched_bytes: int, least: int = 2) -> int:
        """How many inputs of ``touched_bytes`` each find none of them in the cache."""
        return max(least, min(_MOST_SETS, -(-2 * self.cache_bytes // touched_bytes)))

    def lacks(self, host_bytes: int, device_bytes: int) -> str | None:
        """Why a case of these needs is left out; None when three quarters of the memory suffice."""
        needs = [
            (host_bytes, self.host_bytes, "host memory"),
            (device_bytes, self.device_bytes or 0, "device memory"),
        ]
        if self.device_bytes is None:
            needs = [(host_bytes + device_bytes, self.host_bytes, "memory")]
        for need, have, kind in needs:
            if need > have * 3 // 4:
                return (
                    f"a timing must not swap: it takes {need / 2**30:.2f} GiB of {kind}, three "
                    f"quarters of {have / 2**30:.2f} may be taken"
                )
        return None


def open_place(device: str = "cpu") -> Place:
    """The place that "cpu", "cuda" or "cuda:N" names. Errors: StudyError where it is not there."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise StudyError(f"a benchmark runs on 'cpu', 'cuda' or 'cuda:N': got {device!r}")
    if device == "cpu":
        return Place(torch.device("cpu"), _nothing, ("torch",), _cpu_cache(), _machine_bytes())
    index = int(device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise StudyError(
            f"a benchmark needs the device it is asked for: got {device!r}, torch "
            f"{torch.__version__} can use {torch.cuda.device_count()} CUDA devices; run it with "
            f"--device cpu"
        )
    place = torch.device("cuda", index)
    torch.cuda.set_device(place)
    found = torch.cuda.get_device_properties(place)
    twins: tuple[Backend, ...] = ("triton",) if status().backend_for("cuda") == "triton" else ()
    wait = lambda: torch.cuda.synchronize(place)  # noqa: E731
    memory = (found.L2_cache_size, _machine_bytes(), found.total_memory)
    return Place(place, wait, ("torch", *twins), *memory)


def _cpu_cache(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache of the first core as Linux tells it, else 64 MiB."""
    told = [file.read_text(encoding="ascii").strip() for file in folder.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20}
    return max((int(t[:-1]) * units[t[-1]] for t in told if t[-1:] in units), default=64 * 2**20)


def _machine_bytes(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Memory of the machine, or of the container where that is less."""
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    return min(have, int(told)) if told.isdigit() else have


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time: ``prepare(repetition)`` makes the call, of ``calls`` pieces of work, and
    ``finish`` takes its result; neither is timed."""

    name: str
    prepare: Callable[[int], Callable[[], object]]
    finish: Callable[[object], object] = _nothing
    calls: int = 1


@dataclass(frozen=True, slots=True)
class Effort:
    """``least`` to ``most`` repetitions, as ``seconds`` allow, after ``warmup`` rounds that do not
    count; the last of them tells how long a round takes."""

    seconds: float
    least: int = 3
    most: int = 15
    warmup: int = 2

    @classmethod
    def exactly(cls, repetitions: int, warmup: int = 1) -> "Effort":
        """This many, however long they take."""
        return cls(0.0, repetitions, repetitions, warmup)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each contender, by name, one number a repetition in the same order for all."""

    seconds: Mapping[str, npt.NDArray[np.float64]]
    repetitions: int
    warmup: int


def take_turns(contenders: Sequence[Contender], effort: Effort, wait: Wait = _nothing) -> Timing:
    """Time the contenders, whose names differ, as often as ``effort`` allows."""
    round_s = 1.0
    for i in range(-effort.warmup, 0):
        begun = time.perf_counter()
        _one_round(contenders, i, wait)
        round_s = max(time.perf_counter() - begun, 1e-9)
    count = max(effort.least, min(effort.most, int(effort.seconds / round_s)))
    rounds = [_one_round(contenders, i, wait) for i in range(count)]
    seconds = {made.name: np.array([each[made.name] for each in rounds]) for made in contenders}
    return Timing(seconds, count, effort.warmup)


def _one_round(contenders: Sequence[Contender], i: int, wait: Wait) -> dict[str, float]:
    """Seconds of one piece of each, by name; the contender that begins is another each time."""
    seconds = {}
    first = i % len(contenders)
    for contender in (*contenders[first:], *contenders[:first]):
        call = contender.prepare(i)
        wait()  # nobody pays for what was prepared, and a CUDA call has only queued its work
        begun = time.perf_counter()
        result = call()
        wait()
        seconds[contender.name] = (time.perf_counter() - begun) / contender.calls
        contender.finish(result)
        del call, result  # not alive while the next one is timed
    return seconds


def rotate_inputs(
    inputs: Sequence[T], ways: Mapping[str, Callable[[T], object]]
) -> list[Contender]:
    """A contender for each of ``ways``, which takes a sixteenth of the inputs a call.

    Every contender of a round is at other inputs. Worked example, 32 inputs and three contenders:
    round 0 has inputs 0-1, 2-3, 4-5, and round 1 has 6-7, 8-9, 10-11.
    """
    count, step = len(inputs), len(ways) | 1  # an odd step meets every input in the end
    width = max(1, count // CALLS)

    def contender(place: int, name: str, way: Callable[[T], object]) -> Contender:
        def prepare(i: int) -> Callable[[], object]:
            first = (i * step + place) * width
            mine = [inputs[(first + at) % count] for at in range(width)]
            return lambda: [way(each) for each in mine][:0]

        return Contender(name, prepare, calls=width)

    return [contender(place, name, way) for place, (name, way) in enumerate(ways.items())]

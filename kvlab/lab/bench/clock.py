"""Where a benchmark runs, and its clock: contenders take turns, one call of each a repetition.

Worked example, contenders a, b, c and three repetitions: a b c, then b c a, then c a b. A burst of
other work on the machine, or a cache that one leaves warm for the next, then meets each of them.
Inputs are rotated too: with a cache of 32 MiB and inputs that touch 9 MiB each, eight of them
(``Place.sets``, 72 MiB) take their turn, so that each has left the cache before it comes again.

A CPU call has done its work when it returns. A CUDA call has only queued it, so the clock waits for
the device before it starts and before it stops.
"""

import ctypes
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from kvlab.errors import StudyError
from kvlab.ops import Backend, status

WINDOWS = 16
_UNITS = {"K": 2**10, "M": 2**20}
_USUAL_CACHE = 64 * 2**20  # where the system does not say how large its last cache is
_MOST_SETS = 16_384
T = TypeVar("T")


def _done() -> None:
    """Nothing is queued on a CPU."""


def _forget(result: object) -> None:
    """Let a result go."""


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

    @property
    def slug(self) -> str:
        """The device in the name of a file: "cpu", or "nvidia-h200"."""
        name = "cpu" if self.on_cpu else torch.cuda.get_device_name(self.device)
        return "-".join(re.findall(r"[a-z0-9]+", name.lower()))

    def sets(self, touched_bytes: int, least: int = 2) -> int:
        """How many inputs of ``touched_bytes`` each find none of them in the cache: a multiple of
        16 where more than 16, as ``rotate_inputs`` has it."""
        count = min(_MOST_SETS, -(-2 * self.cache_bytes // max(1, touched_bytes)))
        return max(least, count if count <= WINDOWS else -(-count // WINDOWS) * WINDOWS)

    def lacks(self, host_bytes: int, device_bytes: int) -> str | None:
        """Why a case that needs these bytes is left out; None when three quarters of what is here
        suffice. On a CPU both are taken from the memory of the machine."""
        needs = [
            (host_bytes, self.host_bytes, "host memory"),
            (device_bytes, self.device_bytes or 0, "device memory"),
        ]
        if self.device_bytes is None:
            needs = [(host_bytes + device_bytes, self.host_bytes, "memory")]
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


def give_memory_back() -> None:
    """Have the C library give its free memory to the system, where it is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time.

    Args:
        name: what a row calls it.
        prepare: given the repetition, makes the call that is timed; its own time does not count.
        finish: takes the result of the call; its own time does not count.
        calls: how many pieces of work one call does; times are of one piece.
    """

    name: str
    prepare: Callable[[int], Callable[[], object]]
    finish: Callable[[object], None] = _forget
    calls: int = 1


@dataclass(frozen=True, slots=True)
class Effort:
    """At least ``least`` and at most ``most`` repetitions, as ``seconds`` allow, after ``warmup``
    rounds that do not count, of which the last one tells how long a round takes.

    Worked example: a last round of warm-up of 0.5 s and a budget of 2 s give four repetitions.
    """

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

    seconds: Mapping[str, tuple[float, ...]]
    repetitions: int
    warmup: int


def take_turns(
    contenders: Sequence[Contender], effort: Effort, wait: Callable[[], None] = _done
) -> Timing:
    """Time the contenders, whose names differ, as often as ``effort`` allows.

    ``wait`` returns when the device has done what was queued: called before the clock starts, so
    that nobody pays for what was prepared, and before it stops.
    """
    round_s = 1.0
    for i in range(-effort.warmup, 0):
        begun = time.perf_counter()
        _one_round(contenders, i, wait)
        round_s = max(time.perf_counter() - begun, 1e-9)
    count = max(effort.least, min(effort.most, int(effort.seconds / round_s)))
    rounds = [_one_round(contenders, i, wait) for i in range(count)]
    names = [contender.name for contender in contenders]
    seconds = {name: tuple(spent[name] for spent in rounds) for name in names}
    return Timing(seconds, count, effort.warmup)


def _one_round(
    contenders: Sequence[Contender], i: int, wait: Callable[[], None]
) -> dict[str, float]:
    """Seconds of one piece of each, by name; the contender that begins is another each time."""
    seconds = {}
    first = i % len(contenders)
    for contender in (*contenders[first:], *contenders[:first]):
        call = contender.prepare(i)
        wait()
        begun = time.perf_counter()
        result = call()
        wait()
        seconds[contender.name] = (time.perf_counter() - begun) / contender.calls
        contender.finish(result)
        del call, result  # not alive while the next one is timed
    return seconds


def rotate_inputs(
    inputs: Sequence[T], works: Mapping[str, Callable[[T], object]]
) -> list[Contender]:
    """A contender for each of ``works``, which does it on each input of a window.

    Every contender of a round is at another window, and a window comes back only when the others
    had their turn. At most 16 inputs are one window; more are cut to a multiple of 16. Worked
    example, 32 inputs and three contenders: 16 windows of two; round 0 has windows 0, 1, 2, round 1
    has 3, 4, 5, and round 5 has 15, 0, 1.
    """
    width = max(1, len(inputs) // WINDOWS)
    windows = [inputs[i * width : (i + 1) * width] for i in range(WINDOWS)]
    if len(inputs) <= WINDOWS:
        windows = [inputs]
    step = len(works) | 1  # an odd step meets every window in the end

    def contender(at: int, name: str, work: Callable[[T], object]) -> Contender:
        def prepare(i: int) -> Callable[[], object]:
            window = windows[(i * step + at) % len(windows)]

            def go() -> None:
                for each in window:
                    work(each)

            return go

        return Contender(name, prepare, calls=len(windows[0]))

    return [contender(at, name, work) for at, (name, work) in enumerate(works.items())]

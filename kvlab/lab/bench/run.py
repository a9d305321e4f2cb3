"""All parts, once or several times, with what the numbers depend on."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kvlab.errors import StudyError
from kvlab.lab.bench import copies, localize, merge, requests, scheduler, writes
from kvlab.lab.bench.place import Place, open_place
from kvlab.lab.bench.rows import LeftOut, Row, median_rows
from kvlab.lab.origin import commit, describe_device, today, versions

#: Gives the rows of one case after the other, or why one is left out.
Measure = Callable[[bool, Place], Iterator[list[Row] | LeftOut]]


def _measure_copies(quick: bool, place: Place) -> Iterator[list[Row] | LeftOut]:
    yield from copies.measure(quick, place)
    yield from requests.measure(quick, place)


def _measure_decode(quick: bool, place: Place) -> Iterator[list[Row] | LeftOut]:
    from kvlab.lab.bench import decode

    return decode.measure(quick, place)


PARTS: dict[str, Measure] = {
    localize.PART: localize.measure,
    copies.PART: _measure_copies,
    merge.PART: merge.measure,
    writes.PART: writes.measure,
    scheduler.PART: scheduler.measure,
    "decode": _measure_decode,
}
#: What runs on a CPU alone.
CPU_PARTS = (scheduler.PART, "decode")


@dataclass(frozen=True, slots=True)
class Conditions:
    """Where, with what, and when. ``load``: processes that ran or waited, at the start, a minute's
    average; above 0.7 something else was at work, and the numbers are noisy."""

    device: str
    threads: int
    torch: str
    kvlab: str
    commit: str
    created: str
    load: float
    runs: int

    def sentence(self) -> str:
        """One line for the head of a table."""
        return (
            f"{self.device}, {self.threads} torch thread{'' if self.threads == 1 else 's'}, torch "
            f"{self.torch}, kvlab {self.kvlab} ({self.commit or 'no commit'}), {self.created}, "
            f"load {self.load:.2f} at the start; median of {self.runs} "
            f"run{'' if self.runs == 1 else 's'}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured, and what was left out because the machine cannot hold it."""

    rows: list[Row]
    left_out: tuple[LeftOut, ...] = ()


def conditions(runs: int, place: Place | None = None) -> Conditions:
    """The conditions of a benchmark that starts now in this process; ``place``: None is the CPU."""
    found = versions()
    return Conditions(
        device=describe_device("cpu" if place is None else str(place.device)),
        threads=torch.get_num_threads(),
        torch=found.get("torch", torch.__version__),
        kvlab=found["kvlab"],
        commit=commit() or "",
        created=today(),
        load=round(os.getloadavg()[0], 2),
        runs=runs,
    )


def parts_on(place: Place) -> list[str]:
    """The parts that a device can run."""
    return [part for part in PARTS if place.on_cpu or part not in CPU_PARTS]


def run_bench(
    parts: Sequence[str] | None = None,
    *,
    place: Place | None = None,
    quick: bool = False,
    runs: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """The rows of these parts; of several runs, each comparison's row of median ratio.

    Args:
        parts: None takes all that the device can run.
        place: None is the CPU.
        quick: small sizes and few repetitions, and no aims where the sizes are not the aimed ones.
        progress: told after each case what was measured.

    Errors: StudyError for an unknown part, a part that the device cannot run, no run, or contenders
    that disagree.
    """
    place = open_place() if place is None else place
    able = parts_on(place)
    parts = able if parts is None else parts
    if any(part not in PARTS for part in parts) or not parts or runs < 1:
        raise StudyError(
            f"a benchmark runs at least once, and some of {', '.join(PARTS)}: got parts "
            f"{list(parts)}, runs={runs}; name one of these"
        )
    if not set(parts) <= set(able):
        raise StudyError(
            f"a benchmark on {place.device} has the parts {', '.join(able)}: got {list(parts)}; "
            f"{' and '.join(CPU_PARTS)} run on a CPU, use --device cpu for them"
        )
    found: list[list[Row]] = []
    left_out: dict[LeftOut, None] = {}
    for run in range(runs):
        rows: list[Row] = []
        for part in dict.fromkeys(parts):
            for some in PARTS[part](quick, place):
                if isinstance(some, LeftOut):
                    left_out[some] = None
                else:
                    rows += some
                if progress is not None:
                    what = some.sentence() if isinstance(some, LeftOut) else some[-1].case
                    progress(f"run {run + 1} of {runs}: {part}, {what}")
        found.append(rows)
    return Outcome(median_rows(found), tuple(left_out))

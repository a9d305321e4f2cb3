"""All parts, once or several times, with what the numbers depend on."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kvlab.errors import StudyError
from kvlab.lab.bench import copies, localize, scheduler
from kvlab.lab.bench.rows import Row, median_rows
from kvlab.lab.origin import commit, describe_device, today, versions


def _measure_decode(quick: bool) -> Iterator[list[Row]]:
    from kvlab.lab.bench import decode

    return decode.measure(quick)


PARTS: dict[str, Callable[[bool], Iterator[list[Row]]]] = {
    localize.PART: localize.measure,
    copies.PART: copies.measure,
    scheduler.PART: scheduler.measure,
    "decode": _measure_decode,
}


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


def conditions(runs: int) -> Conditions:
    """The conditions of a benchmark that starts now in this process."""
    found = versions()
    return Conditions(
        device=describe_device("cpu"),
        threads=torch.get_num_threads(),
        torch=found.get("torch", torch.__version__),
        kvlab=found["kvlab"],
        commit=commit() or "",
        created=today(),
        load=round(os.getloadavg()[0], 2),
        runs=runs,
    )


def run_bench(
    parts: Sequence[str] = tuple(PARTS),
    *,
    quick: bool = False,
    runs: int = 1,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """The rows of these parts; of several runs, each comparison's row of median ratio.

    Args:
        quick: small sizes and few repetitions, and no aims where the sizes are not the aimed ones.
        progress: told after each case what was measured.

    Errors: StudyError for an unknown part, no run, too little memory, or contenders that disagree.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts or runs < 1:
        raise StudyError(
            f"a benchmark runs at least once, and some of {', '.join(PARTS)}: got parts "
            f"{list(parts)}, runs={runs}; name one of these"
        )
    found: list[list[Row]] = []
    for run in range(runs):
        rows: list[Row] = []
        for part in dict.fromkeys(parts):
            for some in PARTS[part](quick):
                rows += some
                if progress is not None:
                    progress(f"run {run + 1} of {runs}: {part}, {some[-1].case}")
        found.append(rows)
    return median_rows(found)

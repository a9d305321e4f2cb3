"""One row of the benchmark: ours, its baseline, their ratio, and the aim it is held against.

The aim is a least ratio. "Within 1.3x of the baseline" is a ratio of at least 1 / 1.3 = 0.77.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from kvlab.lab.bench.clock import Timing


@dataclass(frozen=True, slots=True)
class Aim:
    """The least ratio that was aimed at, and the words it was stated in."""

    ratio: float
    words: str

    def met(self, ratio: float) -> bool:
        """Whether this ratio reaches the aim."""
        return ratio >= self.ratio


@dataclass(frozen=True, slots=True)
class Spread:
    """Lower quartile, median, and upper quartile."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison. Times in seconds; ``ratio`` is baseline over ours, above 1 ours is faster."""

    part: str
    case: str
    ours: str
    baseline: str
    seconds: Spread
    baseline_seconds: Spread
    ratio: Spread
    aim: Aim | None
    repetitions: int
    warmup: int
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median ratio reaches the aim; None without an aim."""
        return None if self.aim is None else self.aim.met(self.ratio.median)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What the row compares, the same in every run."""
        return (self.part, self.case, self.ours, self.baseline)


def spread(values: Sequence[float]) -> Spread:
    """Quartiles of one or more values; of one value, three times that value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = quantiles(values, n=4, method="inclusive")
    return Spread(low, median, high)


def compare(
    part: str,
    case: str,
    timing: Timing,
    ours: str,
    baseline: str,
    aim: Aim | None = None,
    note: str = "",
) -> Row:
    """The row of two contenders of one timing, by their names."""
    mine, theirs = timing.seconds[ours], timing.seconds[baseline]
    ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
    return Row(
        part=part,
        case=case,
        ours=ours,
        baseline=baseline,
        seconds=spread(mine),
        baseline_seconds=spread(theirs),
        ratio=spread(ratios),
        aim=aim,
        repetitions=timing.repetitions,
        warmup=timing.warmup,
        note=note,
    )


def median_rows(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Of each comparison the row of the run whose ratio is the median; the lower one of two.

    Worked example: runs with ratios 0.8, 0.6, 0.9 of one comparison give the row with 0.8, whole,
    with its own times and quartiles.
    """
    chosen = []
    for same in zip(*runs, strict=True):
        ranked = sorted(same, key=lambda row: row.ratio.median)
        chosen.append(ranked[(len(ranked) - 1) // 2])
    return chosen

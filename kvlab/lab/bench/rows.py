"""One row of the benchmark: ours, its baseline, their ratio, and the aim it is held against.

The aim is a least ratio. "Within 1.3x of the baseline" is a ratio of at least 1 / 1.3 = 0.77.

The share of a copy says how near ours comes to what the memory can do. ``bytes`` of an op is half
of what it must read and write, that is, the size of the copy that moves as much, and that copy
takes its turn in the same run. Worked example: localizing 1024 int64 ids on c=4 ranks reads 8 KiB
and writes 2 KiB; the copy is of 5 KiB; 2 us for the copy and 4 us for ours are a share of 0.5.
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
class Facts:
    """The sizes of a comparison as numbers; None where one has no meaning for it.

    Args:
        op: "localize", "backup", "restore", "merge" or "owner_write".
        backend: of the op in ours.
        layers: whose rows are moved.
        tokens: of the request, on all ranks together; of a merge, in the batch.
        ids: that are localized or written.
        dcp_size: ranks.
        bytes: size of the copy that moves as much as ours must.
    """

    op: str | None = None
    backend: str | None = None
    layers: int | None = None
    tokens: int | None = None
    ids: int | None = None
    dcp_size: int | None = None
    bytes: int | None = None


NO_FACTS = Facts()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A case that was not timed, and why: a sentence with its need and the bound."""

    part: str
    case: str
    why: str

    def sentence(self) -> str:
        """One line under a table."""
        return f"left out: {self.part}, {self.case}: {self.why}"


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
    facts: Facts = NO_FACTS
    share_of_copy: float | None = None

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
    facts: Facts = NO_FACTS,
    copy: str | None = None,
) -> Row:
    """The row of two contenders of one timing, by their names.

    ``copy`` names a third one, of as many bytes, of which ours is a share.
    """
    mine, theirs = timing.seconds[ours], timing.seconds[baseline]
    ratios = _ratios(mine, theirs)
    share = None if copy is None else spread(_ratios(mine, timing.seconds[copy])).median
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
        facts=facts,
        share_of_copy=share,
    )


def _ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [b / a for a, b in zip(mine, theirs, strict=True)]


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

"""One row of the benchmark: ours, its baseline, their ratio and its aim; and the table of all rows.

A ratio is the time of the baseline over ours, taken repetition by repetition. Worked example: ours
takes 2, 2, 4 ms in three repetitions, the baseline 6, 8, 10 ms. The ratios are 3, 4, 2.5; the row
says 3 (2.75 to 3.5). An aim is a least ratio; "within 1.3x of it" is one of 1 / 1.3 = 0.77.

The share of a copy says how near ours comes to what the memory can do: ``bytes`` of an op is half
of what it must read and write, and a copy of as many takes its turn in the same run.

    localize                                ours  baseline  ratio (quartiles)   aim     met  of copy
    128k ids, c=8
      checked stride / unchecked stride  54.1 us   31.2 us  0.58 (0.55-0.60)   >=0.77   no       21%
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

import pandas as pd
import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.files import whole_file
from kvlab.lab.bench.clock import Place, Timing
from kvlab.lab.origin import commit, describe_device, today, versions

Value = str | int | float | bool | None
_MEDIAN = "ratio = baseline / ours, median (quartiles) of repetitions that take turns"
_HEAD = ("", "ours", "baseline", "ratio (quartiles)", "aim", "met", "of copy", "timed")
_SIDES = ("<", ">", ">", "<", "<", "<", ">", "<")
_WHOLE = ("layers", "tokens", "ids", "dcp_size", "bytes")


@dataclass(frozen=True, slots=True)
class Aim:
    """The least ratio that was aimed at, and the words it was stated in."""

    ratio: float
    words: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Lower quartile, median, and upper quartile."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one or more values."""
        return (
            cls(*quantiles(values, n=4, method="inclusive"))
            if len(values) > 1
            else cls(values[0], values[0], values[0])
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """The sizes of a comparison as numbers; None where one has no meaning for it.

    ``op``: "localize", "backup", "restore", "merge" or "owner_write"; ``tokens``: of the request,
    on all ranks together, or of a merge in the batch; ``bytes``: of the copy that moves as much.
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
    def met(self) -> str | None:
        """Whether the median ratio reaches the aim, "yes" or "no"; None without an aim."""
        return None if self.aim is None else ("no", "yes")[self.ratio.median >= self.aim.ratio]


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

    @classmethod
    def now(cls, place: Place, runs: int) -> "Conditions":
        """Of a benchmark that starts in this process."""
        found = versions()
        return cls(
            device=describe_device(str(place.device)),
            threads=torch.get_num_threads(),
            torch=found.get("torch", torch.__version__),
            kvlab=found["kvlab"],
            commit=commit() or "",
            created=today(),
            load=round(os.getloadavg()[0], 2),
            runs=runs,
        )

    def sentence(self) -> str:
        """One line for the head of a table."""
        return (
            f"{self.device}, {self.threads} torch thread{'' if self.threads == 1 else 's'}, torch "
            f"{self.torch}, kvlab {self.kvlab} ({self.commit or 'no commit'}), {self.created}, "
            f"load {self.load:.2f} at the start; median of {self.runs} "
            f"run{'' if self.runs == 1 else 's'}"
        )


def compare(
    part: str,
    case: str,
    timing: Timing,
    pairs: Iterable[tuple[str, str, Aim | None]],
    facts: Facts = NO_FACTS,
    copy: str | None = None,
) -> list[Row]:
    """A row for each (ours, baseline, aim), by the names of contenders of one timing.

    ``copy`` names the contender of which ours is a share.
    """

    def ratios(ours: str, baseline: str) -> Spread:
        both = zip(timing.seconds[ours], timing.seconds[baseline], strict=True)
        return Spread.of([b / a for a, b in both])

    return [
        Row(
            part=part,
            case=case,
            ours=ours,
            baseline=baseline,
            seconds=Spread.of(timing.seconds[ours]),
            baseline_seconds=Spread.of(timing.seconds[baseline]),
            ratio=ratios(ours, baseline),
            aim=aim,
            repetitions=timing.repetitions,
            warmup=timing.warmup,
            facts=facts,
            share_of_copy=None if copy is None else ratios(ours, copy).median,
        )
        for ours, baseline, aim in pairs
    ]


def require_same(case: str, found: Mapping[str, Sequence[Tensor]], near: float = 0.0) -> None:
    """Raise StudyError unless every contender gives the tensors of the first one, up to ``near``:
    before anything is timed, the results are compared."""
    first, *others = found
    for name in others:
        pairs = zip(found[name], found[first], strict=True)
        if not all(
            torch.equal(a, b) or (near and torch.allclose(a, b, near, near)) for a, b in pairs
        ):
            raise StudyError(
                f"what is timed must be right: {name!r} does not give what {first!r} gives "
                f"({case}); do not trust this benchmark"
            )


def median_rows(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Of each comparison the row of the run whose ratio is the median; the lower one of two."""
    chosen = []
    for same in zip(*runs, strict=True):
        ranked = sorted(same, key=lambda row: row.ratio.median)
        chosen.append(ranked[(len(ranked) - 1) // 2])
    return chosen


def as_record(row: Row) -> dict[str, Value]:
    """One row as plain values; None where there is no aim."""
    return {
        "part": row.part,
        "case": row.case,
        "ours": row.ours,
        "baseline": row.baseline,
        **_named("ours_s", row.seconds),
        **_named("baseline_s", row.baseline_seconds),
        **_named("ratio", row.ratio),
        "aim": None if row.aim is None else round(row.aim.ratio, 3),
        "met": row.met,
        "repetitions": row.repetitions,
        "warmup": row.warmup,
        "note": row.note,
        **asdict(row.facts),
        "share_of_copy": None if row.share_of_copy is None else _rounded(row.share_of_copy),
    }


def as_frame(rows: Sequence[Row], where: Conditions) -> pd.DataFrame:
    """One line a row, with the conditions in every line, so that files can be joined."""
    frame = pd.DataFrame([as_record(row) | asdict(where) for row in rows])
    return frame.astype(dict.fromkeys(_WHOLE, "Int64"))  # whole numbers stay so beside empty fields


def as_text(rows: Sequence[Row], where: Conditions, left_out: Sequence[str] = ()) -> str:
    """An aligned table, one part after the other, and what was left out under it."""
    cells = [_cells(row) for row in rows]
    widths = [max(len(line[i]) for line in [*cells, _HEAD]) for i in range(len(_HEAD))]

    def joined(line: Sequence[str]) -> str:
        padded = (f"{cell:{side}{n}}" for cell, side, n in zip(line, _SIDES, widths, strict=True))
        return "   ".join(padded).rstrip()

    lines = [where.sentence(), _MEDIAN]
    part = case = ""
    for row, line in zip(rows, cells, strict=True):
        if row.part != part:
            lines += ["", joined((row.part, *_HEAD[1:]))]
        if (row.part, row.case) != (part, case):
            lines.append(row.case)
        part, case = row.part, row.case
        lines.append(joined(line))
    if left_out:
        lines += ["", *left_out]
    return "\n".join(lines)


def seconds_text(seconds: float) -> str:
    """Three digits and a unit: "54.1 us", "26.4 ms", "7.05 s"."""
    units = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
    unit, size = next((u for u in units if seconds >= u[1]), units[-1])
    return f"{_digits(seconds / size)} {unit}"


def write_frame(frame: pd.DataFrame, out: Path, *, keep: bool = False, join: bool = False) -> None:
    """Write the rows; ``keep`` has the lines of other numbers of threads stay as they are, ``join``
    those of other parts.

    Errors: StudyError for a file that cannot be made, or that holds other columns when kept.
    """
    text = frame.to_csv(index=False, lineterminator="\n")
    if (keep or join) and out.is_file():
        before = pd.read_csv(out, dtype=str, keep_default_na=False)
        if before.columns.tolist() != frame.columns.tolist():
            raise StudyError(
                f"lines are kept beside new ones of the same columns: {out.name!r} has "
                f"{len(before.columns)} columns, a run has {len(frame.columns)}, and not the same "
                f"names in the same order; write to another file with --csv"
            )
        other_threads = ~before.threads.isin(frame.threads.astype(str))
        other_parts = ~before.part.isin(frame.part)
        stay = before[(keep & other_threads) | (join & other_parts)]
        text += stay.to_csv(index=False, header=False, lineterminator="\n")
    try:
        with whole_file(out) as part:
            part.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise StudyError(
            f"the rows are written to a file that can be made: {str(out)!r} gives "
            f"{error.strerror}; name another file with --csv"
        ) from None


def _cells(row: Row) -> tuple[str, ...]:
    ratio = row.ratio
    return (
        f"  {row.ours} / {row.baseline}",
        seconds_text(row.seconds.median),
        seconds_text(row.baseline_seconds.median),
        f"{_digits(ratio.median)} ({_digits(ratio.low)}-{_digits(ratio.high)})",
        "" if row.aim is None else f">={row.aim.ratio:.3g}",
        row.met or "",
        "" if row.share_of_copy is None else f"{row.share_of_copy:.0%}",
        f"{row.repetitions} after {row.warmup}" + (f"; {row.note}" if row.note else ""),
    )


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _named(name: str, values: Spread) -> dict[str, Value]:
    """Four significant digits: more would be noise."""
    low, median, high = (_rounded(v) for v in (values.low, values.median, values.high))
    return {f"{name}_q1": low, name: median, f"{name}_q3": high}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")

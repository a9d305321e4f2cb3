"""The list of measurements, the rows they give, and the one table of all rows.

A ratio is the time of the baseline over ours, taken repetition by repetition. Worked example: ours
takes 2, 2, 4 ms, the baseline 6, 8, 10 ms. The ratios are 3, 4, 2.5; the row says 3 (2.75 to 3.5).
An aim is a least ratio. A share of a copy says how near ours comes to what the memory can do.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.files import whole_file
from kvlab.lab.bench.clock import Place, Timing
from kvlab.lab.origin import commit, describe_device, today, versions

#: A comparison: the columns of the CSV. Times in seconds; above a ratio of 1 ours is faster.
Row = dict[str, Any]
Pair = tuple[str, str, float | None]
#: Sizes of a comparison: tokens of the request on all ranks, bytes of the copy that moves as much.
FACTS = ("op", "backend", "layers", "tokens", "ids", "dcp_size", "bytes")
_WHOLE = FACTS[2:]


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement: its rows on a place, and the (host, device) bytes that it needs there."""

    part: str
    name: str
    rows: Callable[[Place], list[Row]]
    needs: Callable[[Place], tuple[int, int]] = lambda _: (0, 0)

    def measure(self, place: Place) -> list[Row] | str:
        """The rows, or why the case is left out."""
        why = place.lacks(*self.needs(place))
        return self.rows(place) if why is None else f"left out: {self.part}, {self.name}: {why}"


def compare(
    part: str,
    case: str,
    timing: Timing,
    pairs: Iterable[Pair],
    facts: Mapping[str, Any] | None = None,
    copy: str | None = None,
    note: str = "",
) -> list[Row]:
    """A row for each (ours, baseline, aim) of the contenders of one timing; ``copy`` names the one
    of which ours is a share."""
    rows = []
    for ours, baseline, aim in pairs:
        mine, theirs = timing.seconds[ours], timing.seconds[baseline]
        share = None if copy is None else _rounded(np.median(timing.seconds[copy] / mine))
        met = None if aim is None else ("no", "yes")[bool(np.median(theirs / mine) >= aim)]
        rows.append(
            {
                **{"part": part, "case": case, "ours": ours, "baseline": baseline},
                **_quartiles("ours_s", mine),
                **_quartiles("baseline_s", theirs),
                **_quartiles("ratio", theirs / mine),
                **{"aim": None if aim is None else round(aim, 3), "met": met},
                **{"repetitions": timing.repetitions, "warmup": timing.warmup, "note": note},
                **dict.fromkeys(FACTS),
                **(facts or {}),
                "share_of_copy": share,
            }
        )
    return rows


def require_same(case: str, found: Mapping[str, Sequence[Tensor]], near: float = 0.0) -> None:
    """Before anything is timed: raise StudyError unless every contender gives the tensors of the
    first one, up to ``near``."""
    first, *others = found
    for name in others:
        for a, b in zip(found[name], found[first], strict=True):
            if not (torch.equal(a, b) or (near and torch.allclose(a, b, near, near))):
                raise StudyError(
                    f"what is timed must be right: {name!r} does not give what {first!r} gives "
                    f"({case}); do not trust this benchmark"
                )


def median_rows(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Of each comparison the row of the run whose ratio is the median; the lower one of two."""
    ranked = (sorted(same, key=lambda row: row["ratio"]) for same in zip(*runs, strict=True))
    return [rows[(len(rows) - 1) // 2] for rows in ranked]


def conditions(place: Place, runs: int) -> dict[str, Any]:
    """Where, with what, and when. ``load``: processes that ran in the minute before; above 0.7
    something else was at work, and the numbers are noisy."""
    return {
        "device": describe_device(str(place.device)),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "kvlab": versions()["kvlab"],
        "commit": commit() or "",
        "created": today(),
        "load": round(os.getloadavg()[0], 2),
        "runs": runs,
    }


def as_frame(rows: Sequence[Row], where: Mapping[str, Any]) -> pd.DataFrame:
    """One line a row, with the conditions in every line, so that files can be joined."""
    frame = pd.DataFrame([row | dict(where) for row in rows])
    return frame.astype(dict.fromkeys(_WHOLE, "Int64"))  # whole numbers stay so beside empty fields


def as_text(rows: Sequence[Row], where: Mapping[str, Any], left_out: Sequence[str] = ()) -> str:
    """The table for people: a heading a case, and what was left out under all."""
    cells = [
        {
            "ours / baseline": f"{row['ours']} / {row['baseline']}",
            "ours": seconds_text(row["ours_s"]),
            "baseline": seconds_text(row["baseline_s"]),
            "ratio (quartiles)": "{ratio:.3g} ({ratio_q1:.3g}-{ratio_q3:.3g})".format(**row),
            "aim": "" if row["aim"] is None else f">={row['aim']:.3g}",
            "met": row["met"] or "",
            "of copy": "" if row["share_of_copy"] is None else f"{row['share_of_copy']:.0%}",
            "timed": "{repetitions} after {warmup} {note}".format(**row).rstrip(),
        }
        for row in rows
    ]
    head, *body = pd.DataFrame(cells).to_string(index=False).splitlines()
    lines = [
        "{device}, {threads} torch threads, torch {torch}, kvlab {kvlab} ({commit}), {created}, "
        "load {load:.2f} at the start, runs: {runs}".format(**where),
        "ratio = baseline / ours, median (quartiles) of repetitions that take turns",
        head,
    ]
    for row, line in zip(rows, body, strict=True):
        title = f"{row['part']}: {row['case']}"
        if title not in lines:
            lines += ["", title]
        lines.append(line)
    return "\n".join([*lines, *([""] if left_out else []), *left_out])


def seconds_text(seconds: float) -> str:
    """Three digits and a unit: "54.1 us", "26.4 ms", "7.05 s"."""
    units = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
    unit, size = next((u for u in units if seconds >= u[1]), units[-1])
    return f"{seconds / size:.3g} {unit}"


def write_frame(frame: pd.DataFrame, out: Path, *, keep: bool = False, join: bool = False) -> None:
    """Write the rows; ``keep`` has the lines of other numbers of threads stay, ``join`` those of
    other parts. Errors: StudyError for a file that cannot be made, or has other columns."""
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
        stay = before[(keep & other_threads) | (join & ~before.part.isin(frame.part))]
        text += stay.to_csv(index=False, header=False, lineterminator="\n")
    try:
        with whole_file(out) as part:
            part.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise StudyError(f"{out.name!r} cannot be written: {error.strerror}") from None


def _quartiles(name: str, values: npt.NDArray[np.float64]) -> dict[str, float]:
    low, median, high = (_rounded(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    return {f"{name}_q1": low, name: median, f"{name}_q3": high}


def _rounded(value: Any) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")

"""The rows as a table for people, as plain values for JSON, and as a DataFrame for a CSV file.

localize                                 ours   baseline   ratio (quartiles)   aim     met   of copy
128k ids, c=8
  checked stride / unchecked stride   54.1 us    31.2 us   0.58 (0.55-0.60)   >=0.77   no        21%
"""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from kvlab.lab.bench.rows import LeftOut, Row, Spread
from kvlab.lab.bench.run import Conditions

Value = str | int | float | bool | None
_MEDIAN = "ratio = baseline / ours, median (quartiles) of repetitions that take turns"


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
        "met": None if row.met is None else ("yes" if row.met else "no"),
        "repetitions": row.repetitions,
        "warmup": row.warmup,
        "note": row.note,
        **asdict(row.facts),
        "share_of_copy": _rounded(row.share_of_copy),
    }


def as_frame(rows: Sequence[Row], where: Conditions) -> pd.DataFrame:
    """One line a row, with the conditions in every line, so that files can be joined."""
    frame = pd.DataFrame([as_record(row) | asdict(where) for row in rows])
    return frame.astype(dict.fromkeys(_WHOLE, "Int64"))  # whole numbers stay so beside empty fields


def as_document(
    rows: Sequence[Row], where: Conditions, left_out: Sequence[LeftOut] = ()
) -> dict[str, object]:
    """The same as one JSON object: the conditions, the rows, and the cases that were left out."""
    return {
        "conditions": asdict(where),
        "rows": [as_record(row) for row in rows],
        "left_out": [asdict(case) for case in left_out],
    }


def as_text(rows: Sequence[Row], where: Conditions, left_out: Sequence[LeftOut] = ()) -> str:
    """An aligned table, one part after the other, and what was left out under it."""
    lines = [where.sentence(), _MEDIAN]
    cells = [_cells(row) for row in rows]
    widths = [max(len(line[i]) for line in [*cells, _HEAD]) for i in range(len(_HEAD))]
    part = case = ""
    for row, line in zip(rows, cells, strict=True):
        if row.part != part:
            lines += ["", _joined((row.part, *_HEAD[1:]), widths)]
        if (row.part, row.case) != (part, case):
            lines.append(row.case)
        part, case = row.part, row.case
        lines.append(_joined(line, widths))
    if left_out:
        lines += ["", *(case.sentence() for case in left_out)]
    return "\n".join(lines)


def seconds_text(seconds: float) -> str:
    """Three digits and a unit: "54.1 us", "26.4 ms", "7.05 s"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e9)} ns"


_HEAD = ("", "ours", "baseline", "ratio (quartiles)", "aim", "met", "of copy", "timed")
_WHOLE = ("layers", "tokens", "ids", "dcp_size", "bytes")


def _cells(row: Row) -> tuple[str, ...]:
    ratio = row.ratio
    return (
        f"  {row.ours} / {row.baseline}",
        seconds_text(row.seconds.median),
        seconds_text(row.baseline_seconds.median),
        f"{_digits(ratio.median)} ({_digits(ratio.low)}-{_digits(ratio.high)})",
        "" if row.aim is None else f">={row.aim.ratio:.3g}",
        "" if row.met is None else ("yes" if row.met else "no"),
        "" if row.share_of_copy is None else f"{row.share_of_copy:.0%}",
        f"{row.repetitions} after {row.warmup}" + (f"; {row.note}" if row.note else ""),
    )


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    """First column to the left, the times to the right, the rest to the left."""
    sides = ("<", ">", ">", "<", "<", "<", ">", "<")
    padded = [
        f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, widths, strict=True)
    ]
    return "   ".join(padded).rstrip()


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _named(name: str, values: Spread) -> dict[str, Value]:
    """Four significant digits: more would be noise."""
    return {
        f"{name}_q1": _rounded(values.low),
        name: _rounded(values.median),
        f"{name}_q3": _rounded(values.high),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")

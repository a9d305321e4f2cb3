"""The file of a benchmark: where it lies, and how it is written whole or not at all.

``data/runs/bench-<device>.csv`` holds one run; with ``keep`` also the lines of runs with other
numbers of threads, with ``join`` also those of other parts. Worked example: a file of two threads,
and a run of one thread with ``keep``: both are in it; without, one thread alone. A machine that is
lent for minutes measures part by part: ``--only merge --join``, then ``--only copy --join``.
"""

import argparse
import os
from pathlib import Path

import pandas as pd

import kvlab
from kvlab.errors import StudyError
from kvlab.lab.bench.place import Place, device_slug


def record_path(place: Place) -> Path:
    """``data/runs/bench-<device>.csv`` of the checkout. Errors: StudyError where there is none."""
    folder = Path(kvlab.__file__).resolve().parents[1] / "data" / "runs"
    name = f"bench-{device_slug(place)}.csv"
    if not folder.is_dir():
        raise StudyError(
            f"a benchmark is recorded in data/runs of the checkout: got a package whose folder "
            f"lacks it, for {name!r}; name a file with --csv, or leave --record out"
        )
    return folder / name


def place_of_file(text: str) -> Path:
    """Where a file can be made; refused before minutes are spent."""
    path = Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"OUT is a file in a folder that exists: got {text!r}; make the folder first"
        )
    return path


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
        stay = before.threads.ne(before.threads)  # none
        if keep:
            stay |= ~before.threads.isin(frame.threads.astype(str))
        if join:
            stay |= ~before.part.isin(frame.part)
        others = before[stay]
        text += others.to_csv(index=False, header=False, lineterminator="\n")
    part = out.with_name(f".{out.name}-{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StudyError(
            f"the rows are written to a file that can be made: {str(out)!r} gives "
            f"{error.strerror}; name another file with --csv"
        ) from None

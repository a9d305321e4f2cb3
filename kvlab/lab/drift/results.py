"""The tables of a study in a folder: written by a study, read by figures and notebooks.

    summary.csv    one row a condition, DCP size and dtype
    requests.csv   one row a request of these
    positions.csv  |delta logprob| by position in the output, and by tokens since the latest restore
    events.csv     the events of one run (``origin.json`` names it)
    tokens.csv     its tokens
    origin.json    how it was made, and the settings

An empty field is a value that is not there: NaN (nothing finite was left), a position that was
never reached, a view that was not run. It reads back as NaN.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kvlab.errors import StudyError

KEY = ("condition", "defect", "dcp_size", "dtype")
SUMMARY = (
    *KEY,
    *("requests", "tokens", "max_abs_dlogprob", "mean_abs_dlogprob", "p99_abs_dlogprob", "kl"),
    *("repetition_rate", "diverged_requests", "repeating_requests", "retractions", "nan_tokens"),
    *(
        "not_first",
        "restores",
        "restores_different",
        "restored_requests",
        "drifting_restored",
        "repeating_restored",
    ),
    *("collateral_requests", "median_onset", "max_from_fixed", "floor", "label"),
)
REQUESTS = (
    *KEY,
    *("rid", "retractions", "restored_at", "max_abs_dlogprob", "max_before_restore"),
    *("max_since_restore", "kl", "nan_tokens", "first_above_floor", "onset", "collateral"),
    *("first_divergence", "edit_distance", "repetition_rate", "reference_repetition_rate"),
    "repeating",
)
POSITIONS = (*KEY, "axis", "at", "tokens", "p50", "p90", "max")
EVENTS = ("step", "event", "rid", "tokens")
TOKENS = ("rid", "position", "step", "token", "abs_dlogprob", "restored")
_FILES = {
    "summary": SUMMARY,
    "requests": REQUESTS,
    "positions": POSITIONS,
    "events": EVENTS,
    "tokens": TOKENS,
}


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """The frames of a study, columns as ``SUMMARY`` .. ``TOKENS``; ``defect`` is "" for none.

    ``origin``: command, seed, versions, and in ``parameters`` the settings; its ``timeline`` names
    the condition, DCP size and dtype of ``events`` and ``tokens``.
    """

    summary: pd.DataFrame
    requests: pd.DataFrame
    positions: pd.DataFrame
    events: pd.DataFrame
    tokens: pd.DataFrame
    origin: Mapping[str, object]


def write_study(study: Study, folder: Path) -> None:
    """Write the tables, each whole or not at all. Errors: StudyError for a folder that cannot be
    written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            frame: pd.DataFrame = getattr(study, name)
            _put(folder / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n"))
        _put(folder / "origin.json", json.dumps(study.origin, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise StudyError(
            f"a study is written to a folder that can be made: {str(folder)!r} gives "
            f"{error.strerror or error}; name another folder"
        ) from None


def read_study(folder: Path) -> Study:
    """The study that ``write_study`` wrote there.

    Errors: StudyError for a file that is missing, damaged or has other columns, by name.
    """
    frames = {name: _frame(folder / f"{name}.csv", columns) for name, columns in _FILES.items()}
    path = folder / "origin.json"
    try:
        origin: object = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(origin, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise StudyError(_refusal(path, f"{type(error).__name__}: {error}")) from None
    return Study(**frames, origin=origin)


def _frame(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:  # what pandas raises for a bad file is a ValueError
        raise StudyError(_refusal(path, f"{type(error).__name__}: {error}")) from None
    if tuple(frame.columns) != columns:
        raise StudyError(_refusal(path, f"has the columns {', '.join(frame.columns)}"))
    for name in {"condition", "defect", "dtype"} & set(columns):
        frame[name] = frame[name].astype(object).fillna("").astype(str)
    return frame


def _refusal(path: Path, what: str) -> str:
    text = what if len(what) < 300 else f"{what[:300]}..."
    return (
        f"a study is a folder with {', '.join(f'{name}.csv' for name in _FILES)} and origin.json, "
        f"each with its columns: {path.name} of {path.parent.name!r} {text}; write it with "
        f"kvlab drift --out"
    )


def _put(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8", newline="\n")
    part.replace(path)

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
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from kvlab.errors import StudyError
from kvlab.lab.drift.conditions import DTYPES, NAMES
from kvlab.lab.folders import Folder
from kvlab.lab.origin import Origin

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
_WORDS = ("condition", "defect", "dtype", "axis", "event", "label")
_KNOWN = {"condition": NAMES, "dtype": DTYPES, "axis": ("position", "since_restore")}


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
    place = _place(folder)
    place.require_writable()
    texts = {
        f"{name}.csv": getattr(study, name).to_csv(index=False, lineterminator="\n")
        for name in _FILES
    }
    texts["origin.json"] = json.dumps(study.origin, indent=1, allow_nan=False) + "\n"
    for name, text in texts.items():
        place.put(name, text)


def require_writable(folder: Path) -> None:
    """Make ``folder``, where a study will be written; asked before hours of work, not after.

    Errors: StudyError.
    """
    _place(folder).require_writable()


def _place(folder: Path) -> Folder:
    rule = "a study is written to a folder that can be made"
    return Folder(folder, rule, "name another folder")


def read_study(folder: Path) -> Study:
    """The study that ``write_study`` wrote there.

    Errors: StudyError for a file that is missing, damaged, cut off, has other columns, values that
    are none of its column's or rows of another study, by name.
    """
    frames = {name: _frame(folder / f"{name}.csv", columns) for name, columns in _FILES.items()}
    path = folder / "origin.json"
    try:
        origin: object = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(origin, dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise StudyError(_refusal(path, f"{type(error).__name__}: {error}")) from None
    lacks = [x.name for x in fields(Origin) if x.name not in origin]
    lacks += [] if isinstance(origin.get("parameters", {}), dict) else ["an object as parameters"]
    if lacks:
        raise StudyError(_refusal(path, f"lacks {', '.join(lacks)}"))
    _require_one_study(frames, folder)
    return Study(**frames, origin=origin)


def _frame(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
        whole = path.read_bytes().endswith(b"\n")
    except (OSError, ValueError) as error:  # what pandas raises for a bad file is a ValueError
        raise StudyError(_refusal(path, f"{type(error).__name__}: {error}")) from None
    if tuple(frame.columns) != columns:
        lost = ", ".join(name for name in columns if name not in frame.columns) or "none"
        raise StudyError(
            _refusal(path, f"lacks {lost} and has the columns {', '.join(frame.columns)}")
        )
    if not whole or not len(frame):
        raise StudyError(_refusal(path, f"ends inside line {len(frame) + 1}" if len(frame) else
                                  "has no rows"))  # fmt: skip
    for name in columns:
        if name in _WORDS:
            frame[name] = frame[name].astype(object).fillna("").astype(str)
            wrong = ~frame[name].isin(_KNOWN[name]) if name in _KNOWN else None
        elif pd.api.types.is_numeric_dtype(frame[name]):
            wrong = None
        else:
            # True and False beside empty fields are read as objects, and are no text.
            text = frame[name].astype(object).map(lambda value: isinstance(value, str))
            wrong = text & pd.to_numeric(frame[name], errors="coerce").isna()
        if wrong is not None and wrong.any():
            at = int(wrong.to_numpy().argmax())
            raise StudyError(
                _refusal(path, f"has {frame[name].iloc[at]!r} as {name} in line {at + 2}")
            )
    return frame


def _require_one_study(frames: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """A table whose end is lost at the end of a line, or that is of another study, is seen by its
    rows: each row of the summary counts its requests, each request has positions.

    Errors: StudyError.
    """
    key = ["condition", "dcp_size", "dtype"]
    want = frames["summary"].groupby(key)["requests"].sum()
    have = frames["requests"].groupby(key).size()
    positions = frames["positions"].groupby(key).size()
    for name, found, same in (
        ("requests", have, want.sort_index().equals(have.sort_index())),
        ("positions", positions, want.sort_index().index.equals(positions.sort_index().index)),
    ):
        if not same:
            raise StudyError(
                _refusal(
                    folder / f"{name}.csv",
                    f"has {found.sum()} rows of {len(found)} runs, which are not those of "
                    f"summary.csv ({len(want)} runs, {want.sum()} requests)",
                )
            )
    runs = frames["tokens"]["rid"].nunique()
    arrived = frames["events"].loc[frames["events"]["event"] == "arrive", "rid"].nunique()
    ended = frames["events"]["event"].isin(["finish", "abort"]).sum()
    if not runs == arrived == ended:
        raise StudyError(
            _refusal(
                folder / "events.csv",
                f"has {arrived} requests that arrive and {ended} that end, tokens.csv has {runs}",
            )
        )


def _refusal(path: Path, what: str) -> str:
    text = what if len(what) < 300 else f"{what[:300]}..."
    return (
        f"a study is a folder with {', '.join(f'{name}.csv' for name in _FILES)} and origin.json, "
        f"each with its columns: {path.name} of {path.parent.name!r} {text}; write it with "
        f"kvlab drift --out"
    )

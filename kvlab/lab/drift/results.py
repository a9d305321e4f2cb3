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
from kvlab.files import put, require_writable
from kvlab.lab.drift.defects import DTYPES, KEY, NAMES
from kvlab.lab.origin import Origin
from kvlab.memory.published import data_path

SUMMARY = (
    *KEY,
    *("requests", "tokens", "max_abs_dlogprob", "mean_abs_dlogprob", "p99_abs_dlogprob", "kl"),
    *("repetition_rate", "diverged_requests", "repeating_requests", "retractions", "nan_tokens"),
    *("not_first", "restores", "restores_different", "restored_requests", "drifting_restored"),
    *("repeating_restored", "collateral_requests", "median_onset", "max_from_fixed", "floor"),
    "label",
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
TABLES = {
    "summary": SUMMARY,
    "requests": REQUESTS,
    "positions": POSITIONS,
    "events": EVENTS,
    "tokens": TOKENS,
}
#: Columns of words; all others hold numbers.
WORDS = ("condition", "defect", "dtype", "axis", "event", "label")
KNOWN = {"condition": NAMES, "dtype": DTYPES, "axis": ("position", "since_restore")}
#: Every token of some requests in every run: written by ``kvlab.lab.drift.token_drift``.
TOKEN_DRIFT = ("condition", "dcp_size", "dtype", "rid", "restored_at", "tokens", "abs_dlogprob")


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
    require_writable(folder)
    for name in TABLES:
        put(folder / f"{name}.csv", getattr(study, name).to_csv(index=False, lineterminator="\n"))
    put(folder / "origin.json", json.dumps(study.origin, indent=1, allow_nan=False) + "\n")


def read_study(folder: Path) -> Study:
    """The study that ``write_study`` wrote there.

    Errors: StudyError for a file that is missing, damaged, cut off, has other columns, values that
    are none of its column's or rows of another study, by name.
    """
    frames = {name: _frame(folder / f"{name}.csv", columns) for name, columns in TABLES.items()}
    path = folder / "origin.json"
    try:
        origin = json.loads(path.read_text(encoding="utf-8"))
        lacks = [x.name for x in fields(Origin) if x.name not in dict(origin)]
        if lacks or not isinstance(origin["parameters"], dict):
            raise ValueError(f"lacks {', '.join(lacks) or 'an object as parameters'}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _refusal(path, f"{type(error).__name__}: {error}") from None
    _require_one_study(frames, folder)
    return Study(**frames, origin=origin)


def _frame(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
        whole = path.read_bytes().endswith(b"\n")
    except (OSError, ValueError) as error:  # what pandas raises for a bad file is a ValueError
        raise _refusal(path, f"{type(error).__name__}: {error}") from None
    if tuple(frame.columns) != columns:
        lost = ", ".join(name for name in columns if name not in frame.columns) or "none"
        raise _refusal(path, f"lacks {lost} and has the columns {', '.join(frame.columns)}")
    if not len(frame):
        raise _refusal(path, "has no rows")
    if not whole:
        raise _refusal(path, f"ends inside line {len(frame) + 1}")
    for name in columns:
        if name in WORDS:
            frame[name] = frame[name].astype(object).fillna("").astype(str)
            wrong = ~frame[name].isin(KNOWN.get(name, frame[name]))
        else:
            # True and False beside empty fields are read as objects, and are no text.
            text = frame[name].astype(object).map(lambda value: isinstance(value, str))
            wrong = text & pd.to_numeric(frame[name], errors="coerce").isna()
        if wrong.any():
            at = int(wrong.to_numpy().argmax())
            raise _refusal(path, f"has {frame[name].iloc[at]!r} as {name} in line {at + 2}")
    return frame


def _require_one_study(frames: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """A table whose end is lost at the end of a line, or that is of another study, is seen by its
    rows: each row of the summary counts its requests, each request has positions.

    Errors: StudyError.
    """
    key = ["condition", "dcp_size", "dtype"]
    want = frames["summary"].groupby(key)["requests"].sum()
    for name in ("requests", "positions"):
        have = frames[name].groupby(key).size()
        if not (have.equals(want) if name == "requests" else have.index.equals(want.index)):
            raise _refusal(
                folder / f"{name}.csv",
                f"has {have.sum()} rows of {len(have)} runs, which are not those of summary.csv "
                f"({len(want)} runs, {want.sum()} requests)",
            )
    runs = frames["tokens"]["rid"].nunique()
    kinds = frames["events"]["event"]
    arrived, ended = (kinds == "arrive").sum(), kinds.isin(["finish", "abort"]).sum()
    if not runs == arrived == ended:
        raise _refusal(
            folder / "events.csv",
            f"has {arrived} requests that arrive and {ended} that end, tokens.csv has {runs}",
        )


def _refusal(path: Path, what: str) -> StudyError:
    text = what if len(what) < 300 else f"{what[:300]}..."
    return StudyError(
        f"a study is a folder with {', '.join(f'{name}.csv' for name in TABLES)} and origin.json, "
        f"each with its columns: {path.name} of {path.parent.name!r} {text}; write it with "
        f"kvlab drift --out"
    )


def read_token_drift(folder: Path | None = None) -> pd.DataFrame:
    """The table ``token_drift.csv`` of ``folder``, None: of the recorded study.

    Columns ``TOKEN_DRIFT``: ``tokens`` as bytes, ``abs_dlogprob`` as lists of nats (NaN: the run
    said no number), ``restored_at`` a list of output positions: first tokens after a return. In the
    file tokens are hex and lists are numbers with blanks between: "7831" and "0 3.1e-06" are the
    bytes "x" and "1", of which the second is 3.1e-6 nats off.

    Errors: StudyError for a file that is missing, or has other columns or cells.
    """
    path = (folder or data_path("runs", "drift", "summary.csv").parent) / "token_drift.csv"
    try:
        found = pd.read_csv(path, dtype={"tokens": str, "abs_dlogprob": str, "restored_at": str})
        if tuple(found.columns) != TOKEN_DRIFT:
            raise ValueError(f"it has the columns {', '.join(found.columns)}")
        found["restored_at"] = [
            [int(x) for x in text.split()] for text in found["restored_at"].fillna("")
        ]
        found["tokens"] = [bytes.fromhex(text) for text in found["tokens"]]
        drift = [[float(x) for x in text.split()] for text in found["abs_dlogprob"]]
        if [len(line) for line in drift] != [len(text) for text in found["tokens"]]:
            raise ValueError("a line has not as many numbers as tokens")
    except (OSError, ValueError) as error:
        raise StudyError(
            f"tokens and drift of all runs are the table token_drift.csv with "
            f"{', '.join(TOKEN_DRIFT)}: {path.name} of {path.parent.name!r}: "
            f"{type(error).__name__}: {error}; make it with python -m kvlab.lab.drift.token_drift"
        ) from None
    return found.assign(abs_dlogprob=pd.Series(drift, dtype=object))

"""The tables of a study in a folder: written by a study, read by figures and notebooks.

``data/README.md`` says what each column is. An empty field is a value that is not there (all NaN,
never reached, a view that was not run). ``origin.json`` says how the study was made, and of which
run ``events.csv`` and ``tokens.csv`` are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kvlab.errors import StudyError
from kvlab.files import put, require_writable, shipped
from kvlab.lab.drift.defects import KEY

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
#: Every token of some requests in every run: written by ``scripts.token_drift``.
TOKEN_DRIFT = ("condition", "dcp_size", "dtype", "rid", "restored_at", "tokens", "abs_dlogprob")


_AGAIN = "make it again: kvlab drift --out, or python -m scripts.token_drift"


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
    """Write the tables, each whole or not at all. Errors: StudyError."""
    require_writable(folder)
    for name in TABLES:
        put(folder / f"{name}.csv", getattr(study, name).to_csv(index=False, lineterminator="\n"))
    put(folder / "origin.json", json.dumps(study.origin, indent=1, allow_nan=False) + "\n")


def read_study(folder: Path) -> Study:
    """The study that ``write_study`` wrote there.

    Errors: StudyError for a file that is missing, cut off or of another study, or has other columns
    or no rows.
    """
    frames = {name: _frame(folder / f"{name}.csv", columns) for name, columns in TABLES.items()}
    for frame in frames.values():
        for name in [name for name in WORDS if name in frame]:
            frame[name] = frame[name].astype(object).fillna("").astype(str)
    try:
        have, want = len(frames["requests"]), frames["summary"]["requests"].sum()
        if have != want:
            raise ValueError(f"requests.csv has {have} rows, and {want} by summary.csv")
        origin = json.loads((folder / "origin.json").read_text(encoding="utf-8"))
        return Study(**frames, origin=origin | {"parameters": dict(origin["parameters"])})
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise StudyError(f"{folder.name!r} is no whole study: {error}; {_AGAIN}") from None


def _frame(path: Path, columns: tuple[str, ...], texts: tuple[str, ...] = ()) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys(texts, "str"))
        if tuple(frame.columns) != columns or not len(frame):
            raise ValueError(f"it has {len(frame)} rows, and columns {', '.join(frame.columns)}")
        if not path.read_bytes().endswith(b"\n"):
            raise ValueError(f"it ends inside line {len(frame) + 1}")
    except (OSError, ValueError) as error:  # what pandas raises for a bad file is a ValueError
        raise StudyError(
            f"{path.name} of {path.parent.name!r} has the columns {', '.join(columns)}: {error}; "
            f"{_AGAIN}"
        ) from None
    return frame


def read_token_drift(folder: Path | None = None) -> pd.DataFrame:
    """The table ``token_drift.csv`` of ``folder``, None: of the recorded study.

    Columns ``TOKEN_DRIFT``: ``tokens`` as bytes, ``abs_dlogprob`` as lists of nats (NaN: the run
    said no number), ``restored_at`` a list of output positions: first tokens after a return. In the
    file tokens are hex and lists are numbers with blanks between: "7831" and "0 3.1e-06" are the
    bytes "x" and "1", of which the second is 3.1e-6 nats off. Errors: as ``read_study``.
    """
    path = (folder or shipped("data") / "runs" / "drift") / "token_drift.csv"
    found = _frame(path, TOKEN_DRIFT, ("restored_at", "tokens", "abs_dlogprob"))
    found["restored_at"] = [[*map(int, x.split())] for x in found["restored_at"].fillna("")]
    found["tokens"] = [bytes.fromhex(text) for text in found["tokens"]]
    drift = [[*map(float, text.split())] for text in found["abs_dlogprob"]]
    return found.assign(abs_dlogprob=pd.Series(drift, dtype=object))

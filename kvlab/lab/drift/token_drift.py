"""Every token of some requests in every run of the study, coloured by the drift explorer.

The tables of the study keep the tokens of one run only. This one has a line for each run and
request: the reference's tokens, as bytes in hex, and the |delta logprob| of each.

    python -m kvlab.lab.drift.token_drift --cache build/cache/drift --out data/runs/drift

Worked example: tokens "7831" and drift "0 3.1e-06" are the bytes "x" and "1", of which the second
is 3.1e-6 nats off.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from kvlab.errors import StudyError
from kvlab.lab.drift.events import events_of
from kvlab.lab.drift.prompts import default_prompts
from kvlab.lab.drift.tables import restores
from kvlab.lab.folders import Folder
from kvlab.lab.keep import Keep
from kvlab.lab.origin import collect_origin
from kvlab.memory.published import data_path

COLUMNS = ("condition", "dcp_size", "dtype", "rid", "restored_at", "tokens", "abs_dlogprob")
NAME, ABOUT = "token_drift.csv", "token_drift.json"
REQUESTS = 12
COMMAND = "python -m kvlab.lab.drift.token_drift"


def read_token_drift(folder: Path | None = None) -> pd.DataFrame:
    """The table, ``COLUMNS``; ``tokens`` as bytes, ``abs_dlogprob`` as lists of nats (NaN: the run
    said no number), ``restored_at`` a list of output positions: first tokens after a return.

    Errors: StudyError for a file that is missing, or has other columns or cells.
    """
    path = data_path("runs", "drift", NAME) if folder is None else folder / NAME
    try:
        found = pd.read_csv(path, dtype={"tokens": str, "abs_dlogprob": str, "restored_at": str})
        if tuple(found.columns) != COLUMNS:
            raise ValueError(f"it has the columns {', '.join(found.columns)}")
        found["restored_at"] = [
            [int(x) for x in t.split()] for t in found["restored_at"].fillna("")
        ]
        found["tokens"] = [bytes.fromhex(text) for text in found["tokens"]]
        drift = [[float(x) for x in text.split()] for text in found["abs_dlogprob"]]
        if [len(line) for line in drift] != [len(text) for text in found["tokens"]]:
            raise ValueError("a line has not as many numbers as tokens")
    except (OSError, ValueError) as error:
        raise StudyError(
            f"tokens and drift of all runs are the table {NAME} with {', '.join(COLUMNS)}: "
            f"{path.name} of {path.parent.name!r}: {type(error).__name__}: {error}; make it with "
            f"{COMMAND}"
        ) from None
    return found.assign(abs_dlogprob=pd.Series(drift, dtype=object))


def make_token_drift(model: Path, cache: Path, requests: int = REQUESTS) -> pd.DataFrame:
    """Run the study's forced view (what ``cache`` has is read), and keep ``requests`` of it.

    Errors: as ``DriftStudy.run``.
    """
    from kvlab.lab.drift.study import DriftStudy, Task

    study = DriftStudy(model, default_prompts(), views=("forced",))
    study.run(cache=cache)
    kept = Keep(cache)
    prompts = [request.prompt_tokens for request in study.prompts.workload.requests]
    rows = []
    for known, c, dtype in study.points():
        reference = kept.read(study._key(Task("forced", "reference", 1, dtype)))
        run = kept.read(study._key(Task("forced", known.name, c, dtype)))
        assert reference is not None and run is not None  # both were run just now
        cuts = np.cumsum(reference["length"].astype(np.int64))[:-1]
        drift = np.abs(run["logprob"].astype(np.float64) - reference["logprob"].astype(np.float64))
        back = restores(events_of(run["events"]), prompts)
        lines = zip(np.split(reference["token"], cuts), np.split(drift, cuts), strict=True)
        for rid, (tokens, values) in list(enumerate(lines))[:requests]:
            rows.append(
                (
                    *(known.name, c, dtype, rid, " ".join(map(str, back.get(rid, [])))),
                    bytes(tokens.astype(np.uint8).tolist()).hex(),
                    " ".join(f"{value:.3g}" for value in values),
                )
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def parser() -> argparse.ArgumentParser:
    """The options of ``python -m kvlab.lab.drift.token_drift``."""
    made = argparse.ArgumentParser(
        prog=COMMAND, description="Write every token of some requests in every run of a study."
    )
    cache, out = Path("build/cache/drift"), Path("data/runs/drift")
    made.add_argument(
        "--cache", type=Path, default=cache, metavar="DIR", help="finished runs (%(default)s)"
    )
    made.add_argument(
        "--out", type=Path, default=out, metavar="DIR", help="where the table goes (%(default)s)"
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Make the table and its origin."""
    asked = parser().parse_args(argv)
    model = data_path("checkpoints", "tiny-kimi-linear", "config.json").parent
    table = make_token_drift(model, asked.cache)
    about = {"model": model.name, "requests": REQUESTS, "view": "forced"}
    origin = collect_origin(COMMAND, None, about, "cpu").as_dict()
    place = Folder(asked.out, "tables are written to a folder that can be made", "name another")
    place.require_writable()
    for name, text in (
        (NAME, table.to_csv(index=False, lineterminator="\n")),
        (ABOUT, json.dumps(origin, indent=1) + "\n"),
    ):
        place.put(name, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

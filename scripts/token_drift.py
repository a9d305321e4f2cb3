"""Every token of some requests in every run of the study, which the drift explorer colors.

python -m scripts.token_drift --cache build/cache/drift --out data/runs/drift
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from kvlab.files import put, require_writable
from kvlab.lab.drift.defects import REFERENCE, Point
from kvlab.lab.drift.prompts import default_prompts
from kvlab.lab.drift.results import TOKEN_DRIFT
from kvlab.lab.drift.study import DriftStudy
from kvlab.lab.drift.tables import outputs_of, run_data
from kvlab.lab.keep import Keep
from kvlab.lab.origin import collect_origin
from kvlab.memory.published import data_path

COMMAND = "python -m scripts.token_drift"
REQUESTS = 12


def token_drift(study: DriftStudy, cache: Path, requests: int = REQUESTS) -> pd.DataFrame:
    """Each token of the first requests in each run of the forced view, columns ``TOKEN_DRIFT`` as
    in their file (``read_token_drift``); what ``cache`` has is not run again."""
    find = study.runs(keep=Keep(cache))
    rows = []
    for point in study.points():
        reference = find("forced", Point(REFERENCE, 1, point.dtype))
        texts = outputs_of(reference, reference["length"])
        run = run_data(find, point, study.prompts)
        for rid in range(requests):
            drift = " ".join(f"{value:.3g}" for value in np.abs(run.dlogprob[rid]))
            back = " ".join(map(str, run.back.get(rid, [])))
            key = point.known.name, point.dcp_size, point.dtype, rid
            rows.append((*key, back, bytes(texts[rid]).hex(), drift))
    return pd.DataFrame(rows, columns=list(TOKEN_DRIFT))


def main(argv: Sequence[str] | None = None) -> int:
    """Make the table and its origin."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    for name, place in (("--cache", "build/cache/drift"), ("--out", "data/runs/drift")):
        parser.add_argument(name, type=Path, default=Path(place), metavar="DIR")
    asked = parser.parse_args(argv)
    require_writable(asked.out)
    model = data_path("checkpoints", "tiny-kimi-linear", "config.json").parent
    table = token_drift(DriftStudy(model, default_prompts()), asked.cache)
    about = {"model": model.name, "requests": REQUESTS, "view": "forced"}
    origin = collect_origin(COMMAND, None, about, "cpu").as_dict()
    put(asked.out / "token_drift.csv", table.to_csv(index=False, lineterminator="\n"))
    put(asked.out / "token_drift.json", json.dumps(origin, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

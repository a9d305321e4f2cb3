"""Figures that public threads, papers and configs state: where they lie, and how to load them.

Every row says who states it (``source``) and how far it can be trusted (``status``): "reported"
means that kvlab has not measured it. Such figures are shown beside simulated ones, never as them.

    >>> load_published("dcp_capacity").query("dcp_size == 8").tokens_logical.tolist()
    [756224, 5521920, 26462720]

``data/README.md`` holds the schema, the sources, and the license of each file.
"""

from pathlib import Path

import pandas as pd

from kvlab.errors import KvlabError
from kvlab.files import shipped

PUBLISHED = ("retraction_runs", "dcp_capacity")

# Kept as text: "0.5.17" is a version, and threads state "140-200" retractions.
_TEXT = {"version": "str", "retractions": "str"}


def data_path(*parts: str) -> Path:
    """Return the path of a file in the project's ``data`` folder. Errors: KvlabError."""
    path = shipped("data").joinpath(*parts)
    if not path.is_file():
        raise KvlabError(
            f"data/{'/'.join(parts)} lies in the data folder of kvlab: it is not in "
            f"{str(shipped('data'))!r}; install kvlab again, or in a checkout restore the folder "
            f"with 'git checkout -- data'"
        )
    return path


def load_published(name: str) -> pd.DataFrame:
    """Return one table of reported figures, one row a statement. Errors: KvlabError."""
    if name not in PUBLISHED:
        raise KvlabError(f"published figures have the names {', '.join(PUBLISHED)}: got {name!r}")
    return pd.read_csv(data_path("published", f"{name}.csv"), dtype=_TEXT)

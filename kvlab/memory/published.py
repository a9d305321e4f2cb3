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
    folder = shipped("data")
    path = folder.joinpath(*parts)
    if not path.is_file():
        lack = "the folder is missing" if not folder.is_dir() else "the folder lacks it"
        raise KvlabError(
            f"data/{'/'.join(parts)} lies in the data folder of kvlab: {lack} "
            f"(looked in {str(folder)!r}); install kvlab again, or in a checkout restore the "
            f"folder with 'git checkout -- data'"
        )
    return path


def load_published(name: str) -> pd.DataFrame:
    """Return one table of reported figures, one row a statement. Errors: KvlabError."""
    if name not in PUBLISHED:
        raise KvlabError(
            f"published figures have the names {', '.join(PUBLISHED)}: got {name!r}; "
            f"data/README.md says what each holds"
        )
    frame = pd.read_csv(data_path("published", f"{name}.csv"), dtype=_TEXT)
    for column in ("source", "status"):
        if column not in frame:
            raise KvlabError(
                f"data/published/{name}.csv: every row needs a {column}: got the columns "
                f"{', '.join(frame.columns)}; add the column"
            )
        empty = frame.index[frame[column].isna()]
        if len(empty):
            raise KvlabError(
                f"data/published/{name}.csv: every row needs a {column}: line {empty[0] + 2} of "
                f"{len(frame) + 1} has none; say who states the figure"
            )
    return frame

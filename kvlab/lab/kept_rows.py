"""Finished rows of a study in a folder, each under the hash of everything that decides it.

A file is written beside its place and moved there whole. What is not such a row, because a run was
killed or the columns have changed, counts as missing and is made again.

    write_row(Path("kept"), "5f0c", {"dcp_size": 4, "label": "simulated"})
    read_row(Path("kept"), "5f0c", {"dcp_size", "label"})     # the row; None under another key
"""

import json
from collections.abc import Set
from pathlib import Path

from kvlab.lab.folders import cache_folder


def read_row(cache: Path | None, key: str, fields: Set[str]) -> dict[str, object] | None:
    """The row of these fields, all numbers but ``label``; None where the folder has no such row."""
    if cache is None:
        return None
    path = cache / f"{key}.json"
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # missing, or half a file of a killed run: made again
    if not isinstance(row, dict) or set(row) != fields:
        return None
    numbers = (value for name, value in row.items() if name != "label")
    return row if all(type(value) in (int, float) for value in numbers) else None


def write_row(cache: Path | None, key: str, row: dict[str, object]) -> None:
    """Keep a row; without a folder nothing is kept. Errors: StudyError, as ``Folder.put``."""
    if cache is None:
        return
    text = json.dumps(row)
    cache_folder(cache).put(f"{key}.json", lambda part: part.write_text(text, encoding="utf-8"))

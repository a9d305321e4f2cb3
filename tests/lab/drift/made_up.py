"""A summary table with made-up numbers, for tests of what is judged from it."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from kvlab.lab.drift import CONDITIONS, SUMMARY, Point

FLOOR = 4e-6


def summary(
    changes: Mapping[str, dict[str, Any]] | None = None, sizes: tuple[int, ...] = (1, 2, 4)
) -> pd.DataFrame:
    """One row a condition, size and dtype: as expected, but for ``changes`` by condition (its
    punctuation as underscores), which hold at every size; ``<name>__1`` at that size only."""
    rows, given = [], changes or {}
    usual = {"requests": 48, "tokens": 2000, "floor": FLOOR, "label": "measured"}
    for known in CONDITIONS:
        left = known.schedule != "calm"
        for dtype in known.dtypes:
            for c in sizes:
                broken = known.defect is not None and known.defect.can_act(c)
                row: dict[str, Any] = dict.fromkeys(SUMMARY, 0) | usual | Point(known, c, dtype).key
                row |= {"max_abs_dlogprob": 0.5 if broken else FLOOR, "max_from_fixed": broken / 2}
                row |= {"diverged_requests": 20 * broken, "restores_different": 50 * broken}
                row |= {"retractions": 60 * left, "restores": 60 * left}
                row |= {"restored_requests": 48 * left, "drifting_restored": 48 * broken}
                name = known.name.replace(":", "_")
                row |= given.get(name, {}) | given.get(f"{name}__{c}", {})
                rows.append(row)
    return pd.DataFrame(rows)

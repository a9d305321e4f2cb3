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
    rows = []
    given = changes or {}
    for known in CONDITIONS:
        acts = known.defect is not None
        for dtype in known.dtypes:
            for c in sizes:
                broken = acts and known.defect is not None and known.defect.can_act(c)
                row: dict[str, Any] = {
                    **Point(known, c, dtype).key,
                    "requests": 48,
                    "tokens": 2000,
                    "max_abs_dlogprob": 0.5 if broken else FLOOR,
                    "mean_abs_dlogprob": 0.1 if broken else FLOOR / 4,
                    "p99_abs_dlogprob": 0.3 if broken else FLOOR / 2,
                    "kl": 0.1 if broken else 0.0,
                    "repetition_rate": 0.01,
                    "diverged_requests": 20 if broken else 0,
                    "repeating_requests": 0,
                    "retractions": 0 if known.schedule == "calm" else 60,
                    "nan_tokens": 0,
                    "not_first": 0.1,
                    "restores": 0 if known.schedule == "calm" else 60,
                    "restores_different": 50 if broken else 0,
                    "restored_requests": 0 if known.schedule == "calm" else 48,
                    "drifting_restored": 48 if broken else 0,
                    "repeating_restored": 0,
                    "collateral_requests": 0,
                    "median_onset": 0.0 if broken else float("nan"),
                    "max_from_fixed": 0.5 if broken else 0.0,
                    "floor": FLOOR,
                    "label": "measured",
                }
                name = known.name.replace(":", "_")
                row |= given.get(name, {}) | given.get(f"{name}__{c}", {})
                rows.append(row)
    return pd.DataFrame(rows)[[*SUMMARY]]

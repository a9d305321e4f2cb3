"""From the arrays of runs to the tables of the study: one row a request, a position, a condition.

Every number is *measured* on a real model; the workload is synthetic. Tokens whose logprob is NaN
are counted (``nan_tokens``) and left out of maxima, means and percentiles; where nothing is left,
the field is empty in a CSV, null in JSON and NaN in a frame, and reads back as NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvlab.engine import Event
from kvlab.lab.drift.metrics import (
    REPEATS,
    edit_distance,
    first_above,
    first_difference,
    repetition_rate,
)
from kvlab.lab.timeline import intervals

Floats = NDArray[np.float64]
#: Two maxima over the same noise differ by less than this factor; drift above it is no noise.
MARGIN = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class RunData:
    """One run, both views, cut by request: ``dlogprob`` and ``kl`` of each token, nats; ``rank``;
    ``tokens`` drawn freely (None where that view was not run); ``events`` of the forced view;
    ``restores``: how many came back bit-identical, and how many did not."""

    dlogprob: tuple[Floats, ...]
    kl: tuple[Floats, ...]
    rank: tuple[NDArray[np.int64], ...]
    tokens: tuple[tuple[int, ...], ...] | None
    events: tuple[Event, ...]
    restores: tuple[int, int] = (0, 0)


def restores(events: Sequence[Event], prompts: Sequence[int]) -> dict[int, list[int]]:
    """Of each request the output positions of the first tokens after its restores.

    ``prompts``: prompt lengths by rid. A restored request holds KV of all tokens but the newest, so
    with n positions it makes output n + 1 - p next; one that is recomputed holds all of them.
    """
    found: dict[int, list[int]] = {}
    for event in events:
        length = prompts[event.rid]
        if event.kind == "resume":
            found.setdefault(event.rid, []).append(event.tokens + 1 - length)
        elif event.kind == "admit" and event.tokens > length:
            found.setdefault(event.rid, []).append(event.tokens - length)
    return found


def request_rows(
    run: RunData,
    prompts: Sequence[int],
    floor: float,
    free_reference: Sequence[Sequence[int]] | None,
) -> list[dict[str, object]]:
    """One row a request; ``data/README.md`` says what each column is."""
    back = restores(run.events, prompts)
    left = [event.rid for event in run.events if event.kind == "retract"]
    rows = []
    for rid, (signed, kl) in enumerate(zip(run.dlogprob, run.kl, strict=True)):
        drift = np.abs(signed)
        first = back[rid][0] if rid in back else None
        cut = len(drift) if first is None else first
        onset = _onset(drift, back.get(rid, []), MARGIN * floor)
        row: dict[str, object] = {
            "rid": rid,
            "retractions": left.count(rid),
            "restored_at": first,
            "max_abs_dlogprob": largest(drift),
            "max_before_restore": largest(drift[:cut]),
            "max_since_restore": largest(drift[cut:]),
            "kl": mean(kl),
            "nan_tokens": int(np.isnan(drift).sum()),
            "first_above_floor": first_above(drift, MARGIN * floor),
            "onset": onset,
            "collateral": first_above(drift[:cut], MARGIN * floor) is not None,
        }
        if run.tokens is not None and free_reference is not None:
            said, want = run.tokens[rid], free_reference[rid]
            mine, its = repetition_rate(said), repetition_rate(want)
            row |= {
                "first_divergence": first_difference(want, said),
                "edit_distance": edit_distance(want, said),
                "repetition_rate": mine,
                "reference_repetition_rate": its,
                "repeating": mine >= its + REPEATS,
            }
        else:
            row |= dict.fromkeys(FREE)
        rows.append(row)
    return rows


def _onset(drift: Floats, starts: Sequence[int], bound: float) -> int | None:
    """Tokens from the latest restore to the first drift after any; None without either."""
    found = first_above(drift[starts[0] :], bound) if starts else None
    if found is None:
        return None
    at = starts[0] + found
    return at - max(start for start in starts if start <= at)


FREE = (
    "first_divergence",
    "edit_distance",
    "repetition_rate",
    "reference_repetition_rate",
    "repeating",
)


def summary_row(
    run: RunData, requests: pd.DataFrame, floor: float, fixed: RunData
) -> dict[str, object]:
    """The row of a condition; ``requests``: its rows of the request table; ``fixed``: the run that
    differs by the defect alone."""
    drift = np.abs(np.concatenate(run.dlogprob))
    finite = drift[np.isfinite(drift)]
    apart = np.abs(np.concatenate(run.dlogprob) - np.concatenate(fixed.dlogprob))
    ranks = np.concatenate(run.rank)
    back = requests["restored_at"].notna()
    hit = back & requests["onset"].notna()
    free = run.tokens is not None
    repeating = requests["repeating"].eq(True)
    return {
        "requests": len(requests),
        "tokens": len(drift),
        "max_abs_dlogprob": largest(drift),
        "mean_abs_dlogprob": mean(drift),
        "p99_abs_dlogprob": float(np.quantile(finite, 0.99)) if len(finite) else np.nan,
        "kl": mean(np.concatenate(run.kl)),
        "repetition_rate": requests["repetition_rate"].astype(float).mean() if free else np.nan,
        "diverged_requests": int(requests["first_divergence"].notna().sum()) if free else np.nan,
        "repeating_requests": int(repeating.sum()) if free else np.nan,
        "retractions": int(requests["retractions"].sum()),
        "nan_tokens": int(np.isnan(drift).sum()),
        "not_first": float((ranks != 0).mean()),
        "restores": sum(run.restores),
        "restores_different": run.restores[1],
        "restored_requests": int(back.sum()),
        "drifting_restored": int(hit.sum()),
        "repeating_restored": int((repeating & back).sum()) if free else np.nan,
        "collateral_requests": int(requests["collateral"].sum()),
        "median_onset": float(requests.loc[hit, "onset"].astype(float).median()),
        "max_from_fixed": largest(apart) if not np.isnan(apart).all() else np.nan,
        "floor": floor,
        "label": "measured",
    }


def position_rows(run: RunData, prompts: Sequence[int]) -> list[dict[str, object]]:
    """|delta logprob| by position in the output, and by tokens since the latest restore."""
    back = restores(run.events, prompts)
    by_axis: dict[str, dict[int, list[float]]] = {"position": {}, "since_restore": {}}
    for rid, signed in enumerate(run.dlogprob):
        starts = back.get(rid, [])
        for at, value in enumerate(np.abs(signed).tolist()):
            by_axis["position"].setdefault(at, []).append(value)
            since = [at - start for start in starts if start <= at]
            if since:
                by_axis["since_restore"].setdefault(min(since), []).append(value)
    rows: list[dict[str, object]] = []
    for axis, lines in by_axis.items():
        for at in sorted(lines):
            values = np.array([v for v in lines[at] if np.isfinite(v)])
            p50, p90, top = (
                np.quantile(values, [0.5, 0.9, 1.0]).tolist() if len(values) else [np.nan] * 3
            )
            rows.append(
                {"axis": axis, "at": at, "tokens": len(values), "p50": p50, "p90": p90, "max": top}
            )
    return rows


def token_rows(
    run: RunData, prompts: Sequence[int], tokens: Sequence[Sequence[int]]
) -> list[dict[str, object]]:
    """One row a token of one run: rid, position in the output, the step that made it, its id,
    |delta logprob|, and whether the request was restored before it."""
    back = restores(run.events, prompts)
    stays = intervals(run.events)
    stays = stays[stays["state"] == "running"]
    rows: list[dict[str, object]] = []
    for rid, signed in enumerate(run.dlogprob):
        steps: dict[int, int] = {}
        for begin, end, first in stays.loc[
            stays["rid"] == rid, ["begin", "end", "first_tokens"]
        ].itertuples(index=False):
            # The prefill's token, then one a forward: with n positions held comes output n + 1 - p.
            steps.setdefault(first - prompts[rid], begin)
            steps |= {first + 1 - prompts[rid] + i: begin + i for i in range(end - begin)}
        for at, value in enumerate(np.abs(signed).tolist()):
            rows.append(
                {
                    "rid": rid,
                    "position": at,
                    "step": steps.get(at),
                    "token": tokens[rid][at],
                    "abs_dlogprob": value,
                    "restored": rid in back and back[rid][0] <= at,
                }
            )
    return rows


def largest(values: Floats) -> float:
    """The largest finite value; 0 of no values, NaN where none of them is finite."""
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else (np.nan if len(values) else 0.0)


def mean(values: Floats) -> float:
    """The mean of the finite values; NaN where there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else np.nan

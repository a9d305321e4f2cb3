"""The expectations of the study, each confirmed or refuted by its tables; nothing is typed in.

The floor of a dtype is the largest |delta logprob| without retraction, over all DCP sizes. *Within
the floor* means at most ``MARGIN`` times it: two maxima over the same noise differ by less.

Worked example: floor 4e-6, forced_fixed at c = 4 has max 5e-6 (within: 1.2 times),
forced_before_fix 0.1 (25,000 times): both expectations are confirmed. At 3e-4 the second would be
refuted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from kvlab.lab.drift.conditions import PREFIX
from kvlab.lab.drift.defects import DEFECTS
from kvlab.lab.drift.metrics import UPSTREAM_TOLERANCE
from kvlab.lab.drift.tables import MARGIN

Outcome = Literal["confirmed", "refuted", "not measured"]
#: By which factor the code before the fix is expected to leave the floor.
FACTOR = 100.0
#: What tests/lab/drift/test_recompute.py shows.
RECOMPUTE = (
    "on the shipped checkpoint the cause is the recurrent state, which a prefill of prompt and "
    "output at once rounds otherwise than single steps do; with the steps' state and the prefill's "
    "rows it stays within"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``claim``: the expectation; ``outcome``; ``evidence``: a sentence with the numbers."""

    name: str
    claim: str
    outcome: Outcome
    evidence: str

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.outcome}: {self.claim} ({self.evidence})"


def verdicts(summary: pd.DataFrame) -> list[Verdict]:
    """Every expectation, judged by the summary of a study (columns ``results.SUMMARY``)."""
    found = [_restores(summary)]
    for dtype in summary["dtype"].unique():
        part = summary[summary["dtype"] == dtype]
        for name in ("forced_fixed", "natural", "recompute"):
            rows = part[part["condition"] == name]
            if len(rows):
                found.append(_within(rows, name, str(dtype)))
        before = part[part["condition"] == "forced_before_fix"]
        if len(before):
            found += [_beyond(before, str(dtype)), _nothing_at_one(before, str(dtype))]
            found.append(_tolerance(before, str(dtype)))
    found += [_tolerance_of_defects(summary), _cannot_act(summary)]
    return found


def _judge(
    name: str, claim: str, rows: pd.DataFrame, holds: Callable[[pd.DataFrame], bool], says: str
) -> Verdict:
    if not len(rows):
        return Verdict(name, claim, "not measured", "the study has no run that could tell")
    return Verdict(name, claim, "confirmed" if holds(rows) else "refuted", says)


def _restores(summary: pd.DataFrame) -> Verdict:
    rows = summary[summary["condition"].isin(["forced_fixed", "natural"])]
    rows = rows[rows["restores"] > 0]
    same, all_ = int((rows["restores"] - rows["restores_different"]).sum()), rows["restores"].sum()
    return _judge(
        "restored_bits",
        "with the fix, rows and state come back bit-identical",
        rows,
        lambda x: bool((x["restores_different"] == 0).all()),
        f"{same} of {int(all_)} restores, in {len(rows)} runs",
    )


def _within(rows: pd.DataFrame, name: str, dtype: str) -> Verdict:
    rows = rows[rows["retractions"] > 0]  # a run that never retracts is one without retraction
    within = rows["max_abs_dlogprob"] <= MARGIN * rows["floor"]  # of a floor of 0 too
    holds = bool(within.all() and (rows["nan_tokens"] == 0).all())
    retractions = int(rows["retractions"].sum())
    says = f"{_times(rows, 'max')}, at c = {_sizes(rows)}; {retractions} retractions"
    if (rows["nan_tokens"] > 0).any():
        says += f"; {rows['nan_tokens'].sum():.0f} tokens are NaN"
    if name == "recompute" and not holds:
        says += f"; {RECOMPUTE}"
    return _judge(
        f"{name}_within_floor_{dtype}",
        f"{name} drifts within the floor at every c, {dtype}",
        rows,
        lambda _: holds,
        says,
    )


def _beyond(rows: pd.DataFrame, dtype: str) -> Verdict:
    more = rows[rows["dcp_size"] > 1]
    top = more["max_abs_dlogprob"]
    return _judge(
        f"before_fix_beyond_floor_{dtype}",
        f"before the fix, drift is at least {FACTOR:.0f} times the floor at c > 1, {dtype}",
        more,
        lambda x: bool(((top >= FACTOR * x["floor"]) & (top > 0)).all()),
        f"{_times(more, 'min')}, at c = {_sizes(more)}",
    )


def _nothing_at_one(rows: pd.DataFrame, dtype: str) -> Verdict:
    one = rows[rows["dcp_size"] == 1]
    return _judge(
        f"before_fix_nothing_at_1_{dtype}",
        f"before the fix, no token's logprob is different at c = 1, {dtype}",
        one,
        lambda x: bool((x["max_from_fixed"] == 0).all() and (x["nan_tokens"] == 0).all()),
        f"largest difference from the run with the fix: {one['max_from_fixed'].max():.3g} nats",
    )


def _tolerance(rows: pd.DataFrame, dtype: str) -> Verdict:
    more = rows[rows["dcp_size"] > 1]
    top = ", ".join(_each(more))
    return _judge(
        f"tolerance_sees_before_fix_{dtype}",
        f"a tolerance of {UPSTREAM_TOLERANCE:.2f} nats (upstream's PD test) sees the code before "
        f"the fix at every c > 1, {dtype}",
        more,
        lambda x: bool((x["max_abs_dlogprob"] > UPSTREAM_TOLERANCE).all()),
        f"max |Δℓ| {top}" if top else "",
    )


def _tolerance_of_defects(summary: pd.DataFrame) -> Verdict:
    """Of the runs with a defect that changed a logprob. Whether a NaN passes a tolerance depends on
    how the two are compared, so runs with one are left out, and said to be."""
    rows = summary[summary["condition"].str.startswith(PREFIX)]
    lost = rows[rows["nan_tokens"] > 0]
    rows = rows[(rows["max_from_fixed"] > 0) & (rows["nan_tokens"] == 0)]
    below = rows[rows["max_abs_dlogprob"] <= UPSTREAM_TOLERANCE]
    parts = [
        f"{str(name).removeprefix(PREFIX)} {', '.join(_each(part))}"
        for name, part in below.groupby("condition", sort=False)
    ]
    says = f"{len(rows) - len(below)} of {len(rows)} runs exceed it"
    says += f"; max |Δℓ| of the others: {'; '.join(parts)}" if parts else ""
    says += f"; {len(lost)} runs with NaN left out" if len(lost) else ""
    return _judge(
        "tolerance_sees_defects",
        f"a tolerance of {UPSTREAM_TOLERANCE:.2f} nats sees every defect that changes a logprob",
        rows,
        lambda _: not len(below),
        says,
    )


def _each(rows: pd.DataFrame) -> list[str]:
    """Largest drift of each row, with its DCP size."""
    pairs = zip(rows["dcp_size"], rows["max_abs_dlogprob"], strict=True)
    return [f"{top:.3g} at c = {c}" for c, top in pairs]


def _times(rows: pd.DataFrame, of: Literal["min", "max"]) -> str:
    """The largest (or least) drift of the rows in floors; in nats where the floor is 0."""
    words = "at most" if of == "max" else "at least"
    if not (rows["floor"] > 0).all():
        return f"{words} {rows['max_abs_dlogprob'].agg(of):.3g} nats, the floor is 0"
    ratio = (rows["max_abs_dlogprob"] / rows["floor"]).agg(of)
    return f"{words} {ratio:,.3g} times the floor of {rows['floor'].max():.2g} nats"


def _cannot_act(summary: pd.DataFrame) -> Verdict:
    names = {PREFIX + d.name for d in DEFECTS if not d.can_act(1)}
    rows = summary[summary["condition"].isin(names) & (summary["dcp_size"] == 1)]
    # Without a hand-over the twin's prefill ran elsewhere; at c = 1 it is the same arithmetic.
    top = rows["max_from_fixed"].max()
    return _judge(
        "no_reach_at_1",
        "index and merge defects change no token's logprob at c = 1",
        rows,
        lambda x: bool((x["max_from_fixed"] == 0).all() and (x["nan_tokens"] == 0).all()),
        f"{rows['condition'].nunique()} conditions, largest difference {top:.3g} nats",
    )


def _sizes(rows: pd.DataFrame) -> str:
    return ", ".join(str(c) for c in sorted(rows["dcp_size"].unique()))

"""What the tables of the study say: each expectation judged, and the open question argued.

The floor of a dtype is the largest |delta logprob| without retraction, over all DCP sizes; *within*
it is at most ``MARGIN`` times as much. The question, *reported* and never measured by us: under
forced retraction about 4 of 48 restored requests fall into repetition, at DCP 1 as well. Which
defect can do that? ``_judged`` has the rules.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from kvlab.lab.drift.defects import DEFECTS, PREFIX, Defect
from kvlab.lab.drift.tables import MARGIN, UPSTREAM_TOLERANCE

Outcome = Literal["confirmed", "refuted", "not measured"]
Judgement = Literal["cannot", "too many", "not excluded", "not measured"]
#: By which factor the code before the fix is expected to leave the floor.
FACTOR = 100.0
#: What tests/lab/drift/test_recompute.py shows.
RECOMPUTE = (
    "on the shipped checkpoint the cause is the recurrent state, which a prefill of prompt and "
    "output at once rounds otherwise than single steps do; with the steps' state and the prefill's "
    "rows it stays within"
)
#: *Reported* with the fix's branch; no public thread shows it.
REPORTED = (4, 48)
#: From which share on of those that are touched repetition is no matter of chance.
SURE = 0.9
UNKNOWN = (
    "What stays unknown: whether the repeating requests of the report were wrong before they "
    "repeated, whether they would have repeated without retraction (a control with the same "
    "prompts and seeds), how they were sampled, and whether a defect that is not in this list is "
    "at work. A tiny model says how a defect reaches the logprobs; how readily a large one then "
    "falls into a loop, it cannot say."
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
        return f"{self.outcome}: {self.claim} ({self.evidence})"


def verdicts(summary: pd.DataFrame) -> list[Verdict]:
    """Every expectation, judged by the summary of a study (columns ``results.SUMMARY``)."""
    found = [_restores(summary)]
    for dtype, part in summary.groupby("dtype", sort=False):
        for name in ("forced_fixed", "natural", "recompute"):
            rows = part[part["condition"] == name]
            if len(rows):
                found.append(_within(rows, name, str(dtype)))
        before = part[part["condition"] == "forced_before_fix"]
        found += _before_fix(before, str(dtype)) if len(before) else []
    return [*found, _tolerance_of_defects(summary), _cannot_act(summary)]


def _judge(name: str, claim: str, rows: pd.DataFrame, holds: object, says: str) -> Verdict:
    if not len(rows):
        return Verdict(name, claim, "not measured", "the study has no run that could tell")
    return Verdict(name, claim, "confirmed" if holds else "refuted", says)


def _restores(summary: pd.DataFrame) -> Verdict:
    rows = summary[summary["condition"].isin(["forced_fixed", "natural"])]
    rows = rows[rows["restores"] > 0]
    different, total = int(rows["restores_different"].sum()), int(rows["restores"].sum())
    claim = "with the fix, rows and state come back bit-identical"
    says = f"{total - different} of {total} restores, in {len(rows)} runs"
    return _judge("restored_bits", claim, rows, not different, says)


def _within(rows: pd.DataFrame, name: str, dtype: str) -> Verdict:
    rows = rows[rows["retractions"] > 0]  # a run that never retracts is one without retraction
    lost = rows["nan_tokens"].sum()
    within = (rows["max_abs_dlogprob"] <= MARGIN * rows["floor"]).all()  # of a floor of 0 too
    says = f"{_times(rows, 'max')}, at c = {_sizes(rows)}; {rows['retractions'].sum()} retractions"
    says += f"; {lost:.0f} tokens are NaN" if lost else ""
    says += f"; {RECOMPUTE}" if name == "recompute" and (lost or not within) else ""
    claim = f"{name} drifts within the floor at every c, {dtype}"
    return _judge(f"{name}_within_floor_{dtype}", claim, rows, within and not lost, says)


def _before_fix(rows: pd.DataFrame, dtype: str) -> Iterator[Verdict]:
    one, more = rows[rows["dcp_size"] == 1], rows[rows["dcp_size"] > 1]
    top = more["max_abs_dlogprob"]
    yield _judge(
        f"before_fix_beyond_floor_{dtype}",
        f"before the fix, drift is at least {FACTOR:.0f} times the floor at c > 1, {dtype}",
        more,
        ((top >= FACTOR * more["floor"]) & (top > 0)).all(),
        f"{_times(more, 'min')}, at c = {_sizes(more)}",
    )
    yield _judge(
        f"before_fix_nothing_at_1_{dtype}",
        f"before the fix, no token's logprob is different at c = 1, {dtype}",
        one,
        _same_bits(one),
        f"largest difference from the run with the fix: {one['max_from_fixed'].max():.3g} nats",
    )
    yield _judge(
        f"tolerance_sees_before_fix_{dtype}",
        f"a tolerance of {UPSTREAM_TOLERANCE:.2f} nats (upstream's PD test) sees the code before "
        f"the fix at every c > 1, {dtype}",
        more,
        (top > UPSTREAM_TOLERANCE).all(),
        f"max |Δℓ| {_each(more)}",
    )


def _tolerance_of_defects(summary: pd.DataFrame) -> Verdict:
    """Of the runs with a defect that changed a logprob. Runs with NaN are left out: whether a NaN
    passes a tolerance depends on how the two are compared."""
    rows = summary[summary["condition"].str.startswith(PREFIX)]
    lost = int((rows["nan_tokens"] > 0).sum())
    rows = rows[(rows["max_from_fixed"] > 0) & (rows["nan_tokens"] == 0)]
    below = rows[rows["max_abs_dlogprob"] <= UPSTREAM_TOLERANCE]
    parts = [
        f"{str(name).removeprefix(PREFIX)} {_each(part)}"
        for name, part in below.groupby("condition", sort=False)
    ]
    says = f"{len(rows) - len(below)} of {len(rows)} runs exceed it"
    says += f"; max |Δℓ| of the others: {'; '.join(parts)}" if parts else ""
    says += f"; {lost} runs with NaN left out" if lost else ""
    claim = f"a tolerance of {UPSTREAM_TOLERANCE:.2f} nats sees every defect that changes a logprob"
    return _judge("tolerance_sees_defects", claim, rows, not len(below), says)


def _cannot_act(summary: pd.DataFrame) -> Verdict:
    names = {PREFIX + d.name for d in DEFECTS if not d.can_act(1)}
    rows = summary[summary["condition"].isin(names) & (summary["dcp_size"] == 1)]
    # Without a hand-over the twin's prefill ran elsewhere; at c = 1 it is the same arithmetic.
    top = rows["max_from_fixed"].max()
    says = f"{rows['condition'].nunique()} conditions, largest difference {top:.3g} nats"
    claim = "index and merge defects change no token's logprob at c = 1"
    return _judge("no_reach_at_1", claim, rows, _same_bits(rows), says)


def _same_bits(rows: pd.DataFrame) -> bool:
    return bool((rows["max_from_fixed"] == 0).all() and (rows["nan_tokens"] == 0).all())


def _each(rows: pd.DataFrame) -> str:
    """Largest drift of each row, with its DCP size."""
    pairs = zip(rows["dcp_size"], rows["max_abs_dlogprob"], strict=True)
    return ", ".join(f"{top:.3g} at c = {c}" for c, top in pairs)


def _times(rows: pd.DataFrame, of: Literal["min", "max"]) -> str:
    """The largest (or least) drift of the rows in floors; in nats where the floor is 0."""
    words = "at most" if of == "max" else "at least"
    if not (rows["floor"] > 0).all():
        return f"{words} {rows['max_abs_dlogprob'].agg(of):.3g} nats, the floor is 0"
    ratio = (rows["max_abs_dlogprob"] / rows["floor"]).agg(of)
    return f"{words} {ratio:,.3g} times the floor of {rows['floor'].max():.2g} nats"


def _sizes(rows: pd.DataFrame) -> str:
    return ", ".join(str(c) for c in sorted(rows["dcp_size"].unique()))


@dataclass(frozen=True, slots=True)
class Answer:
    """``judgement`` on a defect at c = 1, ``why`` in a sentence with its numbers."""

    defect: Defect
    judgement: Judgement
    why: str


def answers(summary: pd.DataFrame) -> list[Answer]:
    """Each defect that was run at c = 1, in the first dtype that it has."""
    one = summary[summary["dcp_size"] == 1]
    rows = [(known, one[one["condition"] == PREFIX + known.name]) for known in DEFECTS]
    return [Answer(known, *_judged(row.iloc[0])) for known, row in rows if len(row)]


def _judged(row: Any) -> tuple[Judgement, str]:
    """Can a defect make the reported share repeat? By its row of c = 1, in this order.

    Cannot: all logprobs are those of the run with the fix, bit for bit; or no restored request
    leaves the floor; or so few do that the share is out of reach, by chance too (95 % interval of
    Wilson). Too many: whoever is touched repeats, and that is more than the share can be. All
    others are not excluded: a tiny model falls into loops less, or more, easily than a large one.
    """
    least, most = interval(*REPORTED)
    n, touched = row["restored_requests"], row["drifting_restored"]
    repeating = row["repeating_restored"]
    if n == 0 or pd.isna(repeating):
        return "not measured", "no request was restored, or no free-running view"
    if row["max_from_fixed"] == 0 and row["nan_tokens"] == 0:
        return "cannot", "every logprob is that of the run with the fix, bit for bit, at c = 1"
    if touched == 0:
        return "cannot", f"none of {n} restored requests leaves the floor"
    by_chance = interval(touched, n)[1]
    if by_chance < least:
        few = f"it touches {touched} of {n} restored requests only"
        return "cannot", f"{few}, at most {by_chance:.0%} by chance"
    low, high = interval(repeating, n)
    share = f"{repeating:.0f} of {n} restored requests repeat ({low:.0%} to {high:.0%})"
    share += f", {touched} drift"
    if low > most and repeating >= SURE * touched:
        return "too many", f"{share}: nearly all that are touched"
    return "not excluded", share


def interval(hits: float, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share. (0, 1) of nothing."""
    if of == 0:
        return 0.0, 1.0
    z = 1.96
    share, z2 = hits / of, z * z / of
    middle = (share + z2 / 2) / (1 + z2)
    half = z * math.sqrt(share * (1 - share) / of + z2 / (4 * of)) / (1 + z2)
    # Rounding must not push an end past the share itself.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def argument(summary: pd.DataFrame) -> list[str]:
    """The argument, paragraph by paragraph, from the numbers of a study; none without a defect that
    was run at c = 1."""
    given = answers(summary)
    if not given:
        return []
    reported, (least, most) = f"{REPORTED[0]} of {REPORTED[1]}", interval(*REPORTED)
    groups = {
        "cannot": f"These cannot make {reported} repeat at c = 1",
        "too many": "These act at c = 1, but would make nearly all that they touch repeat",
        "not excluded": f"These act at c = 1 and are not excluded; {reported} is any share from "
        f"{least:.0%} to {most:.0%}, by the 95 % interval, and theirs are those of a tiny model",
        "not measured": "These were not measured",
    }
    lines = [
        f"Reported, not measured here: about {reported} restored requests repeat tokens under "
        f"forced retraction, at DCP 1 as well. No public thread shows the log."
    ]
    for judgement, says in groups.items():
        group = [a for a in given if a.judgement == judgement]
        told = [f"{a.defect.title}{' (hypothetical)' * a.defect.hypothetical}" for a in group]
        each = "; ".join(f"{name}: {a.why}" for name, a in zip(told, group, strict=True))
        lines += [f"{says} ({len(group)}). {each}."] if group else []
    open_ = [a.defect for a in given if a.judgement == "not excluded"]
    if open_:
        each = " ".join(f"{d.title[0].upper()}{d.title[1:]}: {d.tell_apart}." for d in open_)
        lines.append(f"What would tell them apart on a real server. {each}")
    lines += _base_rate(summary)
    lines.append(
        "A defect that is ruled out is ruled out as it was built here, in the dtype and on the "
        "workload it was run with."
    )
    return [*lines, UNKNOWN]


def _base_rate(summary: pd.DataFrame) -> list[str]:
    """How much the right code diverges and repeats, by batch noise alone."""
    rows = summary[(summary["condition"] == "forced_fixed") & summary["diverged_requests"].notna()]
    columns = ["requests", "diverged_requests", "repeating_requests"]
    worst = rows.groupby("dtype", sort=False)[columns].max()
    parts = [
        f"{diverged:.0f} of {requests:.0f} requests in {dtype} say something else than the "
        f"reference and {repeating:.0f} repeat more"
        for dtype, requests, diverged, repeating in worst.itertuples()
    ]
    so = "Rounding alone changed no token that was drawn here; on longer outputs it may."
    if worst["diverged_requests"].gt(0).any():
        so = (
            "Rounding alone changes what is drawn, so a request that says something else is no "
            "proof of a defect."
        )
    told = f"The base rate, with the fix and at the worst c: {'; '.join(parts)}. {so}"
    return [told] if parts else []

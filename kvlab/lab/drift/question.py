"""The open question of the report, answered as far as measured signatures go.

*Reported*, never measured by us: under forced retraction about 4 of 48 restored requests fall into
repetition, at DCP 1 as well. Which defect can do that? The rules, applied to the rows of c = 1:

    cannot        all logprobs are those of the run with the fix, bit for bit: no act at c = 1
    cannot        no restored request leaves the floor: it does no more than rounding
    cannot        it touches so few of them that 4 of 48 is out of reach, even by chance
    too many      whoever is touched repeats, and that is more than the report's share can be
    not excluded  all others: a tiny model that draws its tokens falls into loops less, or more,
                  easily than a large one; the shares and their intervals are given, not judged

"By chance" is the 95 % interval of Wilson for k of n, of the count here and of the one reported.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from kvlab.lab.drift.conditions import PREFIX
from kvlab.lab.drift.defects import DEFECTS, Defect

#: *Reported* with the fix's branch; no public thread shows it.
REPORTED = (4, 48)
Judgement = Literal["cannot", "too many", "not excluded", "not measured"]
Z = 1.96
#: From which share on of those that are touched repetition is no matter of chance.
SURE = 0.9


@dataclass(frozen=True, slots=True)
class Signature:
    """What a defect does at one DCP size, of ``restored`` requests: how many drift, repeat; how
    many others are hit (``collateral``); ``onset``: median tokens from the restore to the first
    drift; ``nan_tokens``; ``from_fixed``: largest difference from the run with the fix, nats."""

    defect: Defect
    dcp_size: int
    dtype: str
    requests: int
    restored: int
    drifting: int
    repeating: int | None
    collateral: int
    onset: float | None
    nan_tokens: int
    from_fixed: float


@dataclass(frozen=True, slots=True)
class Answer:
    """``judgement`` on a defect at c = 1, ``why`` in a sentence with its numbers."""

    signature: Signature
    judgement: Judgement
    why: str


def signatures(summary: pd.DataFrame, dcp_size: int = 1) -> list[Signature]:
    """Of each defect that was run at that DCP size, in the first dtype that it has."""
    found = []
    for known in DEFECTS:
        rows = summary[
            (summary["condition"] == PREFIX + known.name) & (summary["dcp_size"] == dcp_size)
        ]
        for row in rows.head(1).to_dict("records"):
            repeating, onset = row["repeating_restored"], row["median_onset"]
            found.append(
                Signature(
                    known,
                    dcp_size,
                    str(row["dtype"]),
                    int(row["requests"]),
                    int(row["restored_requests"]),
                    int(row["drifting_restored"]),
                    None if pd.isna(repeating) else int(repeating),
                    int(row["collateral_requests"]),
                    None if pd.isna(onset) else float(onset),
                    int(row["nan_tokens"]),
                    float(row["max_from_fixed"]),
                )
            )
    return found


def interval(hits: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share. (0, 1) of nothing."""
    if of == 0:
        return 0.0, 1.0
    share, z2 = hits / of, Z * Z / of
    middle = (share + z2 / 2) / (1 + z2)
    half = Z * math.sqrt(share * (1 - share) / of + z2 / (4 * of)) / (1 + z2)
    # Rounding must not push an end past the share itself.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def answer(found: Signature) -> Answer:
    """The rules of the module, in their order."""
    least, most = interval(*REPORTED)
    n, touched, repeating = found.restored, found.drifting, found.repeating
    if n == 0 or repeating is None:
        return Answer(found, "not measured", "no request was restored, or no free-running view")
    if found.from_fixed == 0 and found.nan_tokens == 0:
        why = f"every logprob is that of the run with the fix, bit for bit, at c = {found.dcp_size}"
        return Answer(found, "cannot", why)
    if touched == 0:
        return Answer(found, "cannot", f"none of {n} restored requests leaves the floor")
    if interval(touched, n)[1] < least:
        return Answer(
            found,
            "cannot",
            f"it touches {touched} of {n} restored requests only, at most "
            f"{interval(touched, n)[1]:.0%} by chance",
        )
    low, high = interval(repeating, n)
    share = (
        f"{repeating} of {n} restored requests repeat ({low:.0%} to {high:.0%}), {touched} drift"
    )
    if low > most and repeating >= SURE * touched:
        return Answer(found, "too many", f"{share}: nearly all that are touched")
    return Answer(found, "not excluded", share)


def answers(summary: pd.DataFrame) -> list[Answer]:
    """All defects at c = 1."""
    return [answer(found) for found in signatures(summary)]


def text(summary: pd.DataFrame) -> list[str]:
    """The argument, paragraph by paragraph, from the numbers of a study; none without a defect that
    was run at c = 1."""
    given = answers(summary)
    if not given:
        return []
    reported = f"{REPORTED[0]} of {REPORTED[1]}"
    lines = [
        f"Reported, not measured here: about {reported} restored requests repeat tokens under "
        f"forced retraction, at DCP 1 as well. No public thread shows the log."
    ]
    least, most = interval(*REPORTED)
    for judgement, says in (
        ("cannot", f"These cannot make {reported} repeat at c = 1"),
        ("too many", "These act at c = 1, but would make nearly all that they touch repeat"),
        (
            "not excluded",
            f"These act at c = 1 and are not excluded; {reported} is any share from {least:.0%} to "
            f"{most:.0%}, by the 95 % interval, and theirs are those of a tiny model",
        ),
        ("not measured", "These were not measured"),
    ):
        group = [a for a in given if a.judgement == judgement]
        if group:
            each = "; ".join(f"{_named(a.signature.defect)}: {a.why}" for a in group)
            lines.append(f"{says} ({len(group)}). {each}.")
    open_ = [a.signature.defect for a in given if a.judgement == "not excluded"]
    if open_:
        each = " ".join(f"{d.title[0].upper()}{d.title[1:]}: {d.tell_apart}." for d in open_)
        lines.append(f"What would tell them apart on a real server. {each}")
    lines += [
        _base_rate(summary),
        "A defect that is ruled out is ruled out as it was built here, in the dtype and on the "
        "workload it was run with.",
        UNKNOWN,
    ]
    return [line for line in lines if line]


def _named(found: Defect) -> str:
    return found.title + (" (hypothetical)" if found.hypothetical else "")


UNKNOWN = (
    "What stays unknown: whether the repeating requests of the report were wrong before they "
    "repeated, whether they would have repeated without retraction (a control with the same "
    "prompts and seeds), how they were sampled, and whether a defect that is not in this list is "
    "at work. A tiny model says how a defect reaches the logprobs; how readily a large one then "
    "falls into a loop, it cannot say."
)


def _base_rate(summary: pd.DataFrame) -> str:
    """How much the right code diverges and repeats, by batch noise alone."""
    rows = summary[(summary["condition"] == "forced_fixed") & summary["diverged_requests"].notna()]
    worst = rows.groupby("dtype", sort=False)[
        ["requests", "diverged_requests", "repeating_requests"]
    ].max()
    parts = [
        f"{diverged:.0f} of {requests:.0f} requests in {dtype} say something else than the "
        f"reference and {repeating:.0f} repeat more"
        for dtype, requests, diverged, repeating in worst.itertuples()
    ]
    if not parts:
        return ""
    so = (
        "Rounding alone changes what is drawn, so a request that says something else is no proof "
        "of a defect."
        if worst["diverged_requests"].gt(0).any()
        else "Rounding alone changed no token that was drawn here; on longer outputs it may."
    )
    return f"The base rate, with the fix and at the worst c: {'; '.join(parts)}. {so}"


def table(given: Sequence[Signature]) -> pd.DataFrame:
    """The signatures as a table for people, one row a defect."""
    return pd.DataFrame(
        [
            {
                "defect": s.defect.title,
                "reported": "hypothetical" if s.defect.hypothetical else s.defect.source,
                "c": s.dcp_size,
                "dtype": s.dtype,
                "restored": s.restored,
                "drifting": s.drifting,
                "repeating": s.repeating,
                "collateral": s.collateral,
                "onset": s.onset,
                "nan_tokens": s.nan_tokens,
                "from_fixed": s.from_fixed,
            }
            for s in given
        ]
    )

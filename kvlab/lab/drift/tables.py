"""From the arrays of runs to the tables of the study, and each metric on the way, defined once.

A *reference* p is the next-token distribution of one rank without retraction; a *run* q is that of
the condition. Tokens whose logprob is NaN are counted (``nan_tokens``) and left out of maxima,
means and percentiles; where nothing is left, the field is empty in a CSV and null in JSON.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine import Event
from kvlab.lab.drift.defects import REFERENCE, Point, condition
from kvlab.lab.drift.prompts import Prompts
from kvlab.lab.drift.results import EVENTS, POSITIONS, REQUESTS, SUMMARY, TOKENS, Study
from kvlab.lab.keep import Values
from kvlab.lab.timeline import intervals

Floats = NDArray[np.float64]
Row = dict[str, object]
#: The arrays of a run, by view ("forced", "free") and point.
Find = Callable[[str, Point], Values]
EVENT = np.dtype([("step", "i4"), ("kind", "U8"), ("rid", "i4"), ("tokens", "i4")])
#: The run whose events and tokens are kept: the first of these that was run, c as near 4 as any.
TIMELINE = ("forced_before_fix", "forced_fixed", "no_retraction")
#: Two maxima over the same noise differ by less than this factor; drift above it is no noise.
MARGIN = 2.0
#: Of a repetition: longest period, least tokens, least times that the period is held.
LONGEST_PERIOD, LEAST_STRETCH, LEAST_TIMES = 8, 8, 3
#: By how much rho must exceed that of the reference for a request to count as repeating.
REPEATS = 0.25
#: The tolerance on output logprobs of SGLang's PD test under DCP 4 (*reported*, by that test).
UPSTREAM_TOLERANCE = 0.20


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of the result tables: ``name`` there, ``symbol``, ``unit`` and ``definition`` for
    people, ``view``: "forced" or "free"."""

    name: str
    symbol: str
    unit: str
    definition: str
    view: str


_X = "|ln q(x) - ln p(x)| of the reference's token x"
_REPETITION = (
    f"share of output positions that end a stretch of at least {LEAST_STRETCH} tokens in which a "
    f"block of at most {LONGEST_PERIOD} tokens follows itself {LEAST_TIMES} times or more"
)
_REPEATING = f"requests whose ρ is at least {REPEATS} above the reference's"
METRICS = (
    Metric("abs_dlogprob", "|Δℓ|", "nats", _X, "forced"),
    Metric("max_abs_dlogprob", "max |Δℓ|", "nats", "largest |Δℓ| over the finite tokens", "forced"),
    Metric("mean_abs_dlogprob", "mean |Δℓ|", "nats", "mean |Δℓ| over the finite tokens", "forced"),
    Metric("p99_abs_dlogprob", "p99 |Δℓ|", "nats", "99th percentile of |Δℓ|", "forced"),
    Metric("kl", "D", "nats", "mean over tokens of sum_x p(x) (ln p(x) - ln q(x))", "forced"),
    Metric("rank", "r", "place", "place of the reference's token in q, 0 the likeliest", "forced"),
    Metric("floor", "ε", "nats", "max |Δℓ| of no_retraction in that dtype, over all c", "forced"),
    Metric("first_above_floor", "t_ε", "token", "first output position with |Δℓ| > 2 ε", "forced"),
    Metric("first_divergence", "t_d", "token", "first output position with another token", "free"),
    Metric("edit_distance", "d", "tokens", "least insertions, deletions and replacements", "free"),
    Metric("repetition_rate", "ρ", "share", _REPETITION, "free"),
    Metric("repeating_requests", "n_ρ", "requests", _REPEATING, "free"),
)


def metric(name: str) -> Metric:
    """The metric of that name. Errors: KeyError for a name that no table has."""
    return {m.name: m for m in METRICS}[name]


def divergence(reference: Tensor, run: Tensor) -> Tensor:
    """D of each token, nats, float64 ``(n,)``, never below 0; both are logprobs ``(n,
    vocabulary)``. NaN where ``run`` has one. Tokens that the reference rules out weigh nothing."""
    p, q = reference.double(), run.double()
    chance = p.exp()
    total = torch.where(chance > 0, chance * (p - q), 0.0).sum(dim=1).clamp_min(0.0)
    return torch.where(torch.isnan(q).any(dim=1), torch.nan, total)


def ranks(tokens: Tensor, logprobs: Tensor) -> Tensor:
    """How many tokens are likelier than each of ``tokens`` int64 ``(n,)``; -1 where a line of
    ``logprobs`` ``(n, vocabulary)`` holds a NaN."""
    likelier = (logprobs > logprobs.gather(1, tokens[:, None])).sum(dim=1)
    return torch.where(torch.isnan(logprobs).any(dim=1), -1, likelier)


def first_difference(reference: Sequence[int], run: Sequence[int]) -> int | None:
    """The first position where two outputs differ, or one of them has ended; None if never."""
    pairs = enumerate(zip_longest(reference, run))
    return next((at for at, (a, b) in pairs if a != b), None)


def first_above(values: Floats, bound: float) -> int | None:
    """The first position whose value is above ``bound`` or is no number; None if there is none."""
    found = np.flatnonzero(~(values <= bound))
    return int(found[0]) if len(found) else None


def edit_distance(reference: Sequence[int], run: Sequence[int]) -> int:
    """Levenshtein: least insertions, deletions and replacements from one output to the other.

    Cost: the product of the two lengths.
    """
    line = list(range(len(run) + 1))
    for i, a in enumerate(reference, start=1):
        corner, line[0] = line[0], i
        for j, b in enumerate(run, start=1):
            best = min(line[j] + 1, line[j - 1] + 1, corner + (a != b))
            corner, line[j] = line[j], best
    return line[-1]


def repeating(tokens: Sequence[int]) -> NDArray[np.bool_]:
    """Which positions end a repetition, bool ``(n,)``: see ``repetition_rate`` in ``METRICS``.

    Of ``a b a b a b a b a b``, period 2, those at 7, 8 and 9 end a stretch of 8 tokens or more.
    """
    x = np.asarray(tokens, dtype=np.int64)
    marked = np.zeros(len(x), dtype=bool)
    for period in range(1, LONGEST_PERIOD + 1):
        stretch = max(LEAST_STRETCH, LEAST_TIMES * period)
        run = 0  # positions in a row that equal the one a period before
        for at in range(period, len(x)):
            run = run + 1 if x[at] == x[at - period] else 0
            marked[at] |= run + period >= stretch
    return marked


def repetition_rate(tokens: Sequence[int]) -> float:
    """rho of an output, 0 to 1; 0 for none."""
    return float(repeating(tokens).mean()) if len(tokens) else 0.0


def largest(values: Floats) -> float:
    """The largest finite value; 0 of no values, NaN where none of them is finite."""
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else (np.nan if len(values) else 0.0)


def mean(values: Floats) -> float:
    """The mean of the finite values; NaN where there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else np.nan


def events_array(events: Iterable[Event]) -> NDArray[np.void]:
    """One element an event. ``events_of`` reads it back."""
    return np.array([(e.step, e.kind, e.rid, e.tokens) for e in events], EVENT)


def events_of(rows: NDArray[np.void]) -> tuple[Event, ...]:
    """The events again."""
    return tuple(Event(*row) for row in rows.tolist())


def cut(values: NDArray[Any], lengths: Sequence[int]) -> tuple[NDArray[Any], ...]:
    """The values of each request, whose ``lengths`` these are."""
    return tuple(np.split(values, np.cumsum(np.asarray(lengths, np.int64))[:-1]))


def outputs_of(run: Values, lengths: Sequence[int]) -> list[list[int]]:
    """The tokens of each request of a run or reference."""
    return [part.tolist() for part in cut(run["token"], lengths)]


@dataclass(frozen=True, eq=False)
class RunData:
    """One run, both views, cut by request. ``prompts``: prompt lengths by rid; ``dlogprob`` and
    ``kl`` of each token, nats; ``rank``; ``tokens`` drawn freely, and ``drawn`` by the reference;
    ``events`` of the forced view; ``restores``: how many came back bit-identical, and how many did
    not."""

    prompts: Sequence[int]
    dlogprob: Sequence[Floats]
    kl: Sequence[Floats]
    rank: Sequence[NDArray[np.int64]]
    tokens: Sequence[Sequence[int]]
    drawn: Sequence[Sequence[int]]
    events: Sequence[Event]
    restores: tuple[int, int] = (0, 0)

    @cached_property
    def back(self) -> dict[int, list[int]]:
        """Of each request the output positions of the first tokens after its restores.

        A restored request holds KV of all tokens but the newest, so with n positions it makes
        output n + 1 - p next; one that is recomputed holds all of them.
        """
        found: dict[int, list[int]] = {}
        for event in self.events:
            length = self.prompts[event.rid]
            if event.kind == "resume":
                found.setdefault(event.rid, []).append(event.tokens + 1 - length)
            elif event.kind == "admit" and event.tokens > length:
                found.setdefault(event.rid, []).append(event.tokens - length)
        return found


def request_rows(run: RunData, floor: float) -> list[Row]:
    """One row a request; ``data/README.md`` says what each column is."""
    left = [event.rid for event in run.events if event.kind == "retract"]
    rows: list[Row] = []
    bound = MARGIN * floor
    for rid, (signed, kl) in enumerate(zip(run.dlogprob, run.kl, strict=True)):
        drift, starts = np.abs(signed), run.back.get(rid, [])
        before, since = np.split(drift, [starts[0] if starts else len(drift)])
        # Tokens from the latest restore to the first drift after any.
        found, onset = first_above(since, bound), None
        if found is not None:
            onset = min(starts[0] + found - start for start in starts if start <= starts[0] + found)
        said, want = run.tokens[rid], run.drawn[rid]
        mine, its = repetition_rate(said), repetition_rate(want)
        rows.append(
            {
                "rid": rid,
                "retractions": left.count(rid),
                "restored_at": starts[0] if starts else None,
                "max_abs_dlogprob": largest(drift),
                "max_before_restore": largest(before),
                "max_since_restore": largest(since),
                "kl": mean(kl),
                "nan_tokens": int(np.isnan(drift).sum()),
                "first_above_floor": first_above(drift, bound),
                "onset": onset,
                "collateral": first_above(before, bound) is not None,
                "first_divergence": first_difference(want, said),
                "edit_distance": edit_distance(want, said),
                "repetition_rate": mine,
                "reference_repetition_rate": its,
                "repeating": mine >= its + REPEATS,
            }
        )
    return rows


def summary_row(run: RunData, requests: pd.DataFrame, floor: float, fixed: RunData) -> Row:
    """The row of a condition; ``requests``: its rows of the request table; ``fixed``: the run that
    differs by the defect alone."""
    signed = np.concatenate(run.dlogprob)
    drift, apart = np.abs(signed), np.abs(signed - np.concatenate(fixed.dlogprob))
    finite = drift[np.isfinite(drift)]
    back = requests["restored_at"].notna()
    hit = back & requests["onset"].notna()
    repeating = requests["repeating"]
    return {
        "requests": len(requests),
        "tokens": len(drift),
        "max_abs_dlogprob": largest(drift),
        "mean_abs_dlogprob": mean(drift),
        "p99_abs_dlogprob": float(np.quantile(finite, 0.99)) if len(finite) else np.nan,
        "kl": mean(np.concatenate(run.kl)),
        "repetition_rate": requests["repetition_rate"].mean(),
        "diverged_requests": int(requests["first_divergence"].notna().sum()),
        "repeating_requests": int(repeating.sum()),
        "retractions": int(requests["retractions"].sum()),
        "nan_tokens": int(np.isnan(drift).sum()),
        "not_first": float((np.concatenate(run.rank) != 0).mean()),
        "restores": sum(run.restores),
        "restores_different": run.restores[1],
        "restored_requests": int(back.sum()),
        "drifting_restored": int(hit.sum()),
        "repeating_restored": int((repeating & back).sum()),
        "collateral_requests": int(requests["collateral"].sum()),
        "median_onset": float(requests.loc[hit, "onset"].astype(float).median()),
        "max_from_fixed": largest(apart) if not np.isnan(apart).all() else np.nan,
        "floor": floor,
        "label": "measured",
    }


def position_rows(run: RunData) -> list[Row]:
    """|delta logprob| by position in the output, and by tokens since the latest restore."""
    found: dict[tuple[str, int], list[float]] = {}
    for rid, signed in enumerate(run.dlogprob):
        for at, value in enumerate(np.abs(signed).tolist()):
            found.setdefault(("position", at), []).append(value)
            since = [at - start for start in run.back.get(rid, []) if start <= at]
            if since:
                found.setdefault(("since_restore", min(since)), []).append(value)
    rows: list[Row] = []
    for (axis, at), line in sorted(found.items()):
        values = np.array([value for value in line if np.isfinite(value)])
        cuts = np.quantile(values, [0.5, 0.9, 1.0]).tolist() if len(values) else [np.nan] * 3
        row = dict(zip(("p50", "p90", "max"), cuts, strict=True))
        rows.append({"axis": axis, "at": at, "tokens": len(values), **row})
    return rows


def token_rows(run: RunData, tokens: Sequence[Sequence[int]]) -> list[Row]:
    """One row a token of one run: rid, position in the output, the step that made it, its id,
    |delta logprob|, and whether the request was restored before it."""
    steps: dict[tuple[int, int], int] = {}
    for stay in intervals(run.events).query("state == 'running'").to_dict("records"):
        # The prefill's token, then one a forward: with n positions held comes output n + 1 - p.
        rid, begin = stay["rid"], stay["begin"]
        made = stay["first_tokens"] - run.prompts[rid]
        steps.setdefault((rid, made), begin)
        for step in range(begin, stay["end"]):
            steps[rid, made + 1 + step - begin] = step
    rows: list[Row] = []
    for rid, signed in enumerate(run.dlogprob):
        first = run.back.get(rid, [len(signed)])[0]
        for at, value in enumerate(np.abs(signed).tolist()):
            row = (rid, at, steps.get((rid, at)), tokens[rid][at], value, first <= at)
            rows.append(dict(zip(TOKENS, row, strict=True)))
    return rows


def assemble(
    points: Sequence[Point], find: Find, prompts: Prompts, origin: Mapping[str, object]
) -> Study:
    """The tables of a study whose runs ``find`` gives: floors first, since every judgement is
    against one."""
    data = {point: run_data(find, point, prompts) for point in points}
    floors: dict[str, float] = {}
    for point, run in data.items():
        if point.known.name == "no_retraction":
            top = float(np.abs(np.concatenate(run.dlogprob)).max())
            floors[point.dtype] = max(floors.get(point.dtype, 0.0), top)
    summary, requests, positions = [], [], []
    for point, run in data.items():
        floor = floors[point.dtype]
        table = pd.DataFrame([point.key | row for row in request_rows(run, floor)])
        fixed = data[Point(condition(point.known.fixed), point.dcp_size, point.dtype)]
        summary.append(point.key | summary_row(run, table, floor, fixed))
        requests.append(table)
        positions += [point.key | row for row in position_rows(run)]
    shown = min(
        (point for point in data if point.known.name in TIMELINE),
        key=lambda p: (TIMELINE.index(p.known.name), abs(p.dcp_size - 4), p.dtype != "float32"),
    )
    reference = find("forced", Point(REFERENCE, 1, shown.dtype))
    outputs = outputs_of(reference, reference["length"])
    events = [(e.step, e.kind, e.rid, e.tokens) for e in data[shown].events]
    timeline = {name: x for name, x in shown.key.items() if name != "defect"}
    return Study(
        _rounded(pd.DataFrame(summary)[[*SUMMARY]]),
        _rounded(pd.concat(requests, ignore_index=True)[[*REQUESTS]]),
        _rounded(pd.DataFrame(positions)[[*POSITIONS]]),
        pd.DataFrame(events, columns=[*EVENTS]),
        _rounded(pd.DataFrame(token_rows(data[shown], outputs))[[*TOKENS]]),
        {**origin, "timeline": timeline},
    )


def _rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """Six digits of every float: what is left is noise, and twice the size of a file."""
    return frame.map(lambda x: float(f"{x:.6g}") if isinstance(x, float) else x)


def run_data(find: Find, point: Point, prompts: Prompts) -> RunData:
    """The run of a point against its reference, cut by request."""
    alone, run = Point(REFERENCE, 1, point.dtype), find("forced", point)
    reference, lengths = find("forced", alone), find("forced", alone)["length"]
    signed = run["logprob"].astype(np.float64) - reference["logprob"].astype(np.float64)
    return RunData(
        [request.prompt_tokens for request in prompts.workload.requests],
        cut(signed, lengths),
        cut(run["kl"].astype(np.float64), lengths),
        cut(run["rank"].astype(np.int64), lengths),
        outputs_of(find("free", point), lengths),
        outputs_of(find("free", alone), lengths),
        events_of(run["events"]),
        (int(run["restores"][0]), int(run["restores"][1])),
    )

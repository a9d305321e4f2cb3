"""Each metric of the drift study, defined once: its symbol, its unit, its definition, its code.

Figures, notebook and command line take names and symbols from ``METRICS``. A *reference* p is the
next-token distribution of one rank without retraction; a *run* q is that of the condition.

Worked example of the repetition rate, period 2: of the output ``a b a b a b a b a b`` the tokens at
positions 7, 8 and 9 end a stretch of at least 8 tokens that repeats with period 2; rho = 3 / 10.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

#: Longest period, in tokens, that counts as a repetition.
LONGEST_PERIOD = 8
#: Least tokens of a stretch that counts, and least times that it holds its period.
LEAST_STRETCH, LEAST_TIMES = 8, 3
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


METRICS = (
    Metric(
        "abs_dlogprob", "|Δℓ|", "nats", "|ln q(x) - ln p(x)| of the reference's token x", "forced"
    ),
    Metric("max_abs_dlogprob", "max |Δℓ|", "nats", "largest |Δℓ| over the finite tokens", "forced"),
    Metric("mean_abs_dlogprob", "mean |Δℓ|", "nats", "mean |Δℓ| over the finite tokens", "forced"),
    Metric("p99_abs_dlogprob", "p99 |Δℓ|", "nats", "99th percentile of |Δℓ|", "forced"),
    Metric("kl", "D", "nats", "mean over tokens of sum_x p(x) (ln p(x) - ln q(x))", "forced"),
    Metric("rank", "r", "place", "place of the reference's token in q, 0 the likeliest", "forced"),
    Metric("floor", "ε", "nats", "max |Δℓ| of no_retraction in that dtype, over all c", "forced"),
    Metric("first_above_floor", "t_ε", "token", "first output position with |Δℓ| > 2 ε", "forced"),
    Metric("first_divergence", "t_d", "token", "first output position with another token", "free"),
    Metric("edit_distance", "d", "tokens", "least insertions, deletions and replacements", "free"),
    Metric(
        "repetition_rate",
        "ρ",
        "share",
        f"share of output positions that end a stretch of at least {LEAST_STRETCH} tokens in which "
        f"a block of at most {LONGEST_PERIOD} tokens follows itself {LEAST_TIMES} times or more",
        "free",
    ),
    Metric(
        "repeating_requests",
        "n_ρ",
        "requests",
        f"requests whose ρ is at least {REPEATS} above the reference's",
        "free",
    ),
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
    for at, (a, b) in enumerate(zip(reference, run, strict=False)):
        if a != b:
            return at
    return None if len(reference) == len(run) else min(len(reference), len(run))


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
    """Which positions end a repetition, bool ``(n,)``: see ``repetition_rate`` in ``METRICS``."""
    x = np.asarray(tokens, dtype=np.int64)
    marked = np.zeros(len(x), dtype=bool)
    for period in range(1, LONGEST_PERIOD + 1):
        stretch = max(LEAST_STRETCH, LEAST_TIMES * period)
        run = 0  # positions in a row that equal the one a period before
        for at in range(period, len(x)):
            run = run + 1 if x[at] == x[at - period] else 0
            if run + period >= stretch:
                marked[at] = True
    return marked


def repetition_rate(tokens: Sequence[int]) -> float:
    """rho of an output, 0 to 1; 0 for none."""
    return float(repeating(tokens).mean()) if len(tokens) else 0.0

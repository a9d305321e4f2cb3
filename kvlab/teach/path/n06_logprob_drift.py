"""Exercises of 06_logprob_drift: log bases, empty shards, the floor, repetition, a merge."""

import math
from functools import reduce
from typing import Any

import torch

from kvlab.attn import Partial, merge_stacked
from kvlab.lab.drift import first_above, repetition_rate
from kvlab.teach.draw import Draw, Inputs
from kvlab.teach.exercise import need, task


def weights(lses: list[float], bases: list[str]) -> list[float]:
    """All in nats first: an LSE in base 2 is larger by 1 / ln 2."""
    nats = [x * math.log(2) if base == "2" else x for x, base in zip(lses, bases, strict=True)]
    top = max(nats)
    parts = [math.exp(x - top) for x in nats]
    return [part / sum(parts) for part in parts]


def _lse(d: Draw) -> float:
    spread = 3 if d.size < 5 else 900  # exp overflows from 710 on
    return round(d.uniform(-spread, spread), 1)


def _bases(d: Draw) -> Inputs:
    n = d.randint(2, 3 + d.size // 2)
    return [_lse(d) for _ in range(n)], [d.choice(["e", "2"]) for _ in range(n)]


@task(grade=2, answer=weights, example=([1.0, 3.0], ["2", "2"]), make=_bases, core=False)
def nats_and_log2(lses: list[float], bases: list[str]) -> list[float]:
    """Log bases in a merge.

    Each rank gives the LSE of its scores; some backends in nats (base "e"), some in base "2".
    Return the weights of the ranks in the merged attention: they are in the ratio of the sums of
    exponentials, and add up to 1. LSE may be several hundred, where exp overflows.
    Hint: log2(x) = ln(x) / ln(2); convert all to nats, subtract the largest, then exp
    Source: FlashInfer issue 4485.
    """
    lse, two = (
        torch.tensor(lses, dtype=torch.float64),
        torch.tensor([base == "2" for base in bases]),
    )
    return torch.softmax(torch.where(two, lse * math.log(2), lse), 0).tolist()


def drift(reference: list[float], run: list[float], floor: float) -> tuple[float, int]:
    """A logprob that is no number leaves the floor, and has no part in the largest drift."""
    moved = [abs(x - y) for x, y in zip(reference, run, strict=True)]
    finite = [x for x in moved if math.isfinite(x)]
    left = [at for at, x in enumerate(moved) if not x <= 2 * floor]
    return max(finite, default=0.0), left[0] if left else -1


def _logprobs(d: Draw) -> Inputs:
    n, floor = d.randint(1, 3 + 4 * d.size), d.choice([0.25, 0.5, 1.0])
    reference = [-d.randint(0, 200) / 64 for _ in range(n)]
    run, lost = [], d.choice([1.0, *[0.06] * 15])
    for x in reference:
        times = d.choice([0, 0.5, 0.5, 1, 1.5, 2, d.randint(2, 8)])
        moved = x + d.choice([-1, 1]) * floor * times
        run.append(math.nan if d.random() < lost else moved)
    return reference, run, floor


@task(
    grade=2, answer=drift, example=([-1.0, -2.0, -0.5], [-1.25, -1.0, -0.5], 0.25), make=_logprobs
)
def above_the_floor(reference: list[float], run: list[float], floor: float) -> tuple[float, int]:
    """Does it leave the floor?

    `reference` and `run` are the logprobs of the same tokens, `floor` is the noise floor in nats.
    Return (largest |difference| over the finite ones, 0 if there is none; the first position whose
    |difference| is above 2 * floor, -1 if there is none). A NaN is above every floor.
    Hint: a comparison with NaN is false, whichever way round; a drift has no sign
    Source: the comparison of logprobs in SGLang's PD test (tolerance 0.20).
    """
    moved = (torch.tensor(run, dtype=torch.float64) - torch.tensor(reference)).abs()
    finite = moved[torch.isfinite(moved)]
    at = first_above(moved.numpy(), 2 * floor)
    return float(finite.max()) if len(finite) else 0.0, -1 if at is None else at


def merge(outs: list[float], lses: list[float]) -> tuple[float, float]:
    """Leave the empty shards out, rather than multiply them by zero: 0 * NaN is NaN."""
    full = [(o, x) for o, x in zip(outs, lses, strict=True) if math.isfinite(x)]
    if not full:
        return 0.0, -math.inf
    top = max(x for _, x in full)
    total = sum(math.exp(x - top) for _, x in full)
    return sum(o * math.exp(x - top) for o, x in full) / total, top + math.log(total)


def _shards(d: Draw) -> Inputs:
    outs, lses = list[float](), list[float]()
    for _ in range(d.randint(1, 3 + d.size)):
        empty = d.random() < 0.4
        outs.append(d.choice([0.0, math.nan, 7.0]) if empty else float(d.randint(-20, 20)))
        lses.append(d.choice([math.inf, -math.inf, math.nan]) if empty else _lse(d))
    return outs, lses


@task(grade=3, answer=merge, example=([1.0, math.nan, 0.0], [0.0, -math.inf, 0.0]), make=_shards)
def empty_shard(outs: list[float], lses: list[float]) -> tuple[float, float]:
    """A rank without keys.

    Merge the partials of the ranks, LSE in nats: return (out, lse). A rank without keys has an LSE
    of -inf, or, from some backends, +inf or NaN, and its out is whatever lay in memory, NaN too. If
    no rank has keys the result is (0.0, -inf).
    Hint: 0 * NaN is NaN: select the ranks that have keys, before anything is multiplied
    Source: vLLM issue 38416 and FlashMLA pull request 77.
    """
    out = torch.tensor(outs, dtype=torch.float64)[:, None]
    told = Partial.with_nan_as_empty(out, torch.tensor(lses, dtype=torch.float64))
    merged = merge_stacked(told.out, told.lse)
    return float(merged.out), float(merged.lse)


def rate(tokens: list[int]) -> float:
    """For each period: how far does the text equal itself that many tokens before?"""
    marked = set()
    for period in range(1, 9):
        run = 0
        for at in range(period, len(tokens)):
            run = run + 1 if tokens[at] == tokens[at - period] else 0
            if run + period >= max(8, 3 * period):
                marked.add(at)
    return len(marked) / len(tokens) if tokens else 0.0


def _output(d: Draw) -> Inputs:
    tokens: list[int] = []
    if d.random() < 0.06:
        return (tokens,)
    for _ in range(d.randint(1, 2 + d.size // 2)):
        tokens += [d.randrange(1000) for _ in range(d.randint(0, 3 + d.size))]
        period = d.pick(range(1, 4), range(1, 11))
        block = [d.randrange(d.choice([2, 1000])) for _ in range(period)]
        times, rest = d.randint(1, 12 if period < 4 else 5), d.randrange(period)
        tokens += block * times + block[:rest]
    return (tokens,)


@task(grade=4, answer=rate, example=([5, 7] * 5,), make=_output, core=False)
def repetition(tokens: list[int]) -> float:
    """How much does it repeat?

    The repetition rate of an output: the share of its positions that end a stretch of at least 8
    tokens in which a block of at most 8 tokens follows itself 3 times or more (so the stretch has
    at least 3 times as many tokens as the block; its last block may be cut). 0 for an empty output.
    Hint: a stretch of period k: each token equals the one k before; count how long that holds
    Source: the report on SGLang pull request 39487 (4 of 48 restored requests repeat).
    """
    return repetition_rate(tokens)


class TreeMerge:
    """Merges the partials of the ranks, two at a time; a partial is (out, lse in nats)."""

    def pair(self, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
        """The partial over the keys of both."""
        top = max(a[1], b[1])
        if top == -math.inf:
            return 0.0, -math.inf
        wa, wb = math.exp(a[1] - top), math.exp(b[1] - top)
        return (wa * a[0] + wb * b[0]) / (wa + wb), top

    def merge(self, outs: list[float], lses: list[float]) -> float:
        """The output over the keys of all ranks."""
        return reduce(self.pair, zip(outs, lses, strict=True))[0]


def expose(outs: list[float]) -> list[float]:
    """The LSE of a merged pair counts at the next merge: three shards that are not empty."""
    lses = [-math.inf] * len(outs)
    lses[:3] = [0.0, 0.0, 0.0] if outs[0] + outs[1] != 2 * outs[2] else [0.0, -1.0, 0.0]
    return lses


def _outs(d: Draw) -> Inputs:
    first = d.sample(range(-9, 10), 3)
    return ([float(x) for x in [*first, *d.choices(range(-9, 10), k=d.randint(0, 1 + d.size))]],)


@task(grade=5, answer=expose, example=([1.0, 2.0, 6.0],), make=_outs, code=(TreeMerge,), find=True)
def merge_of_three(answer: Any, outs: list[float], suspect: type[TreeMerge] = TreeMerge) -> str:
    """Find the bug in this merge.

    The class below merges the ranks' partials two at a time. A test with two ranks passes, and so
    does one with equal outputs. `outs` are the outputs of three ranks or more. Return a list of LSE
    in nats, one a rank, between -50 and 50, or -inf for a rank without keys, for which the merged
    output is off by more than 0.01.
    Hint: what should the LSE of two merged shards be, if both had 0? And who uses it?
    """
    listed = isinstance(answer, list) and len(answer) == len(outs)
    need(listed, f"a list of {len(outs)} numbers is meant, the LSE of each rank")
    for x in answer:
        lse = type(x) in (int, float) and (x == -math.inf or abs(x) <= 50)
        need(lse, f"{x!r} is no LSE: -50 to 50, or -inf for a rank without keys")
    got = suspect().merge(outs, [float(x) for x in answer])
    out = torch.tensor(outs, dtype=torch.float64)[:, None]
    right = float(merge_stacked(out, torch.tensor(answer, dtype=torch.float64)).out)
    told = f"it merges to {got:.4g}, attention over all keys is {right:.4g}"
    need(abs(got - right) > 0.01, told)
    return told

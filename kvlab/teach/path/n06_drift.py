"""Exercises of 06_logprob_drift: log bases, empty shards, the floor, repetition, a merge."""

import math
from random import Random

import torch

from kvlab.attn import Partial, merge_stacked
from kvlab.lab.drift import first_above, repetition_rate
from kvlab.teach.exercise import Exercise, Inputs
from kvlab.teach.suspects import TreeMerge, merge_exposes

NOTEBOOK = "06_logprob_drift"
NO_NUMBERS = (math.inf, -math.inf, math.nan)


def weights(lses: list[float], bases: list[str]) -> list[float]:
    """All in nats first: an LSE in base 2 is larger by 1 / ln 2."""
    nats = [x * math.log(2) if base == "2" else x for x, base in zip(lses, bases, strict=True)]
    top = max(nats)
    parts = [math.exp(x - top) for x in nats]
    return [part / sum(parts) for part in parts]


def _weights(lses: list[float], bases: list[str]) -> list[float]:
    two = torch.tensor([base == "2" for base in bases])
    lse = torch.tensor(lses, dtype=torch.float64)
    return torch.softmax(torch.where(two, lse * math.log(2), lse), 0).tolist()


def _bases(rng: Random, size: int) -> Inputs:
    n = rng.randint(2, 3 + size // 2)
    spread = 3 if size < 5 else 900  # exp overflows from 710 on
    return {
        "lses": [round(rng.uniform(-spread, spread), 1) for _ in range(n)],
        "bases": [rng.choice(["e", "2"]) for _ in range(n)],
    }


def drift(reference: list[float], run: list[float], floor: float) -> tuple[float, int]:
    """A logprob that is no number leaves the floor, and has no part in the largest drift."""
    moved = [abs(x - y) for x, y in zip(reference, run, strict=True)]
    finite = [x for x in moved if math.isfinite(x)]
    left = [at for at, x in enumerate(moved) if not x <= 2 * floor]
    return max(finite, default=0.0), left[0] if left else -1


def _drift(reference: list[float], run: list[float], floor: float) -> tuple[float, int]:
    moved = (torch.tensor(run, dtype=torch.float64) - torch.tensor(reference)).abs()
    finite = moved[torch.isfinite(moved)]
    at = first_above(moved.numpy(), 2 * floor)
    return float(finite.max()) if len(finite) else 0.0, -1 if at is None else at


def _logprobs(rng: Random, size: int) -> Inputs:
    n, floor = rng.randint(1, 3 + 4 * size), rng.choice([0.25, 0.5, 1.0])
    reference = [-rng.randint(0, 200) / 64 for _ in range(n)]
    run, lost = [], rng.choice([1.0, *[0.06] * 15])
    for x in reference:
        by = rng.choice([-1, 1]) * floor * rng.choice([0, 0.5, 0.5, 1, 1.5, 2, rng.randint(2, 8)])
        run.append(math.nan if rng.random() < lost else x + by)
    return {"reference": reference, "run": run, "floor": floor}


def merge(outs: list[float], lses: list[float]) -> tuple[float, float]:
    """Leave the empty shards out, rather than multiply them by zero: 0 * NaN is NaN."""
    full = [(o, x) for o, x in zip(outs, lses, strict=True) if math.isfinite(x)]
    if not full:
        return 0.0, -math.inf
    top = max(x for _, x in full)
    total = sum(math.exp(x - top) for _, x in full)
    return sum(o * math.exp(x - top) for o, x in full) / total, top + math.log(total)


def _merge(outs: list[float], lses: list[float]) -> tuple[float, float]:
    out = torch.tensor(outs, dtype=torch.float64)[:, None]
    told = Partial.with_nan_as_empty(out, torch.tensor(lses, dtype=torch.float64))
    merged = merge_stacked(told.out, told.lse)
    return float(merged.out), float(merged.lse)


def _shards(rng: Random, size: int) -> Inputs:
    n = rng.randint(1, 3 + size)
    spread = 3 if size < 5 else 900
    outs: list[float] = []
    lses: list[float] = []
    for _ in range(n):
        if rng.random() < 0.4:
            outs.append(rng.choice([0.0, math.nan, 7.0]))
            lses.append(rng.choice(NO_NUMBERS))
        else:
            outs.append(float(rng.randint(-20, 20)))
            lses.append(round(rng.uniform(-spread, spread), 1))
    return {"outs": outs, "lses": lses}


def repetition(tokens: list[int]) -> float:
    """For each period: how far does the text equal itself that many tokens before?"""
    marked = set()
    for period in range(1, 9):
        run = 0
        for at in range(period, len(tokens)):
            run = run + 1 if tokens[at] == tokens[at - period] else 0
            if run + period >= max(8, 3 * period):
                marked.add(at)
    return len(marked) / len(tokens) if tokens else 0.0


def _output(rng: Random, size: int) -> Inputs:
    tokens: list[int] = []
    if rng.random() < 0.06:
        return {"tokens": tokens}
    for _ in range(rng.randint(1, 2 + size // 2)):
        tokens += [rng.randrange(1000) for _ in range(rng.randint(0, 3 + size))]
        period = rng.randint(1, 3 if size < 3 else 10)
        block = [rng.randrange(rng.choice([2, 1000])) for _ in range(period)]
        times, rest = rng.randint(1, 12 if period < 4 else 5), rng.randrange(period)
        tokens += block * times + block[:rest]
    return {"tokens": tokens}


def expose(outs: list[float]) -> list[float]:
    """The LSE of a merged pair counts at the next merge: three shards that are not empty."""
    lses = [-math.inf] * len(outs)
    lses[:3] = [0.0, 0.0, 0.0] if outs[0] + outs[1] != 2 * outs[2] else [0.0, -1.0, 0.0]
    return lses


def _outs(rng: Random, size: int) -> Inputs:
    n = rng.randint(3, 4 + size)
    while True:
        outs = [float(rng.randint(-9, 9)) for _ in range(n)]
        if len(set(outs[:3])) == 3:
            return {"outs": outs}


ALL = (
    Exercise(
        "nats-and-log2",
        NOTEBOOK,
        2,
        "Log bases in a merge",
        """Each rank gives the LSE of its scores; some backends in nats (base "e"), some in base
        "2". Return the weights of the ranks in the merged attention: they are in the ratio of the
        sums of exponentials, and add up to 1. LSE may be several hundred, where exp overflows.""",
        answer=weights,
        spec=_weights,
        example={"lses": [1.0, 3.0], "bases": ["2", "2"]},
        make=_bases,
        hint="log2(x) = ln(x) / ln(2); convert all to nats, subtract the largest, then exp",
        source="FlashInfer issue 4485",
        core=False,
    ),
    Exercise(
        "above-the-floor",
        NOTEBOOK,
        2,
        "Does it leave the floor?",
        """`reference` and `run` are the logprobs of the same tokens, `floor` is the noise floor in
        nats. Return (largest |difference| over the finite ones, 0 if there is none; the first
        position whose |difference| is above 2 * floor, -1 if there is none). A NaN is above every
        floor.""",
        answer=drift,
        spec=_drift,
        example={"reference": [-1.0, -2.0, -0.5], "run": [-1.25, -1.0, -0.5], "floor": 0.25},
        make=_logprobs,
        hint="a comparison with NaN is false, whichever way round; a drift has no sign",
        source="the comparison of logprobs in SGLang's PD test (tolerance 0.20)",
    ),
    Exercise(
        "empty-shard",
        NOTEBOOK,
        3,
        "A rank without keys",
        """Merge the partials of the ranks, LSE in nats: return (out, lse). A rank without keys has
        an LSE of -inf, or, from some backends, +inf or NaN, and its out is whatever lay in memory,
        NaN too. If no rank has keys the result is (0.0, -inf).""",
        answer=merge,
        spec=_merge,
        example={"outs": [1.0, math.nan, 0.0], "lses": [0.0, -math.inf, 0.0]},
        make=_shards,
        hint="0 * NaN is NaN: select the ranks that have keys, before anything is multiplied",
        source="vLLM issue 38416 and FlashMLA pull request 77",
    ),
    Exercise(
        "repetition",
        NOTEBOOK,
        4,
        "How much does it repeat?",
        """The repetition rate of an output: the share of its positions that end a stretch of at
        least 8 tokens in which a block of at most 8 tokens follows itself 3 times or more (so the
        stretch has at least 3 times as many tokens as the block; its last block may be cut). 0 for
        an empty output.""",
        answer=repetition,
        spec=repetition_rate,
        example={"tokens": [5, 7] * 5},
        make=_output,
        hint="a stretch of period k: each token equals the one k before; count how long that holds",
        source="the report on SGLang pull request 39487 (4 of 48 restored requests repeat)",
        core=False,
    ),
    Exercise(
        "merge-of-three",
        NOTEBOOK,
        5,
        "Find the bug in this merge",
        """The class below merges the ranks' partials two at a time. A test with two ranks passes,
        and so does one with equal outputs. `outs` are the outputs of three ranks or more. Return a
        list of LSE in nats, one a rank, between -50 and 50, or -inf for a rank without keys, for
        which the merged output is off by more than 0.01.""",
        answer=expose,
        judge=merge_exposes,
        example={"outs": [1.0, 2.0, 6.0]},
        make=_outs,
        hint="what should the LSE of two merged shards be, if both had 0? And who uses it?",
        code=(TreeMerge,),
    ),
)

"""Plausible wrong answers of each exercise, the classical mistakes, each with its name.

The type of every function is left open: these are what readers write.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False

import math
from collections.abc import Callable
from typing import Any

Wrong = dict[str, Callable[..., Any]]


def _cut_first(ids: Any, c: int, rank: int, size: int) -> list[list[int]]:
    pieces = [ids[i : i + size] for i in range(0, len(ids), size)]
    return [[v // c for v in piece[rank::c]] for piece in pieces if piece[rank::c]]


def _raw_restore(self: Any, saved: Any, slots: list[int]) -> None:
    for rows, copy in zip(self.ranks, saved, strict=True):
        for v, (_, token) in zip(slots, copy, strict=False):
            rows[v] = token


def _old_rows(self: Any, saved: Any, slots: list[int]) -> None:
    for rows, copy in zip(self.ranks, saved, strict=True):
        for row, token in copy:
            rows[row] = token


def _merge_times_zero(outs: list[float], lses: list[float]) -> tuple[float, float]:
    clean = [x if math.isfinite(x) else -math.inf for x in lses]
    top = max(clean)
    if top == -math.inf:
        return 0.0, -math.inf
    ws = [math.exp(x - top) for x in clean]
    return sum(w * o for w, o in zip(ws, outs, strict=True)) / sum(ws), top + math.log(sum(ws))


def _merge_empty_as_zero(outs: list[float], lses: list[float]) -> tuple[float, float]:
    full = [(0.0, 0.0) if not math.isfinite(x) else (o, x) for o, x in zip(outs, lses, strict=True)]
    top = max(x for _, x in full)
    total = sum(math.exp(x - top) for _, x in full)
    return sum(o * math.exp(x - top) for o, x in full) / total, top + math.log(total)


def _weights(lses: list[float], factors: list[float]) -> list[float]:
    scaled = [x * f for x, f in zip(lses, factors, strict=True)]
    return _plain_weights([math.exp(x - max(scaled)) for x in scaled])


def _plain_weights(parts: list[float]) -> list[float]:
    return [p / sum(parts) for p in parts]


def _repetition(tokens: list[int], periods: range, least: int) -> float:
    marked = set()
    for k in periods:
        run = 0
        for at in range(k, len(tokens)):
            run = run + 1 if tokens[at] == tokens[at - k] else 0
            if run + k >= max(least, 3 * k):
                marked.add(at)
    return len(marked) / len(tokens) if tokens else 0.0


def _drift(leaves: Any, *given: Any, of: Any = abs, none: Any = 0.0) -> Any:
    reference, run, floor = given
    pairs = list(zip(reference, run, strict=True))
    left = [at for at, (x, y) in enumerate(pairs) if leaves(x, y, floor)]
    return max((of(y - x) for x, y in pairs if y == y), default=none), left[0] if left else -1


def _order(running: Any, key: Callable[..., Any]) -> list[int]:
    return sorted(range(len(running)), key=lambda i: key(*running[i], i))


def _row(layers: int, latent: int, rope: int, item: int) -> int:
    return layers * (latent + rope) * item


def _break_even(strictly: bool, none: Any, b: Any, c: int, mb: int, fixed: Any, per_s: int) -> Any:
    gain = 1e6 / per_s - 2 * b / c / mb
    if gain <= 0:
        return none if gain == 0 else -1
    return math.floor(2 * fixed / gain) + 1 if strictly else math.ceil(2 * fixed / gain)


WRONG: dict[str, Wrong] = {
    "owner-by-hand": {
        "the two swapped": lambda v, c: (v // c, v % c),
        "the slot as the row": lambda v, c: (v % c, v),
        "a true division": lambda v, c: (v % c, v / c),
        "half an answer": lambda v, c: v % c,
    },
    "wrong-row-by-hand": {
        "the rank forgotten": lambda v, c, rank: v * c,
        "the row of the slot": lambda v, c, rank: v // c,
        "the rank added to the slot": lambda v, c, rank: v + rank,
    },
    "silent-or-loud": {
        "no padding page": lambda v, c, P, N: "silent" if v < N * P else "crash",
        "the bound of slots": lambda v, c, P, N: "silent" if v < (N + 1) * P * c else "crash",
        "one too far": lambda v, c, P, N: "silent" if v <= (N + 1) * P else "crash",
        "always": lambda v, c, P, N: "crash",
    },
    "bounds-of-two-spaces": {
        "no padding page": lambda c, P, N: (0, N * P * c, 0, N * P),
        "rows as wide as slots": lambda c, P, N: (P * c, (N + 1) * P * c, P, (N + 1) * P * c),
        "one page short": lambda c, P, N: (P * c, N * P * c, P, N * P),
    },
    "phase-of-a-chunk": {
        "no phase": lambda start, c, rank: rank,
        "the wrong way round": lambda start, c, rank: (start - rank) % c,
        "no remainder": lambda start, c, rank: rank - start % c,
    },
    "localized-twice": {
        "the first slot": lambda c, P, rank: P * c + rank,
        "a negative row": lambda c, P, rank: rank * c + rank,
        "any high slot": lambda c, P, rank: P * c * c + rank,
    },
    "page-table-order": {
        "the pages sorted": lambda p, pages, c, P: (
            sorted(pages)[p // (P * c)] * P * c + p % (P * c)
        ),
        "P instead of W": lambda p, pages, c, P: pages[p // (P * c)] * P + p % P,
        "the first page": lambda p, pages, c, P: pages[0] * P * c + p,
    },
    "ragged-tail": {
        "whole turns only": lambda length, start, c, rank: length // c,
        "rounded up": lambda length, start, c, rank: -(-length // c),
        "the start left out": lambda length, start, c, rank: length // c + (rank < length % c),
        "below zero": lambda length, start, c, rank: (length - (rank - start) % c) // c + 1,
    },
    "longer-turns": {
        "one at a time": lambda v, c, turn: (v % c, v // c),
        "the row of one at a time": lambda v, c, turn: (v // turn % c, v // c),
        "rows per turn": lambda v, c, turn: (v // turn % c, v // (c * turn)),
    },
    "smallest-silent-pool": {
        "as many as ranks": lambda q, c, P: q * c,
        "no padding page": lambda q, c, P: (q + 1) * c,
        "counted in rows": lambda q, c, P: ((q + 1) * c - 1) * P,
    },
    "overwritten-positions": {
        "slot for slot": lambda victim, other, c: [p for p, s in enumerate(other) if s in victim],
        "row for row": lambda victim, other, c: [
            p for p, s in enumerate(other) if s // c in [v // c for v in victim]
        ],
        "the owner only": lambda victim, other, c: [
            p for p, s in enumerate(other) if any(v == s // c and v % c == s % c for v in victim)
        ],
    },
    "a-test-that-sees-it": {
        "the same slots": lambda c, P, N: ([*range(P * c, 2 * P * c)],) * 2,
        "the highest pages": lambda c, P, N: (
            [*range(N * P * c, (N + 1) * P * c)],
            [*range((N - 1) * P * c, N * P * c)],
        ),
        "the padding page": lambda c, P, N: ([*range(P * c)], [*range(P * c, 2 * P * c)]),
        "a number": lambda c, P, N: P * c,
        "two lengths": lambda c, P, N: ([P * c], [2 * P * c, 2 * P * c + 1]),
    },
    "positions-to-save": {
        "all tokens": lambda prompt, g, c, P: (prompt + g, -(-(prompt + g) // (P * c))),
        "pages of P": lambda prompt, g, c, P: (prompt + g - 1, -(-(prompt + g - 1) // P)),
        "whole pages only": lambda prompt, g, c, P: (prompt + g - 1, (prompt + g - 1) // (P * c)),
        "the prompt": lambda prompt, g, c, P: (prompt, -(-prompt // (P * c))),
    },
    "localize-then-chunk": {
        "cut first": _cut_first,
        "no division": lambda ids, c, rank, size: [
            [v for v in ids if v % c == rank][i : i + size]
            for i in range(0, sum(v % c == rank for v in ids), size)
        ],
        "no cut": lambda ids, c, rank, size: [[v // c for v in ids if v % c == rank]],
    },
    "shard-then-look-up": {
        "looked up first": lambda v, c, P, v2p: (
            (v2p[v // P % len(v2p)] * P + v % P) % c,
            (v2p[v // P % len(v2p)] * P + v % P) // c,
        ),
        "not looked up": lambda v, c, P, v2p: (v % c, v // c),
        "divided twice": lambda v, c, P, v2p: (v % c, (v2p[v // c // P] * P + v // c % P) // c),
    },
    "restore-into-new-slots": {
        "the old rows": _old_rows,
        "slots as rows": _raw_restore,
        "it returns instead of writing": lambda self, saved, slots: list(saved),
    },
    "counter-and-gauge": {
        "the counter twice": lambda events: (sum(e[1] == "retract" for e in events),) * 2,
        "requests, not retractions": lambda events: (
            len({e[2] for e in events if e[1] == "retract"}),
            0,
        ),
        "the last step of the run": lambda events: (
            sum(e[1] == "retract" for e in events),
            sum(e[1] == "retract" and e[0] == events[-1][0] for e in events),
        ),
    },
    "victim-order": {
        "the newest": lambda running, k: [len(running) - 1 - i for i in range(k)],
        "most generated": lambda running, k: _order(running, lambda p, g, i: (-g, -p, -i))[:k],
        "the first among equals": lambda running, k: _order(running, lambda p, g, i: (g, -p))[:k],
        "the shortest prompt": lambda running, k: _order(running, lambda p, g, i: (g, p, -i))[:k],
    },
    "new-token-ratio": {
        "twenty once": lambda s: min(1.0, (sum(g for g, _ in s) + 20) / (sum(a for _, a in s) + 1)),
        "no bound": lambda s: (sum(g for g, _ in s) + 20 * len(s)) / (sum(a for _, a in s) + 1),
        "no one more": lambda s: min(
            1.0, (sum(g for g, _ in s) + 20 * len(s)) / sum(a for _, a in s)
        ),
    },
    "mid-page-seam": {
        "at a widened page": lambda c, P, kept, length: kept + P * c,
        "anywhere": lambda c, P, kept, length: kept + 1,
        "from zero": lambda c, P, kept, length: P,
    },
    "books-of-the-scheduler": {
        "enough room": lambda c, P: ([[P * c, 1], [P * c, 1]], 2),
        "nobody opens a page": lambda c, P: ([[P * c + 1, 1], [P * c + 1, 1]], 0),
        "one request": lambda c, P: ([[P * c, 1]], 0),
        "the victim is in a page": lambda c, P: ([[P * c, 1], [2 * P * c + 1, 1]], 0),
    },
    "nats-and-log2": {
        "all nats": lambda lses, bases: _weights(lses, [1.0] * len(lses)),
        "the wrong way round": lambda lses, bases: _weights(
            lses, [1 / math.log(2) if b == "2" else 1.0 for b in bases]
        ),
        "all alike": lambda lses, bases: [1 / len(lses)] * len(lses),
        "no largest": lambda lses, bases: [math.exp(x) for x in lses],
        "exp that overflows": lambda lses, bases: _plain_weights(
            [2.0**x if base == "2" else math.exp(x) for x, base in zip(lses, bases, strict=True)]
        ),
    },
    "above-the-floor": {
        "with a sign": lambda *given: _drift(lambda x, y, e: y - x > 2 * e, *given, of=float),
        "NaN below the floor": lambda *given: _drift(lambda x, y, e: abs(x - y) > 2 * e, *given),
        "at the floor itself": lambda *given: _drift(lambda x, y, e: not abs(x - y) <= e, *given),
        "no finite difference": lambda *given: _drift(
            lambda x, y, e: not abs(x - y) <= 2 * e, *given, none=None
        ),
    },
    "empty-shard": {
        "multiplied by zero": _merge_times_zero,
        "an LSE of 0": _merge_empty_as_zero,
        "the mean": lambda outs, lses: (sum(outs) / len(outs), max(lses)),
    },
    "repetition": {
        "single tokens only": lambda tokens: _repetition(tokens, range(1, 2), 8),
        "short stretches too": lambda tokens: _repetition(tokens, range(1, 9), 3),
        "period 8 left out": lambda tokens: _repetition(tokens, range(1, 8), 8),
        "an empty output forgotten": lambda tokens: (
            _repetition(tokens, range(1, 9), 8) * len(tokens) / len(tokens)
        ),
        "of any length": lambda tokens: _repetition(tokens, range(1, 12), 8),
    },
    "merge-of-three": {
        "two ranks": lambda outs: [0.0, 0.0] + [-math.inf] * (len(outs) - 2),
        "no ranks": lambda outs: [-math.inf] * len(outs),
        "one rank weighs all": lambda outs: [0.0] + [-50.0] * (len(outs) - 1),
        "too few": lambda outs: [0.0],
    },
    "bytes-of-a-backup": {
        "whole turns only": lambda n, c, rank, *model: n // c * _row(*model),
        "key and value apart": lambda n, c, rank, *model: (
            2 * (n // c + (rank < n % c)) * _row(*model)
        ),
        "every token": lambda n, c, rank, *model: n * _row(*model),
        "no position part": lambda n, c, rank, layers, latent, rope, item: (
            (n // c + (rank < n % c)) * _row(layers, latent, 0, item)
        ),
    },
    "bandwidth-floor": {
        "an exact share": lambda tokens, c, token_bytes, gb: tokens / c * token_bytes / (gb * 1e9),
        "one link for all": lambda tokens, c, token_bytes, gb: tokens * token_bytes / (gb * 1e9),
        "GiB": lambda tokens, c, token_bytes, gb: -(-tokens // c) * token_bytes / (gb * 2**30),
    },
    "replicated-index": {
        "the index sharded too": lambda budget, c, P, row, index: (
            (budget // (P * row + P * index) - 1) * P * c
        ),
        "no padding page": lambda budget, c, P, row, index: (
            budget // (P * row + P * c * index) * P * c
        ),
        "tokens before pages": lambda budget, c, P, row, index: budget // (row + c * index) * c,
    },
    "break-even": {
        "one copy": lambda b, c, mb, fixed, per_s: _break_even(
            True, -1, b / 2, c, mb, fixed / 2, per_s
        ),
        "no ranks": lambda b, c, *given: _break_even(True, -1, b, 1, *given),
        "never mind": lambda *given: 1,
        "as fast will do": lambda *given: _break_even(False, -1, *given),
        "no gain is gain": lambda *given: _break_even(True, 1, *given),
    },
    "a-full-host": {
        "the first fits": lambda capacity, c: ([0] * c, [1] * c),
        "nothing left behind": lambda capacity, c: ([capacity + 1] * c, [0] * c),
        "the second never fits": lambda capacity, c: ([capacity] * c, [capacity] * c),
        "of one rank": lambda capacity, c: ([capacity], [1]),
    },
    "arena-over-its-bound": {
        "the block fits again": lambda capacity: [capacity, -1, 1],
        "it is declined": lambda capacity: [capacity, capacity],
        "never lent": lambda capacity: [1, -2],
        "larger than the arena": lambda capacity: [capacity + 1],
        "nothing": lambda capacity: [],
    },
}

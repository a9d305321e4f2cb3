"""Mistakes that show at a border only: the inputs reach it in every check."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from kvlab.teach import exercise

SEEDS = range(8)


def _no_shift(lses: list[float], bases: list[str]) -> list[float]:
    parts = [2.0**x if base == "2" else math.exp(x) for x, base in zip(lses, bases, strict=True)]
    return [part / sum(parts) for part in parts]


def _not_empty(tokens: list[int]) -> float:
    return float(exercise("repetition").answer(tokens)) * len(tokens) / len(tokens)  # type: ignore[arg-type]


def _some_finite(reference: list[float], run: list[float], floor: float) -> tuple[float, int]:
    moved = [abs(x - y) for x, y in zip(reference, run, strict=True)]
    left = [at for at, x in enumerate(moved) if not x <= 2 * floor]
    return max(x for x in moved if x == x), left[0] if left else -1


def _copies(b: int, c: int, mb: int, fixed: int, per_s: int) -> tuple[float, float]:
    return 2 * b / c / mb, 1e6 / per_s


def _as_fast_will_do(b: int, c: int, mb: int, fixed: int, per_s: int) -> int:
    copied, computed = _copies(b, c, mb, fixed, per_s)
    return math.ceil(2 * fixed / (computed - copied)) if computed > copied else -1


def _no_gain_is_gain(b: int, c: int, mb: int, fixed: int, per_s: int) -> int:
    copied, computed = _copies(b, c, mb, fixed, per_s)
    if computed == copied:
        return 1
    return math.floor(2 * fixed / (computed - copied)) + 1 if computed > copied else -1


BORDERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "exp that overflows": ("nats-and-log2", _no_shift),
    "an empty output": ("repetition", _not_empty),
    "no finite difference": ("above-the-floor", _some_finite),
    "as fast is not faster": ("break-even", _as_fast_will_do),
    "a copy that wins back nothing": ("break-even", _no_gain_is_gain),
}


@pytest.mark.parametrize("border", BORDERS)
def test_a_mistake_at_a_border_fails_every_check(border: str) -> None:
    name, yours = BORDERS[border]
    for seed in SEEDS:
        assert exercise(name).check(yours, seed=seed).status == "wrong", seed


def test_floats_decide_a_tie_of_copying_and_computing_as_fractions_do() -> None:
    ex = exercise("break-even")
    ties = 0
    for number in range(1000):
        inputs = ex.inputs("ties", number, number // 100)
        b, c, mb, fixed, per_s = (int(x) for x in inputs.values())  # type: ignore[call-overload]
        n = ex.expected(inputs)
        assert isinstance(n, int)
        if n > 1 and math.isclose(
            per_n := (n - 1) * 1e6 / per_s, 2 * (fixed + (n - 1) * b / c / mb)
        ):
            ties += per_n == 2 * (fixed + (n - 1) * b / c / mb)
    assert ties > 50

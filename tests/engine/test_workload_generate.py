"""Generators: same seed, same workload; lengths within bounds."""

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine.workload import (
    LONG_CHAT,
    LengthModel,
    Lognormal,
    generate_closed_loop,
    generate_open_loop,
)
from kvlab.errors import WorkloadError

SEEDS = st.integers(0, 2**64)


@st.composite
def lognormals(draw: st.DrawFn) -> Lognormal:
    low, middle, high = sorted(draw(st.lists(st.integers(1, 10**6), min_size=3, max_size=3)))
    return Lognormal(float(middle), draw(st.floats(0, 10)), low, high)


@given(st.integers(1, 40), st.builds(LengthModel, lognormals(), lognormals()), SEEDS)
def test_lengths_stay_within_their_bounds(n: int, lengths: LengthModel, seed: int) -> None:
    w = generate_closed_loop(n, lengths, seed=seed)
    assert len(w) == n
    assert all(r.arrival_s == 0.0 for r in w.requests)
    for values, model in ((w.prompts, lengths.prompt), (w.outputs, lengths.output)):
        assert model.minimum <= values.min()
        assert values.max() <= model.maximum


@given(st.integers(1, 30), st.integers(1, 30), SEEDS)
def test_a_longer_workload_begins_with_the_shorter_one(a: int, b: int, seed: int) -> None:
    small, large = sorted((a, b))
    for short, long in (
        (generate_closed_loop(small, seed=seed), generate_closed_loop(large, seed=seed)),
        (generate_open_loop(small, 3.0, seed=seed), generate_open_loop(large, 3.0, seed=seed)),
    ):
        assert long.requests[:small] == short.requests


def test_the_seed_alone_decides_and_other_seeds_differ() -> None:
    one, again, other = (generate_open_loop(50, 2.0, seed=s) for s in (7, 7, 8))
    assert one == again
    assert one.digest != other.digest


def test_known_seeds_give_known_workloads_on_every_machine() -> None:
    assert generate_closed_loop(1000, seed=1).fingerprint == "06de69159e93"
    assert generate_open_loop(1000, 4.0, seed=1).fingerprint == "5d7c242497f2"


def test_open_and_closed_loop_of_one_seed_ask_for_the_same_tokens() -> None:
    closed, opened = generate_closed_loop(100, seed=3), generate_open_loop(100, 5.0, seed=3)
    assert closed.prompts.tolist() == opened.prompts.tolist()
    assert closed.outputs.tolist() == opened.outputs.tolist()


def test_poisson_gaps_have_the_mean_and_the_spread_of_their_rate() -> None:
    w = generate_open_loop(20_000, 4.0, seed=0)
    gaps = np.diff(w.arrivals)
    assert w.arrivals[0] == 0.0
    # Both are 1/rate for an exponential gap; 20,000 draws put them within 3 % of it.
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.03)


def test_the_worked_example_of_the_module_holds() -> None:
    model = Lognormal(6000.0, 0.9, 16, 32_768)
    normal = [0.5 * (1 + math.erf(z / math.sqrt(2))) for z in (0.0, 1.0, 2.0)]
    assert model.at(np.array(normal)) == [6000, 14758, 32_768]


def test_half_of_the_lengths_lie_below_the_median() -> None:
    w = generate_closed_loop(20_000, seed=5)
    assert (w.prompts < 6000).mean() == pytest.approx(0.5, abs=0.02)
    assert (w.outputs < 500).mean() == pytest.approx(0.5, abs=0.02)


def test_the_source_says_how_to_make_the_workload_again() -> None:
    w = generate_open_loop(2, 1.5, seed=4)
    scope = {"generate_open_loop": generate_open_loop}
    call = w.source[: w.source.index(", prompt=")] + ")"
    assert eval(call, scope) == w  # LONG_CHAT is the default, so the call is complete
    assert "prompt=(6000.0, 0.9, 16, 32768), output=(500.0, 0.8, 1, 4096)" in w.source
    assert LONG_CHAT.prompt.maximum == 32_768


@pytest.mark.parametrize(
    "fields",
    [
        (10.0, 1.0, 0, 20),
        (10.0, 1.0, 20, 5),
        (10.0, 1.0, 1, 2**30),
        (10.0, 1.0, 1.0, 20),
        (30.0, 1.0, 1, 20),
        (math.nan, 1.0, 1, 20),
        (10.0, -0.1, 1, 20),
        (10.0, math.nan, 1, 20),
    ],
)
def test_a_length_model_names_the_numbers_that_break_a_rule(fields: tuple[Any, ...]) -> None:
    got = re.escape(f"got Lognormal(median={fields[0]}, sigma={fields[1]}, minimum={fields[2]}, ")
    with pytest.raises(WorkloadError, match=rf"1 <= minimum <= median .* in \[0, 10\]: {got}"):
        Lognormal(*fields)


@pytest.mark.parametrize(("n", "seed"), [(0, 0), (2.0, 0), (True, 0), (1, -1), (1, 1.0), (1, None)])
def test_a_count_and_a_seed_are_natural_numbers(n: Any, seed: Any) -> None:
    with pytest.raises(WorkloadError, match=rf"at least 0: got n={n!r}, seed={seed!r}"):
        generate_closed_loop(n, seed=seed)


@pytest.mark.parametrize("rate", [0, -1.0, float("inf"), float("nan"), "2"])
def test_a_rate_is_positive_and_finite(rate: Any) -> None:
    with pytest.raises(WorkloadError, match=rf"a second above 0: got {rate!r}; use generate_clo"):
        generate_open_loop(1, rate)

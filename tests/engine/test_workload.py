"""A workload keeps its rules; generators give the same for a seed, with lengths in their bounds."""

import dataclasses
import hashlib
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine.workload import (
    MAX_TOKENS,
    LengthModel,
    Lognormal,
    Request,
    Workload,
    generate_closed_loop,
    generate_open_loop,
)
from kvlab.errors import WorkloadError

SEEDS = st.integers(0, 2**64)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    lengths = st.integers(1, MAX_TOKENS)
    times = st.floats(0, 1e9, allow_nan=False)
    rows = draw(st.lists(st.tuples(times, lengths, lengths), min_size=1, max_size=20))
    rows.sort(key=lambda row: row[0])
    arrivals, prompts, outputs = zip(*rows, strict=True)
    return Workload.from_arrays("drawn", arrivals, prompts, outputs, "hypothesis")


@settings(max_examples=50)
@given(workloads(), st.integers(1, 25))
def test_totals_percentiles_digest_and_head_are_those_of_the_requests(w: Workload, n: int) -> None:
    told = w.summary()
    assert told["total_tokens"] == sum(r.prompt_tokens + r.output_tokens for r in w.requests)
    for label, lengths in (("prompt", w.prompts.tolist()), ("output", w.outputs.tolist())):
        ordered = [told[f"{label}_{key}"] for key in ("min", "p50", "p90", "p99", "max")]
        assert ordered == sorted(ordered) and set(ordered) <= set(lengths)
        assert (ordered[0], ordered[-1]) == (min(lengths), max(lengths))
    packed = b"kvlab workload 1\n" + b"".join(
        struct.pack(f"<{len(w)}{kind}", *column)
        for kind, column in (
            ("d", (r.arrival_s + 0.0 for r in w.requests)),
            ("q", (r.prompt_tokens for r in w.requests)),
            ("q", (r.output_tokens for r in w.requests)),
        )
    )
    assert w.digest == hashlib.sha256(packed).hexdigest()
    part = w.head(n)
    assert part.requests == w.requests[:n]
    assert part is w or part.source == f"hypothesis; first {n} of {len(w)} requests"


def test_the_digest_ignores_names_and_sees_every_number() -> None:
    base = Workload.from_arrays("a", [0.0, 1.0], [5, 6], [7, 8], "x")
    assert dataclasses.replace(base, name="b", source="y", dropped=3).digest == base.digest
    others = [
        Workload.from_arrays("a", [0.0, 2.0], [5, 6], [7, 8], "x"),
        Workload.from_arrays("a", [0.0, 1.0], [5, 7], [7, 8], "x"),
        Workload.from_arrays("a", [0.0, 1.0], [5, 6], [8, 7], "x"),
        base.head(1),
    ]
    assert len({w.digest for w in [base, *others]}) == 5
    minus = Workload.from_arrays("a", [-0.0, 1.0], [5, 6], [7, 8], "x")
    assert base == minus and hash(base) == hash(minus)
    pinned = Workload.from_arrays("pinned", [0.0, 0.25], [100, 1], [8, 4096], "by hand")
    assert pinned.fingerprint == "131ec2041b16"


def test_numpy_columns_become_plain_numbers_and_are_shown() -> None:
    w = Workload.from_arrays("a<b", np.arange(2), np.ones(2, np.int32), np.ones(2, np.uint8), "x")
    assert w.requests[1] == Request(1, 1.0, 1, 1)
    assert {type(v) for v in dataclasses.astuple(w.requests[1])} == {int, float}
    assert w.summary()["rate_per_s"] == 1.0
    assert repr(w).startswith("Workload('a<b': 2 requests, 4 tokens; prompt p50 1 p99 1; ")
    page = w.head(1)._repr_html_()
    assert "a&lt;b" in page and "all at once" in page


def one(**fields: Any) -> tuple[Request, ...]:
    """Two requests, of which the second has the given fields."""
    return Request(0, 0.5, 10, 5), dataclasses.replace(Request(1, 0.5, 10, 5), **fields)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"requests": one(rid=2)}, r"in order, .*rid=2, .* at position 1 of 2, after arrival_s=0\.5"),
    ({"requests": one(rid=True)}, r"got Request\(rid=True, .*; sort them, or use Workload"),
    ({"requests": one(arrival_s=0.25)}, r"arrival_s=0\.25, .* after arrival_s=0\.5"),
    ({"requests": one(arrival_s=math.nan)}, r"a finite float not below .*: got .*arrival_s=nan"),
    ({"requests": one(arrival_s=math.inf)}, "arrival_s=inf"),
    ({"requests": one(arrival_s=1)}, "arrival_s=1, "),
    ({"requests": one(prompt_tokens=0)}, r"tokens ints in \[1, 1073741823\]: got .*tokens=0"),
    ({"requests": one(prompt_tokens=MAX_TOKENS + 1)}, "prompt_tokens=1073741824"),
    ({"requests": one(output_tokens=0)}, "output_tokens=0"),
    ({"requests": one(output_tokens=np.int64(2))}, r"output_tokens=np\.int64\(2\)"),
    ({"requests": one(output_tokens=MAX_TOKENS + 1)}, "output_tokens=1073741824"),
    ({"requests": ()}, "at least 1 request in a tuple: got 0 in a tuple; check the file"),
    ({"requests": [Request(0, 0.0, 1, 1)]}, "got 1 in a list"),
    *(({"name": text}, "the name of a workload is one line") for text in ("", " a", "a\n")),
    ({"source": "two\nlines"}, r"the source of a workload is one line .*: got 'two\\nlines'"),
    ({"dropped": -1}, "at least 0: got -1"),
]


@pytest.mark.parametrize(("fields", "text"), BAD)
def test_a_broken_rule_is_named_with_what_breaks_it(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(WorkloadError, match=text):
        Workload(**{"name": "a", "requests": one(), "source": "x", **fields})


def test_columns_are_as_long_as_each_other_and_count_tokens() -> None:
    with pytest.raises(ValueError, match="shorter than argument 1"):
        Workload.from_arrays("a", [0.0, 1.0], [1], [1], "x")
    halves: Any = [1.5]
    with pytest.raises(WorkloadError, match=r"tokens ints in .*prompt_tokens=1\.5"):
        Workload.from_arrays("a", [0.0], halves, [1], "x")
    with pytest.raises(WorkloadError, match="at least 1 request"):
        Workload.from_arrays("a", [], [], [], "x")
    with pytest.raises(WorkloadError, match="n >= 1: got 0"):
        Workload("a", one(), "x").head(0)


# Generated ---------------------------------------------------------------------------------------


@st.composite
def lognormals(draw: st.DrawFn) -> Lognormal:
    low, middle, high = sorted(draw(st.lists(st.integers(1, 10**6), min_size=3, max_size=3)))
    return Lognormal(float(middle), draw(st.floats(0, 10)), low, high)


@settings(max_examples=40)
@given(st.integers(1, 30), st.builds(LengthModel, lognormals(), lognormals()), SEEDS)
def test_lengths_stay_in_bounds_and_a_longer_workload_begins_with_the_shorter_one(
    n: int, lengths: LengthModel, seed: int
) -> None:
    w, opened = generate_closed_loop(n, lengths, seed=seed), generate_open_loop(n, 3.0, seed=seed)
    assert len(w) == n and not w.arrivals.any()
    for values, model in ((w.prompts, lengths.prompt), (w.outputs, lengths.output)):
        assert model.minimum <= values.min() and values.max() <= model.maximum
    assert generate_closed_loop(n + 5, lengths, seed=seed).requests[:n] == w.requests
    assert generate_open_loop(n + 5, 3.0, seed=seed).requests[:n] == opened.requests


def test_known_seeds_give_known_workloads_that_say_how_to_make_them_again() -> None:
    closed, opened = generate_closed_loop(1000, seed=1), generate_open_loop(1000, 4.0, seed=1)
    assert (closed.fingerprint, opened.fingerprint) == ("06de69159e93", "5d7c242497f2")
    assert closed.prompts.tolist() == opened.prompts.tolist()
    assert generate_open_loop(1000, 4.0, seed=2).digest != opened.digest
    call = opened.source[: opened.source.index(", prompt=")] + ")"
    assert eval(call, {"generate_open_loop": generate_open_loop}) == opened
    assert "prompt=(6000.0, 0.9, 16, 32768), output=(500.0, 0.8, 1, 4096)" in closed.source


def test_gaps_and_lengths_follow_their_distributions() -> None:
    w = generate_open_loop(20_000, 4.0, seed=0)
    gaps = np.diff(w.arrivals)
    assert w.arrivals[0] == 0.0
    # Both are 1/rate for an exponential gap; 20,000 draws put them within 3 % of it.
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.03)
    assert (w.prompts < 6000).mean() == pytest.approx(0.5, abs=0.02)
    assert (w.outputs < 500).mean() == pytest.approx(0.5, abs=0.02)
    normal = [0.5 * (1 + math.erf(z / math.sqrt(2))) for z in (0.0, 1.0, 2.0)]
    assert Lognormal(6000.0, 0.9, 16, 32_768).at(np.array(normal)) == [6000, 14758, 32_768]


def test_a_generator_names_the_numbers_that_break_a_rule() -> None:
    model: Any = Lognormal
    for fields in (
        (10.0, 1.0, 0, 20),
        (10.0, 1.0, 20, 5),
        (10.0, 1.0, 1, 2**30),
        (10.0, 1.0, 1.0, 20),
        (30.0, 1.0, 1, 20),
        (math.nan, 1.0, 1, 20),
        (10.0, -0.1, 1, 20),
        (10.0, math.nan, 1, 20),
    ):
        with pytest.raises(WorkloadError, match=r"1 <= minimum <= median .* \[0, 10\]: got Logno"):
            model(*fields)
    bad: list[tuple[Any, Any]] = [(0, 0), (2.0, 0), (1, -1), (1, None)]
    for n, seed in bad:
        with pytest.raises(WorkloadError, match=rf"at least 0: got n={n!r}, seed={seed!r}"):
            generate_closed_loop(n, seed=seed)
    rates: list[Any] = [0, math.inf, math.nan, "2"]
    for rate in rates:
        with pytest.raises(WorkloadError, match=f"above 0, a second: got {rate!r}"):
            generate_open_loop(1, rate)

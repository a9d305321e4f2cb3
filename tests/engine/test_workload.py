"""A workload keeps its rules, counts right, and its digest depends on the numbers alone."""

import dataclasses
import hashlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine.workload import MAX_TOKENS, Request, Workload
from kvlab.errors import WorkloadError

LENGTHS = st.integers(1, MAX_TOKENS)
TIMES = st.floats(0, 1e9, allow_nan=False)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    rows = draw(st.lists(st.tuples(TIMES, LENGTHS, LENGTHS), min_size=1, max_size=20))
    rows.sort(key=lambda row: row[0])
    arrivals, prompts, outputs = zip(*rows, strict=True)
    return Workload.from_arrays("drawn", arrivals, prompts, outputs, "hypothesis")


def one(**fields: Any) -> tuple[Request, ...]:
    """A tuple of two requests, of which the second has the given fields."""
    good = Request(1, 0.5, 10, 5)
    return (Request(0, 0.5, 10, 5), dataclasses.replace(good, **fields))


def test_the_worked_example_of_the_module_holds() -> None:
    w = Workload.from_arrays("two", [0.0, 1.5], [100, 200], [8, 12], "by hand")
    assert w.requests == (Request(0, 0.0, 100, 8), Request(1, 1.5, 200, 12))
    facts = w.summary()
    assert (facts["prompt_tokens"], facts["output_tokens"], facts["total_tokens"]) == (300, 20, 320)
    assert (facts["duration_s"], facts["rate_per_s"]) == (1.5, pytest.approx(1 / 1.5))


@given(workloads())
def test_totals_are_sums_and_percentiles_are_observed_lengths(w: Workload) -> None:
    facts = w.summary()
    assert facts["total_tokens"] == sum(r.prompt_tokens + r.output_tokens for r in w.requests)
    for label, lengths in (("prompt", w.prompts.tolist()), ("output", w.outputs.tolist())):
        ordered = [facts[f"{label}_{key}"] for key in ("min", "p50", "p90", "p99", "max")]
        assert ordered == sorted(ordered)
        assert (ordered[0], ordered[-1]) == (min(lengths), max(lengths))
        assert set(ordered) <= set(lengths)


@given(workloads())
def test_the_frame_holds_every_request_in_order(w: Workload) -> None:
    frame = w.to_frame()
    rows = [Request(*row) for row in frame.itertuples(index=False, name=None)]
    assert tuple(rows) == w.requests


@given(workloads())
def test_the_digest_is_the_sha256_of_little_endian_columns(w: Workload) -> None:
    n = len(w)
    expected = hashlib.sha256(
        b"kvlab workload 1\n"
        + struct.pack(f"<{n}d", *(r.arrival_s + 0.0 for r in w.requests))
        + struct.pack(f"<{n}q", *(r.prompt_tokens for r in w.requests))
        + struct.pack(f"<{n}q", *(r.output_tokens for r in w.requests))
    ).hexdigest()
    assert w.digest == expected
    assert w.fingerprint == expected[:12]


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


def test_the_digest_of_a_known_workload_never_changes() -> None:
    w = Workload.from_arrays("pinned", [0.0, 0.25], [100, 1], [8, 4096], "by hand")
    assert w.fingerprint == "131ec2041b16"


def test_equal_workloads_have_equal_hashes_even_when_zero_is_negative() -> None:
    plus = Workload.from_arrays("a", [0.0], [1], [1], "x")
    minus = Workload.from_arrays("a", [-0.0], [1], [1], "x")
    assert plus == minus
    assert hash(plus) == hash(minus)


@given(workloads(), st.integers(1, 25))
def test_head_keeps_the_first_requests_unchanged(w: Workload, n: int) -> None:
    part = w.head(n)
    assert part.requests == w.requests[:n]
    if n < len(w):
        assert part.source == f"hypothesis; first {n} of {len(w)} requests"
    else:
        assert part is w


def test_numpy_columns_become_plain_numbers() -> None:
    w = Workload.from_arrays("np", np.arange(2), np.ones(2, np.int32), np.ones(2, np.uint8), "x")
    assert w.requests[1] == Request(1, 1.0, 1, 1)
    assert {type(v) for v in dataclasses.astuple(w.requests[1])} == {int, float}


def test_columns_are_read_only() -> None:
    w = Workload.from_arrays("a", [0.0], [1], [1], "x")
    with pytest.raises(ValueError, match="read-only"):
        w.prompts[0] = 2


def test_the_reprs_name_the_workload_and_escape_html() -> None:
    w = Workload.from_arrays("a<b", [0.0], [1200], [1], "x & y")
    assert repr(w) == (
        f"Workload('a<b': 1 requests, 1,201 tokens; prompt p50 1,200 p99 1,200; "
        f"output p50 1 p99 1; {w.fingerprint})"
    )
    page = w._repr_html_()
    assert "a&lt;b" in page
    assert "x &amp; y" in page
    assert "all at once" in page


BAD_REQUESTS = [
    (one(rid=2), r"in order, .*: got Request\(rid=2, .* at position 1 of 2, after arrival_s=0\.5"),
    (one(rid=True), r"got Request\(rid=True, .*; sort them, or use Workload\.from_arrays"),
    (one(arrival_s=0.25), r"arrival_s=0\.25, .* after arrival_s=0\.5"),
    (one(arrival_s=float("nan")), r"a finite float not below .*: got .*arrival_s=nan"),
    (one(arrival_s=float("inf")), r"arrival_s=inf"),
    (one(arrival_s=1), r"arrival_s=1, "),
    (one(prompt_tokens=0), r"tokens ints in \[1, 1073741823\]: got .*prompt_tokens=0"),
    (one(prompt_tokens=True), r"prompt_tokens=True"),
    (one(output_tokens=2.0), r"output_tokens=2\.0"),
    (one(output_tokens=np.int64(2)), r"output_tokens=np\.int64\(2\)"),
    (one(output_tokens=MAX_TOKENS + 1), r"output_tokens=1073741824"),
    ((), r"at least 1 request in a tuple: got 0 in a tuple; check the file"),
    ([Request(0, 0.0, 1, 1)], r"got 1 in a list"),
]


@pytest.mark.parametrize(("requests", "text"), BAD_REQUESTS)
def test_a_broken_rule_is_named_with_the_request_that_breaks_it(requests: Any, text: str) -> None:
    with pytest.raises(WorkloadError, match=text):
        Workload("bad", requests, "by hand")


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    *(({"name": text}, "the name of a workload is one line") for text in ("", " a", "a\n", "a\tb")),
    ({"source": "two\nlines"}, r"the source of a workload is one line .*: got 'two\\nlines'"),
    ({"dropped": -1}, "at least 0: got -1"),
    ({"dropped": True}, "at least 0: got True"),
]


@pytest.mark.parametrize(("fields", "text"), BAD_FIELDS)
def test_labels_are_one_printable_line_and_dropped_is_a_count(
    fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(WorkloadError, match=text):
        Workload(**{"name": "a", "requests": one(), "source": "x", **fields})


BAD_COLUMNS: list[tuple[Any, Any, str]] = [
    ([0.0, 1.0], [1], r"got shapes \[\(2,\), \(1,\), \(1,\)\]"),
    (np.zeros((1, 1)), [1], r"got shapes \[\(1, 1\), \(1,\), \(1,\)\]"),
    ([0.0], [1.5], r"whole prompt_tokens .* of \['float64', 'float64', 'int64'\]"),
]


@pytest.mark.parametrize(("arrivals", "prompts", "text"), BAD_COLUMNS)
def test_columns_are_as_long_as_each_other_and_count_tokens(
    arrivals: Any, prompts: Any, text: str
) -> None:
    with pytest.raises(WorkloadError, match=text):
        Workload.from_arrays("a", arrivals, prompts, [1], "x")
    with pytest.raises(WorkloadError, match="at least 1 request"):
        Workload.from_arrays("a", [], [], [], "x")


@pytest.mark.parametrize("n", [0, True])
def test_head_takes_a_positive_int(n: int) -> None:
    with pytest.raises(WorkloadError, match=rf"n >= 1: got {n!r}"):
        Workload("a", one(), "x").head(n)

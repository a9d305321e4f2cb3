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
    (one(rid=2), r"rids number the requests 0 \.\. n-1 in order: got rid 2 at position 1 of 2"),
    (one(rid=True), r"got rid True at position 1 of 2, expected 1"),
    (one(arrival_s=0.25), r"rid 1 arrives at 0\.25 s, before rid 0 at 0\.5 s; sort them"),
    (one(arrival_s=float("nan")), r"arrival_s is a finite float .*: got nan for rid 1"),
    (one(arrival_s=float("inf")), r"arrival_s is a finite float .*: got inf for rid 1"),
    (one(arrival_s=-1.0), r"at least 0\.0 seconds: got -1\.0 for rid 1"),
    (one(arrival_s=1), r"arrival_s is a finite float .*: got 1 for rid 1"),
    (one(prompt_tokens=0), r"prompt_tokens is an int in \[1, 1073741823\]: got 0 for rid 1"),
    (one(prompt_tokens=True), r"prompt_tokens is an int .*: got True"),
    (one(output_tokens=0), r"output_tokens is an int .*: got 0 .*leave out requests without"),
    (one(output_tokens=2.0), r"output_tokens is an int .*: got 2\.0"),
    (one(output_tokens=np.int64(2)), r"output_tokens is an int .*use Workload\.from_arrays"),
    (one(output_tokens=MAX_TOKENS + 1), r"output_tokens is an int .*: got 1073741824"),
    ((), r"at least 1 request: got 0"),
    ([Request(0, 0.0, 1, 1)], r"requests must be a tuple, .*: got list; pass tuple"),
]


@pytest.mark.parametrize(("requests", "text"), BAD_REQUESTS)
def test_a_broken_rule_is_named_with_the_request_that_breaks_it(requests: Any, text: str) -> None:
    with pytest.raises(WorkloadError, match=text):
        Workload("bad", requests, "by hand")


@pytest.mark.parametrize("label", ["", " a", "a\n", "two\nlines", "a\tb", 3])
@pytest.mark.parametrize("field", ["name", "source"])
def test_labels_are_one_printable_line(field: str, label: object) -> None:
    fields = {"name": "a", "source": "x", field: label}
    with pytest.raises(WorkloadError, match=rf"the {field} of a workload is one line"):
        Workload(requests=(Request(0, 0.0, 1, 1),), **fields)  # type: ignore[arg-type]  # intended


@pytest.mark.parametrize("dropped", [-1, 1.0, True])
def test_dropped_is_a_count(dropped: object) -> None:
    with pytest.raises(WorkloadError, match=rf"whole number of at least 0: got {dropped!r}"):
        Workload("a", (Request(0, 0.0, 1, 1),), "x", dropped)  # type: ignore[arg-type]  # intended


@pytest.mark.parametrize("n", [0, -1, 1.0, True])
def test_head_takes_a_positive_int(n: object) -> None:
    w = Workload.from_arrays("a", [0.0], [1], [1], "x")
    with pytest.raises(WorkloadError, match=rf"n >= 1: got {n!r} for 'a' with 1 requests"):
        w.head(n)  # type: ignore[arg-type]  # intended


def test_columns_of_unequal_length_are_refused_with_their_shapes() -> None:
    with pytest.raises(WorkloadError, match=r"shapes \(2,\), \(1,\) and \(1,\)"):
        Workload.from_arrays("a", [0.0, 1.0], [1], [1], "x")
    with pytest.raises(WorkloadError, match=r"shapes \(1, 1\), \(1,\) and \(1,\)"):
        Workload.from_arrays("a", np.zeros((1, 1)), [1], [1], "x")


def test_fractional_token_counts_are_refused_with_their_dtype() -> None:
    with pytest.raises(WorkloadError, match=r"output_tokens counts tokens.*got dtype float64"):
        Workload.from_arrays("a", [0.0], [1], [1.5], "x")  # type: ignore[list-item]  # intended
    with pytest.raises(WorkloadError, match=r"at least 1 request: got 0"):
        Workload.from_arrays("a", [], [], [], "x")

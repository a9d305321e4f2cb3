"""The node that jumps leaves what a node that steps leaves, event by event; and its books balance.

The judge is ``reference_node.py``, which keeps no sums and skips nothing.
"""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine import CountingNode, NodeConfig, RunResult
from kvlab.engine.result import ABORT_HOST_FULL, ABORT_NO_RESUME
from kvlab.engine.workload import (
    LengthModel,
    Lognormal,
    Request,
    Workload,
    generate_closed_loop,
    generate_open_loop,
    load_trace,
)
from kvlab.errors import WorkloadError
from kvlab.index import DcpLayout
from tests.engine.reference_node import reference
from tests.engine.test_traces import public_trace


def maybe(low: int, high: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(low, high)


@st.composite
def nodes(draw: st.DrawFn) -> NodeConfig:
    """Small pools and every rule, so that pages are short and every branch is met."""
    ratios = sorted(draw(st.lists(st.sampled_from([0.05, 0.3, 0.7, 1.0]), min_size=2, max_size=2)))
    return NodeConfig(
        DcpLayout(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(2, 40))),
        concurrency=draw(maybe(1, 6)),
        max_running=draw(maybe(1, 5)),
        reserved_decode_tokens=draw(st.integers(0, 8) | st.sampled_from([30, 100])),
        clip_max_new_tokens=draw(st.sampled_from([1, 3, 10, 4096])),
        max_new_tokens=draw(maybe(1, 20)),
        restore=draw(st.sampled_from(["backup", "recompute"])),
        admission=draw(st.sampled_from(["reserved", "new_token_ratio"])),
        force_retract_interval=draw(st.sampled_from([None, None, None, 1, 2, 3])),
        host_capacity_tokens=draw(maybe(0, 40)),
        host_full=draw(st.sampled_from(["abort", "recompute"])),
        step_time_s=draw(st.sampled_from([0.5, 1.0, 3.0])),
        token_bytes=draw(st.sampled_from([1, 576])),
        min_new_token_ratio=ratios[0],
        initial_new_token_ratio=ratios[1],
        ratio_decay_steps=draw(st.sampled_from([1, 10, 600])),
        retract_decode_steps=draw(st.sampled_from([0, 3, 20])),
    )


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Request, ...]:
    """Up to 25 requests, all at once or with gaps; short ones, or some that fill a pool."""
    prompts = st.integers(1, draw(st.sampled_from([1, 4, 12, 50])))
    outputs = st.integers(1, draw(st.sampled_from([2, 12, 40])))
    gaps = draw(st.sampled_from([st.just(0.0), st.sampled_from([0.0, 0.7, 2.5, 9.0])]))
    rows = draw(st.lists(st.tuples(gaps, prompts, outputs), min_size=1, max_size=25))
    arrival, requests = 0.0, []
    for rid, (gap, prompt, output) in enumerate(rows):
        arrival += gap
        requests.append(Request(rid, arrival, prompt, output))
    return tuple(requests)


@settings(max_examples=300, derandomize=True)
@given(workloads(), nodes())
def test_jumping_gives_the_result_of_stepping(
    requests: tuple[Request, ...], config: NodeConfig
) -> None:
    assert CountingNode(config).run(requests, record=True) == reference(requests, config)


@settings(max_examples=60, derandomize=True)
@given(workloads(), nodes())
def test_the_books_of_a_run_balance(requests: tuple[Request, ...], config: NodeConfig) -> None:
    result = CountingNode(config).run(requests, record=True)
    count, kinds = result.counters, Counter(event.kind for event in result.events)
    assert count.requests == len(requests) == count.finished + count.aborted
    assert [outcome.rid for outcome in result.outcomes] == [r.rid for r in requests]
    assert sum(outcome.retractions for outcome in result.outcomes) == count.retracted_requests
    assert kinds["retract"] == count.retracted_requests >= count.forced_retractions
    assert kinds["resume"] == count.resumed_requests

    # Who left came back by one way or the other, or was aborted; a prefill again is counted whole.
    again = [
        e for e in result.events if e.kind == "admit" and e.tokens > requests[e.rid].prompt_tokens
    ]
    assert count.recomputed_tokens == sum(event.tokens for event in again)
    declined = count.declined_backups
    if config.restore == "backup":
        assert len(again) <= (declined if config.host_full == "recompute" else 0)
        full = result.abort_reasons().get(ABORT_HOST_FULL, 0)
        assert full == (declined if config.host_full == "abort" else 0)
    else:
        assert declined == count.backed_up_tokens == 0

    # What went to the host came back, but for those that could not be restored.
    lost = [o for o in result.outcomes if o.reason == ABORT_NO_RESUME]
    kv_lost = sum(requests[o.rid].prompt_tokens + o.generated - 1 for o in lost)
    assert count.backed_up_tokens - count.restored_tokens == kv_lost
    assert count.backup_bytes == count.backed_up_tokens * config.token_bytes
    assert count.restore_bytes == count.restored_tokens * config.token_bytes

    # A token is sampled by a forward, or by the prefill on entering.
    prefilled = kinds["admit"] + sum(r.output_tokens == 1 for r in requests)
    assert sum(o.generated for o in result.outcomes) == count.decode_tokens + prefilled
    for outcome in result.outcomes:
        complete = outcome.generated == requests[outcome.rid].output_tokens
        assert complete == (outcome.status == "finished") == (outcome.reason == "")


@settings(max_examples=60, derandomize=True)
@given(workloads(), nodes())
def test_no_bound_is_exceeded_and_every_life_is_in_order(
    requests: tuple[Request, ...], config: NodeConfig
) -> None:
    result = CountingNode(config).run(requests, record=True)
    count, events = result.counters, result.events
    assert count.peak_pages <= config.layout.num_pages
    assert count.peak_running <= (config.max_running or len(requests))
    assert count.peak_host_tokens <= (
        count.backed_up_tokens
        if config.host_capacity_tokens is None
        else config.host_capacity_tokens
    )
    in_system, most = 0, 0
    for event in events:
        in_system += (event.kind == "arrive") - (event.kind in {"finish", "abort"})
        most = max(most, in_system)
    assert in_system == 0
    assert most <= (config.concurrency or len(requests))
    assert [event.step for event in events] == sorted(event.step for event in events)
    assert count.last_step == events[-1].step

    back = {"resume"} if config.restore == "backup" else {"admit"}
    if config.host_full == "recompute" and config.host_capacity_tokens is not None:
        back.add("admit")
    for rid in range(len(requests)):
        life = [event.kind for event in events if event.rid == rid]
        assert life[0] == "arrive"
        assert {"finish", "abort"}.isdisjoint(life[:-1])
        assert life[-1] in {"finish", "abort"}
        for now, then in pairwise(life):
            assert now != "retract" or then in {*back, "abort"}


CHAT = LengthModel(Lognormal(300, 1.0, 1, 4000), Lognormal(120, 0.8, 1, 1000))
TIGHT: list[dict[str, Any]] = [
    {"concurrency": 32, "reserved_decode_tokens": 0},
    {"reserved_decode_tokens": 16, "force_retract_interval": 3},
    {"admission": "new_token_ratio", "restore": "recompute", "initial_new_token_ratio": 0.2},
    {"reserved_decode_tokens": 0, "max_new_tokens": 64, "host_capacity_tokens": 6000},
    {"reserved_decode_tokens": 0, "host_capacity_tokens": 1500, "host_full": "recompute"},
]


def compare(workload: Workload, config: NodeConfig) -> RunResult:
    result = CountingNode(config).run(workload, record=True)
    assert result == reference(workload.requests, config)
    return result


@pytest.mark.parametrize("rules", TIGHT)
@pytest.mark.parametrize("dcp_size", [1, 16])
def test_300_generated_requests_fare_alike(dcp_size: int, rules: dict[str, Any]) -> None:
    config = NodeConfig(DcpLayout(dcp_size, 64, 12_288 // (64 * dcp_size)), **rules)
    closed = compare(generate_closed_loop(300, CHAT, seed=3), config)
    assert closed.counters.retracted_requests > 0
    compare(generate_open_loop(300, 5.0, CHAT, seed=4), config)


@pytest.mark.parametrize("rules", TIGHT[1:3])
def test_the_first_300_requests_of_the_azure_trace_fare_alike(rules: dict[str, Any]) -> None:
    trace = load_trace(public_trace("azure_llm_2023_conv.csv"), limit=300)
    at_once = replace(trace, requests=tuple(replace(r, arrival_s=0.0) for r in trace.requests))
    config = NodeConfig(DcpLayout(4, 64, 96), **rules)
    assert compare(at_once, config).counters.retracted_requests > 0
    compare(trace, config)


def test_a_node_runs_again_and_events_are_kept_only_if_asked_for() -> None:
    workload = generate_closed_loop(40, CHAT, seed=5)
    node = CountingNode(NodeConfig(DcpLayout(2, 64, 40), reserved_decode_tokens=0))
    recorded = node.run(workload, record=True)
    assert recorded.events
    assert node.run(workload) == replace(recorded, events=())
    assert node.run(list(workload.requests), record=True) == recorded
    assert eval(repr(node.config)) == node.config and repr(node.config) in repr(node)
    c = recorded.counters
    assert repr(recorded).startswith(f"RunResult(40 requests, {c.finished} finished, 0 aborted; ")


@pytest.mark.parametrize("n", [1, 7, 350])
def test_progress_ends_with_all_and_is_told_some_100_times_at_most(n: int) -> None:
    told: list[tuple[int, int]] = []
    node = CountingNode(NodeConfig(DcpLayout(1, 64, 400), concurrency=8))
    node.run(generate_closed_loop(n, CHAT, seed=6), progress=lambda *at: told.append(at))
    assert told[-1] == (n, n)
    assert len(told) <= 101
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_a_sequence_that_is_no_workload_is_refused() -> None:
    node = CountingNode(NodeConfig(DcpLayout(1, 4, 4)))
    with pytest.raises(WorkloadError, match="holds at least 1 request in a tuple: got 0"):
        node.run([])
    with pytest.raises(WorkloadError, match=r"got Request\(rid=3, .* at position 0 of 1"):
        node.run([Request(3, 0.0, 1, 1)])


def test_a_billion_tokens_are_one_jump() -> None:
    # Stepping would take hours; a few hundred bytes of books do not.
    half = 2**29
    result = CountingNode(NodeConfig(DcpLayout(16, 64, 2**21), reserved_decode_tokens=0)).run(
        [Request(0, 0.0, 1, half), Request(1, 0.0, 1, half - 5)], record=True
    )
    assert result.counters.forwards == half - 1
    assert result.counters.peak_pages == 2 * 2**19
    assert [(event.step, event.kind) for event in result.events[-2:]] == [
        (half - 7, "finish"),
        (half - 2, "finish"),
    ]

"""What a decode node does in cases small enough to follow by hand; each also asks the judge.

One step takes one second here, so an arrival time is a step.
"""

from typing import Any

import pytest

from kvlab.engine import CountingNode, NodeConfig, RunResult
from kvlab.engine.result import ABORT_LAST, ABORT_NO_RESUME
from kvlab.engine.workload import Request
from kvlab.index import DcpLayout
from tests.engine.reference_node import reference

Row = tuple[float, int, int]  # arrival, prompt, output


def served(
    rows: list[Row], *, page: int = 4, pages: int = 100, dcp: int = 1, **rules: Any
) -> RunResult:
    """The recorded run of ``rows``, which the judge confirms."""
    config = NodeConfig(
        DcpLayout(dcp, page, pages), **{"reserved_decode_tokens": 0, "step_time_s": 1.0, **rules}
    )
    requests = [Request(rid, *row) for rid, row in enumerate(rows)]
    result = CountingNode(config).run(requests, record=True)
    assert result == reference(requests, config)
    return result


def steps(result: RunResult, kind: str) -> list[tuple[int, int]]:
    """(step, rid) of the events of one kind."""
    return [(event.step, event.rid) for event in result.events if event.kind == kind]


def test_a_request_generates_its_first_token_on_entering_and_one_a_forward() -> None:
    result = served([(0.0, 6, 100), (40.0, 6, 2)])
    assert [(e.step, e.kind, e.rid, e.tokens) for e in result.events] == [
        (0, "arrive", 0, 6),
        (0, "admit", 0, 6),
        (40, "arrive", 1, 6),
        (40, "admit", 1, 6),
        (40, "finish", 1, 7),
        (98, "finish", 0, 105),
    ]
    assert result.counters.forwards == 99
    assert result.counters.decode_tokens == 100


def test_a_request_of_one_token_never_waits() -> None:
    result = served([(0.0, 400, 1)], pages=1)
    (outcome,) = result.outcomes
    assert (outcome.status, outcome.generated, outcome.admitted_step) == ("finished", 1, None)
    assert result.counters.forwards == result.counters.peak_pages == 0


def test_the_counter_says_48_where_the_gauge_says_1() -> None:
    # Every third forward retracts one of two, which is back in the step after.
    result = served([(0.0, 5, 147), (0.0, 5, 147)], force_retract_interval=3)
    assert result.counters.retracted_requests == 48
    assert result.counters.forced_retractions == 48
    assert result.counters.last_batch_retracted == 1
    assert sum(times * n for times, n in result.retraction_histogram().items()) == 48


@pytest.mark.parametrize(("page", "dcp"), [(1, 1), (1, 8), (16, 1), (16, 4), (64, 1), (64, 2)])
def test_the_upstream_harness_retracts_naturally_and_all_finish(page: int, dcp: int) -> None:
    # --max-total-tokens 512 --num-reserved-decode-tokens 16; 4 requests want 832 tokens of KV.
    rows = [(0.0, 16, 192)] * 4
    pages = 512 // (page * dcp)
    result = served(rows, page=page, dcp=dcp, pages=pages, reserved_decode_tokens=16)
    assert result.counters.finished == 4
    assert result.counters.retracted_requests > 0
    assert result.counters.forced_retractions == 0
    assert result.counters.backed_up_tokens == result.counters.restored_tokens > 0


def test_the_last_request_is_never_retracted_but_aborted() -> None:
    result = served([(0.0, 4, 30)], pages=4, clip_max_new_tokens=8)
    (outcome,) = result.outcomes
    assert (outcome.status, outcome.reason) == ("aborted", ABORT_LAST)
    assert outcome.generated == 13  # 16 tokens of KV are all that the pool holds
    assert result.counters.retracted_requests == 0
    assert result.counters.peak_pages == 4


@pytest.mark.parametrize(
    ("rows", "victim"),
    [
        ([(0.0, 4, 90), (5.0, 4, 90)], 1),  # fewest generated
        ([(0.0, 4, 90), (0.0, 9, 90)], 1),  # as many generated: longest prompt
        ([(0.0, 9, 90), (0.0, 4, 90)], 0),
        ([(0.0, 4, 90), (0.0, 4, 90)], 1),  # nothing differs: latest to join
        ([(0.0, 9, 90), (5.0, 4, 90)], 1),  # generated counts before prompt
        ([(0.0, 4, 90), (5.0, 4, 90), (5.0, 9, 90), (5.0, 9, 90), (5.0, 8, 90)], 3),
    ],
)
def test_the_victim_has_generated_least_then_has_the_longest_prompt_then_came_last(
    rows: list[Row], victim: int
) -> None:
    result = served(rows, force_retract_interval=10)
    assert steps(result, "retract")[0] == (10, victim)


def test_a_short_step_retracts_as_many_as_it_takes() -> None:
    # W = 1: eight requests need eight pages a forward. 16 pages hold 8 prompts of one token and
    # one forward; at the second, three have to go before the others fit.
    result = served([(0.0, 1, 3)] * 8, page=1, pages=16, clip_max_new_tokens=1)
    assert steps(result, "retract") == [(1, 7), (1, 6), (1, 5)]
    assert result.counters.last_batch_retracted == 3
    assert result.counters.forced_retractions == 0


def test_the_retracted_come_back_in_order_and_before_anybody_new() -> None:
    rows = [*[(0.0, 16, 192)] * 4, (130.0, 1, 2)]
    result = served(rows, page=16, pages=32, reserved_decode_tokens=16)
    gone, back = steps(result, "retract"), steps(result, "resume")
    assert [rid for _, rid in gone] == [rid for _, rid in back] == [3, 2]
    (entered,) = [step for step, rid in steps(result, "admit") if rid == 4]
    assert gone[0][0] < 130 < back[-1][0] <= entered


def test_a_backup_that_may_never_return_is_given_up_when_nobody_runs() -> None:
    # The ratio rule lets both in, but to resume takes a reserve that the pool does not have.
    result = served(
        [(0.0, 12, 10), (0.0, 12, 10), (20.0, 12, 10), (20.0, 12, 10)],
        pages=8,
        host_capacity_tokens=20,
        admission="new_token_ratio",
        clip_max_new_tokens=1,
        reserved_decode_tokens=100,
    )
    assert steps(result, "retract") == [(4, 1), (24, 3)]
    assert steps(result, "finish") == [(8, 0), (28, 2)]
    assert steps(result, "abort") == [(9, 1), (29, 3)]
    assert result.abort_reasons() == {ABORT_NO_RESUME: 2}
    # The host forgot the first, or the second would not have found room.
    assert result.counters.peak_host_tokens == 16


def test_nobody_is_aborted_for_the_charge_of_one_that_finished_on_entering() -> None:
    # Request 1 is retracted with one token to go and returns when the pool is empty: its prefill
    # ends it, so request 2, which needs the whole pool, waits no longer and is not too large.
    result = served([(0.0, 4, 10), (0.0, 8, 2), (3.0, 12, 4)], pages=4, page=4, restore="recompute")
    assert steps(result, "retract") == [(0, 1)]
    assert steps(result, "admit")[2:] == [(9, 1), (9, 2)]
    assert result.counters.finished == 3


def test_a_newcomer_enters_as_soon_as_the_promise_to_the_running_allows() -> None:
    # The one that runs holds 18 tokens of 80 and may reach 94, so it is promised 76. A newcomer
    # of 4 tokens needs a page of 8 and finds 4; four forwards later it finds 8.
    result = served([(0.0, 16, 78), (1.0, 4, 20)], page=8, pages=13)
    assert steps(result, "admit") == [(0, 0), (5, 1)]


def test_the_ratio_rule_sees_the_remaining_output_fall_below_the_clip() -> None:
    # 128 tokens are free, the newcomer needs 64 + 40: it waits until less than 24 of 62 are left,
    # long after the first 12 forwards, in which the clip of 50 hides that the output shrinks.
    result = served(
        [(0.0, 1, 62), (1.0, 1, 40)],
        page=64,
        pages=3,
        admission="new_token_ratio",
        clip_max_new_tokens=50,
        initial_new_token_ratio=1.0,
        min_new_token_ratio=1.0,
    )
    assert steps(result, "admit") == [(0, 0), (38, 1)]

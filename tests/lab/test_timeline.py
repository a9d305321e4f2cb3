"""Intervals and pool fill say what the counters of the same run say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine import CountingNode, Event, NodeConfig, RunResult, StepNode
from kvlab.engine.workload import Request
from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.timeline import intervals, pool_fill, retracted_runs

LAYOUT = DcpLayout(2, 2, 12)


@st.composite
def runs(draw: st.DrawFn) -> tuple[NodeConfig, RunResult]:
    """A small run under memory pressure, with either way back and sometimes forced retraction."""
    lengths = st.tuples(st.integers(0, 9), st.integers(1, 20), st.integers(1, 30))
    given_lengths = sorted(draw(st.lists(lengths, min_size=1, max_size=8)))
    requests = [Request(i, float(a), p, o) for i, (a, p, o) in enumerate(given_lengths)]
    restore = draw(st.sampled_from(["backup", "recompute"]))
    config = NodeConfig(
        LAYOUT,
        reserved_decode_tokens=draw(st.integers(0, 8)),
        restore=restore,  # type: ignore[arg-type]  # one of the two words
        admission="reserved" if restore == "backup" else "new_token_ratio",
        force_retract_interval=draw(st.none() | st.integers(1, 5)),
        host_capacity_tokens=draw(st.none() | st.integers(0, 60)),
        host_full=draw(st.sampled_from(["abort", "recompute"])),
        step_time_s=1.0,
    )
    return config, CountingNode(config).run(requests, record=True)


@given(runs())
def test_every_decode_token_is_one_step_of_one_running_request(
    run: tuple[NodeConfig, RunResult],
) -> None:
    table = intervals(run[1].events)
    ran = table[table["state"] == "running"]
    assert (ran["end"] - ran["begin"]).sum() == run[1].counters.decode_tokens
    assert (ran["last_tokens"] - ran["first_tokens"]).sum() == run[1].counters.decode_tokens


@given(runs())
def test_a_request_is_in_one_state_at_a_time_from_its_arrival_to_its_end(
    run: tuple[NodeConfig, RunResult],
) -> None:
    table = intervals(run[1].events)
    assert (table["begin"] <= table["end"]).all()
    for _, stays in table.groupby("rid"):
        assert stays["state"].iloc[0] == "waiting"
        assert stays["left_by"].iloc[-1] in ("finish", "abort")
        assert stays["begin"].iloc[1:].tolist() == stays["end"].iloc[:-1].tolist()


@given(runs())
def test_each_retraction_ends_one_stay_and_names_what_was_given_back(
    run: tuple[NodeConfig, RunResult],
) -> None:
    config, result = run
    gone = retracted_runs(intervals(result.events), LAYOUT)
    assert len(gone) == result.counters.retracted_requests
    if config.restore == "backup" and not result.counters.declined_backups:
        assert gone["positions"].sum() == result.counters.backed_up_tokens


@given(runs())
def test_who_is_prefilled_again_waits_and_who_resumes_was_on_the_host(
    run: tuple[NodeConfig, RunResult],
) -> None:
    table = intervals(run[1].events)
    away = table[table["left_by"].isin(["admit", "resume"])]
    host = away["state"] == "retracted"
    assert (host == (away["left_by"] == "resume")).all()
    assert away.loc[host, "first_tokens"].sum() == run[1].counters.restored_tokens
    assert (away.loc[~host, "state"] == "waiting").all()
    assert (away.loc[~host, ["first_tokens", "last_tokens"]] == 0).all(axis=None)


def test_a_run_that_mixes_both_ways_back_is_drawn_with_each_where_it_was() -> None:
    config = NodeConfig(
        DcpLayout(1, 1, 16),
        reserved_decode_tokens=0,
        clip_max_new_tokens=1,
        host_capacity_tokens=3,
        host_full="recompute",
    )
    run = CountingNode(config).run([Request(rid, 0.0, 1, 5) for rid in range(6)], record=True)
    table = intervals(run.events)
    away = table[(table["begin"] > 0) & (table["state"] != "running")]
    assert away[["rid", "state", "begin", "end"]].to_numpy().tolist() == [
        [3, "waiting", 3, 4],
        [4, "waiting", 2, 4],
        [5, "retracted", 1, 4],
    ]


@given(runs())
def test_the_pool_is_never_fuller_than_its_peak(run: tuple[NodeConfig, RunResult]) -> None:
    fill = pool_fill(intervals(run[1].events), LAYOUT)
    assert (fill["pages"] <= run[1].counters.peak_pages).all()
    assert (fill["tokens"] <= fill["held_tokens"]).all()
    assert (fill["held_tokens"] <= fill["capacity_tokens"]).all()
    assert fill["tokens"].gt(0).sum() == run[1].counters.forwards


def test_both_schedulers_give_the_same_intervals() -> None:
    config = NodeConfig(DcpLayout(4, 4, 32), reserved_decode_tokens=16)
    requests = [Request(i, 0.0, 16, 192) for i in range(4)]
    stepped = StepNode(config).run(requests, record=True)
    jumped = CountingNode(config).run(requests, record=True)
    assert intervals(stepped.events).equals(intervals(jumped.events))


def test_the_worked_example_runs_three_steps_and_ends_with_nine_tokens() -> None:
    config = NodeConfig(LAYOUT, reserved_decode_tokens=0)
    result = CountingNode(config).run([Request(0, 0.0, 6, 4)], record=True)
    table = intervals(result.events)
    assert table.loc[table["state"] == "running"].to_dict("records") == [
        {
            "rid": 0,
            "state": "running",
            "begin": 0,
            "end": 3,
            "first_tokens": 6,
            "last_tokens": 9,
            "left_by": "finish",
        }
    ]
    assert pool_fill(table, LAYOUT)["tokens"].tolist() == [7, 8, 9]
    assert pool_fill(table, LAYOUT)["pages"].tolist() == [2, 2, 3]


def test_lengths_of_retracted_runs_are_divided_by_all_three_units() -> None:
    events = [Event(0, "arrive", 0, 6), Event(0, "admit", 0, 6), Event(1, "retract", 0, 7)]
    events += [Event(3, "resume", 0, 7), Event(4, "finish", 0, 9)]
    (gone,) = retracted_runs(intervals(events), DcpLayout(2, 2, 9)).to_dict("records")
    assert gone == {
        "rid": 0,
        "step": 1,
        "positions": 7,
        "past_rank": 1,
        "past_page": 1,
        "past_widened_page": 3,
    }


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([Event(0, "admit", 3, 6)], "request 3 has the event admit at step 0 without its arrival"),
        (
            [Event(0, "arrive", 1, 6), Event(2, "arrive", 1, 6)],
            "request 1 has the event arrive at step 2 after its arrival",
        ),
        ([Event(0, "arrive", 2, 6)], "request 2 ends with arrive at step 0, as do 0 others"),
    ],
)
def test_a_run_that_was_not_recorded_whole_is_refused(events: list[Event], text: str) -> None:
    with pytest.raises(StudyError, match=text):
        intervals(events)


def test_a_run_without_events_is_an_empty_table() -> None:
    assert len(intervals([])) == 0
    assert len(pool_fill(intervals([]), LAYOUT)) == 0

"""Intervals and pool fill say what the counters of the same run say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine import CountingNode, Event, NodeConfig, RunResult
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
@settings(max_examples=50)
def test_intervals_and_fill_say_what_the_counters_of_the_run_say(
    run: tuple[NodeConfig, RunResult],
) -> None:
    config, counters = run[0], run[1].counters
    table = intervals(run[1].events)
    ran = table[table["state"] == "running"]
    assert (ran["end"] - ran["begin"]).sum() == counters.decode_tokens
    assert (ran["last_tokens"] - ran["first_tokens"]).sum() == counters.decode_tokens
    assert (table["begin"] <= table["end"]).all()
    for _, stays in table.groupby("rid"):
        assert stays["state"].iloc[0] == "waiting"
        assert stays["left_by"].iloc[-1] in ("finish", "abort")
        assert stays["begin"].iloc[1:].tolist() == stays["end"].iloc[:-1].tolist()
    gone = retracted_runs(table, LAYOUT)
    assert len(gone) == counters.retracted_requests
    if config.restore == "backup" and not counters.declined_backups:
        assert gone["positions"].sum() == counters.backed_up_tokens
    away = table[table["left_by"].isin(["admit", "resume"])]
    host = away["state"] == "retracted"
    assert (host == (away["left_by"] == "resume")).all()
    assert away.loc[host, "first_tokens"].sum() == counters.restored_tokens
    assert (away.loc[~host, "state"] == "waiting").all()
    assert (away.loc[~host, ["first_tokens", "last_tokens"]] == 0).all(axis=None)
    fill = pool_fill(table, LAYOUT)
    assert (fill["pages"] <= counters.peak_pages).all()
    assert (fill["tokens"] <= fill["held_tokens"]).all()
    assert (fill["held_tokens"] <= fill["capacity_tokens"]).all()
    assert fill["tokens"].gt(0).sum() == counters.forwards


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


def test_a_run_that_was_not_recorded_whole_is_refused() -> None:
    first = Event(0, "arrive", 1, 6)
    for events, text in (
        ([Event(0, "admit", 1, 6)], "request 1 has the event admit at step 0; record"),
        ([first, Event(2, "arrive", 1, 6)], "request 1 has the event arrive at step 2; record"),
        ([first], "request 1 does not; record the run to its end"),
    ):
        with pytest.raises(StudyError, match=text):
            intervals(events)
    assert len(intervals([])) == len(pool_fill(intervals([]), LAYOUT)) == 0

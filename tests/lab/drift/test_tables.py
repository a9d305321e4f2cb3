"""Rows of the tables on a run by hand: two requests, one of which comes back once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvlab.engine import Event
from kvlab.lab.drift.tables import (
    RunData,
    events_array,
    events_of,
    largest,
    mean,
    position_rows,
    request_rows,
    summary_row,
    token_rows,
)

NAN = float("nan")
PROMPTS = [4, 6]
FLOOR = 0.1
# Request 0: prompt 4, output 5. Prefill at step 0, forwards at 0 and 1 make outputs 1 and 2; it
# leaves with 6 cached positions (4 + 2), and output 3 comes from the forward of its return.
EVENTS = (
    Event(0, "arrive", 0, 4),
    Event(0, "admit", 0, 4),
    Event(1, "arrive", 1, 6),
    Event(1, "admit", 1, 6),
    Event(2, "retract", 0, 6),
    Event(3, "resume", 0, 6),
    Event(3, "finish", 1, 9),
    Event(4, "finish", 0, 8),
)
RUN = RunData(
    prompts=PROMPTS,
    dlogprob=(np.array([0.05, -0.1, 0.3, -0.4, NAN]), np.array([0.0, 0.1, 0.2, -0.1])),
    kl=(np.array([0.0, 0.0, 1.0, 1.0, NAN]), np.zeros(4)),
    rank=(np.array([0, 0, 1, 2, -1]), np.zeros(4, np.int64)),
    tokens=((1, 2, 3, 4, 5), (7, 7, 7, 8)),
    drawn=((1, 2, 3, 9, 5), (7, 7, 7, 8)),
    events=EVENTS,
    restores=(0, 1),
)


def rows(run: RunData = RUN, floor: float = FLOOR) -> Any:
    return pd.DataFrame(request_rows(run, floor)).set_index("rid")


def test_the_first_token_after_a_restore_is_the_one_whose_position_was_not_cached() -> None:
    assert RUN.back == {0: [3]}
    again = Event(5, "admit", 1, 9)  # recomputed with 6 + 3 tokens: output 3 comes next
    assert replace(RUN, events=(*EVENTS, again)).back == {0: [3], 1: [3]}


def test_a_request_is_cut_at_its_first_restore() -> None:
    first = rows().loc[0]
    assert (first["restored_at"], first["retractions"], first["nan_tokens"]) == (3, 1, 1)
    assert first["max_before_restore"] == 0.3 and first["max_since_restore"] == 0.4
    assert first["first_above_floor"] == 2 and first["onset"] == 0
    assert first["collateral"]
    assert first["kl"] == 0.5
    assert (first["first_divergence"], first["edit_distance"]) == (3, 1)


def test_a_request_that_never_left_is_all_before() -> None:
    other = rows().loc[1]
    assert np.isnan(other["restored_at"]) and np.isnan(other["onset"])
    assert other["max_before_restore"] == 0.2 and other["max_since_restore"] == 0
    assert not other["collateral"]  # 0.2 is 2 times the floor, and not above it
    assert rows(floor=0.09).loc[1, "collateral"]


def test_nan_counts_as_above_the_floor() -> None:
    assert rows(floor=10.0).loc[0, "onset"] == 1


def test_the_onset_counts_from_the_latest_restore_before_the_drift() -> None:
    events = (*EVENTS[:6], Event(4, "retract", 0, 7), Event(5, "resume", 0, 7), EVENTS[6])
    late = (np.array([0, 0, 0, 0, 9.0]), RUN.dlogprob[1])
    run = replace(RUN, dlogprob=late, events=events)
    assert run.back == {0: [3, 4]}
    assert rows(run).loc[0, "onset"] == 0  # the first restore, a token before, did no harm
    early = (np.array([0, 0, 0, 9.0, 9.0]), RUN.dlogprob[1])
    assert rows(replace(run, dlogprob=early)).loc[0, "onset"] == 0


def test_the_summary_of_the_run_by_hand() -> None:
    table = pd.DataFrame(request_rows(RUN, FLOOR))
    fixed = replace(RUN, dlogprob=(np.zeros(5), np.zeros(4)))
    row = summary_row(RUN, table, FLOOR, fixed)
    assert (row["requests"], row["tokens"], row["nan_tokens"]) == (2, 9, 1)
    assert row["max_abs_dlogprob"] == 0.4 and row["max_from_fixed"] == 0.4
    assert row["mean_abs_dlogprob"] == pytest.approx(1.25 / 8)
    assert (row["retractions"], row["restores"], row["restores_different"]) == (1, 1, 1)
    assert (row["restored_requests"], row["drifting_restored"]) == (1, 1)
    assert (row["collateral_requests"], row["median_onset"]) == (1, 0)
    assert (row["diverged_requests"], row["repeating_requests"]) == (1, 0)
    assert row["not_first"] == pytest.approx(3 / 9)
    assert summary_row(RUN, table, FLOOR, RUN)["max_from_fixed"] == 0


def test_positions_are_counted_from_the_output_and_from_the_latest_restore() -> None:
    table: Any = pd.DataFrame(position_rows(RUN))
    by_axis = {axis: part.set_index("at") for axis, part in table.groupby("axis")}
    at = by_axis["position"]
    assert at["tokens"].tolist() == [2, 2, 2, 2, 0]
    assert at.loc[3, ["p50", "max"]].tolist() == pytest.approx([0.25, 0.4])
    assert np.isnan(at.loc[4, "p50"])
    since = by_axis["since_restore"]
    assert since.index.tolist() == [0, 1] and since.loc[0, "max"] == 0.4


def test_each_token_has_the_step_that_made_it() -> None:
    table: Any = pd.DataFrame(token_rows(RUN, RUN.drawn))
    first = table[table["rid"] == 0]
    assert first["step"].tolist() == [0, 0, 1, 3, 4]
    assert first["restored"].tolist() == [False, False, False, True, True]
    assert first["token"].tolist() == [1, 2, 3, 9, 5]
    assert table.loc[table["rid"] == 1, "step"].tolist() == [1, 1, 2, 3]


def test_largest_and_mean_leave_nan_out_and_events_come_back_from_their_array() -> None:
    assert largest(np.array([1.0, NAN])) == mean(np.array([1.0, NAN])) == 1
    assert largest(np.array([])) == 0
    assert np.isnan(largest(np.array([NAN]))) and np.isnan(mean(np.array([])))
    assert (events_of(events_array(EVENTS))) == EVENTS
    assert events_array([]).shape == (0,)

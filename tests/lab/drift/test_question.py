"""The rules by which a defect is ruled out as the cause of 4 of 48, and the text they give."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.lab.drift.conditions import DTYPES
from kvlab.lab.drift.defects import DEFECTS
from kvlab.lab.drift.question import UNKNOWN, answers, interval, signatures, table, text
from tests.lab.drift.made_up import summary


def judged(**changes: dict[str, Any]) -> dict[str, str]:
    return {a.signature.defect.name: a.judgement for a in answers(summary(changes))}


def test_a_defect_that_is_bit_identical_at_one_rank_cannot() -> None:
    given = judged()
    assert {name for name, judgement in given.items() if judgement == "cannot"} == {
        d.name for d in DEFECTS if not d.can_act(1)
    }
    assert given["state_not_restored"] == "not excluded"


@pytest.mark.parametrize(
    ("changes", "judgement"),
    [
        ({"repeating_restored": 4}, "not excluded"),
        ({"repeating_restored": 0}, "not excluded"),  # a large model may loop where this does not
        ({"repeating_restored": 30}, "not excluded"),  # fewer, if drawn otherwise
        ({"repeating_restored": 43}, "not excluded"),  # nine in ten of 48 are 43.2
        ({"repeating_restored": 44}, "too many"),
        ({"drifting_restored": 3, "repeating_restored": 3}, "not excluded"),
        ({"drifting_restored": 1, "restored_requests": 400, "repeating_restored": 0}, "cannot"),
        ({"drifting_restored": 0, "repeating_restored": 0}, "cannot"),
        ({"restored_requests": 0}, "not measured"),
        ({"repeating_restored": float("nan")}, "not measured"),
        ({"max_from_fixed": 0.0, "nan_tokens": 5, "repeating_restored": 48}, "too many"),
    ],
)
def test_the_rules_in_their_order(changes: dict[str, Any], judgement: str) -> None:
    assert judged(**{"defect_state_stale__1": changes})["state_stale"] == judgement


def test_the_reach_is_measured_and_not_taken_from_the_catalogue() -> None:
    moved = {"max_from_fixed": 0.1, "drifting_restored": 48, "repeating_restored": 4}
    assert judged(defect_wrong_log_base__1=moved)["wrong_log_base"] == "not excluded"
    assert judged(defect_old_rows__1={"max_from_fixed": 0.0})["old_rows"] == "cannot"


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_its_share_and_is_within_0_and_1(pair: tuple[int, int]) -> None:
    hits, of = pair
    low, high = interval(hits, of)
    assert 0 <= low <= hits / of <= high <= 1
    wider = interval(10 * hits, 10 * of)
    assert wider[1] - wider[0] < high - low


def test_the_interval_of_a_known_example() -> None:
    assert interval(4, 48) == pytest.approx((0.0329, 0.1955), abs=5e-4)
    assert interval(0, 0) == (0, 1)


def test_the_text_names_every_defect_once_in_its_group_and_says_what_stays_unknown() -> None:
    lines = text(summary({"defect_state_stale__1": {"repeating_restored": 4}}))
    assert lines[0].startswith("Reported, not measured here: about 4 of 48")
    assert lines[-1] == UNKNOWN
    argued = "\n".join(lines[:-1])
    for known in DEFECTS:
        assert known.title in argued
    assert "These cannot make 4 of 48 repeat at c = 1 (4). widened ids as rows: every" in argued
    assert "logprob is that of the run with the fix, bit for bit, at c = 1" in argued
    assert "4 of 48 is any share from 3% to 20%, by the 95 % interval" in argued
    assert (
        "KDA state of another (hypothetical): 4 of 48 restored requests repeat (3% to 20%)"
        in argued
    )
    assert "What would tell them apart on a real server. " in argued
    assert "log the state slot before and after" in argued
    # What cannot be behind it needs no measurement.
    assert "count the rows that a rank saves" not in argued
    assert f"0 of 48 requests in {DTYPES[0]} say something else" in argued


def test_rounding_is_said_to_change_what_is_drawn_only_where_it_did() -> None:
    changes, did_not = "Rounding alone changes what is drawn", "Rounding alone changed no token"
    calm = "\n".join(text(summary()))
    assert did_not in calm and changes not in calm
    moved = "\n".join(text(summary({"forced_fixed__4": {"diverged_requests": 1}})))
    assert changes in moved and did_not not in moved


def test_a_defect_that_does_no_more_than_rounding_is_ruled_out() -> None:
    few = {"defect_state_stale__1": {"drifting_restored": 0}}
    argued = "\n".join(text(summary(few)))
    assert "none of 48 restored requests leaves the floor" in argued


def test_the_text_follows_the_numbers() -> None:
    calm = text(summary({"defect_state_stale__1": {"max_from_fixed": 0.0}}))
    assert not any("log the state slot before and after" in line for line in calm)


def test_signatures_are_of_the_size_that_is_asked_for() -> None:
    table_ = summary()
    assert {s.dcp_size for s in signatures(table_, 4)} == {4}
    assert len(signatures(table_, 4)) == len(DEFECTS)
    assert signatures(table_, 16) == []
    shown = table(signatures(table_))
    assert len(shown) == len(DEFECTS)
    assert shown.set_index("defect").loc["KDA state of another", "reported"] == "hypothetical"


def test_a_study_without_a_defect_argues_nothing() -> None:
    every = summary()
    assert text(every[every["defect"] == ""]) == []
    assert text(every[every["dcp_size"] > 1]) == []

"""Every expectation can be refuted by a number, and so can a defect as the cause of 4 of 48."""

import re
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from kvlab.lab.drift import DEFECTS, DTYPES, Verdict, answers, argument, verdicts
from kvlab.lab.drift.verdicts import UNKNOWN, interval
from tests.lab.drift.made_up import FLOOR, summary


def found(**changes: dict[str, Any]) -> dict[str, Verdict]:
    return {v.name: v for v in verdicts(summary(changes))}


def stem(name: str) -> str:
    """The name of an expectation without its dtype: a change is made in every one."""
    return re.sub(rf"_({'|'.join(DTYPES)})$", "", name)


def test_numbers_as_expected_confirm_every_expectation() -> None:
    given = found()
    assert len(given) >= 10
    assert {v.outcome for v in given.values()} == {"confirmed"}
    assert given["restored_bits"].evidence == "720 of 720 restores, in 12 runs"
    beyond = given["before_fix_beyond_floor_float32"]
    assert "at least 1.25e+05 times the floor of 4e-06 nats, at c = 2, 4" in beyond.evidence
    assert beyond.text.startswith("confirmed: before the fix, drift is at least 100 times")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("restored_bits", {"forced_fixed__4": {"restores_different": 1}}),
        ("forced_fixed_within_floor_float32", {"forced_fixed__2": {"max_abs_dlogprob": 3 * FLOOR}}),
        ("forced_fixed_within_floor_fp8", {"forced_fixed__1": {"nan_tokens": 1}}),
        ("natural_within_floor_float32", {"natural__1": {"max_abs_dlogprob": 1e-2}}),
        ("recompute_within_floor_float32", {"recompute__4": {"max_abs_dlogprob": 1e-2}}),
        (
            "before_fix_beyond_floor_float32",
            {"forced_before_fix__4": {"max_abs_dlogprob": 99 * FLOOR}},
        ),
        ("before_fix_nothing_at_1_float32", {"forced_before_fix__1": {"max_from_fixed": 1e-9}}),
        ("tolerance_sees_before_fix_float32", {"forced_before_fix__2": {"max_abs_dlogprob": 0.2}}),
        ("tolerance_sees_defects", {"defect_old_rows__2": {"max_abs_dlogprob": 0.2}}),
        (
            "no_reach_at_1",
            {"defect_wrong_log_base__1": {"max_from_fixed": 1e-9, "max_abs_dlogprob": 1}},
        ),
        ("no_reach_at_1", {"defect_translated_twice__1": {"nan_tokens": 3}}),
    ],
)
def test_each_expectation_is_refuted_by_one_number_against_it(
    name: str, changes: dict[str, dict[str, Any]]
) -> None:
    given = found(**changes)
    assert given[name].outcome == "refuted"
    others = {stem(v.name) for v in given.values() if v.outcome == "refuted"} - {stem(name)}
    # Below a hundred times the floor is below the tolerance, too.
    assert others <= ({"tolerance_sees_before_fix"} if "beyond" in name else set())


def test_a_defect_below_the_tolerance_is_named_with_its_drift_and_nan_is_left_out() -> None:
    given = found(
        defect_wrong_log_base__2={"max_abs_dlogprob": 0.197},
        defect_nan_padding={"nan_tokens": 9},
    )["tolerance_sees_defects"]
    assert given.outcome == "refuted"
    assert "max |Δℓ| of the others: wrong_log_base 0.197 at c = 2; 3 runs" in given.evidence
    assert given.evidence.endswith("3 runs with NaN left out")


def test_a_floor_of_zero_is_held_by_equal_bits_and_left_by_any_drift() -> None:
    kinds = ("forced_fixed", "forced_before_fix__2", "forced_before_fix__4", "recompute")
    none = {"floor": 0.0, "max_abs_dlogprob": 0.0}
    given = found(**dict.fromkeys(kinds, none))
    within = given["forced_fixed_within_floor_float32"]
    assert within.outcome == "confirmed"
    assert within.evidence == "at most 0 nats, the floor is 0, at c = 1, 2, 4; 180 retractions"
    assert given["before_fix_beyond_floor_float32"].outcome == "refuted"
    given = found(**{kind: {**none, "max_abs_dlogprob": 1e-7} for kind in kinds})
    assert given["forced_fixed_within_floor_float32"].outcome == "refuted"
    assert given["before_fix_beyond_floor_float32"].outcome == "confirmed"


def test_what_was_not_run_is_not_judged() -> None:
    table = summary(sizes=(1,))
    given = {v.name: v for v in verdicts(table)}
    assert given["before_fix_beyond_floor_float32"].outcome == "not measured"
    assert given["tolerance_sees_before_fix_float32"].outcome == "not measured"
    calm = table[table["condition"] == "no_retraction"]
    assert {v.outcome for v in verdicts(calm)} == {"not measured"}
    larger = summary(sizes=(2, 4))
    nothing = {v.name: v for v in verdicts(larger)}["before_fix_nothing_at_1_float32"]
    assert nothing.outcome == "not measured"


def test_a_condition_that_never_retracted_confirms_nothing() -> None:
    never = {"retractions": 0, "restores": 0, "restored_requests": 0}
    name = "natural_within_floor_float32"
    assert found(natural=never)[name].outcome == "not measured"
    some = found(natural__1=never)[name]
    assert some.outcome == "confirmed"
    assert "at c = 2, 4; 120 retractions" in some.evidence


def judged(**changes: dict[str, Any]) -> dict[str, str]:
    return {a.defect.name: a.judgement for a in answers(summary(changes))}


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
        ({"repeating_restored": 43}, "not excluded"),  # nine in ten of 48 are 43.2
        ({"repeating_restored": 44}, "too many"),
        ({"drifting_restored": 1, "restored_requests": 400, "repeating_restored": 0}, "cannot"),
        ({"drifting_restored": 0, "repeating_restored": 0}, "cannot"),
        ({"restored_requests": 0}, "not measured"),
        ({"repeating_restored": float("nan")}, "not measured"),
        ({"max_from_fixed": 0.0, "nan_tokens": 5, "repeating_restored": 48}, "too many"),
    ],
)
def test_the_rules_in_their_order(changes: dict[str, Any], judgement: str) -> None:
    assert judged(**{"defect_state_stale__1": changes})["state_stale"] == judgement


def test_the_reach_is_measured_and_not_taken_from_the_catalog() -> None:
    moved = {"max_from_fixed": 0.1, "drifting_restored": 48, "repeating_restored": 4}
    assert judged(defect_wrong_log_base__1=moved)["wrong_log_base"] == "not excluded"
    assert judged(defect_old_rows__1={"max_from_fixed": 0.0})["old_rows"] == "cannot"


@drawn(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_its_share_and_is_within_0_and_1(pair: tuple[int, int]) -> None:
    hits, of = pair
    low, high = interval(hits, of)
    assert 0 <= low <= hits / of <= high <= 1
    wider = interval(10 * hits, 10 * of)
    assert wider[1] - wider[0] < high - low
    assert interval(4, 48) == pytest.approx((0.0329, 0.1955), abs=5e-4)


def test_the_text_names_every_defect_in_its_group_and_says_what_stays_unknown() -> None:
    lines = argument(summary({"defect_state_stale__1": {"repeating_restored": 4}}))
    assert lines[0].startswith("Reported, not measured here: about 4 of 48")
    assert lines[-1] == UNKNOWN
    argued = "\n".join(lines[:-1])
    for known in DEFECTS:
        assert known.title in argued
        # What cannot be behind it needs no measurement.
        assert (known.tell_apart in argued) == known.can_act(1) or known.name == "scales_lost"
    assert "These cannot make 4 of 48 repeat at c = 1 (4). widened ids as rows: every" in argued
    assert "KDA state of another (hypothetical): 4 of 48 restored requests repeat (3%" in argued
    assert "Rounding alone changed no token" in argued
    moved = "\n".join(argument(summary({"forced_fixed__4": {"diverged_requests": 1}})))
    assert "Rounding alone changes what is drawn" in moved
    every = summary()
    assert argument(every[every["defect"] == ""]) == []
    assert argument(every[every["dcp_size"] > 1]) == []

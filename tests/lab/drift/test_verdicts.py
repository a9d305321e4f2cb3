"""Every expectation can be refuted, and is, by numbers that speak against it."""

import re
from typing import Any

import pytest

from kvlab.lab.drift.conditions import DTYPES
from kvlab.lab.drift.verdicts import RECOMPUTE, Verdict, verdicts
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
        ("restored_bits", {"natural__1": {"restores_different": 1}}),
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


def test_the_cause_of_recompute_is_told_only_where_it_leaves_the_floor() -> None:
    name = "recompute_within_floor_float32"
    assert RECOMPUTE not in found()[name].evidence
    assert RECOMPUTE in found(recompute={"max_abs_dlogprob": 3 * FLOOR})[name].evidence


def test_twice_the_floor_is_still_noise_and_a_hundred_times_is_not() -> None:
    given = found(
        forced_fixed={"max_abs_dlogprob": 2 * FLOOR},
        forced_before_fix={"max_abs_dlogprob": 100 * FLOOR},
    )
    assert given["forced_fixed_within_floor_float32"].outcome == "confirmed"
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
    found = {v.name: v for v in verdicts(summary({"natural": never}))}
    assert found["natural_within_floor_float32"].outcome == "not measured"
    some = {v.name: v for v in verdicts(summary({"natural__1": never}))}
    assert some["natural_within_floor_float32"].outcome == "confirmed"
    assert "at c = 2, 4; 120 retractions" in some["natural_within_floor_float32"].evidence

"""Merge explorer: weights and outputs against sums of exponentials."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import StudyError
from kvlab.lab.merge_case import REPORTED, MergeCase
from kvlab.viz.widgets import merge_explorer

LSE = st.lists(st.floats(-30, 30), min_size=1, max_size=6)


@given(LSE, st.data())
def test_right_weights_are_shares_of_the_exponentials_of_who_has_keys(
    lse: list[float], data: st.DataObject
) -> None:
    empty = tuple(data.draw(st.lists(st.booleans(), min_size=len(lse), max_size=len(lse))))
    table = MergeCase(tuple(lse), empty).table()
    mass = np.where(empty, 0.0, np.exp(np.array(lse)))
    want = mass / mass.sum() if mass.any() else mass
    np.testing.assert_allclose(table["right_weight"], want, atol=1e-12)


@given(LSE, st.data(), st.sampled_from(["-inf", "+inf", "NaN"]))
def test_the_checked_merge_is_right_for_every_report_but_zero(
    lse: list[float], data: st.DataObject, reported: str
) -> None:
    empty = tuple(data.draw(st.lists(st.booleans(), min_size=len(lse), max_size=len(lse))))
    table = MergeCase(tuple(lse), empty, reported).table()
    np.testing.assert_array_equal(table["weight"], table["right_weight"])


def test_an_empty_rank_reported_as_zero_weighs_as_much_as_lse_zero_does() -> None:
    case = MergeCase((0.0, 5.0), (False, True), "0")
    assert case.table()["weight"].tolist() == [0.5, 0.5]
    assert case.outputs() == (1.0, 0.5)


def test_two_shards_in_the_wrong_base_merge_as_in_the_worked_example() -> None:
    case = MergeCase((math.log(2), math.log(8)), (False, False), log_base="wrong")
    np.testing.assert_allclose(case.table()["weight"], [0.1192, 0.8808], atol=1e-4)
    np.testing.assert_allclose(case.table()["right_weight"], [0.2, 0.8])
    assert case.outputs()[0] == pytest.approx(1.8)


@pytest.mark.parametrize(("reported", "lost"), [("-inf", 0), ("0", 0), ("+inf", 2), ("NaN", 2)])
def test_a_plain_softmax_turns_into_no_number_where_it_is_told_inf_or_nan(
    reported: str, lost: int
) -> None:
    table = MergeCase((1.0, 2.0), (False, True), reported, merge="plain").table()
    assert int(table["weight"].isna().sum()) == lost


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"lse": (), "empty": ()}, "an lse in nats, finite, and an empty flag for each"),
        ({"lse": (math.inf,), "empty": (False,)}, "finite"),
        ({"lse": (1.0,), "empty": (False, True)}, "for each of at least one rank"),
        ({"lse": (1.0,), "empty": (False,), "reported": "1"}, "reported is one of -inf"),
        ({"lse": (1.0,), "empty": (False,), "log_base": "2"}, "log_base is one of right, wrong"),
        ({"lse": (1.0,), "empty": (False,), "merge": "x"}, "merge is one of checked, plain"),
    ],
)
def test_what_is_no_case_is_refused(case: dict[str, object], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        MergeCase(**case)  # type: ignore[arg-type]


def test_every_setting_is_drawn_and_says_the_two_outputs() -> None:
    panel = merge_explorer()
    words = itertools.product(REPORTED, ("right", "wrong"), ("checked", "plain"), (1, 4))
    for (reported, base, merge, ranks), gone in itertools.product(words, (False, True)):
        flags = {f"empty_{rank}": gone for rank in range(4)}
        panel.set(reported=reported, log_base=base, merge=merge, ranks=ranks, **flags)
        assert not panel.text.startswith("Not drawn")
        told: Any = ((2.0, 1.0, -1.0, 0.5)[:ranks], (gone,) * ranks, reported, base, merge)
        right, merged = MergeCase(*told).outputs()
        same = abs(merged - right) <= 1e-9
        assert ("gives the same" in panel.text) == same
        assert same or "Nothing raises" in panel.text

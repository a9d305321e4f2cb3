"""Every metric on examples by hand, and what holds of it for any tokens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.lab.drift.tables import (
    divergence,
    edit_distance,
    first_above,
    first_difference,
    ranks,
    repeating,
    repetition_rate,
)

OUTPUTS = st.lists(st.integers(0, 3), max_size=30)
LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=5, max_size=5)


def lines(*values: list[float]) -> torch.Tensor:
    return torch.log_softmax(torch.tensor(values), dim=-1)


def test_divergence_of_an_example_by_hand() -> None:
    p, q = torch.log(torch.tensor([[0.5, 0.5]])), torch.log(torch.tensor([[0.25, 0.75]]))
    assert divergence(p, q).tolist() == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3)])


def test_a_token_that_the_reference_rules_out_weighs_nothing_and_nan_stays_nan() -> None:
    never = -math.inf
    p = torch.tensor([[0.0, never]] * 3)
    q = torch.tensor([[-math.log(2), -math.log(2)], [0.0, never], [math.nan, 0.0]])
    found = divergence(p, q).tolist()
    assert found[:2] == pytest.approx([math.log(2), 0])
    assert math.isnan(found[2])


@given(LOGITS, LOGITS)
def test_divergence_is_never_negative_and_zero_from_itself(a: list[float], b: list[float]) -> None:
    assert divergence(lines(a, b), lines(b, b)).min() >= 0
    assert divergence(lines(a, b), lines(a, b)).tolist() == [0, 0]


def test_the_rank_counts_the_likelier_tokens() -> None:
    line = torch.tensor([-1.0, -0.5, -3.0])
    assert ranks(torch.arange(3), line.repeat(3, 1)).tolist() == [1, 0, 2]
    assert ranks(torch.tensor([0]), torch.tensor([[math.nan, 0.0]])).tolist() == [-1]


@pytest.mark.parametrize(
    ("reference", "run", "first", "distance"),
    [
        ([1, 2, 3], [1, 2, 3], None, 0),
        ([1, 2, 3], [1, 9, 3], 1, 1),
        ([1, 2, 3], [2, 3], 0, 1),
        ([1, 2], [1, 2, 2], 2, 1),
        ([], [], None, 0),
        ([1, 2, 3, 4], [4, 3, 2, 1], 0, 4),
    ],
)
def test_first_divergence_and_edit_distance_by_hand(
    reference: list[int], run: list[int], first: int | None, distance: int
) -> None:
    assert first_difference(reference, run) == first
    assert edit_distance(reference, run) == distance


@given(OUTPUTS, OUTPUTS)
def test_edit_distance_is_symmetric_and_within_its_bounds(a: list[int], b: list[int]) -> None:
    distance = edit_distance(a, b)
    assert distance == edit_distance(b, a)
    assert abs(len(a) - len(b)) <= distance <= max(len(a), len(b))
    assert (distance == 0) == (a == b) == (first_difference(a, b) is None)


def test_first_above_takes_nan_for_above() -> None:
    assert first_above(np.array([0.0, 1.0, 2.0]), 1.0) == 2
    assert first_above(np.array([0.0, np.nan]), 1.0) == 1
    assert first_above(np.array([0.0, 1.0]), 1.0) is None


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        (b"aaaaaaa", []),  # 7 tokens are one too few
        (b"aaaaaaaa", [7]),
        (b"ababababab", [7, 8, 9]),
        (b"abcabcab", []),  # 2 times and 2 of 3
        (b"abcabcabc", [8]),
        (b"abcdefghi" * 3, []),  # period 9 is too long
        (b"abcdefgh" * 3, [23]),
        (b"xyabababab", [9]),
        (b"abababab?abababab", [7, 16]),
    ],
)
def test_what_counts_as_a_repetition(text: bytes, positions: list[int]) -> None:
    assert np.flatnonzero(repeating(list(text))).tolist() == positions


@given(OUTPUTS)
def test_the_repetition_rate_is_a_share_and_does_not_depend_on_names(tokens: list[int]) -> None:
    rate = repetition_rate(tokens)
    assert 0 <= rate <= 1
    assert rate == repetition_rate([100 - t for t in tokens])
    assert not repeating(tokens)[:7].any()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(3, 6))
def test_a_block_that_follows_itself_ends_in_a_repetition(block: list[int], times: int) -> None:
    tokens = block * times
    assert len(tokens) < 8 or repeating(tokens)[-1]

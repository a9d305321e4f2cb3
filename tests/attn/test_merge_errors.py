"""What a partial and the merge refuse, and the text with which they do."""

from typing import Any

import pytest
import torch

import kvlab.attn
from kvlab.attn import Partial, merge_partials
from kvlab.errors import IndexSpaceError

attn: Any = kvlab.attn  # bad values are what the types forbid


@pytest.mark.parametrize(
    ("out", "lse", "text"),
    [
        (torch.zeros(2, 3), torch.zeros(3), r"got out \(2, 3\), lse \(3,\)"),
        (torch.zeros(2, 3), torch.zeros(2, 3), r"got out \(2, 3\), lse \(2, 3\)"),
        (torch.zeros(2, 3), torch.zeros(2, 1), r"got out \(2, 3\), lse \(2, 1\)"),
        (torch.zeros(()), torch.zeros(()), r"got out \(\), lse \(\)"),
    ],
)
def test_lse_has_the_shape_of_out_without_its_last_axis(
    out: torch.Tensor, lse: torch.Tensor, text: str
) -> None:
    rule = "lse must have the shape of out without its last axis: "
    with pytest.raises(IndexSpaceError, match=rule + text):
        Partial(out, lse)
    with pytest.raises(IndexSpaceError, match=rule + text):
        Partial.from_log2(out, lse)


@pytest.mark.parametrize(
    ("out", "lse", "text"),
    [
        (
            torch.zeros(2, 3).long(),
            torch.zeros(2),
            r"out must be a tensor of floats, got torch\.int64",
        ),
        (
            torch.zeros(2, 3),
            torch.zeros(2).int(),
            r"lse must be a tensor of floats, got torch\.int32",
        ),
        (torch.zeros(2, 3).bool(), torch.zeros(2), r"out must be .* got torch\.bool"),
        (torch.zeros(2, 3) + 0j, torch.zeros(2), r"out must be .* got torch\.complex64"),
        ([[0.0]], torch.zeros(1), r"out must be a tensor of floats, got list"),
        (torch.zeros(1), 0.0, r"lse must be a tensor of floats, got float; .* neither ids nor"),
    ],
)
def test_out_and_lse_are_tensors_of_floats(out: object, lse: object, text: str) -> None:
    with pytest.raises(IndexSpaceError, match=text):
        attn.Partial(out, lse)


def test_a_merge_needs_a_partial() -> None:
    with pytest.raises(IndexSpaceError, match=r"at least one partial: got an empty sequence"):
        merge_partials([])


def test_partials_of_two_shapes_are_refused_even_where_they_would_broadcast() -> None:
    one, two = (
        Partial(torch.zeros(2, 3), torch.zeros(2)),
        Partial(torch.zeros(1, 3), torch.zeros(1)),
    )
    with pytest.raises(IndexSpaceError, match=r"must have one shape: got \[\(1, 3\), \(2, 3\)\]"):
        merge_partials([one, two])


def test_partials_of_two_types_are_refused_as_the_first_would_decide() -> None:
    one, two = (Partial(torch.zeros(1).to(t), torch.zeros(())) for t in (torch.half, torch.float))
    text = r"one dtype of out, .*: got \['torch\.float16', 'torch\.float32'\]; cast them first"
    with pytest.raises(IndexSpaceError, match=text):
        merge_partials([one, two])


def test_a_partial_is_frozen_and_compared_as_an_object() -> None:
    one = Partial(torch.zeros(1), torch.zeros(()))
    with pytest.raises(AttributeError):
        one.lse = torch.ones(())  # type: ignore[misc]
    assert one != Partial(one.out, one.lse)

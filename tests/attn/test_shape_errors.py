"""Queries, keys and masks that do not go together, and shards without keys in any shape."""

from typing import Any

import pytest
import torch

import kvlab.attn
from kvlab.attn import Partial, merge_stacked, partial_attention
from kvlab.errors import IndexSpaceError

attn: Any = kvlab.attn  # bad values are what the types forbid
Q, K, V = torch.ones(1, 2, 3), torch.ones(1, 4, 3), torch.ones(1, 4, 5)
SEEN = torch.ones(1, 4, dtype=torch.bool)


@pytest.mark.parametrize("batch", [(5, 1), (1, 1), (5, 2)])
def test_a_shard_without_keys_has_the_shape_of_one_with_keys(batch: tuple[int, int]) -> None:
    some = partial_attention(Q, torch.ones(*batch, 4, 3), torch.ones(*batch, 4, 5), SEEN, 1.0)
    none = torch.ones(1, 0, dtype=torch.bool)
    empty = partial_attention(Q, torch.ones(*batch, 0, 3), torch.ones(*batch, 0, 5), none, 1.0)
    assert empty.out.shape == some.out.shape == (*batch, 2, 5)
    assert empty.lse.shape == some.lse.shape
    assert not bool(empty.out.any()) and bool(torch.isneginf(empty.lse).all())


@pytest.mark.parametrize(
    ("q", "k", "v", "visible"),
    [
        (Q, torch.ones(1, 4, 7), V, SEEN),
        (Q, K, torch.ones(1, 6, 5), SEEN),
        (Q, K, V, torch.ones(3, 7, dtype=torch.bool)),
        (Q, torch.ones(1, 1, 3), torch.ones(1, 1, 5), torch.ones(2, 4, dtype=torch.bool)),
        (torch.ones(2, 2, 3), torch.ones(3, 4, 3), V, SEEN),
        (torch.ones(3), K, V, SEEN),
    ],
)
def test_shapes_that_do_not_go_together_are_named(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor
) -> None:
    with pytest.raises(IndexSpaceError, match=r"must go together: got q \(.*\), k .*, visible \("):
        partial_attention(q, k, v, visible, 1.0)


def test_what_is_no_tensor_of_floats_or_no_mask_is_refused() -> None:
    for bad, match in ((Q.long(), r"q must be a tensor of floats: got torch\.int64"), (3, "got i")):
        with pytest.raises(IndexSpaceError, match=match):
            attn.partial_attention(bad, K, V, SEEN, 1.0)
    with pytest.raises(IndexSpaceError, match=r"visible must be a bool mask, .*: got list"):
        attn.partial_attention(Q, K, V, [True], 1.0)


def test_a_merge_takes_partials_and_at_least_one_rank() -> None:
    for bad, kind in (([1, 2], r"\['int', 'int'\]"), (Q, "Tensor"), (None, "NoneType")):
        with pytest.raises(IndexSpaceError, match=f"takes a list of Partial.*: got {kind}"):
            attn.merge_partials(bad)
    with pytest.raises(IndexSpaceError, match=r"at least one rank: got \(0, 3, 4\)"):
        merge_stacked(torch.ones(0, 3, 4), torch.ones(0, 3))
    with pytest.raises(IndexSpaceError, match="lse must have the shape of out"):
        merge_stacked(torch.ones(2, 3, 4), torch.ones(2, 2))


def test_a_partial_from_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(IndexSpaceError, match="lse must be a tensor of floats, got list"):
        attn.Partial.from_log2(Q, [1.0])
    with pytest.raises(IndexSpaceError, match=r"got torch\.int64"):
        Partial.from_log2(Q, torch.ones(1, 2, dtype=torch.int64))
    for bad in (Q.long(), torch.tensor(1.0), [1.0]):
        with pytest.raises(IndexSpaceError, match="like must be a tensor of floats with a last"):
            attn.Partial.empty(bad)

"""What a partial, the merge and the attention of a shard refuse, and the text of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kvlab.attn
from kvlab.attn import Partial, merge_stacked, partial_attention
from kvlab.errors import IndexSpaceError

attn: Any = kvlab.attn  # bad values are what the types forbid
Q, K, V = torch.ones(1, 2, 3), torch.ones(1, 4, 3), torch.ones(1, 4, 5)
SEEN = torch.ones(1, 4, dtype=torch.bool)
ONES = torch.zeros(2, 3)


def of(*shape: int, dtype: torch.dtype = torch.float32) -> Partial:
    return Partial(torch.zeros(shape, dtype=dtype), torch.zeros(shape[:-1]))


def attend(q: Any = Q, k: Any = K, v: Any = V, visible: Any = SEEN) -> Partial:
    return partial_attention(q, k, v, visible, 1.0)


TABLE: list[tuple[Callable[[], object], str]] = [
    (lambda: Partial(ONES, torch.zeros(3)), r"lse must have the shape .*: got out \(2, 3\), lse "),
    (lambda: Partial(torch.zeros(()), torch.zeros(())), r"got out \(\), lse \(\)"),
    (lambda: Partial.from_log2(ONES, torch.zeros(2, 1)), r"got out \(2, 3\), lse \(2, 1\)"),
    (lambda: Partial(ONES.long(), torch.zeros(2)), r"out must be a tensor of floats, got torch\.i"),
    (lambda: Partial(ONES, torch.zeros(2).int()), r"lse must be a tensor of floats, got torch\.in"),
    (lambda: attn.Partial([[0.0]], torch.zeros(1)), "out must be a tensor of floats, got list"),
    (lambda: Partial.with_nan_as_empty(Q, torch.ones(1, 2).int()), r"lse must be .* torch\.int32"),
    (lambda: attn.merge_partials([]), r"one partial a rank.*: got 0 partials of \[\]"),
    (lambda: attn.merge_partials([of(2, 3), of(1, 3)]), r"got 2 partials of \[\(\(1, 3\), 'torch"),
    (lambda: attn.merge_partials([of(1), of(1, dtype=torch.half)]), r"'torch\.float16'\), \(\(1,"),
    (lambda: merge_stacked(torch.ones(0, 3, 4), torch.ones(0, 3)), r"at least one rank: got \(0, "),
    (lambda: merge_stacked(torch.ones(2, 3, 4), torch.ones(2, 2)), "lse must have the shape of ou"),
    (lambda: attend(q=Q.long()), r"q must be a tensor of floats, got torch\.int64"),
    (lambda: attend(v=3), "v must be a tensor of floats, got int"),
    (lambda: attend(visible=[True]), r"visible must be a bool mask, .*: got list"),
    (lambda: attend(visible=torch.ones(1, 4)), r"visible must be a bool mask, .*: got torch\.floa"),
    (lambda: attend(k=torch.ones(1, 4, 7)), r"must go together: got q \(.*\), k .*, visible \("),
    (lambda: attend(visible=torch.ones(3, 7, dtype=torch.bool)), "must go together"),
    (lambda: attend(q=torch.ones(2, 2, 3), k=torch.ones(3, 4, 3)), "must go together"),
    (lambda: attend(q=torch.ones(3)), "must go together"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), TABLE)
def test_the_error_says_what_goes_together_and_what_was_given(
    call: Callable[[], object], text: str
) -> None:
    with pytest.raises(IndexSpaceError, match=text):
        call()


@pytest.mark.parametrize("batch", [(5, 1), (1, 1), (5, 2)])
def test_a_shard_without_keys_has_the_shape_of_one_with_keys(batch: tuple[int, int]) -> None:
    some = attend(k=torch.ones(*batch, 4, 3), v=torch.ones(*batch, 4, 5))
    none = torch.ones(1, 0, dtype=torch.bool)
    empty = attend(Q, torch.ones(*batch, 0, 3), torch.ones(*batch, 0, 5), none)
    assert empty.out.shape == some.out.shape == (*batch, 2, 5)
    assert empty.lse.shape == some.lse.shape
    assert not bool(empty.out.any()) and bool(torch.isneginf(empty.lse).all())

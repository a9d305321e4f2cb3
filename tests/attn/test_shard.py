"""Attention over shards: however the keys are dealt to ranks, the merge is attention over all."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.attn import Partial, merge_partials, partial_attention


def drawn(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@settings(max_examples=60)
@given(ranks=st.integers(1, 5), keys=st.integers(0, 12), queries=st.integers(1, 3), data=st.data())
def test_merged_shards_are_softmax_attention_over_the_visible_keys(
    ranks: int, keys: int, queries: int, data: st.DataObject
) -> None:
    owners = torch.tensor(data.draw(st.lists(st.integers(0, ranks - 1), min_size=keys,
                                             max_size=keys)), dtype=torch.int64)  # fmt: skip
    line = st.lists(st.booleans(), min_size=queries * keys, max_size=queries * keys)
    visible = torch.tensor(data.draw(line), dtype=torch.bool).view(queries, keys)
    q, k, v = drawn(2, queries, 4, seed=1), drawn(2, keys, 4, seed=2), drawn(2, keys, 3, seed=3)
    parts = []
    for rank in range(ranks):
        mine = torch.nonzero(owners == rank).flatten()
        parts.append(partial_attention(q, k[:, mine], v[:, mine], visible[:, mine], 0.5))
    merged = merge_partials(parts)
    scores = (q @ k.transpose(1, 2) * 0.5).masked_fill(~visible, -math.inf)
    want = torch.nan_to_num(torch.softmax(scores, dim=-1)) @ v
    torch.testing.assert_close(merged.out, want)
    lse = torch.logsumexp(scores, dim=-1) if keys else torch.full((2, queries), -math.inf)
    torch.testing.assert_close(merged.lse, lse, check_dtype=False)


def test_a_query_that_sees_no_key_is_an_empty_shard() -> None:
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    blind = partial_attention(torch.ones(1, 2), torch.ones(3, 2), torch.ones(3, 2), nothing, 1.0)
    empty = Partial.empty(torch.zeros(1, 2))
    assert torch.equal(blind.out, empty.out)
    assert torch.equal(blind.lse, empty.lse)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("keys", [1, 9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_row_that_is_not_finite_shows_however_it_scores(
    ranks: int, dtype: torch.dtype, keys: int, poison: float
) -> None:
    # A row of MLA is key and value. A query of each sign: one of them scores -inf.
    q, rows = torch.tensor([[1.0], [-1.0]], dtype=dtype), torch.ones(keys, 1, dtype=dtype)
    rows[0] = poison
    visible = torch.ones(2, keys, dtype=torch.bool)
    parts = [
        partial_attention(q, rows[r::ranks], rows[r::ranks], visible[:, r::ranks], 1.0)
        for r in range(ranks)
    ]
    assert merge_partials(parts).out.isnan().all()


def test_bfloat16_keys_are_summed_in_float32() -> None:
    q, k = torch.ones(1, 1, dtype=torch.bfloat16), torch.zeros(300, 1, dtype=torch.bfloat16)
    part = partial_attention(q, k, k + 1, torch.ones(1, 300, dtype=torch.bool), 1.0)
    assert part.out.dtype == torch.float32
    assert float(part.out) == pytest.approx(1.0, abs=1e-6)
    assert float(part.lse) == pytest.approx(math.log(300), abs=1e-6)


def test_keys_of_all_ranks_in_one_tensor_give_the_partials_of_each() -> None:
    q, k, v = drawn(2, 5, 4, seed=1), drawn(3, 2, 6, 4, seed=2), drawn(3, 2, 6, 7, seed=3)
    visible = torch.rand(3, 2, 5, 6, generator=torch.Generator().manual_seed(4)) > 0.4
    visible[1] = False
    together = partial_attention(q, k, v, visible, 0.5)
    for r in range(3):
        alone = partial_attention(q, k[r], v[r], visible[r], 0.5)
        torch.testing.assert_close(together.out[r], alone.out, atol=1e-12, rtol=0)
        torch.testing.assert_close(together.lse[r], alone.lse, atol=1e-12, rtol=0)
    assert together.out[1].eq(0).all() and together.lse[1].eq(-math.inf).all()

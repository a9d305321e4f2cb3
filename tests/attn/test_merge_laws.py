"""Laws of the merge: the partials of any partition of the keys give the attention over all keys."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.attn import Partial, merge_partials, merge_stacked

GARBAGE = (0.0, 7.5, math.nan, math.inf, -math.inf)


def attend(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) of all keys by the plain formula in float64. scores (h, n), values (n, d)."""
    wide = scores.double()
    return torch.softmax(wide, dim=-1) @ values.double(), torch.logsumexp(wide, dim=-1)


def partial_of(scores: Tensor, values: Tensor, keys: Tensor) -> Partial:
    """What a rank with these keys reports; of no keys, the neutral element."""
    if len(keys) == 0:
        return Partial.empty(values.new_zeros(scores.shape[0], values.shape[1]))
    return Partial(*attend(scores[:, keys], values[keys]))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Scores, values, and a partition of the keys among ranks, some of which may have none."""
    heads, keys, width = draw(st.integers(1, 3)), draw(st.integers(1, 20)), draw(st.integers(1, 4))
    seeded = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from((1.0, 30.0, 300.0)))
    scores = torch.randn(heads, keys, generator=seeded, dtype=torch.float64) * scale
    values = torch.randn(keys, width, generator=seeded, dtype=torch.float64)
    ranks = draw(st.integers(1, 6))
    owner = torch.tensor(draw(st.lists(st.integers(0, ranks - 1), min_size=keys, max_size=keys)))
    return scores, values, [torch.nonzero(owner == rank).flatten() for rank in range(ranks)]


def close(one: Partial, two: Partial, *, atol: float = 1e-12) -> None:
    torch.testing.assert_close(one.out, two.out, atol=atol, rtol=atol)
    torch.testing.assert_close(one.lse, two.lse, atol=atol, rtol=atol)


@given(problems())
@settings(max_examples=60)
def test_the_merge_of_any_partition_is_attention_over_all_keys(
    problem: tuple[Tensor, Tensor, list[Tensor]],
) -> None:
    scores, values, shards = problem
    merged = merge_partials([partial_of(scores, values, keys) for keys in shards])
    close(merged, Partial(*attend(scores, values)))


@given(problems(), st.data())
@settings(max_examples=60)
def test_neither_the_order_nor_the_grouping_of_the_ranks_matters(
    problem: tuple[Tensor, Tensor, list[Tensor]], data: st.DataObject
) -> None:
    scores, values, shards = problem
    parts = [partial_of(scores, values, keys) for keys in shards]
    merged = merge_partials(parts)
    close(merge_partials(data.draw(st.permutations(parts))), merged)
    cut = data.draw(st.integers(1, len(parts)))
    grouped = [merge_partials(group) for group in (parts[:cut], parts[cut:]) if group]
    close(merge_partials(grouped), merged)


@given(problems())
@settings(max_examples=30)
def test_empty_shards_are_neutral_and_one_partial_is_itself(
    problem: tuple[Tensor, Tensor, list[Tensor]],
) -> None:
    scores, values, _ = problem
    whole = Partial(*attend(scores, values))
    empty = Partial.empty(whole.out)
    assert empty.out.count_nonzero() == 0
    assert bool((empty.lse == -math.inf).all())
    for parts in ([whole], [empty, whole], [whole, empty, empty]):
        close(merge_partials(parts), whole)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_empty_shard_adds_nothing_whatever_its_out_holds(garbage: float) -> None:
    real = Partial(torch.tensor([[1.0, -2.0]]), torch.tensor([3.0]))
    empty = Partial(torch.full((1, 2), garbage), torch.tensor([-math.inf]))
    for parts in ([real, empty], [empty, real], [empty, real, empty]):
        merged = merge_partials(parts)
        assert merged.out.tolist() == [[1.0, -2.0]]
        assert merged.lse.tolist() == [3.0]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_with_every_shard_empty_the_result_is_zero_and_empty_again(garbage: float) -> None:
    empty = Partial(torch.full((2, 3), garbage), torch.full((2,), -math.inf))
    merged = merge_partials([empty, empty])
    assert merged.out.tolist() == [[0.0] * 3] * 2
    assert merged.lse.tolist() == [-math.inf] * 2


def test_rows_are_empty_each_by_itself() -> None:
    inf = math.inf
    one = Partial(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([0.0, -inf, -inf]))
    two = Partial(torch.tensor([[9.0], [4.0], [9.0]]), torch.tensor([-inf, 0.0, -inf]))
    merged = merge_partials([one, two])
    assert merged.out.flatten().tolist() == [1.0, 4.0, 0.0]
    assert merged.lse.tolist() == [0.0, 0.0, -inf]


@pytest.mark.parametrize("lse", [0.0, -2e4, math.nan, math.inf])
def test_a_nan_of_a_shard_with_keys_goes_through_however_little_it_weighs(lse: float) -> None:
    good = Partial(torch.tensor([[1.0], [2.0]]), torch.zeros(2))
    bad = Partial(torch.tensor([[math.nan], [3.0]]), torch.tensor([lse, 0.0]))
    for parts in ([good, bad], [bad, good], [Partial.empty(good.out), bad, good]):
        merged = merge_partials(parts)
        assert merged.out.isnan().flatten().tolist() == [True, False]
        assert merged.lse.isnan().tolist() == [not math.isfinite(lse), False]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("mark", [math.inf, math.nan])
def test_the_door_for_backends_that_say_nan_for_empty_makes_empty_shards(
    mark: float, garbage: float
) -> None:
    out, lse = torch.tensor([[garbage], [2.0], [garbage]]), torch.tensor([mark, 1.0, -math.inf])
    told = Partial.with_nan_as_empty(out, lse)
    assert told.lse.tolist() == [-math.inf, 1.0, -math.inf]
    assert told.out[:2].tolist() == [[0.0], [2.0]]


@given(problems())
@settings(max_examples=30)
def test_the_door_for_base_two_gives_what_nats_give(
    problem: tuple[Tensor, Tensor, list[Tensor]],
) -> None:
    scores, values, shards = problem
    parts = [partial_of(scores, values, keys) for keys in shards]
    in_log2 = [Partial.from_log2(part.out, part.lse / math.log(2.0)) for part in parts]
    close(merge_partials(in_log2), merge_partials(parts))


def test_scores_far_out_of_range_of_exp_neither_overflow_nor_vanish() -> None:
    for shift in (-5e4, 0.0, 5e4):
        lse = torch.tensor([shift + math.log(z) for z in (2.0, 8.0)], dtype=torch.float64)
        out = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
        parts = [Partial(out[i], lse[i]) for i in range(2)]
        merged = merge_partials(parts)
        assert merged.out.item() == pytest.approx(0.2)
        assert merged.lse.item() == pytest.approx(shift + math.log(10.0))


@pytest.mark.parametrize(
    ("dtype", "atol"),
    [(torch.bfloat16, 1e-2), (torch.float16, 2e-3), (torch.float32, 1e-6), (torch.float64, 1e-14)],
)
@pytest.mark.parametrize("lse_dtype", [torch.float32, torch.float64])
def test_the_type_of_out_is_kept_and_lse_is_no_narrower_than_float32(
    dtype: torch.dtype, atol: float, lse_dtype: torch.dtype
) -> None:
    seeded = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 30, generator=seeded).double()
    values = torch.randn(30, 8, generator=seeded).double()
    parts = [partial_of(scores, values, torch.arange(r, 30, 3)) for r in range(3)]
    merged = merge_partials([Partial(p.out.to(dtype), p.lse.to(lse_dtype)) for p in parts])
    assert merged.out.dtype == dtype
    assert merged.lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    out, lse = attend(scores, values)
    loose = 1e-5 if torch.float32 in (lse_dtype, merged.lse.dtype) else 1e-12
    # A few roundings: the inputs', and the result's.
    near = 4 * max(atol, loose)
    torch.testing.assert_close(merged.out.double(), out, atol=near, rtol=near)
    torch.testing.assert_close(merged.lse.double(), lse, atol=loose, rtol=loose)


def test_many_partials_in_half_precision_are_summed_wide() -> None:
    # 2048 + 1 is 2048 in float16: summed narrow, the small shards would be lost.
    parts = [Partial(torch.ones(1, dtype=torch.float16), torch.tensor(0.0)) for _ in range(4096)]
    merged = merge_partials(parts)
    assert merged.out.item() == 1.0
    assert merged.lse.item() == pytest.approx(math.log(4096), abs=1e-6)


@pytest.mark.parametrize("shape", [(1,), (0,), (0, 4), (2, 0), (2, 3, 4), (2, 1, 3, 5)])
def test_any_shape_goes_through_and_nothing_in_gives_nothing_out(shape: tuple[int, ...]) -> None:
    part = Partial(torch.ones(shape), torch.zeros(shape[:-1]))
    merged = merge_partials((part, part))
    assert merged.out.shape == part.out.shape
    assert torch.equal(merged.out, part.out)
    torch.testing.assert_close(merged.lse, torch.full(shape[:-1], math.log(2.0)))


def test_gradients_flow_to_shards_with_keys_and_stay_finite_beside_garbage() -> None:
    out = torch.tensor([1.0], requires_grad=True)
    lse = torch.tensor(0.5, requires_grad=True)
    waste = torch.tensor([math.nan], requires_grad=True)
    mark = torch.tensor(-math.inf, requires_grad=True)
    merged = merge_partials([Partial(out, lse), Partial(waste, mark)])
    (merged.out.sum() + merged.lse).backward()  # type: ignore[no-untyped-call]
    assert (out.grad, lse.grad) == (torch.tensor([1.0]), torch.tensor(1.0))
    assert (waste.grad, mark.grad) == (torch.tensor([0.0]), torch.tensor(0.0))
    alone = merge_partials([Partial(waste, mark)])  # and of nothing but empty shards
    (alone.out.sum() + alone.lse).backward()  # type: ignore[no-untyped-call]
    assert (waste.grad, mark.grad) == (torch.tensor([0.0]), torch.tensor(0.0))


@given(problems())
@settings(max_examples=30)
def test_partials_that_were_computed_together_merge_as_those_taken_apart(
    problem: tuple[Tensor, Tensor, list[Tensor]],
) -> None:
    scores, values, shards = problem
    parts = [partial_of(scores, values, keys) for keys in shards]
    together = merge_stacked(
        torch.stack([p.out for p in parts]), torch.stack([p.lse for p in parts])
    )
    apart = merge_partials(parts)
    assert torch.equal(together.out, apart.out) and torch.equal(together.lse, apart.lse)

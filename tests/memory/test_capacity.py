"""A budget buys whole pages, one of them for padding; the node holds c times what a rank holds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import CapacityError
from kvlab.memory.geometry import DTYPES, GIB, ModelGeometry, geometry, gib, plan_pool

KIMI = geometry("Kimi-Linear-48B-A3B")
MODELS = st.sampled_from([KIMI, geometry("DeepSeek-V3"), geometry("DeepSeek-V2-Lite")])
DTYPE = st.sampled_from(DTYPES)
PAGES = st.sampled_from([1, 2, 16, 32, 64, 128])
SIZES = st.sampled_from([1, 2, 3, 4, 8, 16])
# A budget is drawn as whole pages beyond the two that a pool needs, and a part of one more page.
EXTRA = st.integers(0, 10**6)
PART = st.floats(0, 1, exclude_max=True)


def test_the_worked_example_of_the_module_holds() -> None:
    layout = plan_pool(KIMI, gib(1), dcp_size=8, page_size=64)
    assert (layout.num_pages, layout.capacity_tokens) == (2_079, 1_064_448)


def budget_of(cost: int, extra: int, part: float) -> int:
    return (2 + extra) * cost + int(part * cost)


@given(MODELS, EXTRA, PART, SIZES, PAGES, DTYPE)
def test_pages_stay_within_the_budget_and_one_more_page_would_not(
    model: ModelGeometry, extra: int, part: float, c: int, page: int, dtype: str
) -> None:
    cost = page * model.bytes_per_token(dtype)
    budget = budget_of(cost, extra, part)
    layout = plan_pool(model, budget, c, page, dtype)
    used = (layout.num_pages + 1) * cost
    assert used <= budget < used + cost
    assert (layout.dcp_size, layout.page_size, layout.num_pages) == (c, page, 1 + extra)


@given(MODELS, EXTRA, PART, PAGES, DTYPE, SIZES)
def test_capacity_grows_by_exactly_the_dcp_size(
    model: ModelGeometry, extra: int, part: float, page: int, dtype: str, c: int
) -> None:
    budget = budget_of(page * model.bytes_per_token(dtype), extra, part)
    one = plan_pool(model, budget, 1, page, dtype)
    assert plan_pool(model, budget, c, page, dtype).capacity_tokens == c * one.capacity_tokens


@given(MODELS, EXTRA, PART, st.integers(0, 2**34), SIZES, PAGES)
def test_a_larger_budget_never_buys_fewer_tokens(
    model: ModelGeometry, extra: int, part: float, more: int, c: int, page: int
) -> None:
    budget = budget_of(page * model.bytes_per_token(), extra, part)
    before, after = (plan_pool(model, bytes_, c, page) for bytes_ in (budget, budget + more))
    assert before.capacity_tokens <= after.capacity_tokens


def test_a_budget_below_two_pages_is_refused_with_the_bound() -> None:
    bound = 2 * 64 * 8064
    assert plan_pool(KIMI, bound, 8).num_pages == 1
    text = (
        rf"2 pages a rank, one of them the padding page: got a budget of {bound - 1} bytes for "
        rf"Kimi-Linear-48B-A3B in bf16, bound {bound} \(2 pages of 64 tokens, "
        r"516096 bytes each\); raise the budget or lower page_size"
    )
    with pytest.raises(CapacityError, match=text):
        plan_pool(KIMI, bound - 1, 8)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"budget_bytes": 1.5}, r"budget_bytes is an int of at least 0 .*gib\(x\).*: got 1\.5"),
        ({"budget_bytes": -1}, r"budget_bytes is an int of at least 0 .*: got -1"),
        ({"dcp_size": 0}, r"dcp_size is an int of at least 1 .*: got 0"),
        ({"page_size": 0}, r"page_size is an int of at least 1 .*: got 0"),
        ({"dtype": "int4"}, r"got dtype 'int4' for Kimi-Linear"),
    ],
)
def test_a_plan_names_the_number_that_breaks_a_rule(fields: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"budget_bytes": GIB, "dcp_size": 4}
    with pytest.raises(CapacityError, match=text):
        plan_pool(KIMI, **(good | fields))


def test_a_model_without_mla_layers_has_no_pool() -> None:
    recurrent = ModelGeometry("rnn", 2, 0, 2, 512, 64, "by hand")
    with pytest.raises(
        CapacityError, match=r"needs MLA layers with a row: got 0 MLA layers of 576"
    ):
        plan_pool(recurrent, GIB, 1)


def test_an_unverified_model_has_no_plan() -> None:
    with pytest.raises(CapacityError, match=r"Kimi-K3 has None \+ None"):
        plan_pool(geometry("Kimi-K3"), GIB, 8)


@pytest.mark.parametrize(
    ("amount", "expected"), [(0, 0), (1, GIB), (0.5, GIB // 2), (80, 80 * GIB)]
)
def test_gib_gives_whole_bytes(amount: float, expected: int) -> None:
    assert gib(amount) == expected


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), 80 * GIB])
def test_gib_refuses_what_is_no_memory(amount: float) -> None:
    with pytest.raises(
        CapacityError, match=rf"a budget in GiB lies in .*: got {amount!r}; pass GiB"
    ):
        gib(amount)

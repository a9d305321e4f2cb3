"""Laws of the forms whose output has the shape of their input: holes stay, order stays."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.index import (
    Shard,
    localize_fixed_shape,
    owned_elements,
    plan_dcp_owner_write,
    remap_dcp_local_topk_indices,
    remap_dcp_write_locations_fixed_shape,
)

from .oracle import SIZES, deal, ids

with_holes = st.lists(st.integers(-3, 900), max_size=40)
sizes, turns = st.sampled_from(SIZES), st.integers(1, 4)


@given(with_holes, sizes, turns)
@settings(max_examples=60)
def test_an_owned_id_becomes_its_row_and_all_else_a_hole(
    slots: list[int], c: int, turn: int
) -> None:
    places = deal(c, turn)
    for rank in range(c):
        want = [places[v][1] if v >= 0 and places[v][0] == rank else -1 for v in slots]
        assert localize_fixed_shape(ids(slots), Shard(c, rank, turn)).tolist() == want
        assert localize_fixed_shape(ids(slots), Shard(c, rank, turn), hole=0).tolist() == [
            max(row, 0) for row in want
        ]


@given(st.lists(st.integers(1, 900), max_size=40), sizes)
@settings(max_examples=60)
def test_a_write_of_fixed_shape_and_a_planned_write_fill_the_same_rows(
    slots: list[int], c: int
) -> None:
    for rank in range(c):
        fixed = remap_dcp_write_locations_fixed_shape(ids(slots), Shard(c, rank))
        elements, rows = plan_dcp_owner_write(ids(slots), Shard(c, rank))
        assert torch.equal(fixed[elements], rows)
        assert torch.equal(elements, owned_elements(ids(slots), Shard(c, rank)))
        others = torch.ones(len(slots), dtype=torch.bool)
        others[elements] = False
        assert fixed[others].tolist() == [0] * int(others.sum())


@given(st.lists(st.lists(st.integers(-2, 90), min_size=6, max_size=6), max_size=4), sizes)
@settings(max_examples=60)
def test_top_k_survivors_come_first_in_their_order_and_holes_follow(
    topk: list[list[int]], c: int
) -> None:
    given_ids = torch.tensor(topk, dtype=torch.int64).reshape(len(topk), 6)
    for rank in range(c):
        want = []
        for line in topk:
            rows = [v // c for v in line if v >= 0 and v % c == rank]
            want.append(rows + [-1] * (6 - len(rows)))
        found = remap_dcp_local_topk_indices(given_ids, Shard(c, rank))
        assert found.shape == given_ids.shape
        assert found.tolist() == want


def test_top_k_order_is_kept_where_a_float_key_would_lose_it() -> None:
    # Past 2**24 neighboring ids are one number in float32.
    topk = torch.tensor([[2**25 + 2, 2**25, 3, 2**25 + 4, -1, 2**40 + 6]])
    rows = remap_dcp_local_topk_indices(topk, Shard(2, 0))
    assert rows.tolist() == [[2**24 + 1, 2**24, 2**24 + 2, 2**39 + 3, -1, -1]]


def test_top_k_of_many_entries_is_stable() -> None:
    topk = torch.arange(5000).flip(0).reshape(1, 1, 5000)
    rows = remap_dcp_local_topk_indices(topk.to(torch.int32), Shard(2, 1))
    assert rows.dtype == torch.int64
    assert rows[0, 0, :2500].tolist() == list(range(2499, -1, -1))
    assert set(rows[0, 0, 2500:].tolist()) == {-1}


def test_shapes_of_nothing_and_of_one_are_kept() -> None:
    for shape in [(), (0,), (3, 0), (0, 4), (2, 1, 3)]:
        topk = torch.full(shape, 6)
        assert remap_dcp_local_topk_indices(topk, Shard(2, 0)).shape == shape
    column = torch.arange(12).reshape(6, 2)[:, 1]  # a view with a stride of its own
    assert remap_dcp_local_topk_indices(column, Shard(2, 1)).tolist() == [0, 1, 2, 3, 4, 5]
    assert localize_fixed_shape(ids([]), Shard(2, 0)).tolist() == []


def test_the_fixed_shape_needs_no_value_so_it_can_be_captured() -> None:
    # A tensor of the meta device has none: anything that looked at a value would fail.
    slots = torch.empty(7, dtype=torch.int64, device="meta")
    assert localize_fixed_shape(slots, Shard(4, 1, 2)).shape == (7,)
    assert remap_dcp_write_locations_fixed_shape(slots, Shard(4, 1)).shape == (7,)
    assert remap_dcp_local_topk_indices(slots.reshape(1, 7), Shard(4, 1)).shape == (1, 7)

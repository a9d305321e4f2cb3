"""The plan of a step: every rank's rows as ``localize`` has them, and each position seen once."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine.model import ModelPools, Step, model_shape, plan_step
from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout, WidenedSlots, localize
from tests.engine.model.tiny import model


@st.composite
def steps(draw: st.DrawFn) -> tuple[DcpLayout, list[WidenedSlots], int]:
    """A layout, requests of ragged lengths with shuffled pages, and how many tokens are new."""
    page_size = draw(st.sampled_from([1, 2, 4, 16]))
    interleave = draw(st.sampled_from([1, page_size]))
    new = draw(st.integers(1, 5))
    lens = draw(st.lists(st.integers(new, 40), min_size=1, max_size=4))
    lay = DcpLayout(draw(st.sampled_from([1, 2, 3, 4, 8])), page_size, 200, interleave)
    pages = torch.randperm(200, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    wide, runs, at = lay.widened_page_size, [], 0
    for n in lens:
        count = lay.pages_for(n)
        heads = (pages[at : at + count] + 1) * wide
        runs.append(WidenedSlots((heads[:, None] + torch.arange(wide)).flatten()[:n]))
        at += count
    return lay, runs, new


@settings(max_examples=150)
@given(steps())
def test_the_rows_that_are_seen_are_the_rows_that_localize_gives(
    step: tuple[DcpLayout, list[WidenedSlots], int],
) -> None:
    lay, runs, new = step
    plan = plan_step(runs, new, lay)
    for rank, shard in enumerate(plan.ranks):
        table = shard.rows.ids.view(plan.batch, shard.keys)
        for i, run in enumerate(runs):
            rows = localize(run, lay, rank)
            for t in range(new):
                position = len(run) - new + t
                want = rows.ids[rows.source <= position].tolist()
                assert table[i, shard.visible[i, t]].tolist() == want


@settings(max_examples=80)
@given(steps())
def test_new_tokens_stand_at_the_last_positions(
    step: tuple[DcpLayout, list[WidenedSlots], int],
) -> None:
    lay, runs, new = step
    plan = plan_step(runs, new, lay)
    assert plan.positions.tolist() == [list(range(len(r) - new, len(r))) for r in runs]
    assert plan.lens.tolist() == [len(run) for run in runs]
    assert (plan.batch, plan.new_tokens) == (len(runs), new)


def test_the_worked_example_of_the_module() -> None:
    runs = [WidenedSlots(torch.tensor([4, 5, 6])), WidenedSlots(torch.tensor([8, 9]))]
    plan = plan_step(runs, 1, DcpLayout(2, 2, 2))
    assert [s.rows.ids.tolist() for s in plan.ranks] == [[2, 3, 4, 0], [2, 4]]
    assert plan.ranks[0].visible.tolist() == [[[True, True]], [[True, False]]]


def refused(slots: Sequence[WidenedSlots], match: str, new: int = 1, **more: Sequence[int]) -> None:
    with pytest.raises(IndexSpaceError, match=match):
        plan_step(slots, new, DcpLayout(2, 2, 3), state_slots=more.get("state_slots"))


def test_what_is_no_step_is_refused_with_a_sentence() -> None:
    fine = WidenedSlots(torch.tensor([4, 5, 6]))
    refused([], "at least one request and one new token: got 0 requests")
    refused([fine], "got 1 requests, 0 new tokens", new=0)
    refused([fine], r"request 0 of 1 has 3 from position 0; pass table.slots", new=4)
    refused([WidenedSlots(torch.tensor([6]), 2)], "has 1 from position 2")
    refused([fine], r"own, from 1: got \[1, 2\] for 1 requests", state_slots=[1, 2])
    refused([fine], r"own, from 1: got \[0\] for 1 requests", state_slots=[0])
    refused([WidenedSlots(torch.tensor([0, 1]))], r"widened slot must lie in \[4, 16\): got 0")
    refused([WidenedSlots(torch.tensor([4, 16]))], r"must lie in \[4, 16\): got 16 at index 1")


def test_slots_that_do_not_follow_the_owners_of_positions_are_read_where_they_lie() -> None:
    runs = [WidenedSlots(torch.tensor([4, 5, 6])), WidenedSlots(torch.tensor([9, 10]))]
    plan = plan_step(runs, 1, DcpLayout(2, 2, 2))
    assert [s.rows.ids.tolist() for s in plan.ranks] == [[2, 3, 5, 0], [2, 4]]
    assert [s.new.tolist() if s.new is not None else None for s in plan.ranks] == [[0, 1], None]


@settings(max_examples=60)
@given(steps())
def test_each_new_token_is_stored_once_by_the_owner_of_its_slot(
    step: tuple[DcpLayout, list[WidenedSlots], int],
) -> None:
    lay, runs, new = step
    plan = plan_step(runs, new, lay)
    stored: dict[int, tuple[int, int]] = {}
    for rank, shard in enumerate(plan.ranks):
        assert torch.equal(shard.visible, plan.visible[rank, :, :, : shard.keys])
        assert not bool(plan.visible[rank, :, :, shard.keys :].any())
        assert (shard.new is None) == (shard.new_rows is None)
        if shard.new is None or shard.new_rows is None:
            continue
        assert len(shard.new)
        for token, row in zip(shard.new.tolist(), shard.new_rows.ids.tolist(), strict=True):
            assert token not in stored
            stored[token] = (rank, row)
    slots = [int(slot) for run in runs for slot in run.ids[-new:]]
    assert stored == {i: (lay.owner(slot), lay.row(slot)) for i, slot in enumerate(slots)}


@settings(max_examples=60)
@given(steps())
def test_padding_is_what_stands_for_no_position(
    step: tuple[DcpLayout, list[WidenedSlots], int],
) -> None:
    lay, runs, new = step
    for rank, shard in enumerate(plan_step(runs, new, lay).ranks):
        owned = [len(localize(run, lay, rank)) for run in runs]
        want = [i * shard.keys + k for i, n in enumerate(owned) for k in range(n, shard.keys)]
        assert (shard.padding.tolist() if shard.padding is not None else []) == want


@settings(max_examples=40)
@given(steps())
def test_all_ranks_side_by_side_are_what_each_rank_reads_and_zeros(
    step: tuple[DcpLayout, list[WidenedSlots], int],
) -> None:
    lay, runs, new = step
    pools = ModelPools(model_shape(model("deepseek-v3").config), lay, requests=1)
    for pool in pools.ranks:
        torch.nn.init.normal_(pool.buffer, generator=torch.Generator().manual_seed(pool.rank))
    step_of = Step(pools, plan_step(runs, new, lay))
    together = step_of.read_ranks(2)
    for rank in range(lay.dcp_size):
        alone = step_of.read(2, rank)
        assert torch.equal(together[rank, :, : alone.shape[1]], alone)
        assert not bool(together[rank, :, alone.shape[1] :].any())

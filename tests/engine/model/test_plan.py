"""The plan of a step: every rank's rows as ``localize`` has them, and each position seen once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine.model import ModelPools, Step, model_shape, plan_step
from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout, WidenedSlots, localize
from tests.engine.model.tiny import model

Steps = tuple[DcpLayout, list[WidenedSlots], int]


@st.composite
def steps(draw: st.DrawFn) -> Steps:
    """A layout, requests of ragged lengths with shuffled pages, and how many tokens are new."""
    page_size = draw(st.sampled_from([1, 2, 4, 16]))
    interleave = draw(st.sampled_from([1, page_size, max(1, page_size // 2)]))
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


@settings(max_examples=120)
@given(steps())
def test_each_rank_sees_the_rows_that_localize_gives_and_pads_the_rest(step: Steps) -> None:
    lay, runs, new = step
    plan = plan_step(runs, new, lay)
    assert (plan.batch, plan.new_tokens) == (len(runs), new)
    assert plan.lens.tolist() == [len(run) for run in runs]
    assert plan.positions.tolist() == [list(range(len(r) - new, len(r))) for r in runs]
    assert plan.visible.shape[-1] == max(shard.keys for shard in plan.ranks)
    for rank, shard in enumerate(plan.ranks):
        assert torch.equal(shard.visible, plan.visible[rank, :, :, : shard.keys])
        assert not bool(plan.visible[rank, :, :, shard.keys :].any())
        table, padding = shard.rows.ids.view(plan.batch, shard.keys), list[int]()
        for i, run in enumerate(runs):
            rows = localize(run, lay, rank)
            padding += range(i * shard.keys + len(rows), (i + 1) * shard.keys)
            for t in range(new):
                want = rows.ids[rows.source <= len(run) - new + t].tolist()
                assert table[i, shard.visible[i, t]].tolist() == want
        assert shard.padding is None or len(shard.padding)
        assert (shard.padding.tolist() if shard.padding is not None else []) == padding


@settings(max_examples=60)
@given(steps())
def test_each_new_token_is_stored_once_by_the_owner_of_its_slot(step: Steps) -> None:
    lay, runs, new = step
    stored: dict[int, tuple[int, int]] = {}
    for rank, shard in enumerate(plan_step(runs, new, lay).ranks):
        assert (shard.new is None) == (shard.new_rows is None)
        if shard.new is None or shard.new_rows is None:
            continue
        assert len(shard.new)
        for token, row in zip(shard.new.tolist(), shard.new_rows.ids.tolist(), strict=True):
            assert token not in stored
            stored[token] = (rank, row)
    slots = [int(slot) for run in runs for slot in run.ids[-new:]]
    assert stored == {i: (lay.owner(slot), lay.row(slot)) for i, slot in enumerate(slots)}


@settings(max_examples=30)
@given(steps())
def test_all_ranks_side_by_side_are_what_each_rank_reads_and_zeros(step: Steps) -> None:
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


def test_the_worked_example_of_the_module() -> None:
    runs = [WidenedSlots(torch.tensor([4, 5, 6])), WidenedSlots(torch.tensor([8, 9]))]
    plan = plan_step(runs, 1, DcpLayout(2, 2, 2))
    assert [s.rows.ids.tolist() for s in plan.ranks] == [[2, 3, 4, 0], [2, 4]]
    assert plan.ranks[0].visible.tolist() == [[[True, True]], [[True, False]]]


def run(*ids: int, start: int = 0) -> WidenedSlots:
    return WidenedSlots(torch.tensor(ids), start)


def test_rows_that_are_only_read_may_be_shared() -> None:
    assert plan_step([run(4, 5, 6, 7, 8), run(4, 5, 6, 7, 12)], 1, DcpLayout(2, 2, 3)).batch == 2


FINE, OTHER = run(4, 5, 6), run(8, 9, 10)


@pytest.mark.parametrize(
    ("slots", "new", "states", "match"),
    [
        ([], 1, None, "at least one request and one new token: got 0 requests"),
        ([FINE], 0, None, "got 1 requests, 0 new tokens"),
        ([FINE], 4, None, r"request 0 of 1 has 3 from position 0; pass table.slots"),
        ([run(6, start=2)], 1, None, "has 1 from position 2"),
        ([FINE], 1, [1, 2], r"own, from 1: got \[1, 2\] for 1 requests"),
        ([FINE, OTHER], 1, [2, 2], r"own, from 1: got \[2, 2\]"),
        ([FINE, OTHER], 1, [0, 1], r"own, from 1: got \[0, 1\]"),
        ([run(0, 1)], 1, None, r"widened slot must lie in \[4, 16\): got 0"),
        ([run(4, 17)], 1, None, r"must lie in \[4, 16\): got 17 at index 1"),
        ([FINE, run(9, 10)], 1, None, "slot and position must agree about the owner"),
        ([FINE, FINE], 1, None, "slot 6 stands at 2 positions of the step's 6"),
        ([FINE, run(8, 9, 4)], 1, None, "slot 4 stands at 2 positions of the step's 6"),
        ([run(4, 5, 4)], 1, None, "a slot of its own: slot 4 stands at 2"),
    ],
)
def test_a_step_that_would_write_over_somebody_or_is_none_is_refused(
    slots: list[WidenedSlots], new: int, states: list[int] | None, match: str
) -> None:
    with pytest.raises(IndexSpaceError, match=match):
        plan_step(slots, new, DcpLayout(2, 2, 3), state_slots=states)

"""A step that would write over somebody, or drop a request, is refused with a sentence."""

from typing import Any

import pytest
import torch

from kvlab.engine.model import ModelPools, ShardedModel, Step, model_shape, plan_step
from kvlab.errors import IndexSpaceError, LayoutError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import model

LAY = DcpLayout(2, 2, 8)
SLOTS = [WidenedSlots(torch.arange(4, 7)), WidenedSlots(torch.arange(8, 11))]
ONE = torch.ones(2, 1, dtype=torch.int64)
plan: Any = plan_step  # bad values are what the types forbid


def made(**rules: Any) -> Any:
    return ShardedModel(model("kimi-dense"), LAY, **{"requests": 3, **rules})


def test_a_new_token_is_written_where_no_other_position_stands() -> None:
    twice = [SLOTS[0], SLOTS[0]]
    with pytest.raises(IndexSpaceError, match="slot 6 stands at 2 positions of the step's 6"):
        plan(twice, 1, LAY)
    over = [SLOTS[0], WidenedSlots(torch.tensor([8, 9, 4]))]
    with pytest.raises(IndexSpaceError, match="slot 4 stands at 2 positions of the step's 6"):
        plan(over, 1, LAY)
    with pytest.raises(IndexSpaceError, match="a slot of its own: slot 4 stands at 2"):
        plan([WidenedSlots(torch.tensor([4, 5, 4]))], 1, LAY)


def test_rows_that_are_only_read_may_be_shared() -> None:
    prefix = torch.arange(4, 8)
    runs = [WidenedSlots(torch.cat([prefix, torch.tensor([own])])) for own in (8, 12)]
    assert plan(runs, 1, LAY).write_slots.tolist() == [8, 12]


def test_each_request_has_a_state_slot_of_its_own() -> None:
    for given, match in (
        ([2, 2], "got 2 for two requests among 2"),
        ([0, 1], "from 1: got 0 among 2"),
        ([-1, 1], "got -1 among 2"),
        ([True, 2], r"state slot must be an int: got True \(bool\)"),
        ([1.0, 2], r"state slot must be an int: got 1\.0"),
    ):
        with pytest.raises(IndexSpaceError, match=match):
            plan(SLOTS, 1, LAY, state_slots=given)


def test_a_state_slot_that_nobody_holds_is_refused_before_the_model_runs() -> None:
    sharded = made()
    held = sharded.pools.alloc_state()
    before = sharded.pools.states.temporal.clone()
    for free in (held + 1, 99):
        with pytest.raises(PoolError, match=rf"state slot must be in use: got {free} of 1\.\.3"):
            sharded.forward(ONE, SLOTS, [held, free])
    assert torch.equal(sharded.pools.states.temporal, before)


def test_slots_and_counts_of_another_type_are_refused() -> None:
    with pytest.raises(IndexSpaceError, match=r"request 0 of 1 has a Tensor; pass table\.slots"):
        plan([SLOTS[0].ids], 1, LAY)
    for count in (True, 1.0, "1"):
        with pytest.raises(IndexSpaceError, match="new_tokens must be an int"):
            plan(SLOTS, count, LAY)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_decode_step_drops_nobody_and_invents_nobody(batch_invariant: bool) -> None:
    sharded = made(batch_invariant=batch_invariant)
    states = [sharded.pools.alloc_state() for _ in SLOTS]
    for tokens, slots, held in (
        ([1, 2, 3], SLOTS, states),
        ([1], SLOTS, states),
        ([1, 2], SLOTS[:1], states),
        ([1, 2], SLOTS, [*states, 3]),
        ([], [], []),
    ):
        match = f"got {len(tokens)} tokens, {len(slots)} runs, {len(held)} state slots"
        with pytest.raises(PoolError, match=match):
            sharded.decode(tokens, slots, held)
    for bad in (True, 1.5):
        with pytest.raises(IndexSpaceError, match="token must be an int"):
            sharded.decode([bad, 1], SLOTS, states)


def test_tokens_are_ids_of_the_vocabulary() -> None:
    sharded = made()
    states = [sharded.pools.alloc_state() for _ in SLOTS]
    for bad, match in (
        (ONE.float(), r"an int64 tensor of ids below 61: got torch\.float32"),
        (ONE.bool(), r"got torch\.bool"),
        ([[1], [2]], "got list"),
        (ONE * 61, r"in \[0, 61\): got 61 at \[0, 0\]; use the tokenizer"),
        (ONE - torch.tensor([[0], [2]]), r"got -1 at \[1, 0\]"),
        (ONE[:1], r"got \(1, 1\) for 2 requests"),
    ):
        with pytest.raises(PoolError, match=match):
            sharded.forward(bad, SLOTS, states)
    with pytest.raises(PoolError, match="must be an int64 tensor of ids below 61: got list"):
        sharded.prefill([1, 2, 3], SLOTS[0], states[0])


def test_logits_are_kept_of_tokens_that_are_there() -> None:
    sharded = made()
    states = [sharded.pools.alloc_state() for _ in SLOTS]
    for keep in (-1, 2):
        with pytest.raises(PoolError, match=rf"the 1 new ones, 0 means all: got {keep}"):
            sharded.forward(ONE, SLOTS, states, keep=keep)
    with pytest.raises(IndexSpaceError, match="keep must be an int: got True"):
        sharded.forward(ONE, SLOTS, states, keep=True)
    tokens = torch.tensor([1, 2, 3])
    with pytest.raises(PoolError, match=r"last token \(keep=1\) or of all \(0\): got 2"):
        sharded.prefill(tokens, SLOTS[0], states[0], keep=2)
    with pytest.raises(IndexSpaceError, match=r"start must be an int: got 1\.0"):
        sharded.prefill(tokens, SLOTS[0], states[0], start=1.0)


def test_a_form_a_dtype_and_a_count_that_are_none_are_refused_where_the_model_is_made() -> None:
    with pytest.raises(PoolError, match="one of the forms absorbed, expanded: got 'foo'"):
        made(form="foo")
    with pytest.raises(PoolError, match=r"a row is stored as one of .*: got bf16"):
        made(kv_dtype="bf16")
    with pytest.raises(LayoutError, match="requests must be at least 1"):
        ShardedModel(model("deepseek-v3"), LAY, requests=0)
    pools = ModelPools(model_shape(model("deepseek-v3").config), LAY, requests=1)
    bad: Any = "foo"
    with pytest.raises(PoolError, match="got 'foo'"):
        Step(pools, plan(SLOTS, 1, LAY), bad)

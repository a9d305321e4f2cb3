"""A step that would write over somebody, or drop a request, is refused with a sentence."""

from typing import Any

import pytest
import torch

from kvlab.engine.model import ShardedModel, plan_step
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
    assert plan(runs, 1, LAY).batch == 2


def test_each_request_has_a_state_slot_of_its_own() -> None:
    for given in ([2, 2], [0, 1]):
        with pytest.raises(IndexSpaceError, match=rf"own, from 1: got \[{given[0]}, {given[1]}\]"):
            plan(SLOTS, 1, LAY, state_slots=given)


def test_a_state_slot_that_nobody_holds_is_refused_before_the_model_runs() -> None:
    sharded = made()
    held = sharded.pools.alloc_state()
    before = sharded.pools.states.temporal.clone()
    for free in (held + 1, 99):
        with pytest.raises(PoolError, match=rf"state slot must be in use: got {free} of 1\.\.3"):
            sharded.forward(ONE, SLOTS, [held, free])
    assert torch.equal(sharded.pools.states.temporal, before)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_decode_step_drops_nobody_and_invents_nobody(batch_invariant: bool) -> None:
    sharded = made(batch_invariant=batch_invariant)
    states = [sharded.pools.alloc_state() for _ in SLOTS]
    for tokens, slots in (([1, 2, 3], SLOTS), ([1], SLOTS), ([1, 2], SLOTS[:1])):
        with pytest.raises(
            PoolError, match=rf"shape \({len(slots)}, .* got .*\({len(tokens)}, 1\)"
        ):
            sharded.decode(tokens, slots, states)
    for held in ([*states, 3], states[:1]):
        with pytest.raises((IndexSpaceError, PoolError), match="state slot"):
            sharded.decode([1, 2], SLOTS, held)
    for bad in (True, 1.5):
        with pytest.raises(IndexSpaceError, match="token must be an int"):
            sharded.decode([bad, 1], SLOTS, states)


def test_tokens_are_ids_of_the_vocabulary() -> None:
    sharded = made()
    states = [sharded.pools.alloc_state() for _ in SLOTS]
    for bad, match in (
        (ONE.float(), r"int64 ids below 61 .*: got torch\.float32"),
        (ONE * 61, r"in \[0, 61\): got 61 at \[0, 0\]; use the tokenizer"),
        (ONE - torch.tensor([[0], [2]]), r"got -1 at \[1, 0\]"),
        (ONE[:1], r"shape \(2, -1\), .*: got torch\.int64 \(1, 1\)"),
    ):
        with pytest.raises(PoolError, match=match):
            sharded.forward(bad, SLOTS, states)


def test_logits_are_kept_of_tokens_that_are_there() -> None:
    sharded = made()
    states = [sharded.pools.alloc_state() for _ in SLOTS]
    for keep in (-1, 2):
        with pytest.raises(PoolError, match=rf"the 1 new ones, 0 means all: got {keep}"):
            sharded.forward(ONE, SLOTS, states, keep=keep)
    with pytest.raises(IndexSpaceError, match="keep must be an int: got True"):
        sharded.forward(ONE, SLOTS, states, keep=True)


def test_a_form_a_dtype_and_a_count_that_are_none_are_refused_where_the_model_is_made() -> None:
    with pytest.raises(PoolError, match="one of the forms absorbed, expanded: got 'foo'"):
        made(form="foo")
    with pytest.raises(PoolError, match=r"a row is stored as one of .*: got bf16"):
        made(kv_dtype="bf16")
    with pytest.raises(LayoutError, match="requests must be at least 1"):
        ShardedModel(model("deepseek-v3"), LAY, requests=0)

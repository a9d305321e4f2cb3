"""What the cells, the samplers, the hand-over and the snapshot refuse, and with which sentence."""

from typing import Any

import pytest
import torch

from kvlab.engine.model import (
    Forced,
    ModelCells,
    Seeded,
    ShardedModel,
    Snapshot,
    hand_over,
    take_snapshot,
)
from kvlab.errors import IndexSpaceError, PoolError, StudyError, WorkloadError
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import model

SLOTS = WidenedSlots(torch.arange(4, 7))
NAN = torch.nan


def made(kind: str = "kimi-dense", dcp_size: int = 2, **rules: Any) -> ShardedModel:
    return ShardedModel(model(kind), DcpLayout(dcp_size, 2, 8), requests=2, **rules)


def cells(prompts: Any, **rules: Any) -> Any:
    return ModelCells(made(), prompts, **rules)


def prefill(of: ModelCells) -> None:
    of.write(torch.zeros(3, dtype=torch.int64), torch.arange(3), SLOTS.ids)


def test_a_prompt_is_there_and_is_a_list_of_ids_of_the_vocabulary() -> None:
    with pytest.raises(WorkloadError, match="request 0 has none among the 1 here; name them"):
        prefill(cells({5: [1, 2, 3]}))
    for bad in (1.7, True, "3"):
        with pytest.raises(IndexSpaceError, match="a token of prompt 0 must be an int"):
            prefill(cells({0: [1, 2, bad]}))
    for bad in (61, -1):
        with pytest.raises(PoolError, match=rf"in \[0, 61\): got {bad} at \[2\]"):
            prefill(cells({0: [1, 2, bad]}))


def test_a_request_that_holds_nothing_cannot_leave_come_back_or_be_checked() -> None:
    here = cells({0: [1, 2, 3]})
    for act in (here.release, here.check, here.back_up):
        with pytest.raises(PoolError, match="request 7 holds no rows and is not among the 0"):
            act(7, SLOTS)


def test_a_forced_token_outside_the_vocabulary_is_not_read_from_its_other_end() -> None:
    for bad in (-1, 61):
        here = cells({0: [1, 2, 3]}, sampler=Forced({0: [1, 2, 3, bad]}))
        with pytest.raises(StudyError, match=rf"got {bad} from Forced for request 0 at position 3"):
            prefill(here)
    halves: Any = {0: [1, 2, 3, 1.9]}
    with pytest.raises(IndexSpaceError, match=r"token 3 of the stream of request 0 .* got 1\.9"):
        prefill(cells({0: [1, 2, 3]}, sampler=Forced(halves)))


def test_a_draw_from_no_distribution_is_refused() -> None:
    with pytest.raises(StudyError, match="request 4 at position 9 5 of 5 logprobs are NaN"):
        Seeded(1).pick(4, 9, torch.full((5,), NAN))
    with pytest.raises(StudyError, match=r"0 of 5 .* temperature 1e-300; use a higher one"):
        Seeded(1, 1e-300).pick(0, 0, torch.log_softmax(torch.arange(5.0), 0))
    seeded: Any = Seeded
    with pytest.raises(IndexSpaceError, match="seed must be an int: got 'x'"):
        seeded("x")


def test_a_hand_over_that_is_refused_has_written_nothing() -> None:
    node, here = made(dcp_size=1), made()
    sent, held = node.pools.alloc_state(), here.pools.alloc_state()
    node.pools.fill(WidenedSlots(torch.arange(2, 5)), 3.0)
    source = WidenedSlots(torch.arange(2, 5))
    twice = WidenedSlots(torch.tensor([4, 5, 4]))
    for target, from_slot, to_slot, match in (
        (SLOTS, None, held, r"None \(prefill\) and 1 \(decode\); nothing was written"),
        (SLOTS, sent, None, r"1 \(prefill\) and None \(decode\)"),
        (SLOTS, sent, 2, "a state slot must be in use: got 2"),
        (SLOTS, 2, held, "a state slot must be in use: got 2"),
        (twice, sent, held, "3 target slots, 2 different; pass newly allocated slots"),
    ):
        with pytest.raises(PoolError, match=match):
            hand_over(node.pools, source, from_slot, here.pools, target, to_slot)
    assert not any(bool(pool.buffer.any()) for pool in here.pools.ranks)
    hand_over(node.pools, source, sent, here.pools, SLOTS, held)
    assert all(bool(pool.buffer.any()) for pool in here.pools.ranks)


def test_a_state_is_not_lost_on_the_way_to_a_node_that_keeps_none() -> None:
    node, here = made(dcp_size=1), made()
    here.pools.states = None
    with pytest.raises(
        PoolError,
        match=r"\(row format, layers, no state\) are .* False\) at the prefill node, .* True\) at",
    ):
        hand_over(node.pools, WidenedSlots(torch.arange(2, 5)), 1, here.pools, SLOTS, None)


def test_a_snapshot_compares_bits() -> None:
    rows = torch.zeros(1, 2, 3, dtype=torch.uint8)

    def with_state(value: float) -> Snapshot:
        return Snapshot(rows, (torch.tensor([value]), torch.tensor([1.0])))

    with_state(NAN).require_equal(with_state(NAN), "x")
    with pytest.raises(PoolError, match="1 of 1 elements of its conv state differ"):
        with_state(0.0).require_equal(with_state(-0.0), "x")
    with pytest.raises(PoolError, match=r"x must .*: it had \{'rows': .*\}, now \{.*'conv state'"):
        Snapshot(rows, None).require_equal(with_state(1.0), "x")
    with pytest.raises(PoolError, match=r"it had \{.*'temporal state': .*, now \{'rows'"):
        with_state(1.0).require_equal(Snapshot(rows, None), "x")
    with pytest.raises(PoolError, match="a state slot must be in use: got 2"):
        take_snapshot(made().pools, SLOTS, 2)


def test_one_request_a_forward_refuses_what_a_common_forward_refuses() -> None:
    here = made(batch_invariant=True)
    a, b = here.pools.alloc_state(), here.pools.alloc_state()
    other = WidenedSlots(torch.arange(8, 11))
    with pytest.raises(IndexSpaceError, match=r"own, from 1: got \[1, 1\]"):
        here.decode([1, 2], [SLOTS, other], [a, a])
    with pytest.raises(IndexSpaceError, match="slot 6 stands at 2 positions"):
        here.decode([1, 2], [SLOTS, SLOTS], [a, b])
    assert here.decode([1, 2], [SLOTS, other], [a, b]).shape == (2, 61)


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn])
def test_freed_rows_are_poisoned_on_every_rank_and_no_other_row_is(kv_dtype: Any) -> None:
    sharded = made(kv_dtype=kv_dtype)
    here = ModelCells(sharded, {0: [1, 2, 3]}, poison=NAN)
    prefill(here)
    here.release(0, SLOTS)
    freed = torch.tensor([[0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0]]).bool()
    for pool, rows in zip(sharded.pools.ranks, freed, strict=True):
        read = pool.codec.decode(pool.buffer[1])
        assert torch.equal(read.isnan().all(dim=1)[:6], rows)
        assert int(read.isnan().any(dim=1).sum()) == int(rows.sum())


def test_the_cells_keep_slots_of_their_own_and_see_when_the_schedulers_change() -> None:
    here = cells({0: [1, 2, 3]})
    for back_again in (False, True):
        ids = SLOTS.ids.clone()
        if back_again:
            backups = here.back_up(0, WidenedSlots(ids))
            here.release(0, WidenedSlots(ids))
            here.restore(0, backups, WidenedSlots(ids))
        else:
            here.write(torch.zeros(3, dtype=torch.int64), torch.arange(3), ids)
        here.check(0, WidenedSlots(ids))
        ids[2] = 9
        with pytest.raises(PoolError, match="scheduler and cells must name the same slots"):
            here.check(0, WidenedSlots(ids))

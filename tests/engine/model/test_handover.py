"""Prefill at DCP 1, decode at DCP c: every row and the state arrive, bit for bit; and a kept
prefill hands over the same bits as one that is run."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine import NodeConfig, StepNode
from kvlab.engine.model import (
    ModelCells,
    Prefilled,
    ShardedModel,
    hand_over,
    prefill_apart,
    take_snapshot,
    token_plan,
)
from kvlab.engine.workload import Request
from kvlab.errors import IndexSpaceError, PoolError, StudyError
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import Placed, layout, library_logits, model, prompt

REQUESTS = (Request(0, 0.0, 7, 9), Request(1, 0.0, 3, 1), Request(2, 0.0, 12, 8))
CONFIG = NodeConfig(DcpLayout(4, 2, 40), reserved_decode_tokens=2, force_retract_interval=3)
OWN = model("kimi-moe")
PROMPTS = {r.rid: prompt(r.rid, r.prompt_tokens).tolist() for r in REQUESTS}


def paged(lay: DcpLayout, n: int, seed: int) -> WidenedSlots:
    """n positions in shuffled pages."""
    order = torch.randperm(lay.num_pages, generator=torch.Generator().manual_seed(seed)) + 1
    wide = lay.widened_page_size
    return WidenedSlots((order[:, None] * wide + torch.arange(wide)).flatten()[:n])


@settings(max_examples=60)
@given(
    n=st.integers(1, 150),
    dcp_size=st.sampled_from([1, 2, 3, 4, 8]),
    sizes=st.tuples(st.sampled_from([1, 4, 16, 64]), st.sampled_from([1, 4, 16, 64])),
    interleaved=st.booleans(),
    seed=st.integers(0, 50),
)
def test_the_moves_name_each_position_once_from_its_row_to_its_owners_row(
    n: int, dcp_size: int, sizes: tuple[int, int], interleaved: bool, seed: int
) -> None:
    here, there = sizes
    source_layout = DcpLayout(1, here, 160)
    target_layout = DcpLayout(dcp_size, there, 160, there if interleaved else 1)
    source, target = paged(source_layout, n, seed), paged(target_layout, n, seed + 1)
    moved: dict[int, tuple[int, int]] = {}
    plan = token_plan(source, source_layout, target, target_layout)
    for rank, (rows, to) in enumerate(plan):
        for row, at in zip(rows.tolist(), to.ids.tolist(), strict=True):
            assert row not in moved
            moved[row] = (rank, at)
    slots = zip(source.ids.tolist(), target.ids.tolist(), strict=True)
    assert moved == {
        row: (target_layout.owner(slot), target_layout.row(slot)) for row, slot in slots
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("dcp_size", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v3"])
def test_after_the_hand_over_the_decode_node_holds_what_the_prefill_node_held_and_decodes_on(
    kind: str, dcp_size: int, dtype: torch.dtype
) -> None:
    tokens = prompt(3, 41)
    prefill = ShardedModel(model(kind), layout(1, 16, 37), requests=1, kv_dtype=dtype)
    here = Placed(prefill, [37])
    prefill.prefill(tokens[:37], here.slots(0), here.states[0], chunk_tokens=16)
    decode = prefill.like(layout(dcp_size, 4, 44), requests=2)
    there = Placed(decode, [37])
    hand_over(
        prefill.pools, here.slots(0), here.states[0],
        decode.pools, there.slots(0), there.states[0],
    )  # fmt: skip
    left = take_snapshot(prefill.pools, here.slots(0), here.states[0])
    arrived = take_snapshot(decode.pools, there.slots(0), there.states[0])
    left.require_equal(arrived, "request 0")
    assert bool(left.rows.any()) and decode.pools.audit() == []
    for at in range(37, 41):
        there.grow()
        line = decode.decode([int(tokens[at])], [there.slots(0)], there.states)
        if dtype == torch.float32:
            want = library_logits(kind, tokens, 37)[at : at + 1]
            torch.testing.assert_close(line, want, atol=3e-5, rtol=0)


# Kept prefills -----------------------------------------------------------------------------------


def cells_of(config: NodeConfig, prefilled: Prefilled | None, **rules: Any) -> ModelCells:
    sharded = ShardedModel(OWN, config.layout, requests=3, batch_invariant=True)
    rules = {"handover": True, "prefilled": prefilled, **rules}
    cells = ModelCells(sharded, PROMPTS, **rules)
    StepNode(config, cells).run(REQUESTS)
    return cells


@pytest.mark.parametrize(("restore", "chunk"), [("backup", None), ("recompute", 5)])
def test_runs_that_share_prefills_say_bit_for_bit_what_runs_with_their_own_say(
    restore: Any, chunk: int | None
) -> None:
    kept = Prefilled()
    for dcp_size in (1, 4):
        config = replace(CONFIG, layout=DcpLayout(dcp_size, 2, 40), restore=restore)
        shared = cells_of(config, kept, chunk_tokens=chunk)
        own = cells_of(config, None, chunk_tokens=chunk)
        assert shared.streams == own.streams
    assert kept.runs == 3


def test_a_kept_prefill_arrives_on_every_node_with_the_same_rows_and_state() -> None:
    kept = Prefilled()
    for lay in (layout(3, 2, 12), layout(8, 2, 12), DcpLayout(2, 4, 10, 4)):
        placed = Placed(ShardedModel(OWN, lay, requests=1), [12])
        done = kept.get(placed.sharded, 2, PROMPTS[2])
        done.hand_over(placed.sharded.pools, placed.slots(0), placed.states[0])
        left = take_snapshot(done.pools, done.slots, done.state)
        arrived = take_snapshot(placed.sharded.pools, placed.slots(0), placed.states[0])
        left.require_equal(arrived, "request 2")
    assert kept.runs == 1
    apart = prefill_apart(placed.sharded, PROMPTS[2], dcp_size=2)
    assert apart.pools.layout == DcpLayout(2, 4, 2, 4)


def test_kept_prefills_of_another_prompt_model_or_setting_are_refused() -> None:
    kept, lay = Prefilled(), DcpLayout(2, 2, 10)
    own: Any = model("kimi-dense")
    sharded = ShardedModel(own, lay, requests=1)
    bad: Any = [1.5]
    with pytest.raises(PoolError, match="a token is an id of the vocabulary"):
        kept.get(sharded, 0, [99], 5)  # and binds nothing
    kept.get(sharded, 0, PROMPTS[0])
    kept.get(sharded, 0, PROMPTS[0])
    with pytest.raises(StudyError, match="a prefill has at least one token: got none"):
        kept.get(sharded, 1, [])
    with pytest.raises(IndexSpaceError, match=r"token must be an int: got 1\.5"):
        kept.get(sharded, 1, bad)
    with pytest.raises(StudyError, match="request 0 was prefilled with other tokens"):
        kept.get(sharded, 0, PROMPTS[1])
    with pytest.raises(StudyError, match=r"one model.* and its settings.*'absorbed', 5\)"):
        kept.get(sharded, 0, PROMPTS[0], 5)
    for other in (
        ShardedModel(model("kimi-moe"), lay, requests=1),
        ShardedModel(own, lay, requests=1, form="expanded"),
        ShardedModel(own, lay, requests=1, kv_dtype=torch.bfloat16),
    ):
        with pytest.raises(StudyError, match="kept prefills are of one model"):
            kept.get(other, 0, PROMPTS[0])
    with torch.no_grad():
        own.lm_head.weight.mul_(2)
    with pytest.raises(StudyError, match="whose weights are not written"):
        kept.get(sharded, 0, PROMPTS[0])
    assert kept.runs == 1


@pytest.mark.parametrize(("handover", "ranks"), [(True, 1), (False, 4)])
def test_a_request_of_one_token_is_prefilled_where_the_others_are(
    handover: bool, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    prefill = ShardedModel.prefill

    def watched(self: ShardedModel, *args: Any, **rules: Any) -> torch.Tensor:
        seen.append(self.layout.dcp_size)
        return prefill(self, *args, **rules)

    monkeypatch.setattr(ShardedModel, "prefill", watched)
    cells = cells_of(replace(CONFIG, force_retract_interval=None), None, handover=handover)
    assert seen == [ranks] * 3
    want = library_logits("kimi-moe", prompt(1, 3), 3)[-1].argmax()
    assert cells.streams[1].output == [int(want)]

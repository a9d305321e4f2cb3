"""What the model's borders refuse, and what transformers must not do behind our back."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from kvlab.engine.model import (
    NAME,
    STEP,
    Form,
    ShardedModel,
    Step,
    StepCache,
    dcp_attention,
    model_shape,
    plan_step,
    take_snapshot,
)
from kvlab.errors import CapacityError, LayoutError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import Placed, layout, library_logits, model, prompt

ROOT = Path(__file__).resolve().parents[3]
SLOTS = WidenedSlots(torch.arange(4, 8))


def test_the_shape_says_which_layers_keep_rows_and_which_keep_state() -> None:
    kimi, deepseek = (model_shape(model(kind).config) for kind in ("kimi-moe", "deepseek-v3"))
    assert (kimi.full_layers, kimi.linear_layers) == ((1, 3), (0, 2))
    assert (kimi.conv_shape, kimi.temporal_shape) == ((48, 4), (2, 8, 8))
    assert (kimi.row_elements, kimi.heads) == (28, 3)
    assert (deepseek.full_layers, deepseek.linear_layers) == ((0, 1, 2), ())
    assert (deepseek.conv_shape, deepseek.temporal_shape) == (None, None)


def test_a_model_without_a_latent_cache_is_refused_and_told_why() -> None:
    with pytest.raises(CapacityError, match=r"'llama' has none, so its cache holds keys and val"):
        model_shape(LlamaConfig())


def test_a_latent_model_that_was_not_read_is_refused() -> None:
    config = LlamaConfig()
    config.kv_lora_rank = 512
    with pytest.raises(CapacityError, match=r"model_type must be one of kimi_linear.*got 'llama'"):
        model_shape(config)


def test_a_model_of_linear_layers_only_is_refused() -> None:
    config = copy.deepcopy(model("kimi-moe").config)
    config.layer_types = ["linear_attention"] * 4
    with pytest.raises(CapacityError, match="at least one layer must keep rows: all 4 layers"):
        model_shape(config)


def test_a_model_is_told_to_use_kvlabs_attention_and_refuses_a_call_without_a_step() -> None:
    own = model("deepseek-v3")
    ShardedModel(own, DcpLayout(2, 2, 4), requests=1)
    assert own.config._attn_implementation == NAME
    with pytest.raises(PoolError, match=rf"needs the step of the call: got NoneType as {STEP}"):
        own(input_ids=torch.tensor([[1, 2]]))


def made() -> tuple[ShardedModel, Step]:
    sharded = ShardedModel(model("kimi-moe"), DcpLayout(2, 2, 4), requests=1)
    slot = sharded.pools.alloc_state()
    assert slot is not None
    plan = plan_step([SLOTS], 4, sharded.layout, state_slots=[slot])
    return sharded, Step(sharded.pools, plan)


def test_a_mask_and_dropout_are_refused() -> None:
    sharded, step = made()
    module = sharded.model.model.layers[1].self_attn
    q = torch.zeros(1, 3, 4, 20)
    with pytest.raises(PoolError, match="got a mask; pass no attention_mask"):
        dcp_attention(module, q, q, q, torch.ones(1, 1), 1.0, **{STEP: step})  # type: ignore[arg-type]
    with pytest.raises(PoolError, match=r"got dropout 0\.5"):
        dcp_attention(module, q, q, q, None, 1.0, 0.5, **{STEP: step})


def test_a_step_without_state_slots_is_refused_by_a_layer_with_state() -> None:
    sharded, _ = made()
    bare = Step(sharded.pools, plan_step([SLOTS], 4, sharded.layout))
    with pytest.raises(PoolError, match="layer 0 keeps a state: the step names no state slots"):
        StepCache(bare, torch.float32).get_recurrent_state(0)


def test_the_runner_refuses_tokens_and_slots_that_do_not_match() -> None:
    sharded, _ = made()
    with pytest.raises(PoolError, match=r"of the shape \(1, -1\), .*: got torch\.int64 \(4,\)"):
        sharded.forward(torch.zeros(4, dtype=torch.int64), [SLOTS], [1])
    with pytest.raises(PoolError, match=r"of the shape \(4,\), .*: got torch\.int64 \(3,\)"):
        sharded.prefill(prompt(1, 3), SLOTS, 1)
    with pytest.raises(PoolError, match="start 4"):
        sharded.prefill(prompt(1, 4), SLOTS, 1, start=4)
    with pytest.raises(LayoutError, match="chunk_tokens must be at least 1"):
        sharded.prefill(prompt(1, 4), SLOTS, 1, chunk_tokens=0)
    with pytest.raises(PoolError, match="1 of 1 requests name no state slot"):
        sharded.decode([1], [SLOTS], [None])


def test_a_prefill_may_start_where_another_ended() -> None:
    tokens = prompt(6, 30)
    sharded = ShardedModel(model("kimi-moe"), layout(4, 2, 30), requests=1)
    placed = Placed(sharded, [30])
    slots, state = placed.slots(0), placed.states[0]
    sharded.prefill(tokens[:11], WidenedSlots(slots.ids[:11]), state)
    got = sharded.prefill(tokens, slots, state, start=11, keep=0)
    want = library_logits("kimi-moe", tokens, 30)[11:]
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
def test_fp8_rows_are_near_the_exact_logits_and_not_equal(form: Form) -> None:
    tokens = prompt(8, 40)
    sharded = ShardedModel(
        model("deepseek-v3"), layout(4, 2, 40), requests=1, kv_dtype=torch.float8_e4m3fn, form=form
    )
    placed = Placed(sharded, [40])
    got = sharded.prefill(tokens, placed.slots(0), None, keep=0)
    apart = (got - library_logits("deepseek-v3", tokens, 40)).abs()
    assert 1e-4 < float(apart.mean()) < 0.1
    assert bool((sharded.pools.ranks[3].scales[:, 2:] > 0).any())


def test_a_snapshot_names_the_first_row_and_the_state_that_differ() -> None:
    sharded = ShardedModel(model("kimi-moe"), DcpLayout(2, 2, 4), requests=1)
    slot = sharded.pools.alloc_state()
    assert slot is not None and sharded.pools.states is not None
    before = take_snapshot(sharded.pools, SLOTS, slot)
    sharded.pools.ranks[1].buffer[1, 3] += 1
    with pytest.raises(
        PoolError, match=r"x must .* elements of its rows differ, first at \[1, 3, \d+\]"
    ):
        before.require_equal(take_snapshot(sharded.pools, SLOTS, slot), "x")
    sharded.pools.ranks[1].buffer[1, 3] -= 1
    sharded.pools.states.conv[0, slot] = 2
    with pytest.raises(PoolError, match="elements of its conv state differ"):
        before.require_equal(take_snapshot(sharded.pools, SLOTS, slot), "x")
    with pytest.raises(PoolError, match=r"it had .*\(2, 4, 112\).*, now .*\(2, 3, 112\)"):
        before.require_equal(take_snapshot(sharded.pools, WidenedSlots(SLOTS.ids[:3]), slot), "x")


def test_a_failed_backup_gives_every_ranks_host_memory_back() -> None:
    sharded = ShardedModel(model("kimi-moe"), DcpLayout(4, 1, 4), requests=1)
    slot = sharded.pools.alloc_state()
    sharded.pools.ranks[3].host.capacity_bytes = 0
    with pytest.raises(ValueError, match="must fit the host arena"):
        sharded.pools.back_up(SLOTS, slot)
    assert [pool.host.lent_bytes for pool in sharded.pools.ranks] == [0] * 4


def test_kvlab_and_its_scheduler_do_not_import_transformers() -> None:
    source = "import sys, kvlab.engine, kvlab.lab, kvlab.cli; "
    source += "sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], cwd=ROOT, check=False).returncode == 0

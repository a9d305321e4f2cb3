"""What the model's borders refuse, and what transformers must not do behind our back."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from kvlab.engine.model import (
    NAME,
    STEP,
    Forced,
    ModelCells,
    Prefilled,
    Seeded,
    ShardedModel,
    Snapshot,
    Step,
    StepCache,
    dcp_attention,
    hand_over,
    model_shape,
    plan_step,
    take_snapshot,
    token_plan,
)
from kvlab.errors import CapacityError, IndexSpaceError, KvlabError, PoolError, StudyError
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import model, prompt

ROOT = Path(__file__).resolve().parents[3]
LAY = DcpLayout(2, 2, 8)
SLOTS = WidenedSlots(torch.arange(4, 7))
PAIR = [SLOTS, WidenedSlots(torch.arange(8, 11))]
ONE = torch.ones(2, 1, dtype=torch.int64)
NAN = float("nan")


def made(dcp_size: int = 2, **rules: Any) -> Any:
    return ShardedModel(model("kimi-dense"), DcpLayout(dcp_size, 2, 8), **{"requests": 3, **rules})


def cells(prompts: Any, **rules: Any) -> ModelCells:
    return ModelCells(made(), prompts, **rules)


def prefill(of: ModelCells, rid: int = 0) -> None:
    of.write(torch.full((3,), rid), torch.arange(3), SLOTS.ids)


# The shape of a model ----------------------------------------------------------------------------


def test_the_shape_says_which_layers_keep_rows_and_which_keep_state() -> None:
    kimi, deepseek = (model_shape(model(kind).config) for kind in ("kimi-moe", "deepseek-v3"))
    assert (kimi.full_layers, kimi.linear_layers) == ((1, 3), (0, 2))
    assert (kimi.conv_shape, kimi.temporal_shape) == ((48, 4), (2, 8, 8))
    assert (kimi.row_elements, kimi.heads) == (28, 3)
    assert (deepseek.full_layers, deepseek.linear_layers) == ((0, 1, 2), ())
    assert (deepseek.conv_shape, deepseek.temporal_shape) == (None, None)


SIZES = ["kv_lora_rank", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim",
         "num_attention_heads", "num_hidden_layers", "linear_num_heads", "linear_head_dim",
         "linear_conv_kernel_dim"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        *((name, -1, f"{name} of a config is an int of at least") for name in SIZES),
        ("v_head_dim", 2.0, "v_head_dim of a config"),
        ("v_head_dim", True, "v_head_dim of a config"),
        ("model_type", "llama", "model_type is one of kimi_linear, .*: got 'llama'"),
        ("layer_types", ["linear_attention"] * 4, "at least one layer keeps rows: all 4"),
        ("layer_types", ["full_attention"], "names each layer once: got 1 for 4 layers"),
        ("rope_parameters", {"rope_type": "dynamic"}, "position alone: rope_type 'dynamic' depend"),
        ("rope_parameters", {"rope_type": "longrope"}, "position alone: rope_type 'longrope'"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(name: str, value: object, match: str) -> None:
    config = copy.deepcopy(model("kimi-moe").config)
    object.__setattr__(config, name, value)
    with pytest.raises(CapacityError, match=match):
        model_shape(config)


def test_a_model_without_a_latent_cache_is_refused_and_yarn_is_not() -> None:
    with pytest.raises(CapacityError, match=r"'llama' has none, so its cache holds keys and val"):
        model_shape(LlamaConfig())
    config = copy.deepcopy(model("deepseek-v3").config)
    config.rope_parameters = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0}
    model_shape(config)


# The call of a model -----------------------------------------------------------------------------


def test_attention_needs_a_step_and_takes_no_mask_and_no_dropout() -> None:
    sharded = made()
    assert sharded.model.config._attn_implementation == NAME
    with pytest.raises(PoolError, match=rf"needs the step of the call: got NoneType as {STEP}"):
        sharded.model(input_ids=torch.tensor([[1, 2]]))
    bare = Step(sharded.pools, plan_step([SLOTS], 3, sharded.layout))
    module, q = sharded.model.model.layers[1].self_attn, torch.zeros(1, 3, 4, 20)
    with pytest.raises(PoolError, match=r"got attention_mask=Tensor, dropout=0\.0; pass neither"):
        dcp_attention(module, q, q, q, torch.ones(1, 1), 1.0, **{STEP: bare})  # type: ignore[arg-type]
    with pytest.raises(PoolError, match=r"dropout=0\.5"):
        dcp_attention(module, q, q, q, None, 1.0, 0.5, **{STEP: bare})
    with pytest.raises(PoolError, match="layer 0 keeps a state: the step names no state slots"):
        StepCache(bare, torch.float32).get_recurrent_state(0)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_call_that_would_drop_or_invent_somebody_is_refused(batch_invariant: bool) -> None:
    here = made(batch_invariant=batch_invariant)
    a, b = here.pools.alloc_state(), here.pools.alloc_state()
    before = here.pools.states.temporal.clone()
    tries: list[tuple[str, list[Any], str]] = [
        ("forward", [torch.zeros(4, dtype=torch.int64), [SLOTS], [a]], r"\(1, 4\).*int64 \(4,\)"),
        ("forward", [ONE.float(), PAIR, [a, b]], r"int64 ids .*: got torch\.float32"),
        ("forward", [ONE * 61, PAIR, [a, b]], r"in \[0, 61\): got 61 at \[0, 0\]; use the token"),
        ("forward", [ONE - torch.tensor([[0], [2]]), PAIR, [a, b]], r"got -1 at \[1, 0\]"),
        ("forward", [ONE[:1], PAIR, [a, b]], r"shape \(2, 1\), .*: got torch\.int64 \(1, 1\)"),
        ("forward", [ONE, PAIR, [a, 3]], r"state slot must be in use: got 3 of 1\.\.3"),
        ("prefill", [prompt(1, 4), SLOTS, a], r"shape \(3,\), .*: got torch\.int64 \(4,\)"),
        ("decode", [[1, 2, 3], PAIR, [a, b]], r"shape \(2, 1\), .*\(3, 1\)"),
        ("decode", [[1, 2], PAIR[:1], [a]], r"shape \(1, 1\), .*\(2, 1\)"),
        ("decode", [[1, 2], PAIR, [a, None]], "1 of 2 requests name no state slot"),
        ("decode", [[1, 2], PAIR, [a]], "state slot"),
        ("decode", [[1, 2], PAIR, [a, a]], r"own, from 1: got \[1, 1\]"),
        ("decode", [[1, 2], [SLOTS, SLOTS], [a, b]], "slot 6 stands at 2 positions"),
        ("decode", [[True, 1], PAIR, [a, b]], "token must be an int"),
    ]
    for name, given, match in tries:
        with pytest.raises((PoolError, IndexSpaceError), match=match):
            getattr(here, name)(*given)
    for rules, match in (
        ({"start": 3}, "at least one of its 3 tokens: got start 3"),
        ({"chunk_tokens": 0}, "chunk_tokens must be at least 1"),
        ({"keep": 4}, "keep counts last of 3 new tokens, 0 means all: got 4"),
        ({"keep": -1}, "keep counts last of 3 new tokens, 0 means all: got -1"),
    ):
        with pytest.raises(KvlabError, match=match):
            here.prefill(prompt(1, 3), SLOTS, a, **rules)
    assert torch.equal(here.pools.states.temporal, before)
    assert here.decode([1, 2], PAIR, [a, b]).shape == (2, 61)


def test_a_form_a_dtype_and_a_count_that_are_none_are_refused_where_the_model_is_made() -> None:
    for rules, match in (
        ({"form": "foo"}, "one of absorbed, expanded: got 'foo'"),
        ({"kv_dtype": "bf16"}, r"a row is stored as one of .*: got bf16"),
        ({"requests": 0}, "requests must be at least 1"),
    ):
        with pytest.raises(KvlabError, match=match):
            made(**rules)


# The cells and the samplers ----------------------------------------------------------------------


def test_what_the_cells_cannot_serve_is_refused() -> None:
    fine = {0: [1, 2, 3]}
    tries: list[tuple[Any, dict[str, Any], str]] = [
        ({5: [1, 2, 3]}, {}, "each request has a prompt, by rid: request 0 has none"),
        ({0: [1, 2]}, {}, r"request 0 has 2 tokens here \(2 of them prompt\), the scheduler"),
        ({0: [1, 2, 1.7]}, {}, "a token of prompt 0 must be an int"),
        ({0: [1, 2, 61]}, {}, r"in \[0, 61\): got 61 at \[2\]"),
        (fine, {"sampler": Forced({0: [1, 2, 3, -1]})}, "got -1 from Forced for request 0 at posi"),
        (fine, {"sampler": Forced({0: [1, 2, 3, 61]})}, "got 61 from Forced for request 0 at posi"),
        (fine, {"sampler": Forced({0: [1, 2, 3, 1.9]})}, r"token 3 of the stream of .* got 1\.9"),  # type: ignore[list-item]
        (fine, {"sampler": Forced({0: [1, 2, 3]})}, "has 3 tokens, position 3 was asked"),
        (fine, {"prefilled": Prefilled()}, "kept prefills are handed over"),
        (fine, {"chunk_tokens": 0}, "chunk_tokens must be at least 1"),
    ]
    for prompts, rules, match in tries:
        with pytest.raises(KvlabError, match=match):
            prefill(cells(prompts, **rules))
    here = cells(fine)
    for act in (here.release, here.check, here.back_up):
        with pytest.raises(PoolError, match="request 7 holds no rows"):
            act(7, SLOTS)
    full = ModelCells(made(requests=1), {0: [1, 2, 3], 1: [1, 2, 3]})
    prefill(full)
    with pytest.raises(PoolError, match="every running request needs a state slot: all 1 are"):
        prefill(full, rid=1)


def test_a_draw_from_no_distribution_is_refused() -> None:
    with pytest.raises(StudyError, match="request 4 at position 9 5 of 5 logprobs are NaN"):
        Seeded(1).pick(4, 9, torch.full((5,), NAN))
    with pytest.raises(StudyError, match=r"0 of 5 .* temperature 1e-300"):
        Seeded(1, 1e-300).pick(0, 0, torch.log_softmax(torch.arange(5.0), 0))
    with pytest.raises(StudyError, match=r"temperature must be finite and above 0: got 0\.0"):
        Seeded(1, 0.0)
    seeded: Any = Seeded
    with pytest.raises(IndexSpaceError, match="seed must be an int: got 'x'"):
        seeded("x")


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
    here, ids = cells({0: [1, 2, 3]}), SLOTS.ids.clone()
    here.write(torch.zeros(3, dtype=torch.int64), torch.arange(3), ids)
    for _ in range(2):
        here.check(0, WidenedSlots(ids))
        ids[2] = 9
        with pytest.raises(PoolError, match="must name the same slots of request 0"):
            here.check(0, WidenedSlots(ids))
        ids[2] = 6
        backups = here.back_up(0, WidenedSlots(ids))
        here.release(0, WidenedSlots(ids))
        here.restore(0, backups, WidenedSlots(ids))


def test_a_restore_or_a_backup_that_fails_gives_back_what_it_took() -> None:
    here = cells({0: [1, 2, 3]})
    prefill(here)
    backups = here.back_up(0, SLOTS)
    here.release(0, SLOTS)
    with pytest.raises(ValueError, match="position count is 3"):
        here.restore(0, backups, WidenedSlots(SLOTS.ids[:2]))
    pools = here.sharded.pools
    assert pools.states is not None and not pools.states._used
    here.restore(0, backups, WidenedSlots(SLOTS.ids + 4))
    pools = made().pools
    pools.ranks[1].host.capacity_bytes = 0
    with pytest.raises(ValueError, match="must fit the host arena"):
        pools.back_up(SLOTS, pools.alloc_state())
    assert [pool.host.lent_bytes for pool in pools.ranks] == [0, 0]


# The hand-over and the snapshot ------------------------------------------------------------------


def test_a_hand_over_that_is_refused_has_written_nothing() -> None:
    node, here, half = made(dcp_size=1), made(), made(kv_dtype=torch.bfloat16)
    sent, held = node.pools.alloc_state(), here.pools.alloc_state()
    source, twice = WidenedSlots(torch.arange(2, 5)), WidenedSlots(torch.tensor([4, 5, 4]))
    node.pools.fill(source, 3.0)
    stateless = made()
    stateless.pools.states = None
    for to, target, from_slot, to_slot, match in (
        (here, SLOTS, None, held, r"None \(prefill\) and 1 \(decode\)"),
        (here, SLOTS, sent, None, r"1 \(prefill\) and None \(decode\)"),
        (here, SLOTS, sent, 2, "a state slot must be in use: got 2"),
        (here, SLOTS, 2, held, "a state slot must be in use: got 2"),
        (here, twice, sent, held, "each of the 3 positions needs a target slot of its own"),
        (here, WidenedSlots(SLOTS.ids[:2]), sent, held, "has 3 from 0, the decode node 2 from 0"),
        (half, SLOTS, sent, held, r"one row format: .* are \(.*20 \+ 8"),
        (stateless, SLOTS, sent, held, r"no state\) are .* False\) at the prefill node, .* True\)"),
    ):
        with pytest.raises(PoolError, match=match):
            hand_over(node.pools, source, from_slot, to.pools, target, to_slot)
        assert not any(bool(pool.buffer.any()) for pool in to.pools.ranks)
    with pytest.raises(KvlabError, match="from DCP 1 to DCP c: the prefill node has dcp_size 2"):
        token_plan(SLOTS, LAY, source, node.layout)
    hand_over(node.pools, source, sent, here.pools, SLOTS, held)
    assert all(bool(pool.buffer.any()) for pool in here.pools.ranks)


def test_a_snapshot_compares_bits_and_names_the_first_that_differs() -> None:
    rows = torch.zeros(1, 2, 3, dtype=torch.uint8)

    def with_state(value: float) -> Snapshot:
        return Snapshot(rows, (torch.tensor([value]), torch.tensor([1.0])))

    with_state(NAN).require_equal(with_state(NAN), "x")
    with pytest.raises(PoolError, match="1 of 1 elements of its conv state differ"):
        with_state(0.0).require_equal(with_state(-0.0), "x")
    for one, other in ((None, with_state(1.0)), (with_state(1.0), None)):
        with pytest.raises(PoolError, match="x must come back as it left: its rows or its state"):
            (one or Snapshot(rows, None)).require_equal(other or Snapshot(rows, None), "x")
    sharded = made()
    slot = sharded.pools.alloc_state()
    before = take_snapshot(sharded.pools, SLOTS, slot)
    sharded.pools.ranks[1].buffer[1, 2] += 1
    with pytest.raises(PoolError, match=r"elements of its rows differ, first at \[1, 1, \d+\]"):
        before.require_equal(take_snapshot(sharded.pools, SLOTS, slot), "x")
    with pytest.raises(PoolError, match="its rows or its state were lost"):
        before.require_equal(take_snapshot(sharded.pools, WidenedSlots(SLOTS.ids[:2]), slot), "x")
    with pytest.raises(PoolError, match="a state slot must be in use: got 2"):
        take_snapshot(sharded.pools, SLOTS, 2)


def test_kvlab_and_its_scheduler_do_not_import_transformers() -> None:
    source = "import sys, kvlab.engine, kvlab.lab, kvlab.cli; "
    source += "sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], cwd=ROOT, check=False).returncode == 0

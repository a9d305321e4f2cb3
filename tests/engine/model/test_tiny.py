"""The tiny model is the same for a seed, and the library's KDA comes back whatever happens."""

from typing import Any

import pytest
import torch
from transformers.models.kimi_linear import modeling_kimi_linear as library

from kvlab.engine.model import model_shape
from kvlab.engine.model.tiny import new_tiny_model, tiny_config, training_kda


def test_the_tiny_model_has_rows_of_64_elements_in_two_layers_and_state_in_two() -> None:
    shape = model_shape(tiny_config())
    assert (shape.kv_lora_rank, shape.qk_rope_head_dim, shape.row_elements) == (48, 16, 64)
    assert (shape.full_layers, shape.linear_layers) == ((1, 3), (0, 2))
    assert (shape.heads, tiny_config().vocab_size) == (8, 256)


def test_a_seed_names_the_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, again, other = (new_tiny_model(seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    one, same, another = (m.state_dict() for m in (first, again, other))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], another["model.embed_tokens.weight"])
    assert sum(weight.numel() for weight in first.parameters()) == 895_504


def test_a_model_calls_the_function_of_the_block_and_the_librarys_own_after_it() -> None:
    model: Any = new_tiny_model(1)
    own, calls = library.chunk_kimi_delta_attention, []

    def counted(*args: Any, **more: Any) -> Any:
        calls.append(more["use_qk_l2norm_in_kernel"])
        return own(*args, **more)

    ids = torch.arange(20)[None]
    with torch.no_grad():
        with training_kda(counted):
            inside = model(input_ids=ids, use_cache=False).logits
        assert calls == [True, True]  # once a linear layer
        outside = model(input_ids=ids, use_cache=False).logits
    assert len(calls) == 2
    assert torch.equal(inside, outside)


def test_the_librarys_function_is_back_after_an_error_and_after_blocks_in_blocks() -> None:
    own = library.chunk_kimi_delta_attention

    def mine(*_: Any, **__: Any) -> Any:
        raise RuntimeError("mine was called")

    def inner(*_: Any, **__: Any) -> Any:
        raise AssertionError

    model: Any = new_tiny_model(1)
    with pytest.raises(RuntimeError, match="mine was called"), training_kda(mine):
        with training_kda(inner):
            pass
        model(input_ids=torch.arange(4)[None])
    assert library.chunk_kimi_delta_attention is own

"""The tiny model is the same for a seed."""

import torch

from kvlab.engine.model import model_shape
from kvlab.engine.model.tiny import new_tiny_model, tiny_config


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

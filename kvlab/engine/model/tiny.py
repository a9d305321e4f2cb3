"""The tiny byte-level Kimi Linear that kvlab trains itself (``scripts/train_tiny``).

Four layers, linear and full attention in turn, 895,504 weights: small enough to train on two cores
and to ship, and in every part the library's own model. A token is a byte, so there is no tokenizer,
no first and no last token.
"""

import torch
from transformers import KimiLinearConfig, KimiLinearForCausalLM, PreTrainedModel

# What ``load_model`` returns, for layers that may not import transformers.
Model = PreTrainedModel


def tiny_config() -> KimiLinearConfig:
    """The shape of the shipped checkpoint: a row of the cache has 48 + 16 elements a full layer."""
    return KimiLinearConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=320,
        num_attention_heads=8,
        num_key_value_heads=8,
        kv_lora_rank=48,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=32,
        num_hidden_layers=4,
        layer_types=["linear_attention", "full_attention"] * 2,
        mlp_layer_types=["dense"] * 4,
        num_local_experts=1,
        num_experts_per_tok=1,
        n_shared_experts=1,
        moe_intermediate_size=64,
        linear_head_dim=16,
        linear_num_heads=8,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
    )


def new_tiny_model(seed: int) -> KimiLinearForCausalLM:
    """A fresh model with the weights that ``seed`` draws, float32; the global generator of torch
    stays where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = KimiLinearForCausalLM(tiny_config())
    model.set_attn_implementation("sdpa")
    return model

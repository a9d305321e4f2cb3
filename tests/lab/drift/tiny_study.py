"""A random tiny checkpoint and a handful of short requests, for tests of the drift study."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    KimiLinearConfig,
    KimiLinearForCausalLM,
)

from kvlab.lab.drift import Prompts, read_prompts

LENGTHS = ((9, 12), (14, 9), (6, 12), (11, 10), (8, 12), (13, 8))
SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 12,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "num_experts_per_tok": 1,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    # Weights large enough that a wrong row or state is far from rounding.
    "initializer_range": 0.3,
}


def save_checkpoint(folder: Path, kind: str = "kimi") -> Path:
    """A random model in the library's format: kimi (KDA and MLA layers) or deepseek (MLA only)."""
    torch.manual_seed(3)
    model: Any
    if kind == "kimi":
        layers = ["full_attention", "linear_attention", "full_attention"]
        config: Any = KimiLinearConfig(**SHAPE, num_hidden_layers=3, layer_types=layers,
                                  mlp_layer_types=["dense"] * 3, num_local_experts=1,
                                  linear_head_dim=8, linear_num_heads=2)  # fmt: skip
        model = KimiLinearForCausalLM(config)
    else:
        config = DeepseekV3Config(**SHAPE, num_hidden_layers=2, n_routed_experts=2, n_group=1,
                                  topk_group=1, first_k_dense_replace=2)  # fmt: skip
        model = DeepseekV3ForCausalLM(config)
    model.save_pretrained(folder)
    return folder


def prompts_file(path: Path, lengths: tuple[tuple[int, int], ...] = LENGTHS) -> Path:
    """Requests of (prompt, output) tokens, their bytes all different."""
    lines = [
        {
            "prompt": "".join(chr(40 + (7 * i + 3 * j) % 80) for j in range(prompt)),
            "answer": "ab",
            "output_tokens": output,
        }
        for i, (prompt, output) in enumerate(lengths)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def prompts(folder: Path) -> Prompts:
    """Six requests that come one after the other."""
    return read_prompts(prompts_file(folder / "prompts.jsonl"))

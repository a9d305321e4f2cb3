"""Tiny random models and their own logits without pools: the oracles of these tests."""

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    KimiLinearConfig,
    KimiLinearForCausalLM,
    PreTrainedModel,
)

from kvlab.engine.model import ShardedModel
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import PagedTokenToKVPoolAllocator

VOCABULARY = 61
# Widths that differ from each other, so that a mixed-up axis cannot pass.
LATENT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 20,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_experts_per_tok": 2,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Weights large enough that attention is far from uniform and logits far from equal.
    "initializer_range": 0.15,
}
KIMI = ["linear_attention", "full_attention", "linear_attention", "full_attention"]


@lru_cache
def _made(kind: str) -> PreTrainedModel:
    torch.manual_seed(7)
    made: PreTrainedModel = _build(kind)
    made.train(False)
    return made


def _build(kind: str) -> Any:
    if kind.startswith("kimi"):
        config = KimiLinearConfig(
            **LATENT,
            num_hidden_layers=4,
            layer_types=KIMI,
            mlp_layer_types=["dense", *["dense" if kind == "kimi-dense" else "sparse"] * 3],
            num_local_experts=4,
            linear_head_dim=8,
            linear_num_heads=2,
        )
        return KimiLinearForCausalLM(config)
    more: dict[str, Any] = {"num_hidden_layers": 3, "n_routed_experts": 4, "n_group": 2}
    more |= {"topk_group": 1, "first_k_dense_replace": 1, "max_position_embeddings": 256}
    if kind == "deepseek-v2":
        return DeepseekV2ForCausalLM(DeepseekV2Config(**LATENT, **more))
    return DeepseekV3ForCausalLM(DeepseekV3Config(**LATENT, **more))


def model(kind: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A copy that a test may change: kimi-dense, kimi-moe, deepseek-v2 or deepseek-v3."""
    own: Any = copy.deepcopy(_made(kind))
    return own.to(dtype)  # type: ignore[no-any-return]


def prompt(seed: int, length: int) -> Tensor:
    """Random tokens, int64 ``(length,)``."""
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))


@lru_cache(maxsize=256)
def _logits(kind: str, tokens: tuple[int, ...], prefill: int, dtype: torch.dtype) -> Tensor:
    own = _made(kind) if dtype == torch.float32 else model(kind, dtype)
    with torch.no_grad():
        first = own(input_ids=torch.tensor([tokens[:prefill]]), use_cache=True)
        cache, lines = first.cache, [first.logits[0]]
        for token in tokens[prefill:]:
            step = own(input_ids=torch.tensor([[token]]), cache=cache, use_cache=True)
            lines.append(step.logits[0])
    return torch.cat(lines)


def library_logits(
    kind: str, tokens: Tensor, prefill: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The library's own logits with its own cache and attention: a prefill, then one token a call:
    ``(n, vocabulary)``. Made once for each question."""
    return _logits(kind, tuple(tokens.tolist()), prefill, dtype)


def library_logits_in_chunks(kind: str, tokens: Tensor, size: int) -> Tensor:
    """The library's own logits when its own cache is filled ``size`` tokens a call: ``(n, V)``."""
    own = _made(kind)
    cache, lines = None, []
    with torch.no_grad():
        for chunk in tokens.split(size):  # type: ignore[no-untyped-call]
            done = own(input_ids=chunk[None], cache=cache, use_cache=True)
            cache = done.cache
            lines.append(done.logits[0])
    return torch.cat(lines)


class Placed:
    """Requests with pages of one allocator, in the order in which they asked for them."""

    def __init__(self, sharded: ShardedModel, lens: Sequence[int]) -> None:
        self.sharded = sharded
        self.allocator = PagedTokenToKVPoolAllocator(sharded.layout)
        self.ids = [self._extend(torch.empty(0, dtype=torch.int64), n) for n in lens]
        self.states = [sharded.pools.alloc_state() for _ in lens]

    def slots(self, i: int) -> WidenedSlots:
        """The slots of a request."""
        return WidenedSlots(self.ids[i])

    def grow(self) -> None:
        """One more position for each request."""
        self.ids = [self._extend(ids, len(ids) + 1) for ids in self.ids]

    def _extend(self, ids: Tensor, to: int) -> Tensor:
        last = int(ids[-1]) if len(ids) else -1
        more = self.allocator.alloc_extend(len(ids), to, last)
        assert more is not None
        return torch.cat([ids, more])


def layout(dcp_size: int, page_size: int, tokens: int, requests: int = 1) -> DcpLayout:
    """Room for that many tokens of each request."""
    pages = requests * (-(-tokens // (dcp_size * page_size)) + 1)
    return DcpLayout(dcp_size, page_size, pages)

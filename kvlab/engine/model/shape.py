"""What kvlab needs to know of a model: its latent row, its recurrent state, which layer has which.

    Kimi-Linear-48B   rows of 512 + 64 in 7 of 27 layers, state in the other 20
    DeepSeek V3       rows of 512 + 64 in all 61 layers, no state

Only models whose cache holds the *compressed* latent can be sharded by token without splitting a
row, and only of those whose attention is plain causal attention is the step's plan the whole truth.
"""

from dataclasses import dataclass

from transformers import PreTrainedConfig

from kvlab.errors import CapacityError

# Each was read: what reaches ``cache.update`` is (normed latent, rope part) of one row.
MODEL_TYPES = ("kimi_linear", "deepseek_v2", "deepseek_v3")
_ROPE_BY_LENGTH = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Layers and widths of a model.

    ``full_layers`` and ``linear_layers`` are global layer ids; ``conv_shape`` ``(channels,
    kernel)`` and ``temporal_shape`` ``(heads, d, d)`` of one linear layer, None without any.
    """

    model_type: str
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    heads: int
    full_layers: tuple[int, ...]
    linear_layers: tuple[int, ...] = ()
    conv_shape: tuple[int, int] | None = None
    temporal_shape: tuple[int, int, int] | None = None

    @property
    def row_elements(self) -> int:
        """Elements of one token's row in one layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


def model_shape(config: PreTrainedConfig) -> ModelShape:
    """The shape of a model from its config. Errors: CapacityError for an architecture whose cache
    holds no compressed latent, one that kvlab has not been shown to run, a rotation that changes
    with the length, or a size that is none."""
    kind = str(getattr(config, "model_type", None))
    if getattr(config, "kv_lora_rank", None) is None:
        raise CapacityError(
            f"a model must cache a compressed latent (kv_lora_rank): {kind!r} has none, so its "
            f"cache holds keys and values a head, and there is no row of an MLA pool to shard; "
            f"use one of {', '.join(MODEL_TYPES)}"
        )
    if kind not in MODEL_TYPES:
        raise CapacityError(
            f"model_type must be one of {', '.join(MODEL_TYPES)}: got {kind!r}; it has a latent, "
            f"but what its attention asks of the cache beside it is not what these ask"
        )
    latent, nope, value, heads = (
        _size(config, name)
        for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "num_attention_heads")
    )
    _require_fixed_rope(config)
    layers = range(_size(config, "num_hidden_layers"))
    kinds = getattr(config, "layer_types", None) if kind == "kimi_linear" else None
    if kinds is not None and len(kinds) != len(layers):
        raise CapacityError(
            f"layer_types names each layer once: got {len(kinds)} for {len(layers)} layers; set "
            f"num_hidden_layers or layer_types"
        )
    linear = tuple(i for i in layers if kinds is not None and kinds[i] == "linear_attention")
    full = tuple(i for i in layers if i not in linear)
    if not full:
        raise CapacityError(
            f"at least one layer must keep rows: all {len(layers)} layers of this {kind} config "
            f"are linear_attention; set layer_types"
        )
    conv = temporal = None
    if linear:
        many, width = _size(config, "linear_num_heads"), _size(config, "linear_head_dim")
        # Query, key and value of all heads go through one convolution.
        conv = (3 * many * width, _size(config, "linear_conv_kernel_dim"))
        temporal = (many, width, width)
    return ModelShape(
        model_type=kind,
        kv_lora_rank=latent,
        qk_rope_head_dim=_size(config, "qk_rope_head_dim", least=0),
        qk_nope_head_dim=nope,
        v_head_dim=value,
        heads=heads,
        full_layers=full,
        linear_layers=linear,
        conv_shape=conv,
        temporal_shape=temporal,
    )


def _require_fixed_rope(config: PreTrainedConfig) -> None:
    """The library keeps the frequencies of such a rope in the model: one request's length would
    change what another one says, and a request would not come back as it left."""
    rope: object = getattr(config, "rope_parameters", None)
    kind = rope.get("rope_type") if isinstance(rope, dict) else None
    if kind in _ROPE_BY_LENGTH:
        raise CapacityError(
            f"a token's rotation must depend on its position alone: rope_type {kind!r} depends on "
            f"the longest request of a call, and rows in the cache keep the old one; use yarn, "
            f"linear or default"
        )


def _size(config: PreTrainedConfig, name: str, least: int = 1) -> int:
    found: object = getattr(config, name, None)
    if isinstance(found, bool) or not isinstance(found, int) or found < least:
        raise CapacityError(
            f"{name} of a model's config must be an int of at least {least}: got {found!r}; use "
            f"the config that belongs to the weights"
        )
    return found

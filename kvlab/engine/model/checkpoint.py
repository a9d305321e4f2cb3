"""A checkpoint from a folder: its config is judged first, then its weights are read, all of them.

    model = load_model("data/checkpoints/tiny-kimi-linear")

Only safetensors: a pickle runs code when it is read. Only this folder: nothing is fetched, and code
that a checkpoint brings along is not run.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.errors import CapacityError, StudyError

# Each was read: what reaches ``cache.update`` is (normed latent, rope part) of one row.
MODEL_TYPES = ("kimi_linear", "deepseek_v2", "deepseek_v3")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_STORED = ("F64", "F32", "F16", "BF16")
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


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

    def size(name: str, least: int = 1) -> int:
        found: object = getattr(config, name, None)
        if type(found) is not int or found < least:
            raise CapacityError(f"{name} of a config is an int of at least {least}: got {found!r}")
        return found

    kind = str(getattr(config, "model_type", None))
    if getattr(config, "kv_lora_rank", None) is None:
        raise CapacityError(
            f"a model must cache a compressed latent (kv_lora_rank): {kind!r} has none, so its "
            f"cache holds keys and values a head; use one of {', '.join(MODEL_TYPES)}"
        )
    if kind not in MODEL_TYPES:
        raise CapacityError(f"model_type is one of {', '.join(MODEL_TYPES)}: got {kind!r}")
    # The library keeps the frequencies of such a rope in the model: one request's length would
    # change what another one says, and a request would not come back as it left.
    rope: object = getattr(config, "rope_parameters", None)
    turned = rope.get("rope_type") if isinstance(rope, dict) else None
    if turned in ("dynamic", "longrope"):
        raise CapacityError(
            f"a token's rotation depends on its position alone: rope_type {turned!r} depends on "
            f"the longest request; use yarn, linear or default"
        )
    layers = range(size("num_hidden_layers"))
    kinds = getattr(config, "layer_types", None) if kind == "kimi_linear" else None
    if kinds is not None and len(kinds) != len(layers):
        raise CapacityError(
            f"layer_types names each layer once: got {len(kinds)} for {len(layers)} layers"
        )
    linear = tuple(i for i in layers if kinds is not None and kinds[i] == "linear_attention")
    if len(linear) == len(layers):
        raise CapacityError(f"at least one layer keeps rows: all {len(layers)} are linear")
    conv = temporal = None
    if linear:
        many, width = size("linear_num_heads"), size("linear_head_dim")
        # Query, key and value of all heads go through one convolution.
        conv = (3 * many * width, size("linear_conv_kernel_dim"))
        temporal = (many, width, width)
    return ModelShape(
        model_type=kind,
        kv_lora_rank=size("kv_lora_rank"),
        qk_rope_head_dim=size("qk_rope_head_dim", least=0),
        qk_nope_head_dim=size("qk_nope_head_dim"),
        v_head_dim=size("v_head_dim"),
        heads=size("num_attention_heads"),
        full_layers=tuple(i for i in layers if i not in linear),
        linear_layers=linear,
        conv_shape=conv,
        temporal_shape=temporal,
    )


def load_model(
    path: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> PreTrainedModel:
    """The model of a checkpoint, ready to be called, its weights in ``dtype`` on ``device``.

    Args:
        path: a folder with ``config.json`` and ``model.safetensors``, or several safetensors files
            and their index, as transformers writes them.
        dtype: float32, bfloat16 or float16.

    Errors: CapacityError as ``model_shape``, before a weight is read; StudyError for a folder that
    is not such a checkpoint, weights that are quantized, missing, too many, of other shapes or not
    finite, and a device that is not there.
    """
    if dtype not in _DTYPES:
        raise StudyError(
            f"a model computes in one of {', '.join(map(str, _DTYPES))}: got {dtype}; fp8 is for "
            f"rows, ShardedModel(..., kv_dtype={dtype})"
        )
    try:
        place = torch.empty(0, device=torch.device(device)).device
    except Exception as error:  # torch raises an AssertionError for a CUDA it was not built with
        raise StudyError(f"a device must be there: {device!r} gives {_short(error)}") from error
    folder, name = Path(path), Path(path).name
    config = _config(folder)
    shape = model_shape(config)
    # transformers would load what these name in place of, or beside, what is checked here.
    for found, what in (
        (getattr(config, "quantization_config", None), "a quantization_config"),
        ((folder / "adapter_config.json").exists() or None, "an adapter_config.json"),
        (getattr(config, "transformers_weights", None), "transformers_weights"),
    ):
        if found is not None:
            raise StudyError(
                f"weights are plain floats of {_WHOLE} or {_INDEX}: {name!r} has {what}"
            )
    tensors = sum(_tensors(part) for part in _parts(folder))
    layers = len(shape.full_layers) + len(shape.linear_layers)
    if tensors < layers:  # before a module is made for each
        raise StudyError(
            f"each layer has weights: the config of {name!r} has {layers} layers, its files "
            f"{tensors} tensors"
        )
    read: Any = AutoModelForCausalLM.from_pretrained  # its type knows no output_loading_info
    try:
        model, told = read(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported in what was found, and refused below
            attn_implementation="sdpa",  # else the config could name one that is to be fetched
        )
    except Exception as error:  # a config can lead to a package that is not here, or to any value
        raise StudyError(f"transformers refuses {name!r} with {_short(error)}") from error
    values = [*model.named_parameters(), *model.named_buffers()]
    wrong = {  # a missing one would be random
        kind: [n if isinstance(n, str) else n[0] for n in told.get(f"{kind}_keys") or ()]
        for kind in ("missing", "unexpected", "mismatched")
    } | {"not finite": [of for of, w in values if not bool(torch.isfinite(w).all())]}
    for kind, names in wrong.items():
        if names:
            raise StudyError(
                f"a checkpoint has each weight of its config once, finite in {dtype}, and no "
                f"other: {len(names)} of {name!r} are {kind}, first {min(names)}"
            )
    loaded: PreTrainedModel = model.to(place)
    loaded.train(False)
    return loaded


def _config(folder: Path) -> PreTrainedConfig:
    """The config; that of an unknown architecture as plain values, so that its shape is judged."""
    place = folder / "config.json"
    try:
        found = place.is_file()
    except (OSError, ValueError):  # a name too long for the system, or with a NUL in it
        found = False
    if not found:
        raise StudyError(
            f"a checkpoint is a folder with a config.json: {str(folder)[:200]!r} has none; pass "
            f"what save_pretrained wrote (nothing is fetched)"
        )
    values = _json(place)
    try:
        if values.get("model_type") not in CONFIG_MAPPING:
            return PreTrainedConfig.from_dict(values)
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # what a library raises for values of a wrong type is its own
        raise StudyError(
            f"a config is one that transformers reads: {str(place)!r} gives {_short(error)}"
        ) from error
    return config


def _parts(folder: Path) -> list[Path]:
    """The safetensors files."""
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        raise StudyError(
            f"weights are read from {_WHOLE} or {_INDEX}: {folder.name!r} has neither (a pickle "
            f"runs code when it is read); save it with save_pretrained"
        )
    named = _json(folder / _INDEX).get("weight_map")
    parts = [Path(str(n)) for n in sorted(set(named.values()))] if isinstance(named, dict) else []
    wrong = [
        part
        for part in parts
        if part.name != str(part) or part.suffix != ".safetensors" or not (folder / part).is_file()
    ]
    if wrong or not parts:
        raise StudyError(
            f"an index names safetensors files beside it: of the {len(parts)} in {folder.name!r} "
            f"these are none: {[str(part) for part in wrong]}"
        )
    return [folder / part for part in parts]


def _tensors(part: Path) -> int:
    """How many tensors the file has, all of them plain floats."""
    try:
        with safe_open(part, framework="pt") as opened:
            kinds = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StudyError(
            f"a safetensors file begins with its table of tensors: {part.name!r} of "
            f"{part.stat().st_size} bytes gives {_short(error)}"
        ) from error
    wrong = sorted(name for name, kind in kinds.items() if kind not in _STORED)
    if wrong:
        raise StudyError(
            f"a weight is stored as one of {', '.join(_STORED)}: {len(wrong)} of the "
            f"{len(kinds)} in {part.name!r} are not, first {wrong[0]} ({kinds[wrong[0]]})"
        )
    return len(kinds)


def _json(place: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        values: object = json.loads(place.read_text(encoding="utf-8"), parse_constant=refuse)
        if not isinstance(values, dict):
            raise ValueError(f"it holds a {type(values).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise StudyError(f"{str(place)!r} must be one JSON object: {_short(error)}") from error
    return values


def _short(error: BaseException) -> str:
    """The first line of another library's error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"

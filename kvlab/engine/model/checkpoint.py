"""A checkpoint from a folder: its config is judged first, then its weights are read, all of them.

    model = load_model("data/checkpoints/tiny-kimi-linear")
    sharded = ShardedModel(model, DcpLayout(4, 16, 64), requests=8)

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
_ROPE_BY_LENGTH = ("dynamic", "longrope")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_STORED = ("F64", "F32", "F16", "BF16")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
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
    place = _device(device)
    folder = _folder(path)
    config = _config(folder)
    shape = model_shape(config)
    _require_plain(folder, config)
    tensors = sum(_require_readable(part) for part in _parts(folder))
    layers = len(shape.full_layers) + len(shape.linear_layers)
    if tensors < layers:  # before a module is made for each
        raise StudyError(
            f"each layer has weights: the config of {folder.name!r} has {layers} layers, its files "
            f"{tensors} tensors; use the config that belongs to them"
        )
    read: Any = AutoModelForCausalLM.from_pretrained  # its type knows no output_loading_info
    try:
        model, found = read(
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
        raise StudyError(
            f"the weights must be those of the config: transformers refuses {folder.name!r} with "
            f"{_short(error)}; save it again with save_pretrained"
        ) from error
    _require_complete(folder, found)
    values = [*model.named_parameters(), *model.named_buffers()]
    bad = [name for name, weight in values if not bool(torch.isfinite(weight).all())]
    if bad:
        raise StudyError(
            f"every weight must be finite: {len(bad)} of {folder.name!r} hold a NaN or an infinity "
            f"in {dtype}, first {bad[0]}; this checkpoint cannot be measured"
        )
    loaded: PreTrainedModel = model.to(place)
    loaded.train(False)
    return loaded


def _folder(path: str | Path) -> Path:
    try:
        found = Path(path).is_dir()
    except (OSError, ValueError):  # a name too long for the system, or with a NUL in it
        found = False
    if not found:
        raise StudyError(
            f"a checkpoint is a folder with a config.json: {str(path)[:200]!r} is no folder; pass "
            f"the folder that save_pretrained wrote (nothing is fetched)"
        )
    return Path(path)


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=torch.device(device)).device
    except Exception as error:  # torch raises an AssertionError for a CUDA it was not built with
        raise StudyError(
            f"a device must be there: {device!r} gives {_short(error)}; use 'cpu', or 'cuda' where "
            f"torch.cuda.is_available()"
        ) from error


def _require_plain(folder: Path, config: PreTrainedConfig) -> None:
    """No weights but those that are checked here."""
    # transformers would load what the last two name in place of it.
    for found, what in (
        (getattr(config, "quantization_config", None), "a quantization_config; dequantize it"),
        ((folder / "adapter_config.json").exists() or None, "an adapter_config.json; merge it"),
        (getattr(config, "transformers_weights", None), "transformers_weights; remove the key"),
    ):
        if found is not None:
            raise StudyError(
                f"weights are plain floats of {_WHOLE} or {_INDEX}: {folder.name!r} has {what} and "
                f"save it with save_pretrained"
            )


def _config(folder: Path) -> PreTrainedConfig:
    """The config; that of an unknown architecture as plain values, so that its shape is judged."""
    place = folder / "config.json"
    if not place.is_file():
        raise StudyError(
            f"a checkpoint is a folder with a config.json: {str(folder)!r} has none; pass the "
            f"folder that save_pretrained wrote (nothing is fetched)"
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
            f"a config must be one that transformers reads: {str(place)!r} gives {_short(error)}; "
            f"write it with save_pretrained"
        ) from error
    return config


def _parts(folder: Path) -> list[Path]:
    """The safetensors files."""
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        pickles = sorted(p.name for kind in _PICKLES for p in folder.glob(kind))
        raise StudyError(
            f"weights are read from {_WHOLE} or {_INDEX}: {folder.name!r} has neither"
            + (f", only {pickles[0]}: a pickle runs code when it is read" if pickles else "")
            + "; save it with save_pretrained, which writes safetensors"
        )
    named = _json(folder / _INDEX).get("weight_map")
    names = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
    missing = [
        name
        for name in names
        if Path(name).name != name
        or Path(name).suffix != ".safetensors"
        or not (folder / name).is_file()
    ]
    if missing or not names:
        raise StudyError(
            f"an index names safetensors files beside it: {len(missing)} of the {len(names)} in "
            f"{folder.name!r} are not there{f', first {missing[0]!r}' if missing else ''}; "
            f"copy the whole folder"
        )
    return [folder / name for name in names]


def _require_readable(part: Path) -> int:
    """How many tensors the file has."""
    try:
        with safe_open(part, framework="pt") as opened:
            kinds = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StudyError(
            f"a safetensors file begins with its table of tensors: {part.name!r} of "
            f"{part.stat().st_size} bytes gives {_short(error)}; copy the file again"
        ) from error
    wrong = sorted(name for name, kind in kinds.items() if kind not in _STORED)
    if wrong:
        raise StudyError(
            f"a weight is stored as one of {', '.join(_STORED)}: {len(wrong)} of the "
            f"{len(kinds)} in {part.name!r} are not, first {wrong[0]} ({kinds[wrong[0]]}); save "
            f"the model with save_pretrained"
        )
    return len(kinds)


def _require_complete(folder: Path, found: dict[str, Any]) -> None:
    for kind in ("missing", "unexpected", "mismatched"):
        names = [n if isinstance(n, str) else n[0] for n in found.get(f"{kind}_keys") or ()]
        if names:
            raise StudyError(
                f"a checkpoint has each weight of its config once, and no other: {len(names)} of "
                f"{folder.name!r} are {kind}, first {min(names)}; a missing one would be random"
            )


def _json(place: Path) -> dict[str, Any]:
    try:
        values: object = json.loads(place.read_text(encoding="utf-8"), parse_constant=_refuse)
        if not isinstance(values, dict):
            raise ValueError(f"it holds a {type(values).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise StudyError(
            f"{place.name} must be one JSON object in UTF-8: {str(place)!r} gives {_short(error)}; "
            f"write it with save_pretrained"
        ) from error
    return values


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _short(error: BaseException) -> str:
    """The first line of another library's error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"

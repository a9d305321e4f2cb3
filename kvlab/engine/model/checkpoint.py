"""A checkpoint from a folder: its config is judged first, then its weights are read, all of them.

    model = load_model("data/checkpoints/tiny-kimi-linear")
    sharded = ShardedModel(model, DcpLayout(4, 16, 64), requests=8)

Only safetensors: a pickle runs code when it is read. Only this folder: nothing is fetched, and code
that a checkpoint brings along is not run.
"""

import json
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.engine.model.shape import model_shape
from kvlab.errors import StudyError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_STORED = ("F64", "F32", "F16", "BF16")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


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
    is not such a checkpoint, weights that are quantised, missing, too many, of other shapes or not
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
    bad = [name for name, weight in values if not _finite(weight)]
    if bad:
        raise StudyError(
            f"every weight must be finite: {len(bad)} of {folder.name!r} hold a NaN or an infinity "
            f"in {dtype}, first {bad[0]}; this checkpoint cannot be measured"
        )
    loaded: PreTrainedModel = model.to(place)
    loaded.train(False)
    return loaded


def _folder(path: str | Path) -> Path:
    given: object = path
    if not isinstance(given, str | Path):
        raise StudyError(
            f"a checkpoint is named by the path of its folder: got {given!r} "
            f"({type(given).__name__}); pass a str or a Path"
        )
    try:
        found = Path(given).is_dir()
    except OSError:  # a name too long for the system
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
    """No quantised weights, and no adapter that would lead to another folder."""
    if getattr(config, "quantization_config", None) is not None:
        raise StudyError(
            f"weights are read as plain floats: the config of {folder.name!r} has a "
            f"quantization_config; dequantize it and save it with save_pretrained"
        )
    if (folder / "adapter_config.json").exists():
        raise StudyError(
            f"a checkpoint is whole: {folder.name!r} has an adapter_config.json, which leads to "
            f"the weights of another folder; merge the adapter and save the model"
        )
    named = getattr(config, "transformers_weights", None)
    if named is not None:  # transformers would load it in place of the files that are checked here
        raise StudyError(
            f"weights are read from {_WHOLE} or {_INDEX}: the config of {folder.name!r} names "
            f"others, transformers_weights={named!r}; remove the key, and save the model again"
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
            f"{len(kinds)} in {part.name!r} are not, first {wrong[0]} ({kinds[wrong[0]]}); other "
            f"numbers need a scale or mean something else: save the model with save_pretrained"
        )
    return len(kinds)


def _require_complete(folder: Path, found: dict[str, object]) -> None:
    for kind, wrong in (
        ("missing", "missing_keys"),
        ("not the model's", "unexpected_keys"),
        ("of another shape", "mismatched_keys"),
    ):
        names = found.get(wrong) or ()
        assert isinstance(names, list | tuple | set)
        if names:
            first = sorted(str(name[0] if isinstance(name, tuple) else name) for name in names)[0]
            raise StudyError(
                f"a checkpoint has each weight of its config once, and no other: {len(names)} of "
                f"{folder.name!r} are {kind}, first {first}; a missing one would be random"
            )


def _json(place: Path) -> dict[str, Any]:
    try:
        text = place.read_text(encoding="utf-8")
        values: object = json.loads(text, parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise StudyError(
            f"{place.name} must be JSON in UTF-8: {str(place)!r} gives {_short(error)}; write it "
            f"with save_pretrained"
        ) from error
    if not isinstance(values, dict):
        raise StudyError(
            f"{place.name} must hold one JSON object: {str(place)!r} holds a "
            f"{type(values).__name__}; write it with save_pretrained"
        )
    return values


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(weight: torch.Tensor) -> bool:
    return bool(torch.isfinite(weight).all())


def _short(error: BaseException) -> str:
    """The first line of another library's error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"

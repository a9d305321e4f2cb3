"""A checkpoint from a folder: its config is judged first, then its weights are read, all of them.

    model = load_model("data/checkpoints/tiny-kimi-linear")
    sharded = ShardedModel(model, DcpLayout(4, 16, 64), requests=8)

Only safetensors: a pickle runs code when it is read. Only this folder: nothing is fetched, and code
that a checkpoint brings along is not run.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.engine.model.shape import model_shape
from kvlab.errors import StudyError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
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
    is not such a checkpoint, weights that are missing, too many, of other shapes or not finite.
    """
    if dtype not in _DTYPES:
        raise StudyError(
            f"a model computes in one of {', '.join(map(str, _DTYPES))}: got {dtype}; fp8 is for "
            f"rows, ShardedModel(..., kv_dtype={dtype})"
        )
    folder = Path(path)
    config = _config(folder)
    model_shape(config)
    for part in _parts(folder):
        _require_readable(part)
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
        )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise StudyError(
            f"the weights must be those of the config: transformers refuses {folder.name!r} with "
            f"{_short(error)}; save it again with save_pretrained"
        ) from error
    _require_complete(folder, found)
    bad = [name for name, weight in model.named_parameters() if not _finite(weight)]
    if bad:
        raise StudyError(
            f"every weight must be finite: {len(bad)} of {folder.name!r} hold a NaN or an infinity "
            f"in {dtype}, first {bad[0]}; this checkpoint cannot be measured"
        )
    loaded: PreTrainedModel = model.to(device)
    loaded.train(False)
    return loaded


def _config(folder: Path) -> PreTrainedConfig:
    """The config; that of an unknown architecture as plain values, so that its shape is judged."""
    place = folder / "config.json"
    if not folder.is_dir() or not place.is_file():
        raise StudyError(
            f"a checkpoint is a folder with a config.json: {str(folder)!r} "
            f"{'has none' if folder.is_dir() else 'is no folder'}; pass the folder that "
            f"save_pretrained wrote (nothing is fetched)"
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
    missing = [n for n in names if Path(n).name != n or not (folder / n).is_file()]
    if missing or not names:
        raise StudyError(
            f"an index names files beside it: {len(missing)} of the {len(names)} in "
            f"{folder.name!r} are not there{f', first {missing[0]!r}' if missing else ''}; "
            f"copy the whole folder"
        )
    return [folder / name for name in names]


def _require_readable(part: Path) -> None:
    try:
        with safe_open(part, framework="pt") as opened:
            opened.keys()
    except (SafetensorError, OSError) as error:
        raise StudyError(
            f"a safetensors file begins with its table of tensors: {part.name!r} of "
            f"{part.stat().st_size} bytes gives {_short(error)}; copy the file again"
        ) from error


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
        values: object = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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


def _finite(weight: torch.Tensor) -> bool:
    return bool(torch.isfinite(weight).all())


def _short(error: BaseException) -> str:
    """The first line of another library's error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"

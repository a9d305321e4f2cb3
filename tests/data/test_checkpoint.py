"""The shipped checkpoint as a file: small, whole, finite, of its config's shapes, no pickle."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from kvlab.engine.model.tiny import tiny_config

DATA = Path(__file__).resolve().parents[2] / "data"
FOLDER = DATA / "checkpoints" / "tiny-kimi-linear"
WEIGHTS = FOLDER / "model.safetensors"
README = (DATA / "README.md").read_text(encoding="utf-8")
SECTION = README.split("\n## checkpoints/tiny-kimi-linear/measured.json\n")[-1].split("\n## ")[0]
FACTS = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))


def tensors() -> dict[str, NDArray[Any]]:
    """Read without the library: 8 bytes of length, a JSON header, and the numbers."""
    content = WEIGHTS.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    body = content[8 + length :]
    ends = sorted(entry["data_offsets"] for entry in header.values())
    assert [begin for begin, _ in ends] == [0, *[end for _, end in ends[:-1]]]
    assert ends[-1][1] == len(body)
    assert {entry["dtype"] for entry in header.values()} == {"F32"}
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
        for name, entry in header.items()
    }


def test_the_weights_are_float32_finite_and_fill_a_file_of_at_most_six_megabytes() -> None:
    assert WEIGHTS.stat().st_size <= 6_000_000
    found = tensors()
    assert sum(weight.size for weight in found.values()) == FACTS["parameters"] == 895_504
    assert all(np.isfinite(weight).all() for weight in found.values())
    assert all(weight.std() > 0 for weight in found.values())


def test_every_weight_has_the_name_and_shape_that_a_fresh_model_of_the_config_is_saved_with(
    tmp_path: Path,
) -> None:
    library: Any = AutoModelForCausalLM
    library.from_config(AutoConfig.from_pretrained(FOLDER)).save_pretrained(tmp_path)
    fresh = load_file(tmp_path / WEIGHTS.name)
    assert {name: weight.shape for name, weight in tensors().items()} == {
        name: tuple(weight.shape) for name, weight in fresh.items()
    }


def test_the_config_is_that_of_the_package_but_for_what_saving_adds() -> None:
    saved = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    package = tiny_config().to_dict()
    assert {k: v for k, v in saved.items() if package.get(k) != v} == {
        "architectures": ["KimiLinearForCausalLM"],
        "dtype": "float32",
    }


def test_the_checksum_is_stated_in_the_measurement_and_in_the_readme() -> None:
    digest = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    assert FACTS["checkpoint"] == {
        "file": WEIGHTS.name,
        "bytes": WEIGHTS.stat().st_size,
        "sha256": digest,
    }
    assert digest in README


def test_the_figures_of_the_readme_are_those_of_the_measurement() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|", SECTION, re.MULTILINE)
    told = {name: (float(value), float(error)) for name, value, error in rows}
    right = {n: (f["score"], f["standard_error"]) for n, f in FACTS["recall"].items()}
    held = FACTS["held_out"]
    assert told == {"bits_per_byte": (held["bits_per_byte"], held["standard_error"]), **right}
    assert [name for name in FACTS if f"`{name}`" not in SECTION] == []


def test_no_text_of_the_folder_names_a_path_and_no_file_is_a_pickle() -> None:
    for name in ("log.jsonl", "config.json", "measured.json", "loss-curve.json"):
        content = (FOLDER / name).read_text(encoding="utf-8")
        assert "_name_or_path" not in content
        assert not re.search(r'"/\w|\\\\|~/', content)
    endings = {file.suffix for file in FOLDER.iterdir()}
    assert endings <= {".json", ".jsonl", ".safetensors", ".csv", ".svg", ".pdf", ".png"}
    assert not any(file.read_bytes()[:1] == b"\x80" for file in FOLDER.iterdir())

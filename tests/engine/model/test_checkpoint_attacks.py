"""Checkpoints that would run code, fetch something, or load as other numbers than they say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvlab.engine.model import load_model, model_shape
from kvlab.errors import CapacityError, StudyError
from kvlab.lab.drift.study import weights_digest
from tests.engine.model.test_checkpoint import WHOLE, change_config
from tests.engine.model.tiny import model

NAME = "model.layers.1.self_attn.kv_b_proj.weight"
load: Any = load_model  # bad values are what the types forbid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model("kimi-moe").save_pretrained(tmp_path / "kimi")
    return tmp_path / "kimi"


def rewrite(folder: Path, **weights: torch.Tensor) -> None:
    save_file(load_file(folder / WHOLE) | weights, folder / WHOLE, metadata={"format": "pt"})


@pytest.mark.parametrize("given", ["", "a" * 5000, "a\0b", "some/model", "/dev/null"])
def test_a_path_to_no_folder_is_refused_and_nothing_is_fetched(given: str) -> None:
    with pytest.raises(StudyError, match=r"with a config\.json: '.*' (is no folder|has none)"):
        load(given)


@pytest.mark.parametrize("device", ["nope", "cuda:99", True, 1.5])
def test_a_device_that_is_not_there_is_refused_before_the_weights(
    folder: Path, device: object
) -> None:
    with pytest.raises(StudyError, match=r"a device must be there: .* gives .*; use 'cpu'"):
        load(folder, device=device)


def test_code_that_a_checkpoint_brings_along_is_not_run(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\nclass Evil: pass\ndef generate(*a, **k): pass\n"
    (folder / "evil.py").write_text(code)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    change_config(folder, auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"})
    assert type(load_model(folder)).__name__ == "KimiLinearForCausalLM"
    assert not ran.exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("named", ["someone/kernel", "flash_attention_2", "nope"])
def test_an_attention_that_a_config_names_is_not_looked_for(
    folder: Path, key: str, named: str
) -> None:
    change_config(folder, **{key: named})
    assert load_model(folder).config._attn_implementation == "sdpa"


def test_an_adapter_that_leads_to_another_folder_is_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/model"}')
    with pytest.raises(StudyError, match=r"'kimi' has an adapter_config\.json; merge it"):
        load_model(folder)


def test_weights_that_the_config_names_in_place_of_those_that_are_checked_are_refused(
    folder: Path,
) -> None:
    weights = {name: value * 2 for name, value in load_file(folder / WHOLE).items()}
    save_file(weights, folder / "b.safetensors", metadata={"format": "pt"})
    change_config(folder, transformers_weights="b.safetensors")
    with pytest.raises(StudyError, match=r"'kimi' has transformers_weights; remove the key"):
        load_model(folder)


def test_an_index_that_names_a_pickle_is_refused(tmp_path: Path) -> None:
    own: Any = model("kimi-moe")
    own.save_pretrained(tmp_path, max_shard_size="40KB")
    place = tmp_path / "model.safetensors.index.json"
    first = min(tmp_path.glob("*.safetensors"))
    first.rename(tmp_path / "first.bin")
    place.write_text(place.read_text().replace(first.name, "first.bin"))
    with pytest.raises(StudyError, match=r"names safetensors files .* first 'first\.bin'"):
        load_model(tmp_path)


@pytest.mark.parametrize("size", ["1GB", "40KB"])
def test_the_stamp_is_of_the_bytes_that_are_loaded(tmp_path: Path, size: str) -> None:
    own: Any = model("kimi-moe")
    own.save_pretrained(tmp_path, max_shard_size=size)
    before = weights_digest(tmp_path)
    for part in tmp_path.glob("*.safetensors"):
        kept = load_file(part)
        changed = {name: value + 1 for name, value in kept.items()}
        save_file(changed, part, metadata={"format": "pt"})
        assert weights_digest(tmp_path) != before
        save_file(kept, part, metadata={"format": "pt"})
    assert weights_digest(tmp_path) == before


@pytest.mark.parametrize("method", ["bitsandbytes", "fp8", "gptq"])
def test_quantized_weights_are_refused(folder: Path, method: str) -> None:
    change_config(folder, quantization_config={"quant_method": method})
    with pytest.raises(StudyError, match="'kimi' has a quantization_config; dequantize it"):
        load_model(folder)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
def test_weights_that_are_no_plain_floats_are_refused(folder: Path, dtype: torch.dtype) -> None:
    rewrite(folder, **{NAME: torch.ones(66, 20).to(dtype)})
    with pytest.raises(StudyError, match=rf"F64, F32, F16, BF16: 1 of the .* first {NAME} \("):
        load_model(folder)


def test_a_nan_in_a_buffer_is_found_as_one_in_a_weight_is(folder: Path) -> None:
    name = "model.layers.1.block_sparse_moe.gate.e_score_correction_bias"
    rewrite(folder, **{name: torch.full((4,), torch.nan)})
    with pytest.raises(StudyError, match=r"1 of 'kimi' hold a NaN .* first .*e_score_correction"):
        load_model(folder)


def test_json_that_is_none_is_refused(folder: Path) -> None:
    change_config(folder, rms_norm_eps=float("nan"))
    with pytest.raises(StudyError, match="NaN is no number of JSON"):
        load_model(folder)
    (folder / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(StudyError, match=r"must be one JSON object .* RecursionError"):
        load_model(folder)


def test_weights_behind_a_link_are_read_and_a_link_to_nothing_is_none(folder: Path) -> None:
    moved = folder.parent / "elsewhere.safetensors"
    (folder / WHOLE).rename(moved)
    (folder / WHOLE).symlink_to(moved)
    load_model(folder)
    moved.unlink()
    with pytest.raises(StudyError, match="'kimi' has neither"):
        load_model(folder)


@pytest.mark.parametrize(
    "name",
    ["kv_lora_rank", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "num_attention_heads",
     "num_hidden_layers", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"],
)  # fmt: skip
def test_a_size_that_is_none_is_named(name: str) -> None:
    config = model("kimi-moe").config
    for bad in (-1, "wide", 2.0, True):
        object.__setattr__(config, name, bad)
        with pytest.raises(CapacityError, match=f"{name} of a model's config must be an int of"):
            model_shape(config)


def test_each_layer_has_a_type() -> None:
    config = model("kimi-moe").config
    object.__setattr__(config, "layer_types", ["full_attention"])
    with pytest.raises(CapacityError, match="names each layer once: got 1 for 4 layers"):
        model_shape(config)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_rope_that_looks_at_the_longest_request_is_refused(kind: str) -> None:
    config = model("deepseek-v3").config
    config.rope_parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(CapacityError, match=f"position alone: rope_type '{kind}' depends on the"):
        model_shape(config)
    config.rope_parameters = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0}
    model_shape(config)


def test_more_layers_than_tensors_are_refused_before_a_module_is_made(tmp_path: Path) -> None:
    model("deepseek-v3").save_pretrained(tmp_path)
    change_config(tmp_path, num_hidden_layers=1_000_000)
    with pytest.raises(StudyError, match=r"has 1000000 layers, its files \d+ tensors"):
        load_model(tmp_path)

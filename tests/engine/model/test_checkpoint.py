"""A checkpoint comes whole from its own folder, or with a sentence that says why not: none runs
code, fetches something, or loads as other numbers than it says."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from kvlab.engine.model import load_model, model_shape
from kvlab.engine.model.tiny import new_tiny_model, tiny_config
from kvlab.errors import CapacityError, StudyError
from kvlab.lab.drift.study import weights_digest
from tests.engine.model.tiny import model, prompt

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NAME = "model.layers.1.self_attn.kv_b_proj.weight"
BIAS = "model.layers.1.block_sparse_moe.gate.e_score_correction_bias"
PICKLE = b"cos\nsystem\n(S'false'\ntR."
load: Any = load_model  # bad values are what the types forbid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model("kimi-moe").save_pretrained(tmp_path / "kimi")
    return tmp_path / "kimi"


def change_config(folder: Path, **values: object) -> None:
    place = folder / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | values))


def rewrite(folder: Path, without: str = "", **weights: Any) -> None:
    kept = {name: w for name, w in load_file(folder / WHOLE).items() if name != without}
    save_file(kept | weights, folder / WHOLE, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v2", "deepseek-v3"])
@pytest.mark.parametrize("size", ["1GB", "40KB"])
def test_a_loaded_model_says_bit_for_bit_what_the_saved_one_says(
    kind: str, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    own: Any = model(kind)
    own.save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / WHOLE).is_file() == (size == "1GB")
    loaded: Any = load_model(tmp_path)
    ids = prompt(3, 9)[None]
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, own(input_ids=ids).logits)
    assert not loaded.training
    if kind == "kimi-moe":  # the stamp of a study is of the bytes that were loaded
        before = weights_digest(tmp_path)
        for part in tmp_path.glob("*.safetensors"):
            kept = load_file(part)
            changed = {name: value + 1 for name, value in kept.items()}
            save_file(changed, part, metadata={"format": "pt"})
            assert weights_digest(tmp_path) != before
            save_file(kept, part, metadata={"format": "pt"})
        assert weights_digest(tmp_path) == before


def test_code_that_a_checkpoint_brings_along_is_not_run(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\nclass Evil: pass\ndef generate(*a, **k): pass\n"
    (folder / "evil.py").write_text(code)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)
    (folder / "pytorch_model.bin").write_bytes(PICKLE)
    change_config(folder, auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"})
    loaded = load_model(folder, torch.bfloat16)
    assert type(loaded).__name__ == "KimiLinearForCausalLM" and loaded.dtype == torch.bfloat16
    assert not ran.exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("named", ["someone/kernel", "flash_attention_2"])
def test_an_attention_that_a_config_names_is_not_looked_for(
    folder: Path, key: str, named: str
) -> None:
    change_config(folder, **{key: named})
    assert load_model(folder).config._attn_implementation == "sdpa"


def test_an_architecture_that_cannot_be_run_is_refused_before_a_weight_is_read(
    tmp_path: Path,
) -> None:
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(CapacityError, match="'llama' has none, so its cache holds keys and values"):
        load_model(tmp_path)
    change_config(tmp_path, model_type="a_model_of_tomorrow")
    with pytest.raises(CapacityError, match="'a_model_of_tomorrow' has none"):
        load_model(tmp_path)
    change_config(tmp_path, kv_lora_rank=512)
    with pytest.raises(CapacityError, match="got 'a_model_of_tomorrow'"):
        load_model(tmp_path)


@pytest.mark.parametrize("given", ["", "a" * 5000, "a\0b", "some/model", "/dev/null"])
def test_a_path_to_no_folder_is_refused_and_nothing_is_fetched(given: str) -> None:
    with pytest.raises(StudyError, match=r"with a config\.json: '.*' has none.* is fetched"):
        load(given)


def test_a_dtype_and_a_device_that_are_none_are_refused(folder: Path) -> None:
    with pytest.raises(StudyError, match=r"got torch\.float8_e4m3fn; fp8 is for rows"):
        load(folder, torch.float8_e4m3fn)
    for device in ("nope", "cuda:99", 1.5):
        with pytest.raises(StudyError, match=r"a device must be there: .* gives "):
            load(folder, device=device)


def half(folder: Path) -> None:
    whole = (folder / WHOLE).read_bytes()
    (folder / WHOLE).write_bytes(whole[: len(whole) // 2])


def without_weights(folder: Path, *more: tuple[str, str]) -> None:
    (folder / WHOLE).unlink()
    (folder / "pytorch_model.bin").write_bytes(PICKLE)
    (folder / "pickle.bin").write_bytes(PICKLE)
    for name, text in more:
        (folder / name).write_text(text)


def config_text(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(text)


def config(**values: object) -> Callable[[Path], object]:
    return lambda folder: change_config(folder, **values)


def weight(**weights: Any) -> Callable[[Path], object]:
    return lambda folder: rewrite(folder, **weights)


def index(*files: str) -> Callable[[Path], object]:
    named = json.dumps({"weight_map": {str(i): name for i, name in enumerate(files)}})
    return lambda folder: without_weights(folder, (INDEX, named))


BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (config_text("{"), r"config\.json' must be one JSON object: JSONDecodeError"),
    (config_text("[]"), "must be one JSON object: ValueError: it holds a list"),
    (config_text('{"a":' * 100_000), "must be one JSON object: RecursionError"),
    (config(rms_norm_eps=float("nan")), "NaN is no number of JSON"),
    (config(hidden_size="wide"), r"one that transformers reads: '.*config\.json' gives"),
    (config(quantization_config={"quant_method": "fp8"}), "'kimi' has a quantization_config"),
    (config(transformers_weights="b.safetensors"), "'kimi' has transformers_weights"),
    (lambda f: (f / "adapter_config.json").write_text("{}"), r"has an adapter_config\.json"),
    (without_weights, r"'kimi' has neither \(a pickle runs code when it is read\)"),
    (half, r"'model\.safetensors' of \d+ bytes gives SafetensorErr"),
    (index("../part.safetensors"), r"the 1 in 'kimi' these are none: \['\.\./part"),
    (index("gone.safetensors"), r"these are none: \['gone\.safetensors'\]"),
    (index("pickle.bin"), r"these are none: \['pickle\.bin'\]"),
    (index(), r"of the 0 in 'kimi'"),
    (lambda f: rewrite(f, without=NAME), f"1 of 'kimi' are missing, first {NAME}"),
    (weight(**{"model.more.weight": torch.zeros(2)}), "are unexpected, first model.more"),
    (weight(**{NAME: torch.zeros(2, 2)}), f"1 of 'kimi' are mismatched, first {NAME}"),
    (weight(**{NAME: torch.full((66, 20), torch.nan)}), f"are not finite, first {NAME}"),
    (
        weight(**{BIAS: torch.full((4,), torch.inf)}),
        "1 of 'kimi' are not finite, first .*e_score_correction_bias",
    ),
    *(
        (weight(**{NAME: torch.ones(66, 20).to(kind)}), f"F64, F32, F16, BF16: 1 of the .* {NAME}")
        for kind in (torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn)
    ),
]


@pytest.mark.parametrize(("damage", "match"), BROKEN)
def test_what_is_no_whole_checkpoint_is_refused(
    damage: Callable[[Path], object], match: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(StudyError, match=match):
        load_model(folder)


def test_more_layers_than_tensors_are_refused_before_a_module_is_made(tmp_path: Path) -> None:
    model("deepseek-v3").save_pretrained(tmp_path)
    change_config(tmp_path, num_hidden_layers=1_000_000)
    with pytest.raises(StudyError, match=r"has 1000000 layers, its files \d+ tensors"):
        load_model(tmp_path)


def test_weights_behind_a_link_are_read_and_a_link_to_nothing_is_none(folder: Path) -> None:
    moved = folder.parent / "elsewhere.safetensors"
    (folder / WHOLE).rename(moved)
    (folder / WHOLE).symlink_to(moved)
    load_model(folder)
    moved.unlink()
    with pytest.raises(StudyError, match="'kimi' has neither"):
        load_model(folder)


def test_what_transformers_refuses_is_told_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError("no such thing\nand much more")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", refuse)
    with pytest.raises(StudyError, match=r"refuses 'kimi' with OSError: no such thing$"):
        load_model(folder)


def test_the_tiny_model_is_that_of_its_seed_and_leaves_the_global_generator_alone() -> None:
    shape = model_shape(tiny_config())
    assert (shape.row_elements, shape.full_layers, shape.linear_layers) == (64, (1, 3), (0, 2))
    before = torch.get_rng_state()
    first, again, other = (new_tiny_model(seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    one, same, another = (m.state_dict() for m in (first, again, other))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], another["model.embed_tokens.weight"])
    assert sum(weight.numel() for weight in first.parameters()) == 895_504

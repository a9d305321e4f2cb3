"""A checkpoint comes whole from its own folder, or with a sentence that says why not."""

import json
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from kvlab.engine.model import load_model
from kvlab.errors import CapacityError, StudyError
from tests.engine.model.tiny import model, prompt

WHOLE = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model("kimi-moe").save_pretrained(tmp_path / "kimi")
    return tmp_path / "kimi"


def change_config(folder: Path, **values: object) -> None:
    place = folder / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | values))


@pytest.mark.parametrize("kind", ["kimi-dense", "kimi-moe", "deepseek-v2", "deepseek-v3"])
@pytest.mark.parametrize("several", [False, True])
def test_a_loaded_model_says_bit_for_bit_what_the_saved_one_says(
    kind: str, several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    own: Any = model(kind)
    own.save_pretrained(tmp_path, **({"max_shard_size": "40KB"} if several else {}))
    assert (tmp_path / WHOLE).is_file() != several
    loaded: Any = load_model(tmp_path)
    ids = prompt(3, 9)[None]
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, own(input_ids=ids).logits)
    assert not loaded.training


def test_the_weights_come_in_the_dtype_that_was_asked_for(folder: Path) -> None:
    loaded = load_model(folder, torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    with pytest.raises(StudyError, match=r"got torch\.float8_e4m3fn; fp8 is for rows"):
        load_model(folder, torch.float8_e4m3fn)


def test_an_architecture_without_a_latent_cache_is_refused_before_a_weight_is_read(
    tmp_path: Path,
) -> None:
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(CapacityError, match="'llama' has none, so its cache holds keys and values"):
        load_model(tmp_path)
    change_config(tmp_path, model_type="a_model_of_tomorrow")
    with pytest.raises(CapacityError, match="'a_model_of_tomorrow' has none"):
        load_model(tmp_path)
    change_config(tmp_path, kv_lora_rank=512)
    with pytest.raises(CapacityError, match="got 'a_model_of_tomorrow'; it has a latent, but"):
        load_model(tmp_path)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"'.*nowhere' is no folder; .* \(nothing is fetched\)"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(StudyError, match=r"with a config\.json: '.*' has none"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StudyError, match=r"config\.json must be one JSON .* JSONDecodeError"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(StudyError, match=r"must be one JSON object .* it holds a list"):
        load_model(tmp_path)


def test_a_config_that_transformers_cannot_read_is_refused(folder: Path) -> None:
    change_config(folder, hidden_size="wide")
    with pytest.raises(StudyError, match=r"one that transformers reads: '.*config\.json' gives"):
        load_model(folder)


def test_a_folder_without_safetensors_is_refused_and_a_pickle_is_not_opened(folder: Path) -> None:
    (folder / WHOLE).unlink()
    with pytest.raises(StudyError, match=r"'kimi' has neither; save it with save_pretrained"):
        load_model(folder)
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(StudyError, match=r"only pytorch_model\.bin: a pickle runs code when it is"):
        load_model(folder)


def test_a_damaged_file_is_refused(folder: Path) -> None:
    whole = (folder / WHOLE).read_bytes()
    (folder / WHOLE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StudyError, match=r"'model\.safetensors' of \d+ bytes gives SafetensorErr"):
        load_model(folder)


def test_missing_surplus_and_misshapen_weights_are_refused(folder: Path) -> None:
    weights = load_file(folder / WHOLE)
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    for changed, match in (
        (
            {n: w for n, w in weights.items() if n != name},
            rf"1 of 'kimi' are missing, first {name}",
        ),
        (weights | {"model.more.weight": torch.zeros(2)}, "are unexpected, first model.more"),
        (weights | {name: torch.zeros(2, 2)}, f"1 of 'kimi' are mismatched, first {name}"),
        (weights | {name: weights[name] * torch.nan}, f"hold a NaN or an infinity .* first {name}"),
    ):
        save_file(changed, folder / WHOLE, metadata={"format": "pt"})
        with pytest.raises(StudyError, match=match):
            load_model(folder)


def test_an_index_that_names_files_elsewhere_or_none_is_refused(folder: Path) -> None:
    (folder / WHOLE).rename(folder / "part.safetensors")
    place = folder / "model.safetensors.index.json"
    for named in ({"a": "../part.safetensors"}, {"a": "gone.safetensors"}):
        place.write_text(json.dumps({"weight_map": named}))
        with pytest.raises(StudyError, match="1 of the 1 in 'kimi' are not there, first '"):
            load_model(folder)
    place.write_text("{}")
    with pytest.raises(StudyError, match="0 of the 0 in 'kimi'"):
        load_model(folder)


def test_weights_that_transformers_refuses_are_told_in_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError("no such thing\nand much more")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", refuse)
    with pytest.raises(StudyError, match=r"refuses 'kimi' with OSError: no such thing; save it"):
        load_model(folder)

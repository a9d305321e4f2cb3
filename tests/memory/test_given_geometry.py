"""A geometry of one's own: in one line or in a file, and refused in a sentence that names it."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import CapacityError
from kvlab.memory import ModelGeometry, geometry, given_geometry, load_geometries
from kvlab.memory.geometry import EXAMPLE, MOST, NEEDED, OPTIONAL, WORDS

NAMED = {"mla_layers": 40, "kv_lora_rank": 384, "qk_rope_head_dim": 64}


def test_the_three_needed_fields_give_the_bytes_of_a_token() -> None:
    model = given_geometry(EXAMPLE)
    assert (model.name, model.layers, model.kda_layers) == ("own geometry", 40, 0)
    assert model.bytes_per_token("bf16") == 40 * (384 + 64) * 2 == 35_840


def test_every_field_of_a_geometry_can_be_given() -> None:
    assert {*NEEDED, *OPTIONAL, *WORDS} == {field.name for field in fields(ModelGeometry)}


@pytest.mark.parametrize("model", load_geometries().values(), ids=lambda model: model.name)
def test_a_file_and_a_line_with_the_fields_of_a_shipped_model_are_that_model(
    model: ModelGeometry, tmp_path: Path
) -> None:
    if model.kv_lora_rank is None:
        model = replace(model, kv_lora_rank=512, qk_rope_head_dim=0)
    said: dict[str, Any] = {
        field.name: value
        for field in fields(model)
        if (value := getattr(model, field.name)) not in (None, "")
    }
    path = tmp_path / "a=b, c" / "mine.json"
    path.parent.mkdir()
    path.write_text(json.dumps(said))
    assert given_geometry(str(path)) == model
    line = ", ".join(f"{key} = {value}" for key, value in said.items() if key != "note")
    assert given_geometry(line) == replace(model, note="")


@given(mla=st.integers(1, MOST // 2), kda=st.integers(0, MOST // 2), latent=st.integers(1, MOST))
def test_layers_that_are_left_out_are_the_sum_of_both_kinds(
    mla: int, kda: int, latent: int
) -> None:
    line = f"mla_layers={mla},kda_layers={kda},kv_lora_rank={latent},qk_rope_head_dim=0"
    model = given_geometry(line)
    assert model.layers == mla + kda
    assert model.bytes_per_token("fp8") == mla * latent


def test_a_geometry_of_ones_own_stands_where_a_name_does() -> None:
    model = given_geometry(f"{EXAMPLE},name=70")
    assert geometry(model) is model
    assert model.name == "70"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", r"key=value joined by commas, or a file that ends in \.json: got '' as part 1 of ''"),
        ("mine.toml", r"got 'mine\.toml' as part 1 of 'mine\.toml'; write e\.g\. mla_layers=40"),
        (f"{EXAMPLE},", r"got '' as part 4 of"),
        ("mla_layers=", r"got 'mla_layers=' as part 1"),
        (f"{EXAMPLE},mla_layers=40", r"given once: 'mla_layers' stands twice in 'mla_layers=40"),
        ("mla_layers=40,latent=3", r"has the fields mla_layers, .*note: got 'latent' in 'mla_la"),
        ("mla_layers=40", r"'mla_layers=40' lacks kv_lora_rank, qk_rope_head_dim; give it as in"),
        (
            EXAMPLE.replace("40", "0"),
            r"mla_layers is a whole number in \[1, 1,000,000\]: got 0 in '",
        ),
        (EXAMPLE.replace("384", "-1"), r"kv_lora_rank is a whole number in .*: got '-1' in"),
        (EXAMPLE.replace("64", "6.4"), r"qk_rope_head_dim is a whole number .*: got '6\.4' in"),
        (EXAMPLE.replace("64", "1000001"), r"qk_rope_head_dim .*: got 1000001 in"),
        (f"{EXAMPLE},layers=39", r"own geometry: MLA and KDA layers are among the 39 layers"),
        (f"{EXAMPLE},name=a\tb", r"name is a text of 1 to 80 printable characters: got 'a\\tb'"),
        (f"{EXAMPLE},name={'a' * 81}", r"name is a text of 1 to 80 printable characters"),
    ],
)
def test_a_line_that_is_no_geometry_is_refused_with_the_field(line: str, sentence: str) -> None:
    with pytest.raises(CapacityError, match=sentence):
        given_geometry(line)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", r"a geometry is one JSON object: mine\.json is none \(Expecting"),
        ("[" * 100_000, r"a geometry is one JSON object: mine\.json is none"),
        ("\udcff", r"a geometry is one JSON object: mine\.json is none \('utf-8' codec"),
        ("[1]", r"one JSON object with the fields mla_layers, .*: mine\.json holds a list"),
        ('{"name": 1, "name": 2}', r"'name' stands twice in mine\.json; keep one"),
        (json.dumps(NAMED | {"mla_layers": 4.0}), r"mla_layers is .*: got 4\.0 in mine\.json"),
        (json.dumps(NAMED | {"mla_layers": True}), r"mla_layers is .*: got True in mine\.json"),
        (json.dumps(NAMED | {"mla_layers": None}), r"mla_layers is .*: got None in mine\.json"),
        (json.dumps(NAMED | {"name": ["a"]}), r"name is a text .*: got \['a'\] in mine\.json"),
        (
            json.dumps({"num_hidden_layers": 40, "kv_lora_rank": 384}),
            r"got 'num_hidden_layers' in mine\.json; this is a model's own config\.json: take kv_",
        ),
    ],
)
def test_a_file_that_is_no_geometry_is_refused_with_its_name(
    text: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CapacityError, match=sentence):
        given_geometry(str(path))


def test_a_file_that_is_not_there_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match=r"nowhere\.json' gives No such file or directory"):
        given_geometry("nowhere.json")
    (tmp_path / "a.json").mkdir()
    with pytest.raises(CapacityError, match=r"a\.json' gives Is a directory; name another one"):
        given_geometry(str(tmp_path / "a.json"))

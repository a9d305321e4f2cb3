"""What a token costs, what a budget buys, and geometries of one's own."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import CapacityError, KvlabError
from kvlab.memory import ModelGeometry, geometry, given_geometry, load_geometries, plan_pool
from kvlab.memory.geometry import DTYPES, EXAMPLE, GIB, MOST, gib

KIMI = geometry("Kimi-Linear-48B-A3B")
NAMED = {"mla_layers": 40, "kv_lora_rank": 384, "qk_rope_head_dim": 64}


def made(**given_fields: Any) -> ModelGeometry:
    return replace(ModelGeometry("made", 4, 3, 1, 512, 64, "by hand"), **given_fields)


@pytest.mark.parametrize(
    ("model", "dtype", "row", "token"),
    [
        ("DeepSeek-V3", "bf16", 1152, 70_272),
        ("DeepSeek-V3", "fp16", 1152, 70_272),
        ("DeepSeek-V3", "fp32", 2304, 140_544),
        ("DeepSeek-V3", "fp8", 576, 35_136),
        ("DeepSeek-V3", "fp8_dsa_656", 656, 40_016),
        ("DeepSeek-V2-Lite", "bf16", 1152, 31_104),
        ("Kimi-Linear-48B-A3B", "bf16", 1152, 8_064),
        ("MiniCPM3-4B", "bf16", 576, 35_712),
    ],
)
def test_a_token_costs_a_row_in_every_mla_layer(
    model: str, dtype: str, row: int, token: int
) -> None:
    assert geometry(model).row_bytes(dtype) == row
    assert geometry(model).bytes_per_token(dtype) == token


def test_the_layers_of_every_verified_model_add_up() -> None:
    for model in load_geometries().values():
        if model.kv_lora_rank is not None:
            assert model.mla_layers + model.kda_layers == model.layers


# --- what a budget buys ---------------------------------------------------------------------------


def test_the_worked_example_of_the_module_holds() -> None:
    layout = plan_pool(KIMI, gib(1), dcp_size=8, page_size=64)
    assert (layout.num_pages, layout.capacity_tokens) == (2_079, 1_064_448)
    assert plan_pool(KIMI, 2 * 64 * 8064, 8).num_pages == 1
    assert [gib(x) for x in (0, 0.5, 80)] == [0, GIB // 2, 80 * GIB]


@given(
    model=st.sampled_from([KIMI, geometry("DeepSeek-V3"), geometry("DeepSeek-V2-Lite")]),
    # Whole pages beyond the two that a pool needs, and a part of one more page.
    extra=st.integers(0, 10**6),
    part=st.floats(0, 1, exclude_max=True),
    c=st.sampled_from([1, 2, 3, 4, 8, 16]),
    page=st.sampled_from([1, 2, 16, 32, 64, 128]),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=60)
def test_pages_stay_within_the_budget_one_more_would_not_and_tokens_grow_with_the_dcp_size(
    model: ModelGeometry, extra: int, part: float, c: int, page: int, dtype: str
) -> None:
    cost = page * model.bytes_per_token(dtype)
    budget = (2 + extra) * cost + int(part * cost)
    layout = plan_pool(model, budget, c, page, dtype)
    used = (layout.num_pages + 1) * cost
    assert used <= budget < used + cost
    assert (layout.dcp_size, layout.page_size, layout.num_pages) == (c, page, 1 + extra)
    one = plan_pool(model, budget, 1, page, dtype)
    assert layout.capacity_tokens == c * one.capacity_tokens


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: plan_pool(KIMI, 2 * 64 * 8064 - 1, 8),
            r"2 pages a rank, one of them the padding page: got a budget of 1032191 bytes for "
            r"Kimi-Linear-48B-A3B in bf16, bound 1032192 \(2 pages of 64 tokens, 516096 bytes each",
        ),
        (lambda: plan_pool(KIMI, GIB, 0), r"dcp_size must be at least 1"),
        (lambda: plan_pool(KIMI, GIB, 4, 0), r"page_size must be at least 1"),
        (lambda: plan_pool(KIMI, GIB, 4, 64, "int4"), r"fp8_dsa_656: got 'int4'"),
        (lambda: plan_pool(made(mla_layers=0), GIB, 1), r"needs MLA layers with a row: got 0 MLA"),
        (
            lambda: geometry("Kimi-K3").bytes_per_token(),
            r"Kimi-K3 has None \+ None, since no public config that we read states it \(sglang thr",
        ),
        (lambda: geometry("GPT-2"), r"got 'GPT-2', which is none of DeepSeek-V3, .*Kimi-K3"),
        (
            lambda: made(kv_lora_rank=256).row_bytes("fp8_dsa_656"),
            r"512 \+ 64 elements: got 256 \+ 64 for made; use 'fp8'",
        ),
        (lambda: made(layers=-1), r"layers is a whole number in \[0, 1,000,000\]: got -1 for made"),
        (lambda: made(mla_layers=2.0), r"mla_layers is a whole number .*: got 2\.0"),
        (lambda: made(kda_layers=True), r"kda_layers is a whole number .*: got True"),
        (
            lambda: made(kda_layers=2),
            r"made: MLA and KDA layers are among the 4 layers: got 3 \+ 2",
        ),
        (lambda: made(qk_rope_head_dim="64"), r"qk_rope_head_dim is a whole number .*: got '64'"),
        (lambda: gib(-1), r"a budget in GiB lies in .*: got -1; pass GiB"),
        (lambda: gib(float("nan")), r"a budget in GiB lies in .*: got nan; pass GiB"),
        (lambda: gib(80 * GIB), r"a budget in GiB lies in .*: got 85899345920; pass GiB"),
    ],
)
def test_what_no_pool_can_be_planned_from_is_named(call: Callable[[], object], text: str) -> None:
    with pytest.raises(KvlabError, match=text):
        call()


# --- a geometry of one's own ----------------------------------------------------------------------


def test_the_three_needed_fields_give_the_bytes_of_a_token() -> None:
    model = given_geometry(f"{EXAMPLE},name=70")
    assert (model.name, model.layers, model.kda_layers) == ("70", 40, 0)
    assert model.bytes_per_token("bf16") == 40 * (384 + 64) * 2 == 35_840
    assert geometry(model) is model
    assert given_geometry(f"{EXAMPLE},kda_layers=5").layers == 45


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


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", r"key=value joined by commas, or a file that ends in \.json: got '' as part 1 of ''"),
        (f"{EXAMPLE},", r"got '' as part 4 of"),
        ("mla_layers=", r"got 'mla_layers=' as part 1"),
        (f"{EXAMPLE},mla_layers=40", r"given once: one stands twice in 'mla_layers=40"),
        ("mla_layers=40,latent=3", r"has the fields layers, .*note: got 'latent' in 'mla_layers"),
        ("mla_layers=40", r"'mla_layers=40' lacks kv_lora_rank, qk_rope_head_dim; give it as in"),
        (EXAMPLE.replace("40", "0"), r"a geometry has MLA layers with a row: got 0 of either"),
        (EXAMPLE.replace("384", "-1"), r"kv_lora_rank is a whole number in .*: got '-1' for own"),
        (EXAMPLE.replace("64", f"{MOST + 1}"), r"qk_rope_head_dim .*: got 1000001 for own"),
        (f"{EXAMPLE},layers=39", r"own geometry: MLA and KDA layers are among the 39 layers"),
        (f"{EXAMPLE},name=a\tb", r"name is a text of 1 to 80 printable characters: got 'a\\tb'"),
        (f"{EXAMPLE},name={'a' * 81}", r"name is a text of 1 to 80 printable characters"),
        ("nowhere.json", r"nowhere\.json' gives No such file or directory"),
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
        ('{"name": "1", "name": "2"}', r"given once: one stands twice in mine\.json"),
        (json.dumps(NAMED | {"mla_layers": 4.0}), r"mla_layers is .*: got 4\.0 for own"),
        (json.dumps(NAMED | {"mla_layers": None}), r"mla_layers is .*: got None for own"),
        (json.dumps(NAMED | {"name": ["a"]}), r"name is a text .*: got \['a'\] in mine\.json"),
        (
            json.dumps({"num_hidden_layers": 40, "kv_lora_rank": 384}),
            r"not all of a model's config\.json: got 'num_hidden_layers' in mine\.json",
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

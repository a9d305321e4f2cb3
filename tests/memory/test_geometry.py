"""What a token costs, per model and dtype, and who refuses to say."""

import dataclasses
from typing import Any

import pytest

from kvlab.errors import CapacityError
from kvlab.memory.geometry import DTYPES, GIB, ModelGeometry, geometry, load_geometries

VERIFIED = [model for model in load_geometries().values() if model.kv_lora_rank is not None]


def made(**fields: Any) -> ModelGeometry:
    base = ModelGeometry("made", 4, 3, 1, 512, 64, "by hand", "", 8, 16, 4)
    return dataclasses.replace(base, **fields)


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


def test_kimi_linear_costs_the_quoted_gib_at_a_million_tokens() -> None:
    assert geometry("Kimi-Linear-48B-A3B").bytes_per_token("bf16") * 2**20 / GIB == 7.875


def test_a_row_has_the_latent_and_the_position_part() -> None:
    assert geometry("DeepSeek-V3").row_elements == 576
    assert made(kv_lora_rank=256, qk_rope_head_dim=32).row_elements == 288
    assert made(qk_rope_head_dim=0).row_elements == 512


@pytest.mark.parametrize("model", VERIFIED, ids=lambda model: model.name)
def test_every_verified_model_has_its_layers_and_bytes(model: ModelGeometry) -> None:
    assert model.mla_layers + model.kda_layers == model.layers
    assert model.bytes_per_token("bf16") == 2 * model.bytes_per_token("fp8")
    assert model.bytes_per_token("fp32") == 4 * model.bytes_per_token("fp8")


@pytest.mark.parametrize("dtype", [*DTYPES, "nonsense"])
def test_an_unverified_width_gives_no_bytes_and_says_why(dtype: str) -> None:
    k3 = geometry("Kimi-K3")
    assert (k3.layers, k3.mla_layers, k3.kda_layers) == (93, 24, 69)
    text = (
        r"bytes need the width of a latent row \(kv_lora_rank \+ qk_rope_head_dim\): Kimi-K3 has "
        r"None \+ None, since no public config that we read states it \(sglang threads\); pass a "
    )
    with pytest.raises(CapacityError, match=text):
        k3.bytes_per_token(dtype)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        CapacityError, match=r"got 'GPT-2', which is none of DeepSeek-V3, .*Kimi-K3"
    ):
        geometry("GPT-2")


def test_an_unknown_dtype_lists_the_known_ones() -> None:
    text = r"one of fp32, bf16, fp16, fp8, fp8_dsa_656: got dtype 'int4' for made; name one"
    with pytest.raises(CapacityError, match=text):
        made().row_bytes("int4")


def test_the_dsa_row_fits_only_the_width_it_is_named_for() -> None:
    with pytest.raises(
        CapacityError, match=r"512 \+ 64 elements: got 256 \+ 32 for made; use 'fp8'"
    ):
        made(kv_lora_rank=256, qk_rope_head_dim=32).row_bytes("fp8_dsa_656")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"layers": -1}, r"layers is an int of at least 0 \(made counts layers\): got -1"),
        ({"mla_layers": 2.0}, r"mla_layers is an int of at least 0 .*: got 2\.0"),
        ({"kda_layers": True}, r"kda_layers is an int of at least 0 .*: got True"),
        (
            {"kda_layers": 2},
            r"made: MLA and KDA layers are among the 4 layers: got 3 \+ 2; correct",
        ),
        ({"kv_lora_rank": -1}, r"kv_lora_rank is an int of at least 0 .*: got -1"),
        ({"qk_rope_head_dim": "64"}, r"qk_rope_head_dim is an int of at least 0 .*: got '64'"),
    ],
)
def test_a_geometry_names_the_number_that_breaks_a_rule(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(CapacityError, match=text):
        made(**fields)

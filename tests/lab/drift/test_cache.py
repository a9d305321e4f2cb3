"""Digests of a checkpoint: what decides a run is in them, what lies beside it is not."""

import hashlib
import json
from pathlib import Path

import pytest

from kvlab.lab.drift import read_study
from kvlab.lab.drift.cache import WHOLE, model_digest, weights_digest
from kvlab.memory.published import data_path
from kvlab.viz.drift import origin_of

SHIPPED = data_path("checkpoints", "tiny-kimi-linear", "config.json").parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "measured.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "more.safetensors"])
def test_config_and_weights_decide_the_digest(folder: Path, name: str) -> None:
    before = model_digest(folder)
    (folder / name).write_bytes(b"other")
    assert model_digest(folder) != before


def test_what_lies_beside_the_weights_does_not(folder: Path) -> None:
    before = model_digest(folder)
    (folder / "measured.json").write_text("[1]")
    (folder / "loss-curve.json").write_text("{}")
    assert model_digest(folder) == before


def test_an_origin_names_the_sha256_of_the_weights_as_any_tool_prints_it(folder: Path) -> None:
    assert weights_digest(folder) == hashlib.sha256(b"weights").hexdigest()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(WHOLE + 1)
    assert weights_digest(folder) == model_digest(folder)


def test_the_recorded_study_was_run_on_the_shipped_checkpoint() -> None:
    facts = json.loads((SHIPPED / "measured.json").read_text())
    study = read_study(data_path("runs", "drift", "summary.csv").parent)
    recorded = str(origin_of(study.origin).parameters["model_sha256"])
    assert facts["checkpoint"]["sha256"].startswith(recorded)
    assert weights_digest(SHIPPED).startswith(recorded)

"""The loop: the rate's course, who trains what, a log that says what it was, and whole files."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvlab.engine.model.tiny import new_tiny_model, training_kda
from kvlab.lab.training import loop
from kvlab.lab.training.corpus import Corpus, Mix
from kvlab.lab.training.kda import chunk_kda
from kvlab.lab.training.loop import (
    LOG,
    WARM_STEPS,
    Phase,
    Recipe,
    factor,
    optimizers,
    save,
    train,
)
from kvlab.lab.training.measure import CHANCE, bits_per_byte, recall_score, window_bits


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_the_rate_rises_to_all_of_it_and_falls_in_the_last_phase_alone(
    steps: int, done: int
) -> None:
    early = [factor(step, False, steps, done + step) for step in range(steps)]
    assert all(a <= b for a, b in pairwise(early))
    assert all(0 < share <= 1 for share in early)
    assert early[-1] == min(1.0, (done + steps) / WARM_STEPS)
    late = [factor(step, True, steps, WARM_STEPS + step) for step in range(steps)]
    assert late[0] == 1.0 == max(late)
    assert all(a > b for a, b in pairwise(late))
    assert all(share >= 0.05 for share in late)


def test_a_phase_ends_when_the_asked_bytes_are_ranked_first_often_enough(
    tmp_path: Path, source: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "WINDOW", 3)
    corpus = Corpus(source, source, {"text": "letters"})
    mix = Mix(rows=2, length=64, fewest=1, most=2, filler=4)
    taken = []
    for until in (0.0, 1.1):
        told: list[tuple[int, int]] = []
        phases = (Phase(5, mix, until=until), Phase(2, mix))
        with training_kda(chunk_kda):
            recipe = Recipe(phases, every=10_000)
            train(new_tiny_model(3), corpus, recipe, tmp_path, _into(told))
        taken.append(told)
    ended_at_3, ended_at_5 = taken
    assert ended_at_3 == [(step, 7) for step in range(1, 6)]
    assert ended_at_5 == [(step, 7) for step in range(1, 8)]


def _into(told: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda done, most: told.append((done, most))


def test_every_weight_is_trained_by_one_optimizer_matrices_of_layers_by_muon() -> None:
    model = new_tiny_model(1)
    muon, adam = optimizers(model, Recipe())
    sets = [{id(p) for group in o.param_groups for p in group["params"]} for o in (muon, adam)]
    names = {id(p): name for name, p in model.named_parameters()}
    assert sets[0] | sets[1] == set(names)
    assert not sets[0] & sets[1]
    assert all(".layers." in names[p] for p in sets[0])
    assert "model.embed_tokens.weight" in {names[p] for p in sets[1]}
    assert sum(model.get_parameter(names[p]).numel() for p in sets[0]) > 800_000


def test_a_log_names_recipe_and_corpus_and_the_loss_falls(
    tmp_path: Path, source: NDArray[np.uint8]
) -> None:
    corpus = Corpus(source, source, {"text": "letters"})
    mix = Mix(rows=4, length=160)
    recipe = Recipe((Phase(8, mix),), seed=5, every=4)
    told: list[tuple[int, int]] = []
    with training_kda(chunk_kda):
        lines = train(new_tiny_model(5), corpus, recipe, tmp_path, _into(told))
    header, *rows = [json.loads(row) for row in (tmp_path / LOG).read_text().splitlines()]
    (phase,) = header["recipe"]["phases"]
    assert (header["recipe"]["seed"], phase["steps"], phase["mix"]["length"]) == (5, 8, 160)
    assert header["corpus"] == {"text": "letters"}
    assert rows == lines
    assert [(row["step"], row["tokens"]) for row in rows] == [(4, 2560), (8, 5120)]
    assert rows[1]["held_out_bits_per_byte"] < rows[0]["held_out_bits_per_byte"] < 8
    assert told == [(step, 8) for step in range(1, 9)]


def test_saved_files_replace_those_of_the_step_before_and_leave_no_part(tmp_path: Path) -> None:
    class Saves:
        def __init__(self, text: str) -> None:
            self.text = text

        def save_pretrained(self, folder: str) -> None:
            (Path(folder) / "model.safetensors").write_text(self.text)
            if self.text == "killed":
                raise KeyboardInterrupt

    save(Saves("one"), tmp_path)
    save(Saves("two"), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o644
    with pytest.raises(KeyboardInterrupt):
        save(Saves("killed"), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_text() == "two"


def even(tokens: torch.Tensor) -> torch.Tensor:
    """The same logit for every byte."""
    return torch.zeros(*tokens.shape, 256)


def knows_the_next(tokens: torch.Tensor) -> torch.Tensor:
    """Sure of the byte that comes."""
    made = torch.nn.functional.one_hot(tokens.roll(-1, dims=1), 256)
    return made.float() * 100


def test_bits_a_byte_are_8_for_a_model_that_knows_nothing_and_0_for_one_that_knows_all(
    source: NDArray[np.uint8],
) -> None:
    ask: dict[str, Any] = {"sequences": 10, "length": 64}
    assert bits_per_byte(even, source, **ask) == pytest.approx(8.0)
    assert bits_per_byte(knows_the_next, source, **ask) == pytest.approx(0.0, abs=1e-6)
    few = window_bits(knows_the_next, source, sequences=3, length=64)
    assert few == window_bits(knows_the_next, source, sequences=10, length=64)[:3]


def test_recall_is_all_for_a_model_that_knows_and_none_for_one_that_says_another_byte(
    source: NDArray[np.uint8],
) -> None:
    ask: dict[str, Any] = {"sequences": 3, "length": 300, "pairs": 5}
    assert recall_score(knows_the_next, source, **ask) == 1.0
    assert recall_score(even, source, **ask) == 0.0  # byte 0 is ranked first
    assert CHANCE == 1 / 16

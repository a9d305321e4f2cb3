"""The shipped checkpoint does what its folder says: held-out loss, recall, and where that lies."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from kvlab.engine.model import load_model
from kvlab.lab.training.corpus import Corpus
from kvlab.lab.training.exchange import (
    CHANGES,
    Questions,
    draw_questions,
    logits_after,
    right_bytes,
)
from kvlab.lab.training.loop import Recipe, plain_logits
from kvlab.lab.training.measure import CHANCE, bits_per_byte
from kvlab.lab.training.run import read_log
from kvlab.memory.published import data_path

FOLDER = data_path("checkpoints", "tiny-kimi-linear", "config.json").parent
FACTS = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))
# Questions that are asked again here: the first group of those that were measured.
SAMPLE = 16
A_QUESTION = FACTS["recall_bytes_a_question"]
# Standard deviations that a share may lie away from its chance.
FAR = 4.0


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(FOLDER)


@pytest.fixture(scope="module")
def asked(library: Corpus) -> Questions:
    return draw_questions(library.held_out, SAMPLE)


def same_text(library: Corpus) -> bool:
    """Whether this Python has the text of the training; another version has other windows."""
    return bool(library.about["blake2b"] == FACTS["text"]["blake2b"])


def deviation(share: float, of: int) -> float:
    """Of a share of ``of`` independent bytes, each right with chance ``share``."""
    return float((share * (1 - share) / of) ** 0.5)


def test_the_training_ran_to_the_end_of_its_recipe() -> None:
    header, lines = read_log(FOLDER)
    phases, last = header["recipe"]["phases"], lines[-1]
    assert last["phase"] == len(phases)
    assert last["step"] == FACTS["steps"] <= sum(phase["steps"] for phase in phases)
    in_last = [line["step"] for line in lines if line["phase"] == len(phases)]
    assert last["step"] - in_last[0] >= phases[-1]["steps"] - header["recipe"]["every"]
    assert header["recipe"] == json.loads(json.dumps(asdict(Recipe())))
    assert FACTS["same_text_as_training"] is True


def test_held_out_text_costs_the_bits_that_the_log_and_the_measurement_say(
    model: Any, library: Corpus
) -> None:
    bits = bits_per_byte(plain_logits(model), library.held_out, sequences=16, length=512)
    said = read_log(FOLDER)[1][-1]["held_out_bits_per_byte"]
    assert bits == pytest.approx(said, abs=1e-3 if same_text(library) else 0.4)
    measured = FACTS["held_out"]["bits_per_byte"]
    assert abs(bits - measured) < FAR * FACTS["held_out"]["standard_error"] * 4  # 16 of 256
    assert measured < 2.0


@pytest.mark.parametrize("name", ["in_place", "rows_exchanged", "rows_and_state_exchanged"])
def test_the_sample_is_answered_as_it_was_when_it_was_measured(
    model: Any, asked: Questions, library: Corpus, name: str
) -> None:
    right = right_bytes(logits_after(model, asked, CHANGES[name]), asked)
    told = FACTS["recall"][name]
    if same_text(library):
        # Another processor rounds otherwise: a tie of two bytes may fall the other way.
        changed = sum(abs(a - b) for a, b in zip(right, told["right"][:SAMPLE], strict=True))
        assert changed <= 4
    share = sum(right) / (A_QUESTION * SAMPLE)
    assert abs(share - told["score"]) < FAR * max(
        deviation(CHANCE, A_QUESTION * SAMPLE), told["standard_error"] * 2
    )


def test_with_all_of_another_request_recall_is_chance() -> None:
    of = A_QUESTION * FACTS["recall_questions"]
    share = FACTS["recall"]["rows_and_state_exchanged"]["score"]
    assert abs(share - CHANCE) < FAR * deviation(CHANCE, of)


def test_recall_lies_in_the_rows_of_the_full_attention_layers() -> None:
    recall = {name: found["score"] for name, found in FACTS["recall"].items()}
    assert recall["in_place"] > 0.5
    assert recall["rows_exchanged"] < recall["in_place"] / 2
    assert recall["rows_shuffled_within_request"] == recall["in_place"]


def test_the_order_of_the_rows_within_a_request_is_rounding_beside_their_exchange() -> None:
    moved = {name: found["max_abs_dlogprob"] for name, found in FACTS["recall"].items()}
    assert moved["in_place"] == 0
    assert moved["rows_shuffled_within_request"] < 1e-3
    assert moved["rows_exchanged"] > 1000 * moved["rows_shuffled_within_request"]

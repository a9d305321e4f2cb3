"""Exchanged requests say what the library's own model says of a request with that history."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.model.tiny import new_tiny_model
from kvlab.errors import StudyError
from kvlab.lab.training import exchange
from kvlab.lab.training.exchange import CHANGES, Prefilled, Questions, draw_questions, logits_after

NEAR = 1e-4


def model() -> Any:
    """Random weights, large enough that attention is far from uniform."""
    made: Any = new_tiny_model(3)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.mul_(4)
    return made


@pytest.fixture
def asked(source: NDArray[np.uint8]) -> Questions:
    return draw_questions(source, 4, pairs=3, gap=29)


def plain(histories: Tensor, asked: Questions) -> Tensor:
    """The library's logits behind the prompt, for requests with these prompts."""
    tokens = torch.cat([histories[:, : asked.prompt], asked.tokens[:, asked.prompt :]], dim=1)
    with torch.no_grad():
        made: Tensor = model()(input_ids=tokens, use_cache=False).logits
    return made[:, asked.prompt :]


def test_questions_end_their_prompt_with_get_and_fewer_are_the_first_of_more(
    source: NDArray[np.uint8], asked: Questions
) -> None:
    assert asked.tokens.shape == (4, 4 + 3 * 6 + 29 + 4 + 3 * 6)
    prompts = [bytes(row[: asked.prompt].tolist()) for row in asked.tokens]
    assert all(prompt.startswith(b"set ") and prompt.endswith(b"\nget") for prompt in prompts)
    assert int(asked.asked.min()) > asked.prompt
    assert torch.equal(draw_questions(source, 2, pairs=3, gap=29).tokens, asked.tokens[:2])


@pytest.mark.parametrize("count", [0, 1, 7])
def test_an_odd_number_of_questions_is_refused(source: NDArray[np.uint8], count: int) -> None:
    with pytest.raises(StudyError, match=rf"in pairs: got {count} questions; ask an even number"):
        draw_questions(source, count)


def test_in_place_the_engine_says_what_the_library_says(asked: Questions) -> None:
    mine = logits_after(model(), asked, CHANGES["in_place"])
    torch.testing.assert_close(mine, plain(asked.tokens, asked), rtol=NEAR, atol=NEAR)


def test_with_rows_and_state_exchanged_a_request_goes_on_from_its_neighbours_prompt(
    asked: Questions,
) -> None:
    mine = logits_after(model(), asked, CHANGES["rows_and_state_exchanged"])
    neighbours = asked.tokens[[1, 0, 3, 2]]
    torch.testing.assert_close(mine, plain(neighbours, asked), rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize("name", ["rows_exchanged", "state_exchanged"])
def test_rows_or_state_alone_change_what_is_said_into_neither_of_the_two(
    asked: Questions, name: str
) -> None:
    mine = logits_after(model(), asked, CHANGES[name])
    for other in (asked.tokens, asked.tokens[[1, 0, 3, 2]]):
        assert float((mine - plain(other, asked)).abs().max()) > 100 * NEAR


@pytest.mark.parametrize("change", [exchange.exchange_rows, exchange.exchange_state])
def test_exchanged_twice_is_in_place_again_bit_for_bit(
    asked: Questions, change: exchange.Change
) -> None:
    def twice(here: Prefilled) -> None:
        change(here)
        change(here)

    assert torch.equal(
        logits_after(model(), asked, twice), logits_after(model(), asked, CHANGES["in_place"])
    )


def test_the_order_of_rows_within_a_request_says_nothing(asked: Questions) -> None:
    """Kimi Linear is NoPE; so a shuffle within a request is no test of the cache."""
    moved: list[bool] = []

    def shuffled(here: Prefilled) -> None:
        pools = here.sharded.pools.ranks
        before = [pool.buffer.clone() for pool in pools]
        exchange.shuffle_rows(here)
        for pool, was in zip(pools, before, strict=True):
            held = pool.resolve(here.held[0]).ids
            moved.append(not torch.equal(pool.buffer[:, held], was[:, held]))
        for layer in range(pools[0].layers):  # the same rows, over all ranks
            rows = [
                torch.cat([b[layer] for b in side]) for side in (before, [p.buffer for p in pools])
            ]
            torch.testing.assert_close(*(r.sum(1).sort().values for r in rows))

    mine = logits_after(model(), asked, shuffled)
    assert moved == [True, True]
    still = logits_after(model(), asked, CHANGES["in_place"])
    torch.testing.assert_close(mine, still, rtol=NEAR, atol=NEAR)


def test_large_samples_go_in_groups_and_answer_as_in_one(
    asked: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model()
    whole = logits_after(copy.deepcopy(made), asked, CHANGES["rows_exchanged"])
    monkeypatch.setattr(exchange, "GROUP", 2)
    parts = logits_after(made, asked, CHANGES["rows_exchanged"])
    torch.testing.assert_close(parts, whole, rtol=NEAR, atol=NEAR)


def test_right_bytes_counts_the_bytes_that_were_asked_for_and_no_others(asked: Questions) -> None:
    said = torch.nn.functional.one_hot(asked.tokens[:, asked.prompt + 1 :], 256).float()
    logits = torch.cat([said, torch.zeros(4, 1, 256)], dim=1)  # each byte tells the next
    assert exchange.right_bytes(logits, asked) == [6, 6, 6, 6]
    logits[1, asked.asked[1, 2] - asked.prompt - 1] = 0
    assert exchange.right_bytes(logits, asked) == [6, 5, 6, 6]
    logits[:, : int(asked.asked.min()) - asked.prompt - 1] = 0  # keys before it are not asked
    assert exchange.right_bytes(logits, asked) == [6, 5, 6, 6]


def test_questions_without_a_partner_or_without_a_rest_are_refused(asked: Questions) -> None:
    odd = Questions(asked.tokens[:3], asked.prompt, asked.asked[:3])
    with pytest.raises(StudyError, match=r"in pairs, .*: got 3 questions of"):
        logits_after(model(), odd, exchange.keep)
    for prompt in (0, asked.tokens.shape[1]):
        whole = Questions(asked.tokens, prompt, asked.asked)
        with pytest.raises(StudyError, match=f"with a prompt of {prompt}; ask an even number"):
            logits_after(model(), whole, exchange.keep)


def test_a_model_without_state_cannot_exchange_it(asked: Questions) -> None:
    def without(here: Prefilled) -> None:
        here.sharded.pools.states = None
        exchange.exchange_state(here)

    with pytest.raises(StudyError, match="only a model with recurrent state can exchange it"):
        logits_after(model(), asked, without)

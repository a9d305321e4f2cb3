"""Whatever a reader's code does, a check ends, says something true, and shows no more than fits."""

import asyncio
import io
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from kvlab.teach import exercise
from kvlab.teach.answers import cut, difference, plain, short, spelled
from kvlab.teach.exercise import KEPT, bounded, first_difference

BY_HAND = exercise("owner-by-hand")


class OfTheReader(BaseException):
    """No Exception, as those of some libraries."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def raising(error: BaseException) -> Callable[..., Any]:
    def yours(*given: Any) -> Any:
        raise error

    return yours


def giving(answer: object) -> Callable[..., Any]:
    return lambda *given: answer


NESTED: Any = 1
for _ in range(200):
    NESTED = [NESTED]
HOSTILE: dict[str, tuple[str, object, str]] = {
    "a number of 5000 digits": ("phase-of-a-chunk", giving(10**5000), "a number of 16610 bits"),
    "one in a pair": ("owner-by-hand", giving((10**5000, 1)), "a number of 16610 bits"),
    "a number past all floats": ("new-token-ratio", giving(10**400), "the spec says"),
    "a huge number that is judged": ("localized-twice", giving(10**5000), "cannot be tried"),
    "a word of 10 MB": ("silent-or-loud", giving("x" * 10**7), "10000002 letters in all"),
    "an error of 10 MB": ("owner-by-hand", raising(ValueError("x" * 10**7)), "letters in all"),
    "an error without words": ("owner-by-hand", raising(Speechless()), "raised Speechless"),
    "an error that is no Exception": ("owner-by-hand", raising(OfTheReader()), "OfTheReader"),
    "a cancelled task": ("owner-by-hand", raising(asyncio.CancelledError()), "CancelledError"),
    "lists 200 deep": ("owner-by-hand", giving(NESTED), "more than 8 deep"),
    "a tensor of 9 million": (
        "overwritten-positions",
        giving(torch.zeros(3000, 3000)),
        "9000000 numbers: none has more than 100000",
    ),
    "an array of a million": ("victim-order", giving(np.zeros(10**6)), "1000000 numbers"),
    "no function, of 5000 digits": ("owner-by-hand", 10**5000, "An answer is a function"),
    "no function, cannot be shown": ("owner-by-hand", Unshowable(), "cannot be shown"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_answer_is_wrong_in_few_words(what: str) -> None:
    name, yours, words = HOSTILE[what]
    result = exercise(name).check(yours, seed=1)
    assert result.status == "wrong" and words in repr(result)
    assert len(repr(result)) < 3000 and len(result._repr_html_()) < 6000
    beside = exercise(name).show(yours, seed=1)  # type: ignore[arg-type]
    assert len(repr(beside)) < 9000


def test_an_interrupt_of_the_reader_stops_the_check() -> None:
    with pytest.raises(KeyboardInterrupt):
        BY_HAND.check(raising(KeyboardInterrupt()))


def test_a_loop_that_prints_for_ever_keeps_only_the_end_of_what_it_prints() -> None:
    with bounded(5.0) as said:
        for number in range(10_000):
            print(number, file=sys.stderr if number % 2 else sys.stdout)
    assert len(said.text) == KEPT and said.text.endswith("9998\n9999\n")


def test_what_is_printed_to_stderr_is_kept_as_well() -> None:
    heard = io.StringIO()

    def yours(v: int, c: int) -> tuple[int, int]:
        print("looking", file=sys.stderr)
        return v, c

    with redirect_stderr(heard):
        result = BY_HAND.check(yours)
    assert heard.getvalue() == "" and "looking" in repr(result)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers: no bound")
def test_a_loop_that_swallows_every_error_is_cut_off_all_the_same() -> None:
    swallowed: list[str] = []

    def yours(v: int, c: int) -> Any:
        while len(swallowed) < 3:
            try:
                time.sleep(5)
            except BaseException as error:
                swallowed.append(type(error).__name__)
        while True:
            v += c

    task = replace(BY_HAND, seconds=0.05)
    found = first_difference(task, yours, seed=1)
    assert found is not None and found.words == "your code had not ended after 0.05 s"
    assert swallowed == ["OutOfTime"] * 3
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers: no bound")
def test_an_answer_that_would_keep_its_judge_busy_is_cut_off() -> None:
    ex = exercise("books-of-the-scheduler")
    task = replace(ex, seconds=0.2)
    found = first_difference(task, lambda c, P: ([[P * c, 1]] * 20_000, 0), seed=1)
    assert found is not None and "not ended after 0.2 s" in found.words


def test_a_right_answer_that_takes_too_long_for_all_inputs_is_said_to_be_slow() -> None:
    task = replace(BY_HAND, whole=0.0)
    found = first_difference(task, BY_HAND.answer, seed=1)
    assert found is not None
    assert found.words == "your code is right, and too slow: 1 of 100 inputs took 0 s"


def test_true_is_no_number_where_one_is_judged() -> None:
    ex = exercise("books-of-the-scheduler")
    answers: list[Any] = [[[[9, 5], [4, True]], 0], [[[9, 5], [4, 1]], False]]
    assert ex.verdict(ex.example_answer(), ex.example).right  # type: ignore[arg-type]
    for answer in answers:
        assert not ex.verdict(answer, {"c": 2, "P": 2}).right


@pytest.mark.parametrize(
    ("yours", "spec"),
    [(Fraction(1, 4), 0.25), (Decimal("0.25"), 0.25), (Fraction(8, 2), 4), (Decimal(4), 4)],
)
def test_a_fraction_is_a_number(yours: object, spec: Any) -> None:
    assert difference(plain(yours), spec) is None
    assert difference(plain(yours), spec + 1) is not None


def test_a_long_text_is_cut_and_a_short_one_is_not() -> None:
    assert cut("x" * 600) == "x" * 600
    assert cut("x" * 700).endswith("x ... (700 letters in all)")
    assert short([10**5000]) == "[a number of 16610 bits]"
    assert spelled(Unshowable()) == "a Unshowable that cannot be shown"

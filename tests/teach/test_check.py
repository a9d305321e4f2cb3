"""What a check says. Whatever a reader's code does, it ends, is true, and shows what fits."""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kvlab.teach import EXERCISES, Exercise, exercise, progress
from kvlab.teach.exercise import KEPT, TRIES, bounded

BY_HAND = exercise("owner-by-hand")
every_exercise = pytest.mark.parametrize("ex", EXERCISES.values(), ids=lambda ex: ex.name)
timed = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers: no bound")


def swapped(v: int, c: int) -> tuple[int, int]:
    return v // c, v % c


def stub(*given: object) -> Any: ...


def stub_that_returns(*given: object) -> Any:
    """Not yet."""
    return ...


def prints_only(v: int, c: int) -> None:
    print(v % c)


def raising(error: BaseException) -> Callable[..., Any]:
    def yours(*given: Any) -> Any:
        raise error

    return yours


def giving(answer: object) -> Callable[..., Any]:
    return lambda *given: answer


@every_exercise
def test_an_answer_that_is_not_filled_in_is_said_to_be_that_and_is_no_failure(
    ex: Exercise,
) -> None:
    for yours in (None, ..., stub, stub_that_returns):
        result = ex.check(yours)
        assert (result.status, result.passed, result.hint) == ("unfilled", False, None)
        assert ex.show(yours)
    assert "not filled in yet" in repr(result) and ex.signature in repr(result)
    assert ex.check().status == "unfilled" and ex.name not in TRIES


def test_a_function_that_has_code_and_always_gives_none_is_not_filled_in() -> None:
    assert BY_HAND.check(prints_only).status == "unfilled"


def test_a_passed_check_says_on_how_many_inputs_and_the_seed() -> None:
    result = BY_HAND.check(lambda v, c: (v % c, v // c), seed=5)
    assert result.passed and "right on 100 fresh inputs" in repr(result)
    assert "seed 5" in repr(result)


def test_the_first_difference_shows_input_yours_and_spec_and_is_the_smallest_there_is() -> None:
    result = BY_HAND.check(swapped)
    found = result.difference
    assert found is not None
    v, c = found.inputs["v"], found.inputs["c"]
    assert isinstance(v, int) and isinstance(c, int) and v < 25
    assert (found.yours, found.spec) == ([v // c, v % c], [v % c, v // c])
    assert found.words == f"element 0 is {v // c}, the spec says {v % c}"
    shown = [line.split() for line in repr(result).splitlines()]
    assert ["v", str(v)] in shown and ["c", str(c)] in shown


def test_a_seed_repeats_a_check_and_without_one_the_inputs_are_others() -> None:
    one, two = (BY_HAND.check(swapped, seed=11) for _ in range(2))
    assert one.difference == two.difference
    assert len({BY_HAND.check(swapped).seed for _ in range(5)}) == 5


def test_the_hint_comes_at_the_second_failure_of_an_exercise_and_not_before() -> None:
    for yours in (BY_HAND.answer, None, stub):
        assert BY_HAND.check(yours).hint is None
    first, second, third = (BY_HAND.check(swapped) for _ in range(3))
    assert first.hint is None and ".solution()" not in repr(first)
    assert second.hint == third.hint == BY_HAND.hint
    assert BY_HAND.hint in repr(second) and ".solution()" in repr(second)
    assert exercise("ragged-tail").check(giving(0)).hint is None


def test_progress_says_what_was_tried_and_what_was_passed() -> None:
    assert f"0 of {len(EXERCISES)} exercises passed" in repr(progress())
    exercise("ragged-tail").check(giving(0))
    for yours in (BY_HAND.answer, swapped):  # what was passed stays passed
        BY_HAND.check(yours)
    lines = [line.split() for line in repr(progress()).splitlines()]
    assert lines[0][:3] == ["1", "of", str(len(EXERCISES))]
    assert ["00_start_here", "owner-by-hand", "1", "2", "passed"] in lines
    assert ["02_owner_slots", "ragged-tail", "2", "1", "tried"] in lines
    assert "<table" in progress()._repr_html_()


@every_exercise
def test_show_gives_a_few_small_inputs_with_the_spec_and_yours_beside_it(ex: Exercise) -> None:
    alone = ex.show(seed=3)
    assert ("what happens" if ex.find else "spec") in repr(alone)
    assert repr(alone) == repr(ex.show(seed=3)) != repr(ex.show(seed=4))
    both = ex.show(ex.answer, seed=3)
    assert "yours" in repr(both) and "<table" in both._repr_html_()
    assert ex.find or ("same" in repr(both) and "raised" not in repr(both))
    assert "ValueError" in repr(ex.show(raising(ValueError("no")), seed=3))


def test_code_that_crashes_only_now_and_then_is_caught_where_it_does_with_its_line() -> None:
    def yours(v: int, c: int) -> tuple[int, int]:
        return (v % c, v // c) if v < 1000 else (c, [0][v])

    found = BY_HAND.check(yours).difference
    assert found is not None and "your code raised IndexError" in found.words
    assert "else (c, [0][v])" in found.words


def test_a_wrong_number_of_parameters_is_a_difference() -> None:
    found = BY_HAND.check(lambda v: v).difference
    assert found is not None and "takes 1 positional argument but 2 were given" in found.words


def test_code_that_changes_its_inputs_changes_neither_the_spec_nor_what_is_shown() -> None:
    ex = exercise("localize-then-chunk")

    def clearing(ids: Any, c: int, rank: int, size: int) -> Any:
        right = ex.answer(list(ids), c, rank, size)
        ids.clear()
        return right

    def wrong_too(ids: Any, *given: Any) -> Any:
        return ids.clear() or 0

    assert ex.check(clearing).passed
    found = ex.check(wrong_too).difference
    assert found is not None and found.inputs["ids"]


class EqualToAll:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class EqualInt(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class OfTheReader(BaseException):
    """No Exception, as those of some libraries."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


NESTED: Any = 1
for _ in range(200):
    NESTED = [NESTED]
HOSTILE: dict[str, tuple[str, object, str]] = {
    "an error": ("owner-by-hand", raising(ValueError("no")), "Your code raised ValueError: no"),
    "too deep": ("owner-by-hand", raising(RecursionError("deep")), "raised RecursionError: deep"),
    "an exit": ("owner-by-hand", raising(SystemExit(3)), "raised SystemExit: 3"),
    "an error of 10 MB": ("owner-by-hand", raising(ValueError("x" * 10**7)), "letters in all"),
    "an error without words": ("owner-by-hand", raising(Speechless()), "raised Speechless"),
    "an error that is no Exception": ("owner-by-hand", raising(OfTheReader()), "OfTheReader"),
    "a canceled task": ("owner-by-hand", raising(asyncio.CancelledError()), "CancelledError"),
    "a number of 5000 digits": ("phase-of-a-chunk", giving(10**5000), "a number of 16610 bits"),
    "one in a pair": ("owner-by-hand", giving((10**5000, 1)), "a number of 16610 bits"),
    "a number past all floats": ("new-token-ratio", giving(10**400), "the spec says"),
    "a huge number that is judged": ("localized-twice", giving(10**5000), "cannot be tried"),
    "a word of 10 MB": ("silent-or-loud", giving("x" * 10**7), "10000002 letters in all"),
    "lists 200 deep": ("owner-by-hand", giving(NESTED), "more than 8 deep"),
    "equal to everything": ("phase-of-a-chunk", giving(EqualToAll()), "of type EqualToAll"),
    "a number equal to everything": ("phase-of-a-chunk", giving(EqualInt(0)), "the spec says"),
    "a tensor of 9 million": (
        "overwritten-positions",
        giving(torch.zeros(3000, 3000)),
        "9000000 numbers: none has more than 100000",
    ),
    "an array of a million": ("victim-order", giving(np.zeros(10**6)), "1000000 numbers"),
    "no function": ("owner-by-hand", (1, 250), "An answer is a function"),
    "no function, of 5000 digits": ("owner-by-hand", 10**5000, "An answer is a function"),
    "no function, cannot be shown": ("owner-by-hand", Unshowable(), "cannot be shown"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_answer_is_wrong_in_few_words(what: str) -> None:
    name, yours, words = HOSTILE[what]
    result = exercise(name).check(yours, seed=1)
    assert result.status == "wrong" and words in repr(result)
    assert len(repr(result)) < 3000 and len(result._repr_html_()) < 6000
    assert len(repr(exercise(name).show(yours, seed=1))) < 9000


def test_an_interrupt_of_the_reader_stops_the_check() -> None:
    with pytest.raises(KeyboardInterrupt):
        BY_HAND.check(raising(KeyboardInterrupt()))


def test_what_the_failing_call_prints_is_shown_and_nothing_else_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def yours(v: int, c: int) -> tuple[int, int]:
        print(f"looking at {v}")
        print("there", file=sys.stderr)
        return swapped(v, c)

    result = BY_HAND.check(yours)
    assert result.difference is not None
    assert result.difference.printed == f"looking at {result.difference.inputs['v']}\nthere\n"
    assert "looking at" in repr(result) and capsys.readouterr() == ("", "")


def test_a_loop_that_prints_for_ever_keeps_only_the_end_of_what_it_prints() -> None:
    with bounded(5.0) as said:
        for number in range(10_000):
            print(number, file=sys.stderr if number % 2 else sys.stdout)
    assert len(said.text) == KEPT and said.text.endswith("9998\n9999\n")


@timed
def test_a_loop_that_swallows_every_error_is_cut_off_all_the_same() -> None:
    before, swallowed = signal.getsignal(signal.SIGALRM), list[str]()

    def yours(v: int, c: int) -> Any:
        while len(swallowed) < 3:
            try:
                time.sleep(5)
            except BaseException as error:
                swallowed.append(type(error).__name__)
        while True:
            v += c

    found = replace(BY_HAND, seconds=0.05).first_difference(yours, seed=1)
    assert found is not None and found.words == "your code had not ended after 0.05 s"
    assert swallowed == ["OutOfTime"] * 3
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


@timed
def test_an_answer_that_would_keep_its_judge_busy_is_cut_off() -> None:
    task = replace(exercise("books-of-the-scheduler"), seconds=0.2)
    found = task.first_difference(lambda c, P: ([[P * c, 1]] * 20_000, 0), seed=1)
    assert found is not None and "not ended after 0.2 s" in found.words


def test_a_check_works_in_a_thread_where_nothing_can_be_cut_off() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(BY_HAND.check(BY_HAND.answer).passed))
    thread.start()
    thread.join()
    assert found == [True]


def test_a_right_answer_that_takes_too_long_for_all_inputs_is_said_to_be_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules["kvlab.teach.exercise"], "WHOLE", 0.0)
    found = BY_HAND.first_difference(BY_HAND.answer, seed=1)
    assert found is not None
    assert found.words == "your code is right, and too slow: 1 of 100 inputs took 0 s"

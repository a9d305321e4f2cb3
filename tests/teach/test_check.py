"""What a check says: not filled in, passed, the first difference, a crash, a hint at the second."""

import re
import signal
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest

from kvlab.teach import EXERCISES, Exercise, exercise, progress
from kvlab.teach.answers import difference, plain
from kvlab.teach.exercise import first_difference, is_unfilled

every_exercise = pytest.mark.parametrize("ex", EXERCISES.values(), ids=lambda ex: ex.name)


def swapped(v: int, c: int) -> tuple[int, int]:
    return v // c, v % c


def stub(v: int, c: int) -> Any: ...


def stub_with_words(v: int, c: int) -> Any:
    """Not yet."""


def stub_that_returns(v: int, c: int) -> Any:
    return ...


@every_exercise
@pytest.mark.parametrize("yours", [None, ..., stub, stub_with_words, stub_that_returns])
def test_an_answer_that_is_not_filled_in_is_said_to_be_that_and_is_no_failure(
    ex: Exercise, yours: Any
) -> None:
    for _ in range(3):
        result = ex.check(yours)
        assert (result.status, result.passed, result.hint) == ("unfilled", False, None)
    assert "not filled in yet" in repr(result) and ex.signature in repr(result)
    assert "not filled in yet" in result._repr_html_()
    assert ex.show(yours)
    assert ex.check().status == "unfilled"
    assert progress().lines[0][3] == 0


def test_a_function_that_has_code_and_always_gives_none_is_not_filled_in() -> None:
    def yours(v: int, c: int) -> None:
        print(v % c)

    assert exercise("owner-by-hand").check(yours).status == "unfilled"


def test_a_passed_check_says_on_how_many_inputs_and_the_seed() -> None:
    result = exercise("owner-by-hand").check(lambda v, c: (v % c, v // c), seed=5)
    assert result.passed and "right on 100 fresh inputs" in repr(result)
    assert "seed 5" in repr(result)


def test_the_first_difference_shows_input_yours_and_spec_and_is_the_smallest_there_is() -> None:
    result = exercise("owner-by-hand").check(swapped)
    found = result.difference
    assert found is not None
    v, c = found.inputs["v"], found.inputs["c"]
    assert isinstance(v, int) and isinstance(c, int)
    assert (found.yours, found.spec) == ([v // c, v % c], [v % c, v // c])
    assert found.words == f"element 0 is {v // c}, the spec says {v % c}"
    assert v < 25
    shown = [line.split() for line in repr(result).splitlines()]
    assert ["v", str(v)] in shown and ["c", str(c)] in shown


def test_a_seed_repeats_a_check_and_without_one_the_inputs_are_others() -> None:
    ex = exercise("owner-by-hand")
    one, two = (ex.check(swapped, seed=11) for _ in range(2))
    assert one.difference == two.difference
    assert len({ex.check(swapped).seed for _ in range(5)}) == 5


def test_the_hint_comes_at_the_second_failure_and_not_before() -> None:
    ex, other = exercise("owner-by-hand"), exercise("ragged-tail")
    first, second, third = (ex.check(swapped) for _ in range(3))
    assert first.hint is None and ex.hint not in repr(first) and ".solution()" not in repr(first)
    assert second.hint == third.hint == ex.hint
    assert ex.hint in repr(second) and ".solution()" in repr(second)
    assert other.check(lambda *given: 0).hint is None


def test_a_check_that_passes_or_is_not_filled_in_counts_for_no_failure() -> None:
    ex = exercise("owner-by-hand")
    for yours in (ex.answer, None, stub):
        ex.check(yours)
    assert ex.check(swapped).hint is None
    assert ex.check(swapped).hint is not None


def raising(error: BaseException) -> Any:
    def yours(v: int, c: int) -> Any:
        raise error

    return yours


@pytest.mark.parametrize(
    "error", [ValueError("no"), ZeroDivisionError("zero"), RecursionError("deep"), SystemExit(3)]
)
def test_a_crash_of_the_readers_code_is_the_difference_with_its_line(error: BaseException) -> None:
    result = exercise("owner-by-hand").check(raising(error))
    found = result.difference
    assert found is not None and found.crashed and result.status == "wrong"
    assert type(error).__name__ in found.words and "raise error" in found.words
    assert str(found.yours).startswith(type(error).__name__)
    assert "your code raised" in repr(result).lower()


def test_code_that_crashes_only_now_and_then_is_caught_where_it_does() -> None:
    def yours(v: int, c: int) -> tuple[int, int]:
        return (v % c, v // c) if v < 1000 else (c, [0][v])

    found = exercise("owner-by-hand").check(yours).difference
    assert found is not None and found.crashed and "IndexError" in found.words


def endless(v: int, c: int) -> Any:
    while v:
        try:
            v += 1
        except Exception:
            c += 1


def test_a_loop_that_never_ends_is_cut_off_and_said_to_be_that() -> None:
    before = signal.getsignal(signal.SIGALRM)
    task = replace(exercise("owner-by-hand"), seconds=0.05)
    assert not is_unfilled(task, endless, seed=1)
    found = first_difference(task, endless, seed=1)
    assert found is not None and found.crashed
    assert found.words == "your code had not ended after 0.05 s"
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_check_works_in_a_thread_where_nothing_can_be_cut_off() -> None:
    found: list[bool] = []
    ex = exercise("owner-by-hand")
    thread = threading.Thread(target=lambda: found.append(ex.check(ex.answer).passed))
    thread.start()
    thread.join()
    assert found == [True]


def test_a_wrong_number_of_parameters_is_a_difference() -> None:
    found = exercise("owner-by-hand").check(lambda v: v).difference
    assert found is not None and "takes 1 positional argument but 2 were given" in found.words


@pytest.mark.parametrize("yours", [(1, 250), 7, "rank", [1, 2], {"rank": 1}, object()])
def test_what_is_no_function_is_refused_in_words(yours: Any) -> None:
    result = exercise("owner-by-hand").check(yours)
    assert result.status == "wrong" and "An answer is a function" in repr(result)
    assert exercise("owner-by-hand").show(yours)


class EqualToAll:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class EqualInt(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_an_object_that_says_it_equals_everything_does_not_pass() -> None:
    ex = exercise("phase-of-a-chunk")
    found = ex.check(lambda *given: EqualToAll()).difference
    assert found is not None and "of type EqualToAll" in found.words
    assert not ex.check(lambda *given: EqualInt(0)).passed


def test_code_that_changes_its_inputs_changes_neither_the_spec_nor_what_is_shown() -> None:
    ex = exercise("localize-then-chunk")

    def yours(ids: Any, c: int, rank: int, size: int) -> Any:
        right = ex.answer(list(ids), c, rank, size)
        ids.clear()
        return right

    assert ex.check(yours).passed


def test_what_the_failing_call_prints_is_shown_and_nothing_else_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def yours(v: int, c: int) -> tuple[int, int]:
        print(f"looking at {v}")
        return swapped(v, c)

    result = exercise("owner-by-hand").check(yours)
    assert result.difference is not None
    assert f"looking at {result.difference.inputs['v']}" in repr(result)
    assert capsys.readouterr().out == ""
    assert sys.stdout is not None


@every_exercise
def test_show_gives_a_few_small_inputs_with_the_spec_and_yours_beside_it(ex: Exercise) -> None:
    alone = ex.show(seed=3)
    heads = "spec" if ex.judge is None else "what happens"
    assert heads in repr(alone) and repr(alone) == repr(ex.show(seed=3))
    assert repr(alone) != repr(ex.show(seed=4))
    both = ex.show(ex.answer, seed=3)
    assert "yours" in repr(both) and "<table" in both._repr_html_()
    if ex.judge is None:
        assert "same" in repr(both) and "differs" not in repr(both)
    crashed = ex.show(raising(ValueError("no")), seed=3)
    assert "ValueError" in repr(crashed) or "TypeError" in repr(crashed)


def test_show_says_where_yours_differs() -> None:
    assert "differs" in repr(exercise("owner-by-hand").show(swapped))


def test_progress_says_what_was_tried_and_what_was_passed() -> None:
    assert progress().passed == ()
    exercise("ragged-tail").check(lambda *given: 0)
    exercise("owner-by-hand").check(exercise("owner-by-hand").answer)
    now = progress()
    assert now.passed == ("owner-by-hand",)
    assert f"1 of {len(EXERCISES)} exercises passed" in repr(now)
    lines = {line[0]: line[1:] for line in now.lines}
    assert lines["ragged-tail"] == ("02_owner_slots", 2, 1, False)
    assert "tried" in repr(now) and "<table" in now._repr_html_()
    exercise("owner-by-hand").check(swapped)
    assert progress().passed == ("owner-by-hand",), "what was passed stays passed"


@pytest.mark.parametrize(
    ("yours", "spec", "words"),
    [
        (4, 5, "4, the spec says 5"),
        ([3, 4], [3, 5], "element 1 is 4, the spec says 5"),
        ([3], [3, 5], "1 values, the spec has 2"),
        ([3, 5, 7], [3, 5], "3 values, the spec has 2"),
        (3, [3, 5], "3 where 2 values in a sequence are meant"),
        ([3, 5], 3, "a sequence of 2 where one value"),
        ([[1], [2, 4]], [[1], [2, 3]], "in element 1: element 1 is 4, the spec says 3"),
        (2.0, 2, r"a float \(2.0\) where a whole number is meant: use // and not /"),
        (True, 1, "True, the spec says 1"),
        (None, 1, "None, the spec says 1"),
        ("silent", "crash", "'silent', the spec says 'crash'"),
        (float("nan"), 1.0, "nan, the spec says 1.0"),
    ],
)
def test_a_difference_is_told_in_words(yours: Any, spec: Any, words: str) -> None:
    found = difference(plain(yours), plain(spec))
    assert found is not None
    assert re.search(words, found)


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf"), -float("inf"), 1e-12])
def test_floats_agree_within_rounding_and_with_themselves(value: float) -> None:
    assert difference(plain(value), plain(value)) is None
    assert difference(plain(1 / 3), plain(1 / 3 + 1e-7)) is None
    assert difference(plain(1 / 3), plain(1 / 3 + 1e-3)) is not None

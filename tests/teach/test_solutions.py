"""The solutions pass, the classical mistakes do not, and nothing can be remembered."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kvlab.teach import EXERCISES, Exercise, exercise
from kvlab.teach.answers import plain
from kvlab.teach.exercise import weight
from tests.teach.repaired import PAIRS, Judge
from tests.teach.wrong import WRONG

every_exercise = pytest.mark.parametrize("ex", EXERCISES.values(), ids=lambda ex: ex.name)
each_mistake = pytest.mark.parametrize(
    ("name", "mistake"),
    [(name, mistake) for name, found in WRONG.items() for mistake in found],
    ids=lambda value: value.replace(" ", "-"),
)


@every_exercise
def test_the_solution_passes_with_every_seed_and_can_be_read(ex: Exercise) -> None:
    for seed in range(12):
        result = ex.check(ex.answer, seed=seed)
        assert result.passed, result
    assert ex.check(ex.answer).passed
    source = repr(ex.solution())
    assert source.startswith(f"def {ex.answer.__name__}(")
    assert "<pre" in ex.solution()._repr_html_()


def as_shown(value: object) -> bool:
    """Whether a value is what its text in a task says: numbers, words, lists and pairs of them."""
    if type(value) in (list, tuple):
        return all(map(as_shown, value))  # type: ignore[call-overload]
    return type(value) in (bool, int, float, str)


@every_exercise
def test_a_function_is_given_what_its_task_shows_plain_numbers_words_and_lists(
    ex: Exercise,
) -> None:
    drawn = [ex.inputs(7, number, number % 10) for number in range(20)]
    for inputs in (ex.example, *drawn):
        assert all(as_shown(value) for value in inputs.values()), inputs


def test_each_exercise_has_at_least_two_classical_mistakes() -> None:
    assert set(WRONG) == set(EXERCISES)
    assert min(len(found) for found in WRONG.values()) >= 2


@each_mistake
def test_a_classical_mistake_fails_with_a_difference_that_is_true(name: str, mistake: str) -> None:
    ex, wrong = exercise(name), WRONG[name][mistake]
    for seed in range(5):
        result = ex.check(wrong, seed=seed)
        assert result.status == "wrong", f"{mistake} passes with seed {seed}"
        found = result.difference
        assert found is not None
        inputs = dict(found.inputs)
        if not found.crashed:
            answer = plain(ex.answered(wrong, inputs))
            assert str(found.yours) == str(answer)
            verdict = ex.verdict(answer, inputs)
            assert (verdict.right, verdict.words) == (False, found.words)
            assert "cannot be tried" not in found.words
        if ex.judge is None:
            meant = plain(ex.answered(ex.answer, inputs))
            assert ex.verdict(meant, inputs).right
            assert str(found.spec) == str(ex.expected(inputs))
        else:
            right = plain(ex.answered(ex.answer, inputs))
            assert ex.verdict(right, inputs).right
        for text in (repr(result), result._repr_html_()):
            assert "yours" in text and f"seed={seed}" in text


@pytest.mark.parametrize(
    ("name", "mistake", "bound"),
    [
        ("owner-by-hand", "the two swapped", 60),
        ("bounds-of-two-spaces", "no padding page", 50),
        ("ragged-tail", "whole turns only", 100),
        ("localize-then-chunk", "cut first", 250),
        ("restore-into-new-slots", "slots as rows", 150),
        ("books-of-the-scheduler", "enough room", 30),
    ],
)
def test_the_failing_input_that_is_shown_is_small_enough_to_be_redone_by_hand(
    name: str, mistake: str, bound: float
) -> None:
    for seed in range(5):
        found = exercise(name).check(WRONG[name][mistake], seed=seed).difference
        assert found is not None and weight(found.inputs) <= bound


class Remembering:
    """Answers that were remembered from other checks, by their inputs."""

    def __init__(self, ex: Exercise) -> None:
        self.table: dict[str, Any] = {}
        for seed in range(1000, 1012):
            for number in range(100):
                inputs = ex.inputs(seed, number, number // 10)
                self.table[str(list(inputs.values()))] = ex.answered(ex.answer, inputs)

    def __call__(self, *given: object) -> Any:
        return self.table.get(str(list(given)), next(iter(self.table.values())))


# A repaired method is no table of answers.
@pytest.mark.parametrize(
    "ex", [e for e in EXERCISES.values() if e.run is None], ids=lambda e: e.name
)
def test_a_table_of_answers_remembered_from_other_seeds_fails(ex: Exercise) -> None:
    remembering = Remembering(ex)
    assert len(remembering.table) > 200
    for seed in range(3):
        result = ex.check(remembering, seed=seed)
        assert not result.passed, f"{len(remembering.table)} answers are enough, seed {seed}"


CAST: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda x: torch.tensor(x),
    "array": lambda x: np.array(x),
    "list": lambda x: list(x),
    "tuple": lambda x: tuple(x),
    "iterator": lambda x: iter(x),
    "numpy scalars": lambda x: [np.int64(item) for item in x],
    "scalar tensors": lambda x: [torch.tensor(item) for item in x],
}


@pytest.mark.parametrize("cast", CAST)
@pytest.mark.parametrize("name", ["owner-by-hand", "victim-order", "overwritten-positions"])
def test_tensors_arrays_lists_and_numpy_numbers_are_all_answers(name: str, cast: str) -> None:
    ex = exercise(name)

    def yours(*given: Any) -> Any:
        return CAST[cast](ex.answer(*given))

    assert ex.check(yours).passed


def test_a_number_may_be_a_scalar_of_any_library() -> None:
    ex = exercise("phase-of-a-chunk")
    for cast in (np.int32, torch.tensor, int):
        assert ex.check(lambda *given, cast=cast: cast(ex.answer(*given))).passed


@pytest.mark.parametrize("name", PAIRS)
def test_the_suspect_is_exposed_by_the_solution_and_without_its_bug_by_nothing(name: str) -> None:
    judge: Judge
    judge, suspect, repaired = PAIRS[name]
    ex = exercise(name)
    assert ex.judge is judge
    for number in range(60):
        inputs = ex.inputs("pairs", number, number // 6)
        answers = [ex.answer, *WRONG[name].values()]
        for answer in answers:
            given = plain(answer(*inputs.values()))
            assert not judge(given, *inputs.values(), suspect=repaired).right
        right = plain(ex.answer(*inputs.values()))
        assert judge(right, *inputs.values(), suspect=suspect).right


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(
    "answer", [None, 3, "word", [], [[]], [[], []], [[None]], [[1.5], [2.5]], [["a"], 0], [True]]
)
def test_an_answer_of_another_shape_is_judged_and_not_raised(name: str, answer: Any) -> None:
    ex = exercise(name)
    result = ex.check(lambda *given: answer)
    assert result.status == ("unfilled" if answer is None else "wrong")
    assert repr(result)

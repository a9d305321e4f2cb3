"""The quiz: ten questions, computed answers, marks that send back to a notebook."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from kvlab.teach import EXERCISES, quiz


def right_answers() -> list[Any]:
    return [question.compute() for question in quiz.questions]


def test_there_are_ten_questions_over_all_notebooks() -> None:
    assert len(quiz.questions) == 10
    assert {q.notebook for q in quiz.questions} == {ex.notebook for ex in EXERCISES.values()}
    shown = repr(quiz())
    assert all(q.text in shown for q in quiz.questions) and "quiz.check" in shown
    assert "<table" in quiz()._repr_html_()


def test_the_answers_are_those_that_the_notebooks_give() -> None:
    # By hand: 5 * 2 + 0; 1001 // 8; 129 * 64; 8 - 3; 1024 / 8 - 1; c; 100 + 29; 2; 1; 126 rows.
    assert right_answers() == [10, 125, 8256, 5, 127, "c", 129, 2, 1, 126 * 7 * 576 * 2]
    shown = repr(quiz.answers())
    assert all(f" {answer} " in shown for answer in right_answers())


def test_right_answers_are_right_as_numbers_as_words_and_by_number() -> None:
    right = right_answers()
    assert quiz.check(right).right == 10
    assert quiz.check([str(answer).upper() for answer in right]).right == 10
    assert quiz.check(dict(enumerate(right, start=1))).right == 10


def test_a_wrong_answer_sends_back_to_its_notebook_and_does_not_tell() -> None:
    right = right_answers()
    for at, question in enumerate(quiz.questions):
        given = [*right]
        given[at] = "a" if question.choices else 4242
        score = quiz.check(given)
        assert (score.right, score.marks[at]) == (9, "wrong")
        assert question.notebook in repr(score) and "<table" in score._repr_html_()
    assert "8256" not in repr(quiz.check([0] * 10))


@pytest.mark.parametrize("answers", [[], {}, [None] * 10, [...], "c", 7, None, [[], {}, object()]])
def test_gaps_and_nonsense_are_marked_and_not_raised(answers: Any) -> None:
    score = quiz.check(answers)
    assert score.right == 0 and len(score.marks) == score.asked == 10


def test_a_gap_is_not_wrong() -> None:
    score = quiz.check([10])
    assert score.marks == ("right", *[""] * 9)
    assert "not answered" in repr(score)


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (1, 10.0),
        (1, "slot 10"),
        (1, Fraction(10)),
        (1, np.int64(10)),
        (3, "8,256"),
        (3, "8 256 rows"),
        (3, "8_256"),
        (6, "(C)"),
        (6, "c) DCP 4"),
        (6, "DCP 4, restored into new slots, compared with what was written"),
        (10, "1,016,064 bytes"),
    ],
)
def test_an_answer_may_be_written_as_people_write(number: int, answer: Any) -> None:
    assert quiz.check({number: answer}).marks[number - 1] == "right"
    assert quiz.check({str(number): answer}).marks[number - 1] == "right"  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (1, 10.5),
        (1, "10 or 11"),
        (1, "8,10"),
        pytest.param(1, "1" * 5000, id="5000 letters"),
        pytest.param(1, 10**5000, id="5000 digits"),
        (6, "a b c d"),
        (6, "cd"),
        (9, True),
    ],
)
def test_what_is_not_one_right_answer_is_wrong(number: int, answer: Any) -> None:
    assert quiz.check({number: answer}).marks[number - 1] == "wrong"


def test_answers_may_be_an_array() -> None:
    assert quiz.check(np.array([10, 125, 8256])).right == 3  # type: ignore[arg-type]

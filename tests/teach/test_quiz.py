"""The quiz: ten questions, computed answers, marks that send back to a notebook."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from kvlab.teach import EXERCISES, quiz

# By hand: 5 * 2 + 0; 1001 // 8; 129 * 64; 8 - 3; 1024 / 8 - 1; c; 100 + 29; 2; 1; 126 rows.
RIGHT = [10, 125, 8256, 5, 127, "c", 129, 2, 1, 126 * 7 * 576 * 2]


def test_there_are_ten_questions_over_all_notebooks_with_computed_answers() -> None:
    assert [question.compute() for question in quiz.questions] == RIGHT
    assert {q.notebook for q in quiz.questions} == {ex.notebook for ex in EXERCISES.values()}
    assert all(str(q) in repr(quiz()) for q in quiz.questions) and "<table" in quiz()._repr_html_()
    assert all(f" {answer} " in repr(quiz.answers()) for answer in RIGHT)


def test_right_answers_are_right_as_numbers_as_words_and_by_number() -> None:
    for given in (RIGHT, [str(x).upper() for x in RIGHT], dict(enumerate(RIGHT, start=1))):
        assert quiz.check(given).right == 10
    assert quiz.check(np.array(RIGHT[:3])).right == 3


def test_a_wrong_answer_sends_back_to_its_notebook_and_does_not_tell() -> None:
    for at, question in enumerate(quiz.questions):
        score = quiz.check([*RIGHT[:at], "a" if question.choices else 4242, *RIGHT[at + 1 :]])
        assert (score.right, score.marks[at]) == (9, "wrong")
        assert question.notebook in repr(score) and "<table" in score._repr_html_()
        assert at == 2 or "8256" not in repr(score)


@pytest.mark.parametrize("answers", [[], {}, [None] * 10, [...], "c", 7, None, [[], {}, object()]])
def test_gaps_and_nonsense_are_marked_and_not_raised(answers: Any) -> None:
    score = quiz.check(answers)
    assert score.right == 0 and len(score.marks) == 10
    assert quiz.check([10]).marks == ("right", *[""] * 9)
    assert "not answered" in repr(quiz.check([10]))


@pytest.mark.parametrize(
    ("number", "answers"),
    [
        (1, [10.0, "slot 10", Fraction(10), np.int64(10)]),
        (3, ["8,256", "8 256 rows", "8_256"]),
        (6, ["(C)", "c) DCP 4", "DCP 4, restored into new slots, compared with what was written"]),
        (10, ["1,016,064 bytes"]),
    ],
)
def test_an_answer_may_be_written_as_people_write(number: int, answers: list[Any]) -> None:
    for answer in answers:
        assert quiz.check({number: answer}).marks[number - 1] == "right", answer
        assert quiz.check({str(number): answer}).marks[number - 1] == "right", answer


@pytest.mark.parametrize(
    ("number", "answers"),
    [
        (1, [10.5, "10 or 11", "8,10", "1" * 5000, 10**5000]),
        (6, ["a b c d", "cd"]),
        (9, [True]),
    ],
)
def test_what_is_not_one_right_answer_is_wrong(number: int, answers: list[Any]) -> None:
    for answer in answers:
        assert quiz.check({number: answer}).marks[number - 1] == "wrong"

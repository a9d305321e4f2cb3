"""The exercises as a set: names, notebooks, grades, specs."""

import re
from collections import defaultdict

import pytest

from kvlab.errors import KvlabError
from kvlab.teach import EXERCISES, Exercise, exercise, exercises_of
from kvlab.teach.answers import plain
from kvlab.teach.exercise import SIZES

NOTEBOOKS = (
    "00_start_here",
    "01_two_index_spaces",
    "02_owner_slots",
    "03_crash_reproduction",
    "04_backup_and_restore",
    "05_retraction_counts",
    "06_logprob_drift",
    "07_what_it_costs",
)
every_exercise = pytest.mark.parametrize("ex", EXERCISES.values(), ids=lambda ex: ex.name)


def test_there_are_enough_and_each_notebook_ends_with_two_or_three() -> None:
    assert len(EXERCISES) >= 22
    assert tuple(dict.fromkeys(ex.notebook for ex in EXERCISES.values())) == NOTEBOOKS
    assert {len(exercises_of(notebook)) for notebook in NOTEBOOKS} <= {2, 3}


def test_grades_rise_along_the_path_from_by_hand_to_find_the_bug() -> None:
    grades = defaultdict(list)
    for ex in EXERCISES.values():
        grades[ex.notebook].append(ex.grade)
    assert [sorted(found) for found in grades.values()] == list(grades.values())
    hardest = [max(found) for found in grades.values()]
    assert hardest == sorted(hardest)
    assert (min(grades[NOTEBOOKS[0]]), hardest[-1]) == (1, 5)
    assert {ex.grade for ex in EXERCISES.values()} == {1, 2, 3, 4, 5}


def test_more_than_the_core_can_be_asked_for() -> None:
    core, more = (exercises_of("05_retraction_counts", core=c) for c in (True, False))
    assert set(core) < set(more)


@every_exercise
def test_a_spec_says_what_to_fill_in_gives_an_example_and_ends_with_how_to_check(
    ex: Exercise,
) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", ex.name)
    text = repr(ex)
    assert ex.title in text.splitlines()[0] and f"grade {ex.grade} of 5" in text
    assert f"{ex.signature}\n" in text and "Example:" in text
    last = text.splitlines()[-1]
    assert last.strip() == f'exercise("{ex.name}").check({ex.answer.__name__})'
    assert f'exercise("{ex.name}").show()' in text
    assert ex.hint not in text
    html = ex._repr_html_()
    assert "Example:" in html and ex.name in html and "color:#" not in html and "`" not in html


@every_exercise
def test_the_worked_example_is_right_when_it_is_computed(ex: Exercise) -> None:
    verdict = ex.verdict(plain(ex.answered(ex.answer, ex.example)), ex.example)
    assert verdict.right, verdict.words


@every_exercise
def test_the_signature_has_the_inputs_in_the_order_in_which_they_are_given(ex: Exercise) -> None:
    names = re.findall(r"\w+(?=[,)])", ex.signature)
    assert list(ex.example) == list(ex.inputs(1, 0, 0))
    if ex.run is None:
        assert names == list(ex.example)


@every_exercise
def test_inputs_are_fresh_small_at_first_and_the_same_for_one_seed(ex: Exercise) -> None:
    task = ex
    assert str(task.inputs(3, 4, 5)) == str(task.inputs(3, 4, 5))
    drawn = {str(task.inputs(seed, 0, SIZES - 1)) for seed in range(30)}
    assert len(drawn) > 15
    assert len(str(task.inputs(1, 0, 0))) < 200


def test_a_name_or_notebook_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(KvlabError, match=r"got 'owner', which is none of owner-by-hand, "):
        exercise("owner")
    with pytest.raises(KvlabError, match=r"one of 00_start_here, .* got '08'"):
        exercises_of("08")

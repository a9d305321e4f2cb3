"""A reader does an exercise in a cell: not filled in, wrong, wrong again with a hint, right."""

from __future__ import annotations

import pytest

from kvlab.teach import exercise

from .conftest import Open
from .lab import Lab
from .notebook import SHOWN_MS, keep

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NAME = "owner-by-hand"


def test_an_exercise_takes_a_wrong_answer_with_a_hint_and_then_a_right_one(
    lab: Lab, open_notebook: Open
) -> None:
    asked = exercise(NAME)
    empty = f'{asked.signature}\n    ...\n\n\nexercise("{NAME}").check({asked.answer.__name__})'
    cells = f'from kvlab.teach import exercise\nexercise("{NAME}")', empty
    notebook = open_notebook(lab.write("exercise", *cells))
    notebook.run_all(60_000)
    shown, answer = (notebook.cell(at).locator(".jp-OutputArea-output") for at in (0, 1))
    assert asked.told[0] in shown.inner_text()
    assert "not filled in yet" in answer.inner_text()
    wrong, right = empty.replace("...", "return 0, 0", 1), empty.replace("...", _right(), 1)
    for failure in (1, 2):
        notebook.type_cell(1, wrong)
        notebook.run_cell(1)
        answer.get_by_text("not yet").wait_for(timeout=SHOWN_MS)
        told = answer.inner_text()
        assert "The smallest input found for which it is wrong" in told
        assert (asked.hint in told) is (failure == 2)
    keep(answer, "exercise_wrong_twice")
    notebook.theme("dark")
    keep(answer, "exercise_wrong_twice_dark")
    notebook.theme("light")
    notebook.type_cell(1, right)
    notebook.run_cell(1)
    answer.get_by_text("passed, right on").wait_for(timeout=SHOWN_MS)
    assert "Hint" not in answer.inner_text()
    keep(answer, "exercise_passed")
    assert notebook.errors() == []


def _right() -> str:
    """The body of a right answer, written as the solution is."""
    lines = repr(exercise(NAME).solution()).splitlines()
    return lines[-1].strip()

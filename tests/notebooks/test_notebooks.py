"""The committed notebooks are executed, up to date, small, and ask a question.

Nothing is run here: the stamp in each notebook tells whether its outputs belong to its code.
"""

from pathlib import Path

import pytest

from scripts.notebooks import problems

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def test_there_are_notebooks() -> None:
    assert list(NOTEBOOKS.glob("*.ipynb")), "notebooks/ is empty: the tests below would say nothing"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_committed_notebook_keeps_every_rule(path: Path) -> None:
    assert problems(path) == []

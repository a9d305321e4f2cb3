"""Every notebook runs from top to bottom in JupyterLab, as it does for a reader."""

from pathlib import Path

import pytest

from .conftest import Open
from .lab import ROOT, Lab

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_all_cells_run_and_none_raises(path: Path, lab: Lab, open_notebook: Open) -> None:
    notebook = open_notebook(lab.copy(path))
    notebook.run_all()
    notebook.page.wait_for_timeout(500)  # the last output may still be drawn
    notebook.shoot(path.stem)
    assert notebook.errors() == []
    assert [p for p in notebook.prompts() if not p.strip("[]:").isdecimal()] == []
    assert notebook.strangers == []

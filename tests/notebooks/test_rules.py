"""Committed notebooks keep every rule, and each rule bites on a notebook that breaks it.

Nothing is run here: the stamp in each notebook tells whether its outputs belong to its code.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kvlab.report.notebook_files import (
    MAX_NOTEBOOK_BYTES,
    WIDGET_VIEW,
    find_notebooks,
    stamp,
    write_notebook,
)
from scripts.notebooks import main, problems

HOME = "/" + "home/someone"
Change = Callable[[NotebookNode], object]


def good() -> NotebookNode:
    """A notebook that keeps every rule."""
    code = new_code_cell("print(1)", execution_count=1)  # type: ignore[no-untyped-call]
    code.outputs = [output("stream", text="1\n")]
    prose = new_markdown_cell("# Sums\n\nWhat is `$x$` for 5 $?")  # type: ignore[no-untyped-call]
    made: NotebookNode = new_notebook(cells=[prose, code])  # type: ignore[no-untyped-call]
    return made


def output(kind: str, **given: object) -> NotebookNode:
    """An output of a cell."""
    made: NotebookNode = new_output(kind, **given)  # type: ignore[no-untyped-call]
    return made


def add(kind: str, **given: object) -> Change:
    """A change that adds an output to the code cell."""
    return lambda nb: nb.cells[1].outputs.append(output(kind, **given))


def set_source(cell: int, source: str) -> Change:
    """A change of one cell's source."""
    return lambda nb: nb.cells[cell].update(source=source)


BROKEN: list[tuple[Change, str]] = [
    (lambda nb: nb.metadata.pop("kvlab"), "has no stamp: it was not executed by kvlab"),
    (lambda nb: nb.metadata.kvlab.update(code_sha256="0" * 64), "is stale: executed with code"),
    (set_source(0, "# Sums"), "does not ask a question in its first cell"),
    (lambda nb: nb.cells.pop(0), "does not ask a question in its first cell"),
    (set_source(0, "Why $W = P c$?"), "formula in dollar signs in cell 1"),
    (set_source(0, "Why?\n$$\nW\n$$"), "formula in dollar signs in cell 1"),
    (lambda nb: nb.cells.pop(1), "has no code cell"),
    (set_source(1, "a = 1\n" * 8 + "print(a)"), "cells of 9 code lines (median), bound 8"),
    (lambda nb: nb.metadata.update(widgets={}), "has metadata.widgets"),
    (lambda nb: nb.cells[1].update(execution_count=None), "was not executed in cell 2"),
    (lambda nb: nb.cells[1].update(outputs=[]), "shows something in cell 2 and has no output"),
    (
        add("error", ename="ValueError", evalue="no", traceback=[]),
        "error output in cell 2: ValueError",
    ),
    (add("stream", text=f"at {HOME}/a.py"), f"machine in cell 2: {HOME}/a.py"),
    (add("display_data", data={"text/html": f"<b>{HOME}/b</b>"}), f"machine in cell 2: {HOME}/b"),
    (
        add("display_data", data={WIDGET_VIEW: {}}),
        "has a widget view without its widget in cell 2",
    ),
    (
        add("display_data", data={"text/html": "x" * MAX_NOTEBOOK_BYTES}),
        f"bound {MAX_NOTEBOOK_BYTES}: show fewer or smaller pictures",
    ),
]


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_a_committed_notebook_keeps_every_rule(path: Path) -> None:
    assert problems(path) == []


def test_a_notebook_that_keeps_the_rules_has_no_problems(tmp_path: Path) -> None:
    write_notebook(stamp(good()), tmp_path / "a.ipynb")
    assert problems(tmp_path / "a.ipynb") == []


@pytest.mark.parametrize(("change", "sentence"), BROKEN)
def test_each_rule_bites(tmp_path: Path, change: Change, sentence: str) -> None:
    nb = stamp(good())
    change(nb)
    write_notebook(nb, tmp_path / "a.ipynb")
    assert [p for p in problems(tmp_path / "a.ipynb") if sentence in p]


@pytest.mark.parametrize(
    "source",
    ["def f():\n    print(1)", "if slow:\n    print(1)", "%timeit print(1)", "t = show_no(1)"],
)
def test_a_cell_that_need_not_show_anything_may_have_no_output(tmp_path: Path, source: str) -> None:
    nb = good()
    nb.cells[1].source, nb.cells[1].outputs = source, []
    write_notebook(stamp(nb), tmp_path / "a.ipynb")
    assert problems(tmp_path / "a.ipynb") == []


def test_the_check_command_says_what_is_wrong_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_notebook(stamp(good()), tmp_path / "a.ipynb")
    assert main(["check", str(tmp_path)]) == 0
    write_notebook(good(), tmp_path / "b.ipynb")
    assert main(["check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "b.ipynb has no stamp" in said
    assert "execute --in-place" in said
    assert main(["check", str(tmp_path / "nowhere")]) == 2
    assert "error: there is no notebook at" in capsys.readouterr().err

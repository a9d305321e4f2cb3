"""Each rule for committed notebooks bites on a notebook that breaks it, and on no other."""

from collections.abc import Callable
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kvlab.report.notebook_files import MAX_NOTEBOOK_BYTES, stamp, write_notebook
from scripts.notebooks import main, problems

HOME = "/" + "home/someone"
Change = Callable[[NotebookNode], object]


def good() -> NotebookNode:
    """A notebook that keeps every rule."""
    code = new_code_cell("print(1)", execution_count=1)  # type: ignore[no-untyped-call]
    code.outputs = [new_output("stream", text="1\n")]  # type: ignore[no-untyped-call]
    prose = new_markdown_cell("# Sums\n\nWhat is `$x$` for 5 $?")  # type: ignore[no-untyped-call]
    made: NotebookNode = new_notebook(cells=[prose, code])  # type: ignore[no-untyped-call]
    return made


def text_output(text: str) -> NotebookNode:
    """An output that shows ``text``."""
    made: NotebookNode = new_output(  # type: ignore[no-untyped-call]
        "display_data", data={"text/html": text}
    )
    return made


def error_output() -> NotebookNode:
    """The output of a cell that raised."""
    made: NotebookNode = new_output(  # type: ignore[no-untyped-call]
        "error", ename="ValueError", evalue="no", traceback=[]
    )
    return made


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
    (lambda nb: nb.cells[1].outputs.append(error_output()), "error output in cell 2: ValueError"),
    (
        lambda nb: nb.cells[1].outputs[0].update(text=f"at {HOME}/a.py"),
        f"shows a path of the author's machine in cell 2: {HOME}/a.py",
    ),
    (
        lambda nb: nb.cells[1].outputs.append(text_output(f"<b>{HOME}/b</b>")),
        f"shows a path of the author's machine in cell 2: {HOME}/b",
    ),
    (
        lambda nb: nb.cells[1].outputs.append(
            NotebookNode(  # type: ignore[no-untyped-call]
                output_type="display_data",
                metadata={},
                data={"application/vnd.jupyter.widget-view+json": {}},
            )
        ),
        "has a widget view without its widget in cell 2",
    ),
    (
        lambda nb: nb.cells[1].outputs.append(text_output("x" * MAX_NOTEBOOK_BYTES)),
        f"bound {MAX_NOTEBOOK_BYTES}: show fewer or smaller pictures",
    ),
]


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
    [
        "def f():\n    print(1)",
        "if slow:\n    print(1)",
        "%timeit print(1)",
        "table = show_nothing(1)",
    ],
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

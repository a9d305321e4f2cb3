"""A stamp tells stale outputs, and cleaning removes what changes from run to run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kvlab.report.notebook_files import (
    ReportError,
    check_stamp,
    clean,
    code_hash,
    describe,
    find_beside,
    find_notebooks,
    read_notebook,
    stamp,
    write_notebook,
)

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def notebook(*sources: str) -> NotebookNode:
    """A notebook of code cells."""
    cells = [new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    made: NotebookNode = new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    return made


def test_a_stamped_notebook_fits_its_code_until_a_cell_changes() -> None:
    nb = stamp(notebook("a = 1", "print(a)"))
    assert check_stamp(nb) is None
    nb.cells[0].source = "a = 2"
    assert "is stale: executed with code" in (check_stamp(nb) or "")


def test_a_notebook_without_a_stamp_is_told() -> None:
    assert check_stamp(notebook("a = 1")) == "has no stamp: it was not executed by kvlab"


def test_prose_and_outputs_do_not_change_the_hash() -> None:
    nb = notebook("a = 1")
    before = code_hash(nb)
    nb.cells.insert(0, new_markdown_cell("# Prose"))  # type: ignore[no-untyped-call]
    nb.cells[1].execution_count = 7
    assert code_hash(nb) == before


@given(st.lists(st.text("ab\n =", max_size=8), max_size=4), st.text("ab", min_size=1, max_size=3))
def test_any_change_of_code_changes_the_hash(sources: list[str], more: str) -> None:
    assert code_hash(notebook(*sources)) != code_hash(notebook(*sources, more))
    if "".join(sources).strip():
        assert code_hash(notebook(*sources)) != code_hash(notebook("".join(sources) + more))


def test_moving_a_line_to_the_next_cell_changes_the_hash() -> None:
    assert code_hash(notebook("a\nb", "c")) != code_hash(notebook("a", "b\nc"))


def test_cleaning_removes_what_changes_from_run_to_run() -> None:
    nb = notebook("show()")
    nb.metadata = {"widgets": {}, "language_info": {"version": "3.11.4"}, "kvlab": {"x": 1}}
    nb.cells[0].metadata = {"execution": {"t": 1}, "tags": ["kept"], "collapsed": True}
    nb.cells[0].outputs = [
        new_output(  # type: ignore[no-untyped-call]
            "display_data",
            data={
                WIDGET_VIEW: {"model_id": "1"},
                "image/png": "x",
                "text/plain": "<A at 0x7f00aa11>",
            },
        ),
        new_output("stream", text="<B at 0x7f00aa11>"),  # type: ignore[no-untyped-call]
    ]
    clean(nb)
    assert nb.metadata.keys() == {"kernelspec", "language_info", "kvlab"}
    assert nb.metadata.language_info == {"name": "python"}
    assert nb.cells[0].metadata == {"tags": ["kept"]}
    assert nb.cells[0].outputs[0].data == {"image/png": "x", "text/plain": "<A>"}
    assert nb.cells[0].outputs[1].text == "<B>"


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    size = write_notebook(notebook("a = 1"), path)
    assert size == path.stat().st_size
    assert read_notebook(path).cells[0].source == "a = 1"
    assert [p.name for p in tmp_path.iterdir()] == ["a.ipynb"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not json", "is not a notebook of format 4: .*; open it in JupyterLab"),
        (b"{}", "is not a notebook of format 4"),
        (b"\xff\xfe", "cannot be read: it is not UTF-8 text"),
        (None, "cannot be read: No such file or directory; check the path"),
    ],
)
def test_a_file_that_is_no_notebook_is_refused(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "a.ipynb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ReportError, match=f"notebook .*a.ipynb {reason}"):
        read_notebook(path)


def test_notebooks_of_a_folder_come_in_order_and_that_of_the_working_directory_is_the_default(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [make(name, "1") for name in ("02_b", "01_a", "10_c")]
    assert [path.stem for path in find_notebooks([paths[0].parent])] == ["01_a", "02_b", "10_c"]
    assert find_notebooks([paths[0]]) == [paths[0]]
    monkeypatch.chdir(tmp_path)
    assert find_notebooks()[0] == Path("notebooks/01_a.ipynb")


def test_the_text_above_the_notebooks_comes_before_that_of_the_project(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    path = make("01_a", "1")
    assert find_beside([path], "GLOSSARY.md") == Path(__file__).parents[2] / "GLOSSARY.md"
    (tmp_path / "GLOSSARY.md").write_text("# Mine")
    assert find_beside([path], "GLOSSARY.md") == tmp_path.resolve() / "GLOSSARY.md"
    assert find_beside([path], "NOWHERE.md") is None


@pytest.mark.parametrize(
    ("source", "title", "question"),
    [
        (
            "# 3. The `x` crash\n\nSo. Why does\nit `crash`? Or not?",
            "3. The x crash",
            "Why does it crash?",
        ),
        ("# Is it so?", "Is it so?", ""),
        ("No heading", "03 crash", ""),
    ],
)
def test_a_notebook_is_described_by_its_first_heading_and_question(
    source: str, title: str, question: str
) -> None:
    cells = [new_markdown_cell(source)]  # type: ignore[no-untyped-call]
    made = new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    assert describe(made, "03_crash") == {"title": title, "question": question}


def test_places_without_notebooks_are_refused(tmp_path: Path, make: Callable[..., Path]) -> None:
    with pytest.raises(ReportError, match=r"there is no notebook in .*: name a folder that has"):
        find_notebooks([tmp_path])
    with pytest.raises(ReportError, match=r"there is no notebook at .*nowhere: run this where"):
        find_notebooks([tmp_path / "nowhere"])
    path = make("01_a", "1")
    with pytest.raises(ReportError, match="told apart by name: 01_a is named twice"):
        find_notebooks([path, path.parent])

"""The glossary is a page of the report, and links of notebooks lead to its words."""

import re
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

from kvlab.report import Report
from kvlab.report.pages import describe, markdown_body, notebook_body
from kvlab.report.notebook_files import find_beside


def markdown(source: str) -> NotebookNode:
    """A notebook of one markdown cell."""
    cell = new_markdown_cell(source)  # type: ignore[no-untyped-call]
    made: NotebookNode = new_notebook(cells=[cell])  # type: ignore[no-untyped-call]
    return made


@pytest.mark.notebook
def test_the_index_and_the_notebooks_lead_to_words_of_the_glossary(report: Report) -> None:
    index = (report.folder / "index.html").read_text(encoding="utf-8")
    notebook = (report.folder / "notebooks" / "01_sum.html").read_text(encoding="utf-8")
    glossary = (report.folder / "glossary.html").read_text(encoding="utf-8")
    assert '<a href="glossary.html">glossary</a>' in index
    assert '<a href="../glossary.html#dcp">rank</a>' in notebook
    assert '<a id="dcp"></a>' in glossary


def test_every_word_that_the_notebooks_link_is_in_the_glossary() -> None:
    root = Path(__file__).parents[2]
    anchors = set(re.findall(r'<a id="([^"]+)">', (root / "GLOSSARY.md").read_text("utf-8")))
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        linked = set(re.findall(r"GLOSSARY\.md#([\w-]+)", path.read_text("utf-8")))
        assert linked <= anchors, path.name


def test_links_to_the_glossary_are_text_in_a_report_without_one(tmp_path: Path) -> None:
    linked = markdown("[slot](../GLOSSARY.md#slot)")
    assert "<p>slot</p>" in notebook_body(linked, tmp_path, {})
    page = notebook_body(linked, tmp_path, {"GLOSSARY.md": "../glossary.html"})
    assert '<p><a href="../glossary.html#slot">slot</a></p>' in page


def test_markdown_keeps_its_anchors(tmp_path: Path) -> None:
    body = markdown_body('| a |\n|---|\n| <a id="slot"></a>slot |', tmp_path, {})
    assert '<a id="slot"></a>slot' in body


def test_the_glossary_above_the_notebooks_comes_before_that_of_the_project(tmp_path: Path) -> None:
    notebook = tmp_path / "notebooks" / "01_a.ipynb"
    assert find_beside([notebook], "GLOSSARY.md") == Path(__file__).parents[2] / "GLOSSARY.md"
    (tmp_path / "GLOSSARY.md").write_text("# Mine")
    assert find_beside([notebook], "GLOSSARY.md") == tmp_path.resolve() / "GLOSSARY.md"


@pytest.mark.parametrize("heading", ["# 3. The crash", "# The crash"])
def test_a_title_reads_alike_with_or_without_the_number_in_the_heading(heading: str) -> None:
    page = describe(markdown(heading), "03_crash", 1.0)
    assert (page.title, page.label) == ("The crash", "3. The crash")


def test_a_notebook_without_a_number_is_named_by_its_title_alone() -> None:
    assert describe(markdown("# 3. A"), "crash", 1.0).label == "3. A"

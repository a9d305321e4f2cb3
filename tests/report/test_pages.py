"""A page of the report loads nothing from the network and keeps only links that work."""

import re
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kvlab.report.offline import external_loads, offline
from kvlab.report.pages import Heading, contents, describe, notebook_body

REMOTE = "https" + "://example.org/x"


@pytest.mark.parametrize(
    ("html", "found"),
    [
        (f'<script src="{REMOTE}"></script>', [f"script src={REMOTE}"]),
        (f"<link rel=stylesheet href='{REMOTE}'>", [f"link href={REMOTE}"]),
        (f'<img src="{REMOTE}">', [f"img src={REMOTE}"]),
        ('<img src="//example.org/x">', ["img src=//example.org/x"]),
        (f"<style>@import '{REMOTE}';</style>", [f"css {REMOTE}"]),
        (f'<p style="background: url({REMOTE})">', [f"css {REMOTE}"]),
        (f'<a href="{REMOTE}">text</a><img src="a.png"><img src="data:,">', []),
    ],
)
def test_loads_from_the_network_are_found_and_links_are_not(html: str, found: list[str]) -> None:
    assert external_loads(html) == found


def markdown(source: str) -> NotebookNode:
    """A notebook of one markdown cell."""
    cell = new_markdown_cell(source)  # type: ignore[no-untyped-call]
    made: NotebookNode = new_notebook(cells=[cell])  # type: ignore[no-untyped-call]
    return made


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("[next](02_b.ipynb)", '<a href="02_b.html">next</a>'),
        ("[part](02_b.ipynb#Part)", '<a href="02_b.html#Part">part</a>'),
        (f"[web]({REMOTE})", f'<a href="{REMOTE}">web</a>'),
        ("[notes](../notes.md)", "<p>notes</p>"),
        ("[gone](09_gone.ipynb)", "<p>gone</p>"),
        (f"![a plot]({REMOTE})", "[picture on the web: a plot]"),
    ],
)
def test_links_lead_to_pages_of_the_report_or_to_the_web_or_are_text(
    tmp_path: Path, source: str, html: str
) -> None:
    targets = {"01_a.ipynb": "01_a.html", "02_b.ipynb": "02_b.html"}
    assert html in notebook_body(markdown(source), tmp_path, targets)


def test_a_body_has_no_script_and_every_picture_has_a_description(tmp_path: Path) -> None:
    cell = new_code_cell("x")  # type: ignore[no-untyped-call]
    kinds = {
        "application/javascript": "alert(1)",
        "text/html": "<script>alert(1)</script><b>kept</b>",
        "image/png": "iVBORw0KGgo=",
    }
    cell.outputs = [
        new_output("display_data", data={kind: value})  # type: ignore[no-untyped-call]
        for kind, value in kinds.items()
    ]
    body = notebook_body(
        new_notebook(cells=[cell]),  # type: ignore[no-untyped-call]
        tmp_path,
        {},
    )
    assert "<script" not in body
    assert "alert" not in body
    assert "<b>kept</b>" in body
    assert re.search(r'<img[^>]* alt="[^"]+"', body)


@pytest.mark.parametrize(
    ("source", "title", "question"),
    [
        ("# The *title*\n\nIntro. Why `v % c`? More?", "The *title*", "Why v % c?"),
        ("# Which rank owns slot 37?", "Which rank owns slot 37?", ""),
        ("no heading, but why?", "03 crash", "no heading, but why?"),
        ("# Nothing asked", "Nothing asked", ""),
    ],
)
def test_a_notebook_is_described_by_its_heading_and_its_first_question(
    source: str, title: str, question: str
) -> None:
    page = describe(markdown(source), "03_crash", 1.0)
    assert (page.title, page.question, page.number) == (title, question, 3)


def test_headings_get_the_anchors_that_github_gives_them(tmp_path: Path) -> None:
    source = "# A\n\n## Case a: `v % c`\n\n### Why?\n\n## Why?"
    body = notebook_body(markdown(source), tmp_path, {})
    assert contents(body) == (
        Heading(2, "case-a-v--c", "Case a: v % c"),
        Heading(3, "why", "Why?"),
        Heading(2, "why-1", "Why?"),
    )


@pytest.mark.parametrize(
    ("html", "kept"),
    [
        ("<tr><th></th><th>a</th></tr>", "<tr><td></td><th>a</th></tr>"),
        (
            '<div class="output_png output_subarea output_execute_result">x</div>',
            '<div class="output_png output_subarea output_execute_result" tabindex="0">x</div>',
        ),
        ("<pre>x</pre>", '<pre tabindex="0">x</pre>'),
        ('<p style="overflow-x:auto">x</p>', '<p style="overflow-x:auto" tabindex="0">x</p>'),
        ('<pre tabindex="0">x</pre>', '<pre tabindex="0">x</pre>'),
        (
            "<table></table>",
            '<div class="scroll" tabindex="0" role="group" aria-label="Table, scrolls sideways">'
            "<table></table></div>",
        ),
    ],
)
def test_what_scrolls_can_be_reached_by_keyboard_and_no_header_is_empty(
    html: str, kept: str
) -> None:
    assert offline(html, {}) == kept


def test_a_notebook_without_a_number_has_none() -> None:
    assert describe(markdown("# A"), "crash", 1.0).number is None

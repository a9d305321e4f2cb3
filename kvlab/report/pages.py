"""The bodies of pages: a notebook or a Markdown text as HTML, its title, question and contents.

Only the body comes from nbconvert; the page around it is ours (``kvlab.report.site``), and
``kvlab.report.offline`` takes out what would need the network.

    >>> contents('<h1 id="a">A</h1><h2 id="b"><code>B</code> &amp; C</h2>')
    (Heading(level=2, anchor='b', text='B & C'),)
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

from kvlab.report.offline import offline

_QUESTION = re.compile(r"[^.?!\n#>*`]*(?:`[^`]*`[^.?!\n`]*)*\?")
_HEADING = re.compile(r'<h([23]) id="([^"]+)">(.*?)</h\1>', re.S)
_TAG = re.compile(r"<[^>]+>")


@dataclass(frozen=True)
class Page:
    """One notebook of the report: file stem, title (no number) and question of its first cell."""

    stem: str
    title: str
    question: str
    duration_s: float

    @property
    def number(self) -> int | None:
        """3 for the stem "03_crash"; None for a stem without a number."""
        first = self.stem.split("_")[0]
        return int(first) if first.isdecimal() else None

    @property
    def label(self) -> str:
        """The title behind the number: "3. The crash"."""
        return self.title if self.number is None else f"{self.number}. {self.title}"


@dataclass(frozen=True)
class Heading:
    """An entry of a page's table of contents; ``level`` is 2 or 3."""

    level: int
    anchor: str
    text: str


def describe(notebook: NotebookNode, stem: str, duration_s: float) -> Page:
    """Title and question of a notebook: first heading and first sentence with a question mark."""
    text = next((c.source for c in notebook.cells if c.cell_type == "markdown"), "")
    heading = re.search(r"^#\s+(.+)$", text, re.M)
    title = heading.group(1).strip() if heading else stem.replace("_", " ")
    below = text[heading.end() :] if heading else text
    asked = _QUESTION.search(" ".join(below.split())) or _QUESTION.search(title)
    question = (
        re.sub(r"[*`_]{1,2}(?=\S)|(?<=\S)[*`]{1,2}", "", asked.group().strip()) if asked else ""
    )
    page = Page(stem, title.replace("`", ""), "" if question == title else question, duration_s)
    return replace(page, title=page.title.removeprefix(f"{page.number}. "))


def notebook_body(notebook: NotebookNode, folder: Path, targets: Mapping[str, str]) -> str:
    """The cells of ``notebook`` as HTML, without scripts.

    Args:
        folder: where the notebook lies; pictures beside it are embedded.
        targets: name of a file -> where the report has it, seen from the page; relative links to
            anything else become text, because the report does not hold it.
    """
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="basic", embed_images=True, exclude_anchor_links=True
    )
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"path": str(folder)}})
    return offline(body, targets)


def markdown_body(text: str, folder: Path, targets: Mapping[str, str]) -> str:
    """Markdown as HTML, made as the text of a notebook is; its anchors are kept."""
    cell = new_markdown_cell(text)  # type: ignore[no-untyped-call]
    notebook: NotebookNode = new_notebook(cells=[cell])  # type: ignore[no-untyped-call]
    return notebook_body(notebook, folder, targets)


def contents(body: str) -> tuple[Heading, ...]:
    """The headings of the second and third level that have an anchor, in order."""
    return tuple(
        Heading(int(level), html.unescape(anchor), html.unescape(_TAG.sub("", text)).strip())
        for level, anchor, text in _HEADING.findall(body)
    )

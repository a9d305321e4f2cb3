"""The pages of a report: HTML that needs no network and no script.

The usual export of a notebook asks content networks for RequireJS, MathJax and Mermaid, so it is
blank or broken offline. Here only the body of each notebook comes from nbconvert; the page around
it is ours, and ``external_loads`` proves that nothing is fetched. A link that a reader clicks
may lead to the web; what the page itself loads may not.

    >>> external_loads('<img src="plot.png"><a href="https://example.org">more</a>')
    []
    >>> external_loads('<script src="https://example.org/x.js"></script>')
    ['script src=https://example.org/x.js']
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

from kvlab.report.stamps import GLOSSARY

LOADING = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "use": ("href", "xlink:href"),
    "image": ("href", "xlink:href"),
}
GLOSSARY_PAGE = "glossary.html"
DROPPED = {"script", "link", "iframe", "object", "embed"}
VOID = {"link", "embed"}  # have no end tag
_REMOTE = re.compile(r"(?:https?:)?//", re.I)
_CSS_REMOTE = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)", re.I)
_QUESTION = re.compile(r"[^.?!\n#>*`]*(?:`[^`]*`[^.?!\n`]*)*\?")


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


def environment() -> Environment:
    """The templates; text is escaped, and a name that is missing is an error."""
    return Environment(
        loader=PackageLoader("kvlab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, values: Mapping[str, object]) -> str:
    """The page of ``template`` with the shared style sheet. Errors: those of jinja2."""
    templates = environment()
    source, _, _ = PackageLoader("kvlab.report").get_source(templates, "report.css")
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    css = f"{source}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
    # The panel's colour is the page's, so that code blocks look alike whoever made them.
    css += ".highlight, .highlight pre { background: var(--panel); }\n"
    return templates.get_template(template).render(css=css, **values)


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


def notebook_body(
    notebook: NotebookNode, folder: Path, stems: Sequence[str], glossary: bool = False
) -> str:
    """The cells of ``notebook`` as HTML, without scripts.

    Args:
        folder: where the notebook lies; pictures beside it are embedded.
        stems: the notebooks of the report; links among them lead to the pages, and relative
            links to anything else become text, because the report does not hold it.
        glossary: whether the report holds the glossary, one folder above the notebooks.
    """
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="basic", embed_images=True, exclude_anchor_links=True
    )
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"path": str(folder)}})
    targets = {f"{stem}.ipynb": f"{stem}.html" for stem in stems}
    if glossary:
        targets[GLOSSARY] = f"../{GLOSSARY_PAGE}"
    offline = _Offline(targets)
    offline.feed(body)
    offline.close()
    return "".join(offline.kept)


def markdown_body(text: str, folder: Path) -> str:
    """Markdown as HTML, made as the text of a notebook is; its anchors are kept."""
    cell = new_markdown_cell(text)  # type: ignore[no-untyped-call]
    notebook: NotebookNode = new_notebook(cells=[cell])  # type: ignore[no-untyped-call]
    return notebook_body(notebook, folder, [])


def external_loads(page: str) -> list[str]:
    """What a browser would fetch from the network for ``page``, as "tag attribute=address"."""
    finder = _Loads()
    finder.feed(page)
    return finder.found + [f"css {address}" for address in _CSS_REMOTE.findall(page)]


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in LOADING.get(tag, ()) and value and _REMOTE.match(value.strip()):
                self.found.append(f"{tag} {name}={value.strip()}")


class _Offline(HTMLParser):
    """Copies HTML to ``kept``, less what needs the network or leads nowhere.

    What is wider than the page gets a frame that scrolls, also by keyboard.
    """

    def __init__(self, targets: Mapping[str, str]) -> None:
        super().__init__(convert_charrefs=False)
        self.targets = targets
        self.kept: list[str] = []
        self.dropped = 0  # depth inside of a dropped element
        self.links: list[bool] = []  # of the open links: is the tag kept?

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        text = self.get_starttag_text() or ""
        if tag in DROPPED:
            self.dropped += tag not in VOID
        elif self.dropped:
            return
        elif tag == "a":
            target = _offline_target(values.get("href") or "", self.targets)
            found = {"id": values.get("id"), "href": target}
            kept = "".join(f' {k}="{html.escape(v)}"' for k, v in found.items() if v)
            self.links.append(bool(kept))
            if kept:
                self.kept.append(f"<a{kept}>")
        elif tag == "img" and _REMOTE.match(values.get("src") or ""):
            self.kept.append(f"[picture on the web: {html.escape(values.get('alt') or '')}]")
        elif tag == "table":
            self.kept.append('<div class="scroll" tabindex="0"><table>')
        elif tag == "pre" or values.get("class", "") == "output_png output_subarea":
            self.kept.append(text[:-1] + ' tabindex="0">')
        else:
            self.kept.append(text)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in DROPPED:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in DROPPED:
            self.dropped -= tag not in VOID and self.dropped > 0
        elif not self.dropped and (tag != "a" or (self.links and self.links.pop())):
            self.kept.append(f"</{tag}></div>" if tag == "table" else f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self.dropped:
            self.kept.append(data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")


def _offline_target(target: str, targets: Mapping[str, str]) -> str | None:
    """Where a link of a notebook leads in the report; None if the report does not hold that.

    ``targets`` has the page for the name of each file that the report holds.
    """
    if re.match(r"[a-z][a-z0-9+.-]*:|#", target, re.I):
        return target
    path, _, anchor = target.partition("#")
    page = targets.get(Path(path).name)
    return page and page + (f"#{anchor}" if anchor else "")

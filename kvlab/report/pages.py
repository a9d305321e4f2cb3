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

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from jinja2 import Environment, PackageLoader, StrictUndefined
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

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
_REMOTE = re.compile(r"(?:https?:)?//", re.I)
_CSS_REMOTE = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)", re.I)
_QUESTION = re.compile(r"[^.?!\n#>*`]*(?:`[^`]*`[^.?!\n`]*)*\?")


@dataclass(frozen=True)
class Page:
    """One notebook of the report: file stem, title and question of its first cell."""

    stem: str
    title: str
    question: str
    duration_s: float

    @property
    def number(self) -> int | None:
        """3 for the stem "03_crash"; None for a stem without a number."""
        first = self.stem.split("_")[0]
        return int(first) if first.isdecimal() else None


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
    return Page(stem, title.replace("`", ""), "" if question == title else question, duration_s)


def notebook_body(notebook: NotebookNode, folder: Path, stems: Sequence[str]) -> str:
    """The cells of ``notebook`` as HTML, without scripts.

    Args:
        folder: where the notebook lies; pictures beside it are embedded.
        stems: the notebooks of the report; links among them lead to the pages, and relative
            links to anything else become text, because the report does not hold it.
    """
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="basic", embed_images=True, exclude_anchor_links=True
    )
    resources = {"metadata": {"path": str(folder)}}
    body, _ = exporter.from_notebook_node(notebook, resources)
    soup = BeautifulSoup(body, "html.parser")
    for dead in soup.find_all(["script", "link", "iframe", "object", "embed"]):
        dead.decompose()
    for link in soup.find_all("a", href=True):
        _keep_or_unwrap(link, stems)
    for image in soup.find_all("img"):
        if not image.get("alt"):
            image["alt"] = "picture without description"
        if _REMOTE.match(str(image.get("src", ""))):
            image.replace_with(f"[picture on the web: {image['alt']}]")
    for wide in soup.select("pre, .output_png"):
        wide["tabindex"] = "0"  # a keyboard can scroll it
    for table in soup.find_all("table"):
        table.attrs.pop("border", None)
        table.wrap(soup.new_tag("div", attrs={"class": "scroll", "tabindex": "0"}))
    return str(soup)


def _keep_or_unwrap(link: Tag, stems: Sequence[str]) -> None:
    target = str(link["href"])
    if re.match(r"[a-z][a-z0-9+.-]*:|#", target, re.I):
        return
    path, _, anchor = target.partition("#")
    stem = Path(path).stem
    if path.endswith(".ipynb") and stem in stems:
        link["href"] = f"{stem}.html" + (f"#{anchor}" if anchor else "")
    else:
        link.unwrap()


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

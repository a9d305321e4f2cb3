"""The pages of a report as one site: what there is, how it is framed, how one gets around.

    index.html                 findings, where to begin, notebooks, origin
    notebooks/NAME.html        each notebook, with its contents and its neighbours; NAME.ipynb
    figures.html               each figure with definition, origin, table and downloads
    glossary.html, troubleshooting.html, teaching.html, engineers.html       where the text exists
    api/index.html, api/kvlab.LAYER.html    every public name, by layer
    commands.html              every command and option

All pages have one navigation. A link is relative, so that the folder can be moved or zipped.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

from kvlab.report.docstrings import docstring_html, inline
from kvlab.report.offline import external_loads
from kvlab.report.stamps import ReportError

LIGHT, DARK = "default", "github-dark"  # styles of pygments


@dataclass(frozen=True)
class Entry:
    """One entry of the navigation: ``label`` leads to ``path``, seen from the top of the site."""

    label: str
    path: str


@dataclass(frozen=True)
class Document:
    """A Markdown text of the project that is a page: file name, page, label in the navigation."""

    file: str
    path: str
    label: str


GLOSSARY = Document("GLOSSARY.md", "glossary.html", "Glossary")
DOCUMENTS = (
    Document("TROUBLESHOOTING.md", "troubleshooting.html", "Troubleshooting"),
    GLOSSARY,
    Document("TEACHING.md", "teaching.html", "Teaching"),
    Document("ENGINEERS.md", "engineers.html", "For engineers"),
)


@dataclass(frozen=True)
class Site:
    """Where the pages go and what all of them share.

    ``targets`` has, for the file name of each source that became a page, where the page is.
    """

    folder: Path
    entries: tuple[Entry, ...]
    targets: Mapping[str, str]
    made: str

    def targets_from(self, path: str) -> dict[str, str]:
        """``targets`` as links of the page ``path``."""
        return {name: root_of(path) + target for name, target in self.targets.items()}

    def write(self, path: str, template: str, values: Mapping[str, object]) -> None:
        """Render ``template`` to ``path``. Errors: ReportError for a page that loads from afar."""
        shared = {"entries": self.entries, "here": path, "root": root_of(path), "made": self.made}
        text = render(template, {**shared, **values})
        loads = external_loads(text)
        if loads:
            raise ReportError(
                f"a page of the report loads nothing from the network: {path} would load "
                f"{loads[0]} and {len(loads) - 1} more; embed it in the notebook"
            )
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def root_of(path: str) -> str:
    """The way from the page ``path`` to the top of the site: "../" for "notebooks/a.html"."""
    return "../" * path.count("/")


def navigation(documents: Sequence[Document], commands: bool) -> tuple[Entry, ...]:
    """The entries of all pages, in the order of need."""
    first = (Entry("Overview", "index.html"), Entry("Notebooks", "index.html#notebooks"))
    known = {document.file: Entry(document.label, document.path) for document in documents}
    texts = tuple(known[d.file] for d in DOCUMENTS if d.file in known)
    last: tuple[Entry, ...] = (Entry("API", "api/index.html"),)
    if commands:
        last += (Entry("Commands", "commands.html"),)
    return (*first, Entry("Figures", "figures.html"), *texts, *last)


def environment() -> Environment:
    """The templates; text is escaped, and a name that is missing is an error."""
    made = Environment(
        loader=PackageLoader("kvlab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"docstring": docstring_html, "inline": inline, "slug": slug}
    return made


def slug(text: str) -> str:
    """``text`` as an anchor: "kvlab crash" gives "kvlab-crash"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def style_sheet() -> str:
    """The style of all pages; code is coloured by pygments for light and dark."""
    source, _, _ = PackageLoader("kvlab.report").get_source(Environment(), "report.css")
    light = HtmlFormatter(style=LIGHT).get_style_defs(".highlight")
    dark = HtmlFormatter(style=DARK).get_style_defs(".highlight")
    css = f"{source}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
    # The panel's colour is the page's, so that code blocks look alike whoever made them.
    return css + ".highlight, .highlight pre { background: var(--panel); }\n"


def render(template: str, values: Mapping[str, object]) -> str:
    """The page of ``template`` with the style sheet inside. Errors: those of jinja2."""
    return environment().get_template(template).render(css=style_sheet(), **values)

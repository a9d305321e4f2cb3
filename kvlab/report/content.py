"""From what was executed to the pages of the site.

write_site(folder, content)     every page below ``folder``, where figures/ lies already
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from kvlab.lab.findings import Finding
from kvlab.lab.origin import Origin
from kvlab.report.commands import MODULES, Command, describe_all
from kvlab.report.gallery import groups
from kvlab.report.pages import Page, contents, markdown_body, notebook_body
from kvlab.report.reference import Layer, read_layers
from kvlab.report.site import GLOSSARY, Document, Entry, Site, navigation
from kvlab.report.stamps import write_notebook
from kvlab.viz.save import SavedFigure

#: The order of the layers in the reference: what a reader uses first comes first.
FIRST = ("index", "attn", "memory", "engine", "lab", "viz", "teach", "ranks", "ops", "report")
_TITLE = re.compile(r"<h1[^>]*>(.*?)</h1>", re.S)


@dataclass(frozen=True)
class Chapter:
    """One notebook: its page, its cells, and the folder where it lies."""

    page: Page
    notebook: NotebookNode
    folder: Path


@dataclass(frozen=True)
class Content:
    """All that the pages are made of.

    ``commands`` is the parser of the command kvlab, None where a report is built from Python and
    the page of the commands is left out; ``duration_s`` is how long the notebooks took.
    """

    chapters: tuple[Chapter, ...]
    documents: Mapping[Document, Path]
    figures: tuple[SavedFigure, ...]
    findings: tuple[Finding, ...]
    origin: Origin
    duration_s: float
    trace: str | None = None
    commands: argparse.ArgumentParser | None = None

    @property
    def pages(self) -> tuple[Page, ...]:
        """The notebooks' titles and questions."""
        return tuple(chapter.page for chapter in self.chapters)


def write_site(folder: Path, content: Content) -> None:
    """Write every page below ``folder``. Errors: ReportError for a page that loads from afar."""
    site = Site(
        folder,
        navigation(list(content.documents), content.commands is not None),
        {f"{page.stem}.ipynb": f"notebooks/{page.stem}.html" for page in content.pages}
        | {document.file: document.path for document in content.documents},
        made=f"{content.origin.created}, {content.origin.device}",
    )
    for at in range(len(content.chapters)):
        _write_chapter(site, content, at)
    for document, path in content.documents.items():
        _write_document(site, document, path)
    _write_figures(site, content)
    _write_reference(site)
    if content.commands is not None:
        _write_commands(site, content.commands)
    _write_index(site, content)


def _write_chapter(site: Site, content: Content, at: int) -> None:
    chapter, pages = content.chapters[at], content.pages
    path = f"notebooks/{chapter.page.stem}.html"
    body = notebook_body(chapter.notebook, chapter.folder, site.targets_from(path))
    values = {
        "notebook": chapter.page,
        "previous": pages[at - 1] if at else None,
        "next": pages[at + 1] if at + 1 < len(pages) else None,
        "body": body,
        "contents": contents(body),
        "figures": [f for f in content.figures if f.notebook == chapter.page.stem],
    }
    site.write(path, "notebook.html.j2", values)
    write_notebook(chapter.notebook, site.folder / "notebooks" / f"{chapter.page.stem}.ipynb")


def _write_document(site: Site, document: Document, source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    body = markdown_body(text, source.parent, site.targets_from(document.path))
    found = _TITLE.search(body)
    title = re.sub(r"<[^>]+>", "", found[1]) if found else document.label
    values = {"title": title, "body": body, "contents": contents(body)}
    site.write(document.path, "document.html.j2", values)


def _write_figures(site: Site, content: Content) -> None:
    values = {"groups": groups(content.figures, content.pages), "count": len(content.figures)}
    site.write("figures.html", "figures.html.j2", values)


def _write_reference(site: Site) -> None:
    layers = sorted(read_layers(), key=_place)
    entries = [(layer, f"api/kvlab.{layer.name}.html") for layer in layers]
    site.write("api/index.html", "api.html.j2", {"layers": entries})
    for layer, path in entries:
        site.write(path, "layer.html.j2", {"layer": layer, "layers": entries})


def _place(layer: Layer) -> tuple[int, str]:
    return (FIRST.index(layer.name) if layer.name in FIRST else len(FIRST), layer.name)


def _write_commands(site: Site, parser: argparse.ArgumentParser) -> None:
    parts: list[tuple[str, Sequence[Command]]] = [("The command kvlab", describe_all(parser))]
    modules = [command for make in MODULES.values() for command in describe_all(make())]
    parts.append(("Run with python -m", modules))
    site.write("commands.html", "commands.html.j2", {"parts": parts})


def _write_index(site: Site, content: Content) -> None:
    paths = {entry.label: entry.path for entry in site.entries}
    seeds = {str(f.origin["seed"]) for f in content.figures if f.origin["seed"] is not None}
    values = {
        "origin": content.origin,
        "notebooks": content.pages,
        "stems": {page.stem for page in content.pages},
        "findings": content.findings,
        "figures": content.figures,
        "seeds": sorted(seeds),
        "duration_s": content.duration_s,
        "trace": content.trace,
        "begin": _begin(content.pages, paths),
        "glossary": paths.get(GLOSSARY.label),
    }
    site.write("index.html", "index.html.j2", values)


def _begin(pages: Sequence[Page], paths: Mapping[str, str]) -> list[tuple[str, Entry]]:
    """(What somebody came for, where to go)."""
    found = []
    if pages:
        first = pages[0]
        entry = Entry(first.label, f"notebooks/{first.stem}.html")
        found.append(("To learn the convention, in order from the start", entry))
    wishes = {
        "Troubleshooting": "From a line in a log, or a wrong answer, to its cause",
        "Figures": "For a figure or its numbers, ready for a paper",
        "Teaching": "To teach it: a lesson of an hour, with questions",
        "For engineers": "To find the same thing in the source of an engine",
        "Commands": "To run it on your own trace, pool or model",
    }
    found += [
        (wish, Entry(label, paths[label])) for label, wish in wishes.items() if label in paths
    ]
    return found

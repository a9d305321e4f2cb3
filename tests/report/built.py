"""One report for all tests of a run: two tiny notebooks executed, the committed ones as they are.

Sphinx takes many seconds, so the workers of a run share one report: the first builds it under a
lock, the others find it. Of the API it has the pages of two packages.
"""

import fcntl
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
import pytest

from kvlab.report import build
from kvlab.report.execute import Outcome, execute_all
from kvlab.report.notebook_files import find_notebooks, read_notebook

ROOT = Path(__file__).parents[2]
ELSEWHERE = "https" + "://example.org/x.png"
SUM = (
    "%# A small sum\n\nWhat is one plus one? See [the panel](02_panel.ipynb) or [notes](notes.md)."
    f"\n\nIt needs no [rank](../GLOSSARY.md#dcp).\n\n![far]({ELSEWHERE})",
    "import os; print(1 + 1, os.path.basename(os.environ['KVLAB_TRACE']))",
    f"""from IPython.display import HTML; HTML('<img src="{ELSEWHERE}" alt="far">')""",
)
PANEL = (
    "%# A panel\n\nWhat does it draw?",
    "import matplotlib\n"
    "import pandas as pd\n"
    "from kvlab.lab.findings import record\n"
    "from kvlab.lab.origin import collect_origin\n"
    "from kvlab.viz.panel import Drawing, Panel\n"
    "from kvlab.viz.save import save_figure\n"
    "from kvlab.viz.style import caption, figure",
    "def draw(points):\n"
    "    fig = figure(height=1)\n"
    "    fig.subplots().set_title('Points')\n"
    "    return Drawing(fig, f'{points} points', pd.DataFrame({'points': [points]}))\n"
    "origin = collect_origin('kvlab test', 3, {})\n"
    "panel = Panel(draw, name='panel', definition='A count.', points=range(2, 9))\n"
    "panel",
    "two = draw(2)\n"
    "fig = caption(two.figure, 'Points: a *count*.', origin)\n"
    "saved = save_figure(fig, 'the_points', two.table, origin)\n"
    "print(record('points', 'There are {n} <points>.', {'n': 2}))",
)


@dataclass(frozen=True)
class Built:
    """The report: its folder, its manifest, and what Sphinx complained of."""

    folder: Path
    manifest: Mapping[str, Any]
    warnings: str

    def page(self, name: str) -> str:
        """The HTML of a page."""
        return (self.folder / name).read_text(encoding="utf-8")


def write(folder: Path, name: str, cells: tuple[str, ...]) -> Path:
    """A notebook of ``cells``; Markdown starts with %."""
    notebook = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    for number, source in enumerate(cells):
        if source.startswith("%"):
            cell = nbformat.v4.new_markdown_cell(source[1:])  # type: ignore[no-untyped-call]
        else:
            cell = nbformat.v4.new_code_cell(source)  # type: ignore[no-untyped-call]
        cell.id = f"cell-{number}"
        notebook.cells.append(cell)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    return path


def build_once(factory: pytest.TempPathFactory) -> Built:
    """The report, built by the first worker that asks."""
    base = factory.getbasetemp()
    shared = (base.parent if base.name.startswith("popen-") else base) / "shared-report"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = shared / "warnings"
        if not told.exists():
            told.write_text(_build(shared))
    folder = shared / "report"
    return Built(folder, json.loads((folder / "manifest.json").read_text()), told.read_text())


def _build(root: Path) -> str:
    """Build it below ``root``; what Sphinx complained of."""
    tiny = {"01_sum": SUM, "02_panel": PANEL}
    paths = [write(root / "notebooks", name, cells) for name, cells in tiny.items()]
    committed = find_notebooks([ROOT / "notebooks"])
    trace = root / "requests.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,5\n")

    def execute(asked: list[Path], *args: Any) -> list[Outcome]:
        assert asked == [*paths, *committed]
        return execute_all(paths, *args) + [Outcome(p, read_notebook(p), 1, 1) for p in committed]

    docs = shutil.copytree(ROOT / "docs", root / "docs")
    with (docs / "conf.py").open("a") as settings:
        settings.write("pages.PACKAGES = '[ai][nt][dt]*/__init__.py'\n")
    with (
        patch.object(build, "execute_all", execute),
        patch.object(build, "shipped", lambda folder: root / folder),
    ):
        return build.build_report(root / "report", trace, notebooks=[*paths, *committed]).warnings

"""Tiny notebooks to execute, and one report that several tests look at."""

import io
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from kvlab.report import Report, build_report
from kvlab.report.execute import Progress

MakeNotebook = Callable[..., Path]

# "# ..." and other text that starts with % is a markdown cell, all else a code cell.
GOOD = (
    "%# A small sum\n\nWhat is one plus one? See [the panel](02_panel.ipynb) or [notes](notes.md)."
    "\n\nIt needs no [rank](../GLOSSARY.md#dcp).",
    "print(1 + 1)",
)
PANEL = (
    "%# A panel\n\nWhat does it draw?",
    "import matplotlib\n"
    "import pandas as pd\n"
    "from kvlab.lab.findings import record\n"
    "from kvlab.lab.origin import collect_origin\n"
    "from kvlab.viz.panel import Panel\n"
    "from kvlab.viz.save import save_figure\n"
    "from kvlab.viz.style import caption, figure",
    "def draw(points):\n"
    "    fig = figure(height=1)\n"
    "    fig.subplots().set_title('Points')\n"
    "    return caption(fig, 'Points: a count.', origin), f'{points} points'\n"
    "origin = collect_origin('kvlab test', 3, {})\n"
    "panel = Panel(draw, points=range(2, 9))\n"
    "panel",
    "data = pd.DataFrame({'points': [2]})\n"
    "saved = save_figure(panel.drawing().figure, 'the_points', data, origin)\n"
    "print(record('points', 'There are {n} points.', {'n': 2}))",
)
FAILING = ("%# Fails\n\nWhere?", "a = 1", "raise ValueError('line one\\nthe last line')")
HANGING = ("%# Hangs\n\nFor how long?", "import time; time.sleep(600)")
DYING = ("%# Dies\n\nOf what?", "import os; os._exit(9)")


def write(folder: Path, name: str, cells: tuple[str, ...]) -> Path:
    """A notebook of ``cells``; markdown starts with %."""
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


@pytest.fixture
def make(tmp_path: Path) -> MakeNotebook:
    """``make(name, *cells)`` writes a notebook in this test's folder."""
    return lambda name, *cells: write(tmp_path / "notebooks", name, cells)


@pytest.fixture
def quiet() -> Progress:
    """Progress that nobody reads."""
    return Progress(0, io.StringIO())


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of two notebooks with a trace, built once."""
    root = tmp_path_factory.mktemp("report")
    write(root / "notebooks", "01_sum", GOOD)
    write(root / "notebooks", "02_panel", PANEL)
    asks = ("%# Trace\n\nWhich?", "import os; print(os.path.basename(os.environ['KVLAB_TRACE']))")
    write(root / "notebooks", "03_trace", asks)
    trace = root / "requests.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,5\n")
    return build_report(
        root / "out" / "report",
        trace=trace,
        notebooks=[root / "notebooks"],
        progress=Progress(3, io.StringIO()),
    )

"""What a committed notebook must be, checked without running it.

A reader on a forge, or on a phone, has no kernel: outputs must be there, must belong to the code
above them, must not show the author's machine, and the file must open fast. A notebook here asks
one question at its top and keeps its cells short, because the package computes.
"""

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from kvlab.report.notebook_files import (
    MAX_NOTEBOOK_BYTES,
    WIDGET_VIEW,
    check_stamp,
    read_notebook,
)

MAX_MEDIAN_CODE_LINES = 8
SHOWING = {"print", "show", "display"}

# Put together from parts, so that this file does not name such a place itself.
_ROOTS = "|".join(["home", "root", "tmp", "work", "Users", "private", "mnt", "opt", "usr", "var"])
_MACHINE_PATH = re.compile(
    rf"(?:(?<![\w./-])/(?:{_ROOTS})/|[A-Za-z]:\\Users\\|site-packages)[^\s'\"<]*"
)

_CODE_SPAN = re.compile(r"```.*?```|`[^`\n]*`", re.S)
_FORMULA = re.compile(r"\$\$|(?<!\\)\$(?=\S)[^$\n]*[^\s$\\]\$(?!\d)")


def problems(path: Path) -> list[str]:
    """One sentence for each rule that the notebook of ``path`` breaks; none if it is fine.

    Errors: ReportError if the file is missing or is no notebook.
    """
    notebook = read_notebook(path)
    size = path.stat().st_size
    found = [check_stamp(notebook), *_structure(notebook), *_outputs(notebook)]
    if size >= MAX_NOTEBOOK_BYTES:
        found.append(
            f"has {size} bytes, bound {MAX_NOTEBOOK_BYTES}: show fewer or smaller pictures"
        )
    return [f"{path.name} {text}" for text in found if text]


def _structure(notebook: NotebookNode) -> Iterator[str]:
    first = notebook.cells[0] if notebook.cells else None
    if first is None or first.cell_type != "markdown" or "?" not in first.source:
        yield "does not ask a question in its first cell: write the question it answers there"
    lengths = [_code_lines(cell.source) for cell in _code_cells(notebook)]
    if not lengths:
        yield "has no code cell"
    elif statistics.median(lengths) > MAX_MEDIAN_CODE_LINES:
        yield (
            f"has cells of {statistics.median(lengths):g} code lines (median), bound "
            f"{MAX_MEDIAN_CODE_LINES}: move code into the package"
        )
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "markdown" and _FORMULA.search(_CODE_SPAN.sub("", cell.source)):
            yield (
                f"has a formula in dollar signs in cell {number}, which only shows online: write "
                "it as code, `W = P * c`"
            )
    if "widgets" in notebook.metadata:
        yield "has metadata.widgets, which hides the still pictures in exports"


def _outputs(notebook: NotebookNode) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        where = f"in cell {number}"
        if cell.source.strip() and cell.execution_count is None:
            yield f"was not executed {where}"
        if _shows(cell.source) and not cell.outputs:
            yield f"shows something {where} and has no output there"
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"has an error output {where}: {output.ename}"
            if WIDGET_VIEW in output.get("data", {}):
                yield f"has a widget view without its widget {where}"
            for path in _MACHINE_PATH.findall(_text(output)):
                yield f"shows a path of the author's machine {where}: {path[:60]}"


def _code_cells(notebook: NotebookNode) -> Iterator[NotebookNode]:
    return (c for c in notebook.cells if c.cell_type == "code" and c.source.strip())


def _code_lines(source: str) -> int:
    """Lines with code: neither blank nor a comment."""
    lines = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def _shows(source: str) -> bool:
    """Whether a cell is bound to have an output: it prints or shows, outside of a function."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic command
        return False

    def calls(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.If | ast.Try):
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
        for child in ast.iter_child_nodes(node):
            yield from calls(child)

    return not SHOWING.isdisjoint(calls(tree))


def _text(output: NotebookNode) -> str:
    """All text of an output that a reader can see."""
    data = output.get("data", {})
    parts = [value for kind, value in data.items() if kind.startswith("text/")]
    return "\n".join([output.get("text", ""), *parts, *output.get("traceback", [])])

"""Execute the committed notebooks, or check what they must be without running them.

    python -m scripts.notebooks execute --in-place          all of notebooks/, outputs kept
    python -m scripts.notebooks execute notebooks/03*.ipynb  runs, keeps nothing
    python -m scripts.notebooks check                        fast, runs nothing

A reader on a forge, or on a phone, has no kernel: outputs must be there, must belong to the code
above them, must not show the author's machine, and the file must open fast. A notebook here asks
one question at its top and keeps its cells short, because the package computes.

Exit code 0 if all is well, 1 if a notebook failed or breaks a rule, 2 for a wrong command.
"""

import argparse
import ast
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nbformat import NotebookNode

from kvlab.errors import KvlabError
from kvlab.lab.findings import output_folder
from kvlab.report.execute import CELL_TIMEOUT_S, Outcome, execute_all, unused_trace
from kvlab.report.notebook_files import (
    MAX_NOTEBOOK_BYTES,
    WIDGET_VIEW,
    check_stamp,
    find_notebooks,
    read_notebook,
    write_notebook,
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser("python -m scripts.notebooks")
    actions = parser.add_subparsers(dest="action", required=True)
    execute = actions.add_parser("execute", help="run notebooks, each in a kernel of its own")
    execute.add_argument("--in-place", action="store_true", help="keep the outputs in the files")
    execute.add_argument("--jobs", type=int, metavar="N", help="notebooks at a time (cores)")
    execute.add_argument(
        "--timeout", type=int, default=CELL_TIMEOUT_S, metavar="S", help="of a cell (%(default)s)"
    )
    execute.add_argument("--figures", type=Path, metavar="DIR", help="(build/figures)")
    check = actions.add_parser("check", help="hold notebooks against the rules, running nothing")
    for action in (execute, check):
        action.add_argument("paths", nargs="*", help="notebooks or folders (the folder notebooks)")
    given = parser.parse_args(argv)
    try:
        paths = find_notebooks(given.paths or None)
        if given.action == "check":
            found = [sentence for path in paths for sentence in problems(path)]
        else:
            found = _execute(paths, given)
    except KvlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; notebooks that had finished are kept", file=sys.stderr)
        return 130
    for sentence in found:
        print(sentence, file=sys.stderr)
    if found and given.action == "check":
        print("after a repair: python -m scripts.notebooks execute --in-place", file=sys.stderr)
    return 1 if found else 0


def _execute(paths: Sequence[Path], given: argparse.Namespace) -> list[str]:
    """Sentences about what failed. Notebooks are written as soon as each is done."""
    if (note := unused_trace()) is not None:
        print(note, file=sys.stderr)

    def keep(outcome: Outcome) -> None:
        if outcome.failure is None and given.in_place:
            write_notebook(outcome.notebook, outcome.path)

    figures = given.figures or output_folder()
    outcomes = execute_all(paths, figures, given.jobs, timeout_s=given.timeout, on_done=keep)
    return [outcome.sentence for outcome in outcomes if outcome.failure is not None]


if __name__ == "__main__":
    sys.exit(main())

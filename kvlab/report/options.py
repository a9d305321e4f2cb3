"""The options of what ``python -m`` runs here, apart from it: a module that runs is not imported.

notebooks_parser().parse_args(["check"]).action       "check"
"""

import argparse
from pathlib import Path

from kvlab.report.execute import CELL_TIMEOUT_S

REPORT = Path("build/report")
SHOWN = Path("data/figures")


def notebooks_parser() -> argparse.ArgumentParser:
    """The options of ``python -m kvlab.report.notebooks``."""
    made = argparse.ArgumentParser(
        prog="python -m kvlab.report.notebooks", description="Execute or check notebooks."
    )
    actions = made.add_subparsers(dest="action", required=True)
    execute = actions.add_parser("execute", help="run notebooks, each in a kernel of its own")
    execute.add_argument("--in-place", action="store_true", help="keep the outputs in the files")
    execute.add_argument("--jobs", type=int, metavar="N", help="notebooks at a time (cores)")
    execute.add_argument(
        "--timeout",
        type=int,
        default=CELL_TIMEOUT_S,
        metavar="S",
        help="seconds a cell may take (%(default)s)",
    )
    execute.add_argument(
        "--figures", type=Path, metavar="DIR", help="where notebooks save (build/figures)"
    )
    check = actions.add_parser("check", help="hold notebooks against the rules, running nothing")
    for action in (execute, check):
        action.add_argument("paths", nargs="*", help="notebooks or folders (the folder notebooks)")
    return made


def pictures_parser() -> argparse.ArgumentParser:
    """The options of ``python -m kvlab.report.pictures``."""
    made = argparse.ArgumentParser(
        prog="python -m kvlab.report.pictures",
        description="Copy the pictures of the README, with their origin, from a report.",
    )
    made.add_argument("--report", type=Path, default=REPORT, metavar="DIR", help="%(default)s")
    made.add_argument("--out", type=Path, default=SHOWN, metavar="DIR", help="%(default)s")
    return made

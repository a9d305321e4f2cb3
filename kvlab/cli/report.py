"""``kvlab report``: the notebooks executed, and a folder that works offline."""

import argparse
import json
import sys
from contextlib import nullcontext, redirect_stdout

import pandas as pd

from kvlab.cli.output import STDOUT, Places, add_csv_argument, file_of, write_csv

SUMMARY = "execute the notebooks and write the report"
DESCRIPTION = """\
Execute all notebooks and write the report: an index page that works offline, each notebook as
HTML, every figure as SVG, PDF and PNG with its CSV, and a manifest with seeds, versions and
durations. A report that fails leaves the old one as it was.
"""
EPILOG = """\
examples:
  kvlab report                                with the workload that ships with kvlab
  kvlab report --trace requests.csv --jobs 2  with your own trace
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kvlab report``."""
    from kvlab.report import add_arguments as add

    add(parser)
    add_csv_argument(parser, "one row a figure")


def places(given: argparse.Namespace) -> tuple[Places, Places, Places]:
    """What the options read, what they write, and the folder that is replaced."""
    notebooks = {f"--notebooks {path}": path for path in given.notebooks or ()}
    inputs, outputs = {"--trace": given.trace, **notebooks}, {"--csv": file_of(given.csv)}
    return inputs, outputs, {"--out": given.out}


def run(given: argparse.Namespace) -> int:
    """Build the report; return the exit code."""
    from kvlab.report import run as build

    with redirect_stdout(sys.stderr) if given.csv == STDOUT else nullcontext():
        code = build(given)
    if code == 0 and given.csv is not None:
        manifest = json.loads((given.out / "manifest.json").read_text(encoding="utf-8"))
        columns = ["name", "notebook", "title", "definition"]
        write_csv(pd.DataFrame(manifest["figures"], columns=columns), given.csv)
    return code

"""``kvlab report``: the notebooks executed, and a folder that works offline."""

import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.cli import output
from kvlab.cli.options import STDOUT, Json, csv_option, option
from kvlab.cli.output import UsageError
from kvlab.errors import KvlabError

EPILOG = """\b
examples:
  kvlab report                                with the workload that ships with kvlab
  kvlab report --trace requests.csv --jobs 2  with your own trace
"""


def run(
    ctx: typer.Context,
    out: Annotated[Path, option("DIR", "The folder of the report.")] = Path("build/report"),
    trace: Annotated[Path | None, option("FILE", "A trace, for the workload that ships.")] = None,
    jobs: Annotated[int | None, option("N", "Notebooks at a time (as many as cores).")] = None,
    notebooks: Annotated[
        list[Path] | None, option("PATH...", "Notebooks, or folders of them (all).")
    ] = None,
    more: Annotated[
        list[Path] | None, typer.Argument(hidden=True, metavar="--notebooks PATH")
    ] = None,
    as_json: Json = False,
    csv: Annotated[Path | None, csv_option("one row a figure")] = None,
) -> None:
    """Execute the notebooks and write the report.

    The report is a folder that works offline: each notebook as HTML, every figure as SVG, PDF and
    PNG with its CSV, and a manifest with seeds, versions and durations. A report that fails leaves
    the old one as it was. Exit code 1: a notebook failed; 2: an option or the place is of no use.
    """
    if more and not notebooks:
        raise UsageError(
            f"a report takes options alone: got {str(more[0])!r}; did you mean --notebooks?"
        )
    ctx.params["notebooks"] = paths = [*(notebooks or ()), *(ctx.params.pop("more") or ())]
    output.begin(ctx, whole="--out")
    from kvlab.report import NotebookFailed, build_report, unused_trace

    if trace is None and (note := unused_trace()) is not None:
        output.note(note)
    with redirect_stdout(sys.stderr) if csv == STDOUT else nullcontext():
        try:
            report = build_report(out, trace, jobs, paths or None)
        except NotebookFailed:
            raise
        except KvlabError as error:
            raise UsageError(str(error)) from None
        except KeyboardInterrupt:
            print("\nthe report was not changed", file=sys.stderr, end="")
            raise
        if as_json:
            print(json.dumps(report.manifest, indent=1, ensure_ascii=False))
        else:
            print(f"report: {report.folder / 'index.html'}")
    if csv is not None:
        figures: Any = report.manifest["figures"]
        names = ("name", "notebook", "title", "definition")
        output.write_csv({name: [figure[name] for figure in figures] for name in names}, csv)

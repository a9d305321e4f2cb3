"""The command ``kvlab report``: its options, and what it prints.

    kvlab report --trace requests.csv --jobs 2      progress on standard error, then the place
    kvlab report --json                             the manifest on standard output

Exit code 0: the report is there. 1: a notebook failed. 2: an option or the place is of no use.
130: interrupted.
"""

import argparse
import json
import sys
from pathlib import Path

from kvlab.errors import KvlabError
from kvlab.report.build import DEFAULT_OUT, NotebookFailed, build_report
from kvlab.report.kernel import unused_trace

STOPPED = 130  # what shells report for an interrupt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kvlab report`` to ``parser``."""
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="folder (%(default)s)"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="request trace to use for the shipped workload"
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="notebooks at a time (as many as cores)"
    )
    parser.add_argument(
        "--notebooks", type=Path, nargs="+", metavar="PATH", help="notebooks or folders of them"
    )
    parser.add_argument("--json", action="store_true", help="print the manifest on standard output")


def run(args: argparse.Namespace) -> int:
    """Build the report that ``args`` asks for; return the exit code.

    ``args.parser``, where it is set, is the parser of the whole command, for the site.
    """
    if args.trace is None and (note := unused_trace()) is not None:
        print(note, file=sys.stderr)
    try:
        report = build_report(
            args.out,
            args.trace,
            args.jobs,
            args.notebooks,
            commands=getattr(args, "parser", None),
        )
    except NotebookFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KvlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the report was not changed", file=sys.stderr)
        return STOPPED
    if args.json:
        print(json.dumps(report.manifest, indent=1, ensure_ascii=False))
    else:
        print(f"report: {report.folder / 'index.html'}")
    return 0

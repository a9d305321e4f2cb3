"""Execute or check notebooks from the command line.

    python -m kvlab.report.notebooks execute --in-place          all of notebooks/, outputs kept
    python -m kvlab.report.notebooks execute notebooks/03*.ipynb  runs, keeps nothing
    python -m kvlab.report.notebooks check                        fast, runs nothing

Exit code 0 if all is well, 1 if a notebook failed or breaks a rule, 2 for a wrong command.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvlab.errors import KvlabError
from kvlab.lab.findings import output_folder
from kvlab.report.check import problems
from kvlab.report.execute import Outcome, execute_all
from kvlab.report.kernel import unused_trace
from kvlab.report.options import notebooks_parser
from kvlab.report.stamps import MAX_NOTEBOOK_BYTES, find_notebooks, write_notebook


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = notebooks_parser().parse_args(argv)
    try:
        paths = find_notebooks(args.paths or None)
        if args.action == "check":
            found = [sentence for path in paths for sentence in problems(path)]
        else:
            found = _execute(paths, args)
    except KvlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; notebooks that had finished are kept", file=sys.stderr)
        return 130
    for sentence in found:
        print(sentence, file=sys.stderr)
    if found and args.action == "check":
        print(
            "after a repair: python -m kvlab.report.notebooks execute --in-place", file=sys.stderr
        )
    return 1 if found else 0


def _execute(paths: Sequence[Path], args: argparse.Namespace) -> list[str]:
    """Sentences about what failed. Notebooks are written as soon as each is done."""
    found: list[str] = []
    if (note := unused_trace()) is not None:
        print(note, file=sys.stderr)

    def keep(outcome: Outcome) -> None:
        if outcome.failure is not None or not args.in_place:
            return
        size = write_notebook(outcome.notebook, outcome.path)
        if size >= MAX_NOTEBOOK_BYTES:
            found.append(
                f"{outcome.path.name} has {size} bytes, bound {MAX_NOTEBOOK_BYTES}: show fewer or "
                "smaller pictures"
            )

    outcomes = execute_all(
        paths,
        figures=args.figures or output_folder(),
        jobs=args.jobs,
        timeout_s=args.timeout,
        on_done=keep,
    )
    return [o.failure.sentence for o in outcomes if o.failure is not None] + found


if __name__ == "__main__":
    sys.exit(main())

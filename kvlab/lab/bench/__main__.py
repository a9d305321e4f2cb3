"""``python -m kvlab.lab.bench``: print the table, or JSON, and write a CSV file if one is named."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from kvlab.errors import KvlabError, StudyError
from kvlab.lab.bench.run import PARTS, conditions, run_bench
from kvlab.lab.bench.table import as_document, as_frame, as_text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if it was measured, 1 if it could not be, 130 if interrupted.

    A missed aim is a finding and not a failure: the table says it, the exit code does not.
    """
    given = _parser().parse_args(argv)
    threads = torch.get_num_threads()
    try:
        if given.threads is not None:
            torch.set_num_threads(given.threads)
        where = conditions(given.repeat)
        parts = given.only or list(PARTS)
        rows = run_bench(parts, quick=given.quick, runs=given.repeat, progress=_tell)
        if given.csv is not None:
            _write(as_frame(rows, where).to_csv(index=False, lineterminator="\n"), given.csv)
        if given.json:
            print(json.dumps(as_document(rows, where), indent=1, allow_nan=False))
        else:
            print(as_text(rows, where))
    except KvlabError as error:
        print(f"kvlab bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("kvlab bench: interrupted; nothing was written", file=sys.stderr)
        return 130
    finally:
        torch.set_num_threads(threads)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kvlab.lab.bench",
        description="Time kvlab beside its baselines, in turns, and print the ratios.",
        epilog="The copies take 8 GB of memory and the whole some five minutes; --quick takes "
        "little of either, and its ratios are not those of the aims.",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, under 20 seconds")
    parser.add_argument(
        "--only", action="append", choices=list(PARTS), help="this part only; may be given twice"
    )
    parser.add_argument(
        "--repeat",
        type=_whole,
        default=1,
        metavar="N",
        help="run everything N times and show each comparison's run of median ratio",
    )
    parser.add_argument(
        "--threads", type=_whole, metavar="N", help="threads of torch; else what torch takes"
    )
    parser.add_argument("--csv", type=_place, metavar="OUT", help="write the rows to a file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1: got {text!r}")
    return int(text)


def _place(text: str) -> Path:
    """Where a file can be made; refused before minutes are spent."""
    path = Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"OUT is a file in a folder that exists: got {text!r}; make the folder first"
        )
    return path


def _write(text: str, place: Path) -> None:
    """Whole or not at all: written beside its place, then put there."""
    part = place.with_name(f".{place.name}-{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(place)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StudyError(
            f"the rows are written to a file that can be made: {str(place)!r} gives "
            f"{error.strerror}; name another file with --csv"
        ) from None


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

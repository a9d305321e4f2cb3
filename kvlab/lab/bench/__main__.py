"""``python -m kvlab.lab.bench``: print the table, or JSON; write a CSV file if asked to."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from kvlab.errors import KvlabError, StudyError
from kvlab.lab.bench.place import open_place
from kvlab.lab.bench.record import place_of_file, record_path, write_frame
from kvlab.lab.bench.run import PARTS, conditions, run_bench
from kvlab.lab.bench.table import as_document, as_frame, as_text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if it was measured, 1 if it could not be, 130 if interrupted.

    A missed aim is a finding and not a failure: the table says it, the exit code does not.
    """
    given = parser().parse_args(argv)
    threads = torch.get_num_threads()
    try:
        if given.threads is not None:
            torch.set_num_threads(given.threads)
        place = open_place(given.device)
        out = given.csv
        part_of_file = bool(given.only) and not given.join
        if out is None and given.record and not given.quick and not part_of_file:
            out = record_path(place)
        _require_file(given, out)
        where = conditions(given.repeat, place)
        found = run_bench(
            given.only, place=place, quick=given.quick, runs=given.repeat, progress=_tell
        )
        if given.json:
            document = as_document(found.rows, where, found.left_out)
            print(json.dumps(document, indent=1, allow_nan=False))
        else:
            print(as_text(found.rows, where, found.left_out))
        if out is not None:
            write_frame(as_frame(found.rows, where), out, keep=given.keep, join=given.join)
            _tell(f"written: {out.name}")
    except KvlabError as error:
        print(f"kvlab bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("kvlab bench: interrupted; nothing was written", file=sys.stderr)
        return 130
    finally:
        torch.set_num_threads(threads)
    return 0


def _require_file(given: argparse.Namespace, out: Path | None) -> None:
    """Before minutes are spent: lines can only be kept in a file that is written."""
    asked = [f"--{name}" for name in ("keep", "join") if getattr(given, name)]
    if asked and out is None:
        raise StudyError(
            f"{' and '.join(asked)} keep lines of a file that is written, and this run writes "
            f"none; add --record (without --quick; with --only, --join too) or --csv OUT"
        )


def parser() -> argparse.ArgumentParser:
    """The options of ``python -m kvlab.lab.bench``."""
    made = argparse.ArgumentParser(
        prog="python -m kvlab.lab.bench",
        description="Time kvlab beside its baselines, in turns, and print the ratios.",
        epilog="The whole takes some ten minutes and up to three quarters of the memory; what "
        "would take more is left out. --quick takes little of either, and its ratios are not "
        "those of the aims.",
    )
    made.add_argument("--quick", action="store_true", help="small sizes, half a minute")
    made.add_argument(
        "--only", action="append", choices=list(PARTS), help="this part only; may be given twice"
    )
    made.add_argument(
        "--repeat",
        type=_whole,
        default=1,
        metavar="N",
        help="run everything N times and show each comparison's run of median ratio",
    )
    made.add_argument(
        "--threads", type=_whole, metavar="N", help="threads of torch; else what torch takes"
    )
    made.add_argument(
        "--device", default="cpu", metavar="DEVICE", help="cpu (default), cuda or cuda:N"
    )
    made.add_argument("--csv", type=place_of_file, metavar="OUT", help="write the rows to a file")
    made.add_argument(
        "--record",
        action="store_true",
        help="write data/runs/bench-<device>.csv, unless --quick, or --only without --join, makes "
        "less of it",
    )
    made.add_argument(
        "--keep",
        action="store_true",
        help="keep the lines that the file has of another number of threads",
    )
    made.add_argument(
        "--join",
        action="store_true",
        help="keep the lines that the file has of other parts: with --only, a run in pieces",
    )
    made.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return made


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1: got {text!r}")
    return int(text)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m kvlab.lab.bench``: print the table, or JSON; write a CSV file if asked to.

``data/runs/bench-<device>.csv`` holds one run; with ``--keep`` also the lines of other numbers of
threads, with ``--join`` those of other parts: a machine that is lent for minutes measures part by
part.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import kvlab
from kvlab.errors import KvlabError, StudyError
from kvlab.lab.bench import copies, ops
from kvlab.lab.bench.clock import Place, open_place
from kvlab.lab.bench.table import (
    Case,
    Row,
    as_frame,
    as_text,
    conditions,
    median_rows,
    write_frame,
)

CPU_PARTS = ("scheduler", "decode")  # what runs on a CPU alone
PARTS = (ops.LOCALIZE, copies.PART, ops.MERGE, ops.WRITE, *CPU_PARTS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if it was measured, 1 if it could not be, 130 if interrupted.

    A missed aim is a finding and not a failure: the table says it, the exit code does not.
    """
    given = parser().parse_args(argv)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(given.threads or threads)
        place = open_place(given.device)
        parts = parts_on(place, given.only)
        out = _place_of_rows(given, place)
        where = conditions(place, given.repeat)
        rows, left_out = run_bench(cases(parts, given.quick), place, given.repeat)
        if given.json:
            found = {"conditions": where, "rows": rows, "left_out": left_out}
            print(json.dumps(found, indent=1, allow_nan=False))
        else:
            print(as_text(rows, where, left_out))
        if out is not None:
            write_frame(as_frame(rows, where), out, keep=given.keep, join=given.join)
            print(f"written: {out.name}", file=sys.stderr)
    except KvlabError as error:
        print(f"kvlab bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("kvlab bench: interrupted; nothing was written", file=sys.stderr)
        return 130
    finally:
        torch.set_num_threads(threads)
    return 0


def parts_on(place: Place, only: Sequence[str] | None = None) -> list[str]:
    """The parts that are asked for, all that the device can run when None. Errors: StudyError for
    one that it cannot."""
    parts = [part for part in PARTS if part in (only or PARTS)]
    able = [part for part in parts if place.on_cpu or part not in CPU_PARTS]
    if only and parts != able:
        raise StudyError(f"{' and '.join(CPU_PARTS)} run on a CPU: got {place.device}, {only}")
    return able


def cases(parts: Sequence[str], quick: bool) -> list[Case]:
    """The measurements of these parts, part after part."""
    found = [*ops.cases(quick), *copies.cases(quick)]
    if set(parts) & set(CPU_PARTS):
        from kvlab.lab.bench import engine

        found += engine.cases(quick)
    return [case for part in parts for case in found if case.part == part]


def run_bench(cases: Sequence[Case], place: Place, runs: int = 1) -> tuple[list[Row], list[str]]:
    """The rows of these cases, and what was left out because the machine cannot hold it; of several
    runs, each comparison's row of median ratio."""
    found: list[list[Row]] = []
    left_out: dict[str, None] = {}
    for run in range(1, runs + 1):
        rows: list[Row] = []
        for case in cases:
            print(f"run {run} of {runs}: {case.part}, {case.name}", file=sys.stderr, flush=True)
            some = case.measure(place)
            if isinstance(some, str):
                left_out[some] = None
            else:
                rows += some
        found.append(rows)
    return median_rows(found), list(left_out)


def _place_of_rows(given: argparse.Namespace, place: Place) -> Path | None:
    """The file to write, known before minutes are spent; None where nothing is to be written."""
    out: Path | None = given.csv
    part_of_file = bool(given.only) and not given.join
    if out is None and given.record and not given.quick and not part_of_file:
        runs = Path(kvlab.__file__).resolve().parents[1] / "data" / "runs"
        out = runs / f"bench-{place.slug}.csv"
        if not runs.is_dir():
            raise StudyError(
                "a benchmark is recorded in data/runs of the checkout, which is not here; name a "
                "file with --csv, or leave --record out"
            )
    if out is None and (given.keep or given.join):
        raise StudyError(
            "--keep and --join keep lines of a file that is written, and this run writes none; add "
            "--record (without --quick; with --only, --join too) or --csv OUT"
        )
    return out


def parser() -> argparse.ArgumentParser:
    """The options of ``python -m kvlab.lab.bench``."""
    made = argparse.ArgumentParser(
        prog="python -m kvlab.lab.bench",
        description="Time kvlab beside its baselines, in turns, and print the ratios.",
        epilog="The whole takes some ten minutes and up to three quarters of the memory.",
    )
    add, flag = made.add_argument, "store_true"
    add("--quick", action=flag, help="small sizes, half a minute; not the ratios of the aims")
    add("--only", action="append", choices=PARTS, help="this part only; may be given twice")
    add("--repeat", type=_whole, default=1, metavar="N", help="show each comparison's median run")
    add("--threads", type=_whole, metavar="N", help="threads of torch; else what torch takes")
    add("--device", default="cpu", metavar="DEVICE", help="cpu (default), cuda or cuda:N")
    add("--csv", type=_place_of_file, metavar="OUT", help="write the rows to a file")
    add("--record", action=flag, help="write a whole run to data/runs/bench-<device>.csv")
    add("--keep", action=flag, help="keep the file's lines of another number of threads")
    add("--join", action=flag, help="keep the file's lines of other parts; use it with --only")
    add("--json", action=flag, help="print JSON instead of the table")
    return made


def _place_of_file(text: str) -> Path:
    """Where a file can be made; refused before minutes are spent."""
    path = Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"OUT is a file in a folder that exists: got {text!r}")
    return path


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1: got {text!r}")
    return int(text)


if __name__ == "__main__":
    raise SystemExit(main())

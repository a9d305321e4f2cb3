"""``python -m kvlab.lab.bench``: print the table, or JSON; write a CSV file if asked to.

``data/runs/bench-<device>.csv`` holds one run; with ``--keep`` also the lines of other numbers of
threads, with ``--join`` those of other parts. Worked example: a machine that is lent for minutes
measures part by part, ``--only merge --join``, then ``--only copy --join``.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

import kvlab
from kvlab.errors import KvlabError, StudyError
from kvlab.lab.bench import copies, ops
from kvlab.lab.bench.clock import Place, open_place
from kvlab.lab.bench.rows import (
    Conditions,
    Row,
    as_frame,
    as_record,
    as_text,
    median_rows,
    write_frame,
)


def _engine(part: str, quick: bool, _: Place) -> Iterator[list[Row]]:
    from kvlab.lab.bench import engine

    return engine.measure(part, quick)


#: Each part gives the rows of one case after the other, or why one is left out.
PARTS: dict[str, Callable[[bool, Place], Iterator[list[Row] | str]]] = {
    ops.LOCALIZE: partial(ops.measure, ops.LOCALIZE),
    copies.PART: copies.measure,
    ops.MERGE: partial(ops.measure, ops.MERGE),
    ops.WRITE: partial(ops.measure, ops.WRITE),
    "scheduler": partial(_engine, "scheduler"),
    "decode": partial(_engine, "decode"),
}
#: What runs on a CPU alone.
CPU_PARTS = ("scheduler", "decode")


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
        parts = parts_on(place, given.only)
        out = _place_of_rows(given, place)
        where = Conditions.now(place, given.repeat)
        rows, left_out = run_bench(parts, place, quick=given.quick, runs=given.repeat)
        if given.json:
            found = {"rows": [as_record(row) for row in rows], "left_out": left_out}
            print(json.dumps({"conditions": asdict(where), **found}, indent=1, allow_nan=False))
        else:
            print(as_text(rows, where, left_out))
        if out is not None:
            write_frame(as_frame(rows, where), out, keep=given.keep, join=given.join)
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


def parts_on(place: Place, only: Sequence[str] | None = None) -> list[str]:
    """The parts that are asked for, all that the device can run when None. Errors: StudyError for
    one that it cannot."""
    able = [part for part in PARTS if place.on_cpu or part not in CPU_PARTS]
    parts = able if only is None else list(dict.fromkeys(only))
    if not set(parts) <= set(able):
        raise StudyError(
            f"a benchmark on {place.device} has the parts {', '.join(able)}: got {parts}; "
            f"{' and '.join(CPU_PARTS)} run on a CPU, use --device cpu for them"
        )
    return parts


def run_bench(
    parts: Sequence[str], place: Place, *, quick: bool = False, runs: int = 1
) -> tuple[list[Row], list[str]]:
    """The rows of these parts, and what was left out because the machine cannot hold it; of several
    runs, each comparison's row of median ratio.

    ``quick``: small sizes and few repetitions, and no aims where the sizes are not the aimed ones.
    """
    found: list[list[Row]] = []
    left_out: dict[str, None] = {}
    for run in range(runs):
        rows: list[Row] = []
        for part in parts:
            for some in PARTS[part](quick, place):
                if isinstance(some, str):
                    left_out[some] = None
                else:
                    rows += some
                what = some if isinstance(some, str) else some[-1].case
                _tell(f"run {run + 1} of {runs}: {part}, {what}")
        found.append(rows)
    return median_rows(found), list(left_out)


def _place_of_rows(given: argparse.Namespace, place: Place) -> Path | None:
    """The file to write, known before minutes are spent; None where nothing is to be written."""
    out: Path | None = given.csv
    part_of_file = bool(given.only) and not given.join
    if out is None and given.record and not given.quick and not part_of_file:
        runs = Path(kvlab.__file__).resolve().parents[1] / "data" / "runs"
        out = runs / f"bench-{place.slug}.csv"
        if not out.parent.is_dir():
            raise StudyError(
                f"a benchmark is recorded in data/runs of the checkout: got a package whose folder "
                f"lacks it, for {out.name!r}; name a file with --csv, or leave --record out"
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
        epilog="The whole takes some ten minutes and up to three quarters of the memory; what "
        "would take more is left out. --quick takes little of either, and its ratios are not "
        "those of the aims.",
    )
    add = made.add_argument
    add("--quick", action="store_true", help="small sizes, half a minute")
    add("--only", action="append", choices=list(PARTS), help="this part only; may be given twice")
    add(
        "--repeat",
        type=_whole,
        default=1,
        metavar="N",
        help="run everything N times and show each comparison's run of median ratio",
    )
    add("--threads", type=_whole, metavar="N", help="threads of torch; else what torch takes")
    add("--device", default="cpu", metavar="DEVICE", help="cpu (default), cuda or cuda:N")
    add("--csv", type=_place_of_file, metavar="OUT", help="write the rows to a file")
    add(
        "--record",
        action="store_true",
        help="write data/runs/bench-<device>.csv, unless --quick, or --only without --join, makes "
        "less of it",
    )
    add(
        "--keep",
        action="store_true",
        help="keep the lines that the file has of another number of threads",
    )
    add(
        "--join",
        action="store_true",
        help="keep the lines that the file has of other parts: with --only, a run in pieces",
    )
    add("--json", action="store_true", help="print JSON instead of the table")
    return made


def _place_of_file(text: str) -> Path:
    """Where a file can be made; refused before minutes are spent."""
    path = Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"OUT is a file in a folder that exists: got {text!r}; make the folder first"
        )
    return path


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1: got {text!r}")
    return int(text)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

"""``kvlab crash``: the census of a pool's pages, and retractions on real pools of all ranks.

The census needs the sizes alone. A retraction needs pools: the full regime fills all of one, the
low regime its first pages; a pool that a regime cannot use is skipped with a sentence.
"""

import argparse
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import pandas as pd
import torch

from kvlab.cli.crash_runs import Run, attempt
from kvlab.cli.output import (
    STDOUT,
    Answer,
    Places,
    add_output_arguments,
    aligned,
    csv_place,
    deliver,
    file_of,
    layout_facts,
    progress,
)
from kvlab.cli.values import add_layout_arguments, device, whole
from kvlab.errors import StudyError
from kvlab.index import DcpLayout, raw_use_census
from kvlab.lab.crash import Code, Regime, page_census
from kvlab.lab.crash_cuda import PLACE, make_record, write_record
from kvlab.lab.origin import collect_origin

SUMMARY = "the crash before the fix, on real pools, and the fix"
DESCRIPTION = """\
Count, for a pool, the pages whose slots used as rows would be silent, straddling or out of range.
Then retract one request on real pools of all ranks, with the code before the fix and after it:
from a full pool, where the victim's slots lie past the buffer and the copy fails, and at low use,
where nothing fails and the rows of other tokens are saved and overwritten. On a machine with a
GPU, --record keeps what CUDA said, with device, driver and versions, for machines without one.
"""
EPILOG = """\
examples:
  kvlab crash --dcp-size 8 --page-size 64 --num-pages 1024
  kvlab crash --dcp-size 8 --page-size 64 --num-pages 1024 --census --json
  kvlab crash --dcp-size 2 --page-size 4 --num-pages 64 --regime low --code before --same-slots
  kvlab crash --device cuda --record
"""
MOST_PAGES = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kvlab crash``."""
    add_layout_arguments(parser, dcp=8, page=64)
    parser.add_argument(
        "--num-pages",
        type=int,
        default=1024,
        metavar="N",
        help="pages of the pool, without the padding page (%(default)s)",
    )
    parser.add_argument(
        "--regime",
        choices=get_args(Regime),
        help="fill the whole pool, or its low pages only (default: both that the pool allows)",
    )
    parser.add_argument(
        "--code", choices=get_args(Code), help="before or after the fix (default: both)"
    )
    parser.add_argument(
        "--same-slots",
        action="store_true",
        help="restore into the very slots that were given up, where the error is hard to see",
    )
    parser.add_argument(
        "--tokens",
        type=whole(2),
        metavar="T",
        help="cached positions of each request (default: two and a half pages)",
    )
    parser.add_argument(
        "--device",
        type=device,
        default="cpu",
        help="cpu, cuda or cuda:N; on CUDA the copy that fails runs in a child (%(default)s)",
    )
    parser.add_argument(
        "--census", action="store_true", help="count the pages only, retract nothing"
    )
    parser.add_argument(
        "--record",
        nargs="?",
        type=_record_place,
        const=Path("data", *PLACE),
        metavar="OUT",
        help="keep what the crash on CUDA printed as JSON, for machines without a GPU; needs "
        f"--device cuda (OUT: data/{'/'.join(PLACE)})",
    )
    add_output_arguments(parser, "one row a page")


def _record_place(text: str) -> Path:
    if text == STDOUT:
        raise argparse.ArgumentTypeError("OUT is a file: got '-'; name one, or leave OUT out")
    return Path(csv_place(text))


@dataclass(frozen=True, slots=True)
class Skipped:
    """A regime that was not asked for and that the pool is too small or too large for."""

    regime: Regime
    reason: str


def places(given: argparse.Namespace) -> tuple[Places, Places]:
    """What the options read, what they write."""
    return {}, {"--csv": file_of(given.csv), "--record": given.record}


def run(given: argparse.Namespace) -> int:
    """Count, retract, and show what the options ask for; return the exit code."""
    layout = DcpLayout(given.dcp_size, given.page_size, given.num_pages)
    census = asdict(raw_use_census(layout))
    _require_recordable(given)
    _require_device(given.device)
    if given.csv is not None:
        _require_table(layout)
    done: list[Run] = []
    skipped: list[Skipped] = []
    asked = [] if given.census else _asked(given)
    with progress("retraction") as told:
        for i, (regime, code) in enumerate(asked):
            told(i, len(asked))
            try:
                done.append(
                    attempt(layout, regime, code, given.same_slots, given.tokens, given.device)
                )
            except StudyError as error:
                if given.regime:
                    raise
                if regime not in [known.regime for known in skipped]:
                    skipped.append(Skipped(regime, str(error)))
    if given.record is not None:
        _record(layout, done, given)

    def document() -> dict[str, object]:
        return {
            "layout": layout_facts(layout),
            **census,
            "runs": [found.document() for found in done],
            "skipped": [asdict(found) for found in skipped],
            "origin": collect_origin(given.line, None, {}, given.device).as_dict(),
        }

    text = partial(_text, layout, census, done, skipped)
    deliver(Answer(text, document, partial(page_census, layout)), given)
    return 0


def _asked(given: argparse.Namespace) -> list[tuple[Regime, Code]]:
    regimes = [given.regime] if given.regime else get_args(Regime)
    codes = [given.code] if given.code else get_args(Code)
    return [(regime, code) for regime in regimes for code in codes]


def _require_table(layout: DcpLayout) -> None:
    if layout.num_pages > MOST_PAGES:
        raise StudyError(
            f"a table has one row a page, at most {MOST_PAGES:,}: got {layout.num_pages:,} pages; "
            f"leave out --csv, the counts need no table"
        )


def _require_recordable(given: argparse.Namespace) -> None:
    """Refuse, before the work, what would not crash on CUDA. Errors: StudyError."""
    if given.record is None:
        return
    wrong = [
        text
        for is_wrong, text in (
            (given.device == "cpu", "--device cpu"),
            (given.dcp_size == 1, "--dcp-size 1"),
            (given.regime == "low", "--regime low"),
            (given.code == "after", "--code after"),
            (given.census, "--census"),
        )
        if is_wrong
    ]
    if wrong:
        raise StudyError(
            f"--record keeps a crash, of a full pool with the code before the fix on CUDA and more "
            f"than one rank: got {', '.join(wrong)}; use `kvlab crash --device cuda --record`"
        )
    if not given.record.parent.is_dir():  # of the default place: no checkout is here
        raise StudyError(
            f"--record keeps a crash in {given.record.name} of the project: there is no folder "
            f"{str(given.record.parent)!r} here; run it in the checkout, or name a file"
        )


def _record(layout: DcpLayout, done: list[Run], given: argparse.Namespace) -> None:
    child = next((found.child for found in done if found.child is not None), None)
    if child is None:
        raise StudyError(
            f"--record keeps the crash of a full pool: a pool of {layout.num_pages:,} pages ran "
            f"none; use the default sizes"
        )
    write_record(make_record(layout, child, given.line), given.record)
    print(f"wrote {given.record.name}", file=sys.stderr)


def _require_device(name: str) -> None:
    if name == "cpu":
        return
    number = int(name.partition(":")[2] or 0)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number >= count:
        raise StudyError(
            f"a device must be on this machine: got {name}, and there are {count} CUDA devices; "
            f"use --device cpu, where the same path ends in an IndexError"
        )


def _text(
    layout: DcpLayout, census: dict[str, int], runs: list[Run], skipped: list[Skipped]
) -> str:
    lines = [
        f"{layout.num_pages:,} pages of {layout.page_size} rows a rank, {layout.dcp_size} ranks: "
        f"{layout.capacity_tokens:,} slots over {layout.rows_per_rank:,} rows a rank",
        "",
        "a page whose slots are used as rows is",
        aligned(pd.DataFrame(census.items(), columns=["outcome", "pages"]), thousands=True),
    ]
    if layout.dcp_size == 1:
        lines.append("with one rank, slot and row are the same number: nothing can go wrong")
    if runs:
        table = pd.DataFrame([found.row() for found in runs])
        lines += ["", f"one retraction on the pools of all {layout.dcp_size} ranks", aligned(table)]
    lines += ["", *(found.sentence() for found in runs)] if runs else []
    lines += [f"{found.regime} skipped: {found.reason}" for found in skipped]
    return "\n".join(lines)

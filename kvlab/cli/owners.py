"""``kvlab owners``: which rank keeps each position of a run, in which row; what raw use hits."""

import argparse

import pandas as pd

from kvlab.cli.output import (
    Answer,
    Places,
    add_output_arguments,
    aligned,
    deliver,
    file_of,
    layout_facts,
    records,
)
from kvlab.cli.values import add_layout_arguments, require_ranks, sizes, whole
from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.origin import collect_origin
from kvlab.lab.owners import OwnerStudy

SUMMARY = "who owns which slot of a request, and in which row"
DESCRIPTION = """\
Show, for a run of positions of one request, the slot of each position, the rank that owns it, and
the row in which that rank keeps it. The column raw tells what the slot's number would hit if it
were used as a row without being localized: the right row, another slot's row, or no row at all.
"""
EPILOG = """\
example:
  kvlab owners --dcp-size 4 --page-size 2 --pages 3,1,2 --start 1 --length 20
"""
MOST_ROWS = 64
MOST_POSITIONS = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kvlab owners``."""
    add_layout_arguments(parser, dcp=4, page=2)
    parser.add_argument(
        "--num-pages",
        type=int,
        metavar="N",
        help="pages of the pool (default: 16, or as many as the run needs)",
    )
    parser.add_argument(
        "--interleave",
        type=int,
        default=1,
        metavar="I",
        help="consecutive slots that one rank stores; must divide P (%(default)s)",
    )
    parser.add_argument(
        "--start", type=whole(0), default=0, metavar="K", help="first position (%(default)s)"
    )
    parser.add_argument(
        "--length",
        type=whole(1),
        metavar="L",
        help="positions (default: to the end of the pages, or two pages)",
    )
    parser.add_argument(
        "--pages",
        type=sizes,
        metavar="LIST",
        help="pages of the request in the order of positions, e.g. 3,1,2 (default: 1,2,...)",
    )
    add_output_arguments(parser, "one row a position")


def study_of(given: argparse.Namespace) -> OwnerStudy:
    """The study that the options describe. Errors: LayoutError, StudyError."""
    require_ranks(given.dcp_size, "use fewer ranks")
    page = DcpLayout(given.dcp_size, given.page_size, 1, given.interleave)
    length = given.length
    if length is None:
        filled = page.widened_page_size * (len(given.pages) if given.pages else 2)
        # From a start past the pages the study refuses the run and says what it needs.
        length = filled - given.start if given.start < filled else 1
    if given.start + length > MOST_POSITIONS:
        raise StudyError(
            f"a run ends at position {MOST_POSITIONS:,} at most, since its table has a row a "
            f"position: got {given.start + length:,}; lower --start or --length"
        )
    pages = given.num_pages
    if pages is None:
        pages = max(16, *(given.pages or ()), page.pages_for(given.start + length))
    layout = DcpLayout(given.dcp_size, given.page_size, pages, given.interleave)
    return OwnerStudy(layout, length, given.start, given.pages)


def places(given: argparse.Namespace) -> tuple[Places, Places]:
    """What the options read, what they write."""
    return {}, {"--csv": file_of(given.csv)}


def run(given: argparse.Namespace) -> int:
    """Show the owners that the options ask for; return the exit code."""
    study = study_of(given)
    table, lens = study.table(), study.lens()
    table["raw_slot"] = table["raw_slot"].astype("Int64").mask(table["raw_slot"] < 0)

    def document() -> dict[str, object]:
        return {
            "layout": layout_facts(study.layout),
            "start": study.start,
            "length": study.length,
            "pages": list(study.page_list),
            "raw": {str(k): int(v) for k, v in table["raw"].value_counts().items()},
            "lens": records(lens),
            "positions": records(table),
            "origin": collect_origin(given.line, None, {}, "cpu").as_dict(),
        }

    deliver(Answer(lambda: _text(study, table, lens), document, lambda: table), given)
    return 0


def _text(study: OwnerStudy, table: pd.DataFrame, lens: pd.DataFrame) -> str:
    lay = study.layout
    counts = table["raw"].value_counts()
    raw = ", ".join(f"{counts[name]:,} {name}" for name in counts.index)
    return "\n".join(
        [
            f"{lay.dcp_size} ranks, pages of {lay.page_size} rows a rank and "
            f"{lay.widened_page_size} slots, interleave {lay.interleave}",
            "",
            aligned(table, MOST_ROWS),
            "",
            aligned(lens, MOST_ROWS),
            "",
            f"slots used as rows: {raw} (raw_slot: the slot that the owner keeps in that row)",
        ]
    )

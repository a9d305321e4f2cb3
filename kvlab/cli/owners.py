"""``kvlab owners``: which rank keeps each position of a run, in which row; what raw use hits."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli import output
from kvlab.cli.options import DcpSize, Json, PageSize, csv_option, numbers, option
from kvlab.cli.output import Table
from kvlab.errors import StudyError

EPILOG = """\b
example:
  kvlab owners --dcp-size 4 --page-size 2 --pages 3,1,2 --start 1 --length 20
"""
MOST_ROWS = 64
MOST_POSITIONS = 10_000_000


def run(
    ctx: typer.Context,
    dcp_size: DcpSize = 4,
    page_size: PageSize = 2,
    num_pages: Annotated[
        int | None, option("N", "Pages of the pool (16, or as many as the run needs).")
    ] = None,
    interleave: Annotated[int, option("I", "Slots in a row that one rank stores; divides P.")] = 1,
    start: Annotated[int, option("K", "First position.", min=0)] = 0,
    length: Annotated[
        int | None, option("L", "Positions (to the end of the pages, or two pages).", min=1)
    ] = None,
    pages: Annotated[
        Sequence[int] | None,
        option("LIST", "Pages in the order of positions (1,2,...).", parser=numbers(int)),
    ] = None,
    as_json: Json = False,
    csv: Annotated[Path | None, csv_option("one row a position")] = None,
) -> None:
    """Who owns which slot of a request, and in which row.

    Shows, for a run of positions of one request, the slot of each position, the rank that owns it,
    and the row in which that rank keeps it. The column raw tells what the slot's number would hit
    if it were used as a row without being localized: the right row, another slot's row, or no row
    at all.
    """
    line = output.begin(ctx)
    from kvlab.index import DcpLayout
    from kvlab.lab.origin import collect_origin
    from kvlab.lab.owners import OwnerStudy

    output.require_ranks(dcp_size, "use fewer ranks")
    page = DcpLayout(dcp_size, page_size, 1, interleave)
    if length is None:
        filled = page.widened_page_size * (len(pages) if pages else 2)
        # From a start past the pages the study refuses the run and says what it needs.
        length = filled - start if start < filled else 1
    if start + length > MOST_POSITIONS:
        raise StudyError(
            f"a run ends at position {MOST_POSITIONS:,} at most, since its table has a row a "
            f"position: got {start + length:,}; lower --start or --length"
        )
    if num_pages is None:
        num_pages = max(16, *(pages or ()), page.pages_for(start + length))
    lay = DcpLayout(dcp_size, page_size, num_pages, interleave)
    study = OwnerStudy(lay, length, start, None if pages is None else tuple(pages))
    columns = study.columns()
    columns["raw_slot"] = [None if slot < 0 else slot for slot in columns["raw_slot"]]
    lens = {"rank": range(dcp_size), "positions": study.held()}
    raw = dict(Counter(columns["raw"]).most_common())

    def text() -> list[str | Table]:
        hits = ", ".join(f"{count:,} {name}" for name, count in raw.items())
        return [
            f"{dcp_size} ranks, pages of {page_size} rows a rank and {lay.widened_page_size} "
            f"slots, interleave {interleave}\n",
            Table(columns, MOST_ROWS),
            "",
            Table(lens, MOST_ROWS),
            f"\nslots used as rows: {hits} (raw_slot: the slot that the owner keeps in that row)",
        ]

    def document() -> dict[str, object]:
        return {
            "layout": output.layout_facts(lay),
            "start": start,
            "length": length,
            "pages": list(study.page_list),
            "raw": raw,
            "lens": output.records(lens),
            "positions": output.records(columns),
            "origin": collect_origin(line, None, {}, "cpu").as_dict(),
        }

    output.deliver(ctx, text, document, lambda: columns)

"""``kvlab crash``: the census of a pool's pages, and retractions on real pools of all ranks.

The census needs the sizes alone. A retraction needs pools: the full regime fills all of one, the
low regime its first pages; a pool that a regime cannot use is skipped with a sentence. Where the
copy that fails would take the process along, it runs in a child.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from kvlab.cli import output
from kvlab.cli.output import Json, Table, option
from kvlab.errors import StudyError

if TYPE_CHECKING:
    from kvlab.index import DcpLayout
    from kvlab.lab.crash import CrashResult
    from kvlab.lab.crash_cuda import ChildResult

EPILOG = """\b
examples:
  kvlab crash --dcp-size 8 --page-size 64 --num-pages 1024
  kvlab crash --dcp-size 8 --page-size 64 --num-pages 1024 --census --json
  kvlab crash --dcp-size 2 --page-size 4 --num-pages 64 --regime low --code before --same-slots
  kvlab crash --device cuda --record
"""
Regime = Literal["full", "low"]
Code = Literal["before", "after"]
RECORDED = "data/runs/crash-cuda.json"  # where the project keeps it
MOST_PAGES = 10_000_000
# Slots of the largest pool that a regime is run on. Filling 2**23 slots takes about a minute;
# the low regime touches few of them, and 2**27 take 2 GiB of memory.
LARGEST: dict[str, int] = {"full": 2**23, "low": 2**27}
# Each rank is asked about each position of each request: about a microsecond each time.
MOST_LOOKS = 2**27


def record_file(text: str) -> Path:
    """The path ``text`` if a recording can be made there. Errors: BadParameter."""
    if text == RECORDED:  # in a checkout alone, which is asked about later
        return Path(text)
    if output.out_file(text) == output.STDOUT:
        raise typer.BadParameter("OUT is a file: got '-'; name one, or leave OUT out")
    return Path(text)


def with_record_place(words: Sequence[str]) -> list[str]:
    """``words`` with the place after a --record that names none."""
    return [
        f"--record={RECORDED}" if word == "--record" and after.startswith("--") else word
        for word, after in pairwise([*words, "--"])
    ]


def device_of(text: str) -> str:
    """A name of a device: cpu, cuda or cuda:N. Whether it is there is asked later."""
    kind, colon, number = text.partition(":")
    if text != "cpu" and not (kind == "cuda" and (not colon or number.isdecimal())):
        raise typer.BadParameter(f"must be cpu, cuda or cuda:N: got {text!r}")
    return text


def run(
    ctx: typer.Context,
    dcp_size: output.DcpSize = 8,
    page_size: output.PageSize = 64,
    num_pages: Annotated[int, option("N", "Pages of the pool, without the padding page.")] = 1024,
    regime: Annotated[Regime | None, option(None, "Fill the pool or a part (both).")] = None,
    code: Annotated[Code | None, option(None, "Before or after the fix (both).")] = None,
    same_slots: Annotated[
        bool, option(None, "Restore into the slots that were given up.", "--same-slots")
    ] = False,
    tokens: Annotated[
        int | None, option("T", "Positions of each request (two and a half pages).", min=2)
    ] = None,
    device: Annotated[
        str, option("DEVICE", "cpu, cuda, cuda:N; on CUDA a child crashes.", parser=device_of)
    ] = "cpu",
    census: Annotated[bool, option(None, "Count the pages, retract nothing.", "--census")] = False,
    record: Annotated[
        Path | None,
        option("[OUT]", f"Keep what CUDA printed as JSON ({RECORDED}).", parser=record_file),
    ] = None,
    as_json: Json = False,
    csv: Annotated[Path | None, output.csv_option("one row a page")] = None,
) -> int:
    """The crash before the fix, on real pools, and the fix.

    Counts, for a pool, the pages whose slots used as rows would be silent, straddling or out of
    range. Then retracts one request on real pools of all ranks, with the code before the fix and
    after it: from a full pool, where the victim's slots lie past the buffer and the copy fails,
    and at low use, where nothing fails and the rows of other tokens are saved and overwritten. On
    a machine with a GPU, --record keeps what CUDA said, with device, driver and versions.
    """
    line = output.begin(ctx, {}, {"--record": record}, {})
    from kvlab.index import DcpLayout, raw_use_census
    from kvlab.lab.crash import page_census
    from kvlab.lab.origin import collect_origin

    layout = DcpLayout(dcp_size, page_size, num_pages)
    counts = asdict(raw_use_census(layout))
    if record is not None:
        _require_recordable(ctx.params, record)
    if device != "cpu":
        _require_device(device)
    if csv is not None and num_pages > MOST_PAGES:
        raise StudyError(
            f"a table has one row a page, at most {MOST_PAGES:,}: got {num_pages:,} pages; leave "
            f"out --csv, the counts need no table"
        )
    runs: list[Run] = []
    skipped: dict[str, str] = {}
    asked = [(r, c) for r in get_args(Regime) for c in get_args(Code)]
    asked = [(r, c) for r, c in asked if regime in (None, r) and code in (None, c)]
    with output.progress("retraction") as told:
        for i, (which, how) in enumerate([] if census else asked):
            told(i, len(asked))
            try:
                runs.append(_attempt(layout, which, how, same_slots, tokens, device))
            except StudyError as error:
                if regime:
                    raise
                skipped.setdefault(which, str(error))
    if record is not None:
        _record(layout, runs, record, line)

    def document() -> dict[str, object]:
        return {
            "layout": output.layout_facts(layout),
            **counts,
            "runs": [run.document() for run in runs],
            "skipped": [{"regime": which, "reason": why} for which, why in skipped.items()],
            "origin": collect_origin(line, None, {}, device).as_dict(),
        }

    output.deliver(
        ctx,
        lambda: _text(layout, counts, runs, skipped),
        document,
        lambda: output.columns_of(page_census(layout)),
    )
    return 0


@dataclass(frozen=True, slots=True)
class Run:
    """One retraction: what it did here, or how the child ended that it ran in."""

    regime: Regime
    code: Code
    result: "CrashResult | None" = None
    child: "ChildResult | None" = None

    @property
    def error(self) -> str | None:
        """The text of the failure, or None."""
        if self.result is not None:
            return self.result.error
        return self.child.message if self.child is not None and self.child.exit_code else None

    def document(self) -> dict[str, object]:
        """Plain values for JSON."""
        head = {"regime": self.regime, "code": self.code, "error": self.error}
        if self.result is None:
            assert self.child is not None
            ended = {"exit_code": self.child.exit_code, "tail": list(self.child.tail)}
            return head | {"in_child": True} | ended
        damaged = Counter(self.result.damaged["request"].tolist() if self._damaged else [])
        by_rank = {} if self.error else output.columns_of(self.result.wrong_by_rank())
        return head | {
            "in_child": False,
            **self.result.summary(),
            "wrong_by_rank": output.records(by_rank),
            "damaged_by_request": [
                {"request": rid, "rows": rows} for rid, rows in sorted(damaged.items())
            ],
        }

    @property
    def _damaged(self) -> int:
        return 0 if self.result is None else len(self.result.damaged)

    def row(self) -> dict[str, object]:
        """One row of the table for people."""
        found = {} if self.result is None else self.result.summary()
        ends = "an error"
        if self.result is not None and not self.error:
            ends = "wrong rows" if self.result.wrong() else "right rows"
        return {
            "regime": self.regime,
            "code": self.code,
            "ends in": ends,
            "victim": found.get("victim"),
            "pages": self.result and ",".join(map(str, self.result.victim_pages)),
            "positions": found.get("positions"),
            "wrong": found.get("wrong_positions"),
            "damaged": found.get("damaged_rows"),
            "reads back": found.get("self_consistent"),
        }

    def sentence(self) -> str:
        """What happened, in words."""
        name = f"{self.regime}, {self.code} the fix:"
        if self.result is None:
            assert self.child is not None
            return f"{name} the child ended with exit code {self.child.exit_code}: {self.error}"
        if self.error is not None:
            return f"{name} rank {self.result.failed_rank} failed: {self.error}"
        if not self.result.wrong() and not self._damaged:
            return f"{name} every position is right on every rank"
        wrong = self.result.wrong_by_rank()
        ranks = ", ".join(f"{r}: {n}" for r, n in zip(wrong["rank"], wrong["wrong"], strict=True))
        first = self.result.restored.query("verdict != 'right'").iloc[0]
        holds = (
            f"holds request {first['holds_request']}, position {first['holds_position']}"
            if first["holds_request"] >= 0
            else "was not restored"
        )
        return (
            f"{name} no error, but wrong positions on rank {ranks}; the row of position "
            f"{first['position']} (rank {first['rank']}) {holds}; "
            f"{self._damaged} rows of other requests are overwritten"
        )


def _attempt(
    layout: "DcpLayout", regime: Regime, code: Code, same: bool, tokens: int | None, device: str
) -> Run:
    """One retraction. Errors: StudyError when the pool is too small or too large for it."""
    from kvlab.lab.crash import CrashStudy
    from kvlab.lab.crash_cuda import crash_in_child

    output.require_ranks(layout.dcp_size, "use fewer ranks or --census, which needs no pool")
    if layout.slot_end > LARGEST[regime]:
        raise StudyError(
            f"the {regime} regime runs on real pools of at most {LARGEST[regime]:,} slots: got "
            f"{layout.slot_end:,}; use fewer pages or --census, which needs no pool"
        )
    sized = CrashStudy(layout, regime, "after", same, tokens, device)
    looks = layout.dcp_size * sized.requests * sized.tokens
    if looks > MOST_LOOKS:
        raise StudyError(
            f"the {regime} regime asks each rank about each position, at most {MOST_LOOKS:,} "
            f"times: got {layout.dcp_size:,} ranks and {sized.requests:,} requests of "
            f"{sized.tokens:,} positions, {looks:,} times; use fewer ranks, fewer pages or --census"
        )
    if device != "cpu" and (regime, code) == ("full", "before") and layout.dcp_size > 1:
        # The pool was checked above; the child has its own.
        return Run(regime, code, child=crash_in_child(layout, device))
    return Run(regime, code, CrashStudy(layout, regime, code, same, tokens, device).run())


def _require_recordable(given: Mapping[str, Any], place: Path) -> None:
    """Refuse, before the work, what would not crash on CUDA. Errors: StudyError."""
    unfit = {"device": "cpu", "dcp_size": 1, "regime": "low", "code": "after", "census": True}
    wrong = [name for name, value in unfit.items() if given[name] == value]
    if wrong:
        words = [
            f"--{name.replace('_', '-')} {unfit[name]}".removesuffix(" True") for name in wrong
        ]
        raise StudyError(
            f"--record keeps a crash, of a full pool with the code before the fix on CUDA and more "
            f"than one rank: got {', '.join(words)}; use `kvlab crash --device cuda --record`"
        )
    if not place.parent.is_dir():  # of the default place: no checkout is here
        raise StudyError(
            f"--record keeps a crash in the project: there is no folder {str(place.parent)!r} "
            f"here; run it in the checkout, or name a file"
        )


def _record(layout: "DcpLayout", runs: Sequence[Run], place: Path, line: str) -> None:
    from kvlab.lab.crash_cuda import make_record, write_record

    child = next((run.child for run in runs if run.child is not None), None)
    if child is None:
        raise StudyError(
            f"--record keeps the crash of a full pool: a pool of {layout.num_pages:,} pages ran "
            f"none; use the default sizes"
        )
    write_record(make_record(layout, child, line), place)
    output.note(f"wrote {place.name}")


def _require_device(name: str) -> None:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(name.partition(":")[2] or 0) >= count:
        raise StudyError(
            f"a device must be on this machine: got {name}, and there are {count} CUDA devices; "
            f"use --device cpu, where the same path ends in an IndexError"
        )


def _text(
    layout: "DcpLayout", counts: Mapping[str, int], runs: Sequence[Run], skipped: Mapping[str, str]
) -> list[str | Table]:
    parts: list[str | Table] = [
        f"{layout.num_pages:,} pages of {layout.page_size} rows a rank, {layout.dcp_size} ranks: "
        f"{layout.capacity_tokens:,} slots over {layout.rows_per_rank:,} rows a rank",
        "\na page whose slots are used as rows is",
        Table({"outcome": [*counts], "pages": [*counts.values()]}, thousands=True),
    ]
    if layout.dcp_size == 1:
        parts.append("with one rank, slot and row are the same number: nothing can go wrong")
    if runs:
        rows = [run.row() for run in runs]
        parts.append(f"\none retraction on the pools of all {layout.dcp_size} ranks")
        parts.append(Table({name: [row[name] for row in rows] for name in rows[0]}))
        parts += ["", *(run.sentence() for run in runs)]
    return parts + [f"{which} skipped: {why}" for which, why in skipped.items()]

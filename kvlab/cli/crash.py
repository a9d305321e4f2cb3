"""``kvlab crash``: the census of a pool's pages, and retractions on real pools of all ranks.

The census needs the sizes alone. A retraction needs pools: the full regime fills all of one, the
low regime its first pages; a pool that a regime cannot use is skipped with a sentence. Where the
copy that fails would take the process along, it runs in a child.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import typer

from kvlab.cli import output
from kvlab.cli.options import STDOUT, DcpSize, Json, PageSize, csv_option, option, out_file
from kvlab.cli.output import Table
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
    # The place of the project is in a checkout alone, which is asked about later.
    if text != RECORDED and out_file(text) == STDOUT:
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
    dcp_size: DcpSize = 8,
    page_size: PageSize = 64,
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
    csv: Annotated[Path | None, csv_option("one row a page")] = None,
) -> None:
    """The crash before the fix, on real pools, and the fix.

    Counts, for a pool, the pages whose slots used as rows would be silent, straddling or out of
    range. Then retracts one request on real pools of all ranks, with the code before the fix and
    after it: from a full pool, where the victim's slots lie past the buffer and the copy fails,
    and at low use, where nothing fails and the rows of other tokens are saved and overwritten. On
    a machine with a GPU, --record keeps what CUDA said, with device, driver and versions.
    """
    line = output.begin(ctx)
    from kvlab.index import DcpLayout, raw_use_census
    from kvlab.lab.crash import page_census
    from kvlab.lab.origin import collect_origin

    layout = DcpLayout(dcp_size, page_size, num_pages)
    counts = asdict(raw_use_census(layout))
    _require_possible(ctx.params)
    runs: list[Run] = []
    skipped: dict[str, str] = {}
    asked = product([regime] if regime else get_args(Regime), [code] if code else get_args(Code))
    with output.progress("retraction") as told:
        for i, (which, how) in enumerate([] if census else asked):
            told(i, 4)
            try:
                runs.append(_retract(layout, which, how, same_slots, tokens, device))
            except StudyError as error:
                if regime:
                    raise
                skipped.setdefault(which, str(error))
    if record is not None:
        _record(layout, [run.child for run in runs if run.child is not None], record, line)

    def document() -> dict[str, object]:
        return {
            "layout": output.layout_facts(layout),
            **counts,
            "runs": [run.facts for run in runs],
            "skipped": [{"regime": which, "reason": why} for which, why in skipped.items()],
            "origin": collect_origin(line, None, {}, device).as_dict(),
        }

    def text() -> list[str | Table]:
        parts: list[str | Table] = [
            f"{num_pages:,} pages of {page_size} rows a rank, {dcp_size} ranks: "
            f"{layout.capacity_tokens:,} slots over {layout.rows_per_rank:,} rows a rank",
            "\na page whose slots are used as rows is",
            Table({"outcome": [*counts], "pages": [*counts.values()]}, thousands=True),
        ]
        if dcp_size == 1:
            parts.append("with one rank, slot and row are the same number: nothing can go wrong")
        if runs:
            rows = [_row(run.facts) for run in runs]
            parts.append(f"\none retraction on the pools of all {dcp_size} ranks")
            parts.append(Table({name: [row[name] for row in rows] for name in rows[0]}))
            parts += ["", *(run.sentence for run in runs)]
        return parts + [f"{which} skipped: {why}" for which, why in skipped.items()]

    output.deliver(ctx, text, document, lambda: output.columns_of(page_census(layout)))


class Run(NamedTuple):
    """One retraction: plain values for JSON, what happened in words, the child that it ran in."""

    facts: Mapping[str, Any]
    sentence: str
    child: "ChildResult | None" = None


def _retract(
    layout: "DcpLayout", regime: Regime, code: Code, same: bool, tokens: int | None, device: str
) -> Run:
    """Errors: StudyError when the pool is too small or too large."""
    from kvlab.lab.crash import CrashStudy
    from kvlab.lab.crash_cuda import crash_in_child

    output.require_ranks(layout.dcp_size, "use fewer ranks or --census, which needs no pool")
    if layout.slot_end > LARGEST[regime]:
        raise StudyError(
            f"the {regime} regime runs on real pools of at most {LARGEST[regime]:,} slots: got "
            f"{layout.slot_end:,}; use fewer pages or --census, which needs no pool"
        )
    in_child = device != "cpu" and (regime, code) == ("full", "before") and layout.dcp_size > 1
    # The child has a pool of its own, and is asked for one that this study would take.
    study = CrashStudy(layout, regime, "after" if in_child else code, same, tokens, device)
    looks = layout.dcp_size * study.requests * study.tokens
    if looks > MOST_LOOKS:
        raise StudyError(
            f"the {regime} regime asks each rank about each position, at most {MOST_LOOKS:,} "
            f"times: got {layout.dcp_size:,} ranks and {study.requests:,} requests of "
            f"{study.tokens:,} positions, {looks:,} times; use fewer ranks, fewer pages or --census"
        )
    facts: dict[str, Any] = {"regime": regime, "code": code}
    name = f"{regime}, {code} the fix:"
    if not in_child:
        found = study.run()
        damaged = Counter(map(int, found.damaged.get("request", ())))
        by_rank = {} if found.error else output.columns_of(found.wrong_by_rank())
        facts |= {
            "error": found.error,
            "in_child": False,
            **found.summary(),
            "wrong_by_rank": output.records(by_rank),
            "damaged_by_request": [{"request": r, "rows": n} for r, n in sorted(damaged.items())],
        }
        return Run(facts, f"{name} {_happened(found)}")
    child = crash_in_child(layout, device)
    facts |= {"error": child.message if child.exit_code else None, "in_child": True}
    facts |= {"exit_code": child.exit_code, "tail": list(child.tail)}
    ended = f"{name} the child ended with exit code {child.exit_code}: {facts['error']}"
    return Run(facts, ended, child)


def _happened(found: "CrashResult") -> str:
    if found.error is not None:
        return f"rank {found.failed_rank} failed: {found.error}"
    if not found.wrong() and not len(found.damaged):
        return "every position is right on every rank"
    wrong = found.wrong_by_rank()
    ranks = ", ".join(f"{r}: {n}" for r, n in zip(wrong["rank"], wrong["wrong"], strict=True))
    first = found.restored.query("verdict != 'right'").iloc[0]
    holds = "was not restored"
    if first["holds_request"] >= 0:
        holds = f"holds request {first['holds_request']}, position {first['holds_position']}"
    return (
        f"no error, but wrong positions on rank {ranks}; the row of position {first['position']} "
        f"(rank {first['rank']}) {holds}; {len(found.damaged)} rows of other requests are "
        f"overwritten"
    )


def _row(facts: Mapping[str, Any]) -> dict[str, object]:
    """Of the table for people; a child tells no numbers."""
    wrong, pages = facts.get("wrong_positions"), facts.get("victim_pages")
    return {
        "regime": facts["regime"],
        "code": facts["code"],
        "ends in": {None: "an error", 0: "right rows"}.get(wrong, "wrong rows"),
        "victim": facts.get("victim"),
        "pages": pages and ",".join(map(str, pages)),
        "positions": facts.get("positions"),
        "wrong": wrong,
        "damaged": facts.get("damaged_rows"),
        "reads back": facts.get("self_consistent"),
    }


def _require_possible(given: Mapping[str, Any]) -> None:
    """Refuse what cannot be recorded, run or written, before the work. Errors: StudyError."""
    unfit = {"device": "cpu", "dcp_size": 1, "regime": "low", "code": "after", "census": True}
    wrong = [
        f"--{name.replace('_', '-')} {value}".removesuffix(" True")
        for name, value in unfit.items()
        if given[name] == value
    ]
    if given["record"] is not None and wrong:
        raise StudyError(
            f"--record keeps a crash, of a full pool with the code before the fix on CUDA and more "
            f"than one rank: got {', '.join(wrong)}; use `kvlab crash --device cuda --record`"
        )
    if given["record"] is not None and not (folder := given["record"].parent).is_dir():
        raise StudyError(
            f"--record keeps a crash in the project: there is no folder {str(folder)!r} here; run "
            f"it in the checkout, or name a file"
        )
    if (device := given["device"]) != "cpu":
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(device.partition(":")[2] or 0) >= count:
            raise StudyError(
                f"a device must be on this machine: got {device}, and there are {count} CUDA "
                f"devices; use --device cpu, where the same path ends in an IndexError"
            )
    if given["csv"] is not None and given["num_pages"] > MOST_PAGES:
        raise StudyError(
            f"a table has one row a page, at most {MOST_PAGES:,}: got {given['num_pages']:,} "
            f"pages; leave out --csv, the counts need no table"
        )


def _record(layout: "DcpLayout", children: Sequence["ChildResult"], out: Path, line: str) -> None:
    from kvlab.lab.crash_cuda import make_record, write_record

    if not children:
        raise StudyError(
            f"--record keeps the crash of a full pool: a pool of {layout.num_pages:,} pages ran "
            f"none; use the default sizes"
        )
    write_record(make_record(layout, children[0], line), out)
    output.note(f"wrote {out.name}")

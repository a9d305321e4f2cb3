"""``kvlab retraction``: retractions over DCP sizes and memory budgets, simulated."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

import pandas as pd

from kvlab.cli.output import (
    Answer,
    Places,
    add_output_arguments,
    aligned,
    deliver,
    file_of,
    progress,
    records,
)
from kvlab.cli.retraction_figure import add_figure_arguments, require_figure, write_figure
from kvlab.cli.values import amounts, memory, seconds, sizes, whole
from kvlab.engine.workload import Workload, default_workload, load_trace
from kvlab.errors import StudyError
from kvlab.lab.origin import collect_origin
from kvlab.lab.retraction import COLUMNS, RetractionStudy, least_budget, suggest_budgets
from kvlab.memory import given_geometry
from kvlab.memory.geometry import DTYPES

SUMMARY = "how often a decode node retracts, over DCP sizes and memory budgets"
DESCRIPTION = """\
Simulate a decode node that serves a workload, once for each DCP size and memory budget, and count
the requests that it retracts. The workload is the one that ships with kvlab, or a trace of yours:
an Azure CSV, a Mooncake JSONL, or a CSV with arrival_s,prompt_tokens,output_tokens. A budget is
the KV memory of one rank. Every number is simulated. With --cache a run that was killed goes on
where it stopped.
"""
EPILOG = """\
examples:
  kvlab retraction
  kvlab retraction --trace requests.csv --limit 500 --budgets 0.5,1 --csv out.csv
  kvlab retraction --trace requests.csv --dcp-sizes 1,2,4,8 --figure counts.pdf --csv counts.csv
  kvlab retraction --geometry mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64 --dtype bf16
  kvlab retraction --host-gib 0.1 --host-full recompute
"""
# Below this many simulated requests, starting processes takes longer than the work itself.
SHORT = 100_000
_STUDY = {field.name: field.default for field in fields(RetractionStudy)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kvlab retraction``."""
    served = parser.add_argument_group("what is served")
    served.add_argument("--trace", type=Path, metavar="FILE", help="a trace of requests")
    served.add_argument("--limit", type=whole(1), metavar="N", help="its first N requests only")
    loop = served.add_mutually_exclusive_group()
    loop.add_argument(
        "--concurrency",
        type=whole(1),
        default=_STUDY["concurrency"],
        metavar="N",
        help="at most N requests in the system at once (%(default)s)",
    )
    loop.add_argument(
        "--open-loop",
        dest="concurrency",
        action="store_const",
        const=None,
        default=argparse.SUPPRESS,
        help="no such bound: requests come at the times of the trace",
    )
    served.add_argument(
        "--step-time",
        type=seconds,
        default=_STUDY["step_time_s"],
        metavar="S",
        help="seconds of a forward, which places arrivals on steps (%(default)s)",
    )
    _add_node_arguments(parser.add_argument_group("by what node"))
    work = parser.add_argument_group("how it is run")
    work.add_argument(
        "--jobs",
        type=whole(1),
        metavar="N",
        help="processes (default: as many as cores, or 1 where the study is short)",
    )
    work.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep finished rows in DIR and use those there"
    )
    add_output_arguments(parser, "one row a DCP size and memory budget")
    add_figure_arguments(parser)


def _add_node_arguments(node: argparse._ArgumentGroup) -> None:
    model = node.add_mutually_exclusive_group()
    model.add_argument(
        "--model",
        default=_STUDY["model"],
        metavar="NAME",
        help="a model of data/models/geometry.csv; a wrong name lists them (%(default)s)",
    )
    model.add_argument(
        "--geometry",
        metavar="FIELDS",
        help="a model of yours: mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64 and, if you "
        "like, name=...; or a .json file with these",
    )
    node.add_argument(
        "--dtype", choices=DTYPES, default=_STUDY["dtype"], help="storage of a row (%(default)s)"
    )
    node.add_argument(
        "--dcp-sizes",
        type=sizes,
        default=_STUDY["dcp_sizes"],
        metavar="LIST",
        help="DCP sizes (1,2,4,8,16)",
    )
    node.add_argument(
        "--budgets",
        type=amounts,
        metavar="LIST",
        help="GiB of KV memory a rank (default: four around what the workload needs; 0.5,1,2,4 "
        "for the shipped workload and the default model)",
    )
    node.add_argument(
        "--page-size",
        type=int,
        default=_STUDY["page_size"],
        metavar="P",
        help="rows of one page (%(default)s)",
    )
    node.add_argument(
        "--restore",
        choices=("backup", "recompute"),
        default=_STUDY["restore"],
        help="how a retracted request comes back (%(default)s)",
    )
    node.add_argument(
        "--host-gib",
        type=memory,
        metavar="G",
        help="GiB of host memory for the backups of all ranks together (default: no bound)",
    )
    node.add_argument(
        "--host-full",
        choices=("abort", "recompute"),
        help=f"what becomes of a request whose backup does not fit --host-gib "
        f"({_STUDY['host_full']})",
    )
    node.add_argument(
        "--reserved-decode-tokens",
        type=whole(0),
        default=_STUDY["reserved_decode_tokens"],
        metavar="N",
        help="room kept for each running request when another enters (%(default)s)",
    )
    node.add_argument(
        "--force-retract-interval",
        type=whole(1),
        metavar="N",
        help="retract one request every N-th forward (default: only when memory is short)",
    )


def study_of(given: argparse.Namespace) -> RetractionStudy:
    """The study that the options describe. Errors: WorkloadError, StudyError, CapacityError."""
    if given.host_full is not None and given.host_gib is None:
        raise StudyError(
            f"a host is full only where it has a bound: got --host-full {given.host_full} without "
            f"--host-gib; name the GiB of host memory, or leave --host-full out"
        )
    require_figure(given)
    model = given.model if given.geometry is None else given_geometry(given.geometry)
    if given.trace is not None:
        workload = load_trace(given.trace, given.limit)
    else:
        workload = default_workload()
        if given.limit is not None:
            workload = workload.head(given.limit)
    usual = given.trace is None and (model, given.dtype) == (
        _STUDY["model"],
        _STUDY["dtype"],
    )
    budgets = given.budgets
    if budgets is None:
        budgets = (
            _STUDY["budgets_gib"]
            if usual
            else suggest_budgets(workload, model, given.dtype, given.concurrency)
        )
    return RetractionStudy(
        workload=workload,
        model=model,
        dtype=given.dtype,
        dcp_sizes=given.dcp_sizes,
        budgets_gib=budgets,
        page_size=given.page_size,
        concurrency=given.concurrency,
        restore=given.restore,
        host_gib=given.host_gib,
        host_full=given.host_full or str(_STUDY["host_full"]),
        reserved_decode_tokens=given.reserved_decode_tokens,
        step_time_s=given.step_time,
        force_retract_interval=given.force_retract_interval,
    )


def places(given: argparse.Namespace) -> tuple[Places, Places]:
    """What the options read, what they write."""
    picture = file_of(given.figure)
    beside = (picture and given.caption == "beside" and picture.with_suffix(".txt")) or None
    geometry = Path(given.geometry) if given.geometry is not None else None
    outputs = {"--csv": file_of(given.csv), "--figure": picture, "--caption beside": beside}
    return {"--trace": given.trace, "--geometry": geometry}, outputs | {"--cache": given.cache}


def run(given: argparse.Namespace) -> int:
    """Run the study that the options describe; return the exit code."""
    study = study_of(given)
    short = len(study.workload) * len(study.points()) < SHORT
    jobs = given.jobs or (1 if short else None)
    try:
        with progress("row") as told:
            table = study.run(
                jobs=jobs,
                cache=given.cache,
                progress=told,
                note=lambda sentence: print(sentence, file=sys.stderr),
            )
    except KeyboardInterrupt:
        if given.cache is not None:
            print(f"\nfinished rows are kept in {given.cache}", file=sys.stderr)
        raise

    origin = collect_origin(given.line, None, study.parameters(), "cpu")

    def document() -> dict[str, object]:
        return {
            "label": "simulated",
            "workload": study.workload.summary(),
            "parameters": study.parameters(),
            "rows": records(table),
            "origin": origin.as_dict(),
        }

    try:
        deliver(Answer(lambda: _text(study, table), document, lambda: table), given)
    finally:  # a table that cannot be written does not cost the picture
        write_figure(given, table, origin)
    if not table[["retractions", "aborted"]].to_numpy().any():
        print(_hint(study), file=sys.stderr)
    return 0


def _text(study: RetractionStudy, table: pd.DataFrame) -> str:
    work: Workload = study.workload
    loop = "open loop" if study.concurrency is None else f"{study.concurrency} at once"
    host, more = "", list[str]()
    if study.host_gib is not None and study.restore == "backup":
        host = f" to {study.host_gib:g} GiB of host, else {study.host_full}"
        more = ["declined_backups", "recomputed_tokens"]
    return "\n".join(
        [
            f"simulated: {len(work):,} requests of {work.name} ({work.fingerprint}), {loop}; "
            f"{study.parameters()['model']} in {study.dtype}, {study.token_bytes:,} bytes a token, "
            f"{study.restore}{host}",
            "",
            aligned(table[[*COLUMNS, *more, "label"]], thousands=True),
        ]
    )


def _hint(study: RetractionStudy) -> str:
    least = least_budget(study.workload, study.model, study.dtype) / min(study.dcp_sizes)
    lowest = min(study.budgets_gib)
    smaller = [budget / 8 for budget in study.budgets_gib if least < budget / 8 < lowest]
    if not smaller and least < 0.9 * lowest:
        smaller = [least]
    budgets = ",".join(f"{budget:.3g}" for budget in smaller)
    memory = f"smaller budgets (--budgets {budgets}) or " if smaller else ""
    why = "" if smaller else "; with less memory the longest request would be aborted"
    return (
        f"hint: no run retracted a request: the pool never ran dry. Try {memory}a smaller reserve "
        f"(--reserved-decode-tokens, now {study.reserved_decode_tokens}){why}"
    )

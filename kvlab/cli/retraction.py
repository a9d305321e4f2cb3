"""``kvlab retraction``: retractions over DCP sizes and memory budgets, simulated."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvlab.cli import output
from kvlab.cli.options import Cache, Jobs, Json, csv_option, numbers, option, out_file
from kvlab.cli.output import Table, UsageError
from kvlab.errors import StudyError

if TYPE_CHECKING:
    import pandas as pd

    from kvlab.lab.origin import Origin
    from kvlab.lab.retraction import RetractionStudy

EPILOG = """\b
examples:
  kvlab retraction
  kvlab retraction --trace requests.csv --limit 500 --budgets 0.5,1 --csv out.csv
  kvlab retraction --trace requests.csv --dcp-sizes 1,2,4,8 --figure counts.pdf --csv counts.csv
  kvlab retraction --geometry mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64 --dtype bf16
  kvlab retraction --host-gib 0.1 --host-full recompute
"""
# Below this many simulated requests, starting processes takes longer than the work itself.
SHORT = 100_000
CONCURRENCY, MODEL, SIZES = 128, "Kimi-Linear-48B-A3B", (1, 2, 4, 8, 16)
node = partial(option, rich_help_panel="By what node")
picture = partial(option, rich_help_panel="The picture")
Dtype = Literal["fp32", "bf16", "fp16", "fp8", "fp8_dsa_656"]
Restore = Literal["backup", "recompute"]
HostFull = Literal["abort", "recompute"]


def seconds(text: str) -> float:
    """One finite time above 0 seconds. Errors: BadParameter."""
    found = numbers(float)(text)
    if len(found) != 1:
        raise typer.BadParameter(f"must be one number of seconds: got {text!r}")
    return float(found[0])


def figure_file(text: str) -> Path:
    """The path ``text`` if a picture can be made there. Errors: BadParameter."""
    if Path(text).suffix not in (".pdf", ".svg", ".png"):
        raise typer.BadParameter(
            f"OUT ends in .pdf, .svg, .png, which says what is drawn: got {text!r}"
        )
    return out_file(text)


def run(
    ctx: typer.Context,
    trace: Annotated[Path | None, option("FILE", "A trace of requests.")] = None,
    limit: Annotated[int | None, option("N", "Its first N requests only.", min=1)] = None,
    concurrency: Annotated[
        int | None, option("N", f"Requests in the system at once ({CONCURRENCY}).", min=1)
    ] = None,
    open_loop: Annotated[
        bool, option(None, "No such bound: requests come when the trace says.", "--open-loop")
    ] = False,
    step_time: Annotated[
        float, option("S", "Of a forward, which places arrivals on steps.", parser=seconds)
    ] = 0.025,
    model: Annotated[
        str | None, node("NAME", f"Of data/models/geometry.csv; a wrong name lists them ({MODEL}).")
    ] = None,
    geometry: Annotated[
        str | None,
        node(
            "FIELDS",
            "A model of yours: mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64 and, if you "
            "like, name=...; or a .json file with these.",
        ),
    ] = None,
    dtype: Annotated[Dtype, node(None, "Storage of a row.")] = "bf16",
    dcp_sizes: Annotated[
        Sequence[int] | None, node("LIST", "DCP sizes (1,2,4,8,16).", parser=numbers(int))
    ] = None,
    budgets: Annotated[
        Sequence[float] | None,
        node("LIST", "GiB of KV memory a rank (four around the need).", parser=numbers(float)),
    ] = None,
    page_size: Annotated[int, node("P", "Rows of one page.")] = 64,
    restore: Annotated[Restore, node(None, "How a retracted request comes back.")] = "backup",
    host_gib: Annotated[
        float | None, node("G", "GiB of host memory for all backups (no bound).", min=0)
    ] = None,
    host_full: Annotated[
        HostFull | None, node(None, "What becomes of a request without a backup there (abort).")
    ] = None,
    reserved_decode_tokens: Annotated[
        int, node("N", "Room kept for each running request when another enters.", min=0)
    ] = 64,
    force_retract_interval: Annotated[
        int | None, node("N", "Retract a request every N-th forward (when memory is short).", min=1)
    ] = None,
    jobs: Jobs = None,
    cache: Cache = None,
    as_json: Json = False,
    csv: Annotated[Path | None, csv_option("one row a DCP size and memory budget")] = None,
    figure: Annotated[
        Path | None, picture("OUT", "Draw the counts: a .pdf, .svg or .png.", parser=figure_file)
    ] = None,
    columns: Annotated[
        Literal["1", "2"] | None, picture(None, "As wide as so many columns of a paper (1).")
    ] = None,
    caption: Annotated[
        Literal["inside", "beside"] | None,
        picture(None, "Inside the picture, or beside it in a .txt (inside)."),
    ] = None,
) -> None:
    """How often a decode node retracts, over DCP sizes and memory budgets.

    Simulates a decode node that serves a workload, once for each DCP size and memory budget, and
    counts the requests that it retracts. The workload is the one that ships with kvlab, or a trace
    of yours: an Azure CSV, a Mooncake JSONL, or a CSV with arrival_s,prompt_tokens,output_tokens.
    A budget is the KV memory of one rank. Every number is simulated. With --cache a run that was
    killed goes on where it stopped.
    """
    if open_loop and concurrency is not None:
        raise UsageError("--open-loop has no bound: got --concurrency as well; leave one out")
    if model is not None and geometry is not None:
        raise UsageError("--geometry is a model of yours: got --model as well; leave one out")
    beside = figure.with_suffix(".txt") if figure is not None and caption == "beside" else None
    own = None if geometry is None else Path(geometry)
    line = output.begin(ctx, {"--geometry": own, "--caption beside": beside})
    for name, value in (("--columns", columns), ("--caption", caption)):
        if figure is None and value is not None:
            raise StudyError(
                f"{name} is of a picture: got {name} {value} without --figure; name the file with "
                f"--figure OUT, or leave {name} out"
            )
    if host_full is not None and host_gib is None:
        raise StudyError(
            f"a host is full only where it has a bound: got --host-full {host_full} without "
            f"--host-gib; name the GiB of host memory, or leave --host-full out"
        )
    from kvlab.engine.workload import default_workload, load_trace
    from kvlab.lab.origin import collect_origin
    from kvlab.lab.retraction import RetractionStudy, suggest_budgets
    from kvlab.memory import given_geometry

    if trace is not None:
        workload = load_trace(trace, limit)
    else:
        workload = default_workload() if limit is None else default_workload().head(limit)
    at_once = None if open_loop else concurrency or CONCURRENCY
    served = given_geometry(geometry) if geometry is not None else model or MODEL
    if budgets is None:
        usual = trace is None and (served, dtype) == (MODEL, "bf16")
        ours = (0.5, 1.0, 2.0, 4.0)
        budgets = ours if usual else suggest_budgets(workload, served, dtype, at_once)
    study = RetractionStudy(
        workload=workload,
        model=served,
        dtype=dtype,
        dcp_sizes=tuple(dcp_sizes or SIZES),
        budgets_gib=tuple(budgets),
        page_size=page_size,
        concurrency=at_once,
        restore=restore,
        host_gib=host_gib,
        host_full=host_full or "abort",
        reserved_decode_tokens=reserved_decode_tokens,
        step_time_s=step_time,
        force_retract_interval=force_retract_interval,
    )
    if jobs is None and len(study.workload) * len(study.points()) < SHORT:
        jobs = 1
    with output.kept(cache, "rows"), output.progress("row") as told:
        table = study.run(jobs=jobs, cache=cache, progress=told, note=output.note)
    origin = collect_origin(line, None, study.parameters(), "cpu")
    found = output.columns_of(table)

    def document() -> dict[str, object]:
        return {
            "label": "simulated",
            "workload": study.workload.summary(),
            "parameters": study.parameters(),
            "rows": output.records(found),
            "origin": origin.as_dict(),
        }

    try:
        output.deliver(ctx, lambda: _text(study, table), document, lambda: found)
    finally:  # a table that cannot be written does not cost the picture
        if figure is not None:
            _draw(table, origin, figure, columns == "2", beside)
    if not table[["retractions", "aborted"]].to_numpy().any():
        output.note(_hint(study))


def _draw(
    table: "pd.DataFrame", origin: "Origin", out: Path, double: bool, beside: Path | None
) -> None:
    """Draw the counts into ``out``; the caption goes below the axes, or into the file ``beside``,
    where a paper takes it from. Errors: KvlabError if a file cannot be written."""
    from kvlab.viz.retraction import retractions_by_dcp_figure, retractions_by_dcp_text
    from kvlab.viz.save import figure_title, rendered

    fig = retractions_by_dcp_figure(
        table, None if beside else origin, "double" if double else "single"
    )
    output.write_file(rendered(fig)[out.suffix[1:]], out, "picture", "--figure")
    output.note(f"wrote {out} ({fig.get_figwidth():g} in wide)")
    if beside is not None:
        text = f"{figure_title(fig)}\n\n{retractions_by_dcp_text(table)}\n\n{origin.footer()}\n"
        output.write_file(text.encode(), beside, "caption", "--figure")
        output.note(f"wrote {beside}")


def _text(study: "RetractionStudy", table: "pd.DataFrame") -> list[str | Table]:
    from kvlab.lab.retraction import COLUMNS

    work = study.workload
    loop = "open loop" if study.concurrency is None else f"{study.concurrency} at once"
    host, more = "", list[str]()
    if study.host_gib is not None and study.restore == "backup":
        host = f" to {study.host_gib:g} GiB of host, else {study.host_full}"
        more = ["declined_backups", "recomputed_tokens"]
    return [
        f"simulated: {len(work):,} requests of {work.name} ({work.fingerprint}), {loop}; "
        f"{study.parameters()['model']} in {study.dtype}, {study.token_bytes:,} bytes a token, "
        f"{study.restore}{host}\n",
        Table(output.columns_of(table[[*COLUMNS, *more, "label"]]), thousands=True),
    ]


def _hint(study: "RetractionStudy") -> str:
    """What to lower where nothing was retracted: not so far that the longest request aborts."""
    from kvlab.lab.retraction import least_budget

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

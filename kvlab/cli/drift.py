"""``kvlab drift``: what DCP, retraction and defects do to a real model's logprobs, measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvlab.cli import output
from kvlab.cli.output import Json, Table, option
from kvlab.files import require_writable

if TYPE_CHECKING:
    from kvlab.lab.drift import Study

EPILOG = """\b
conditions:
  no_retraction, forced_fixed, forced_before_fix, natural, recompute,
  defect:widened_as_rows, defect:translated_twice, defect:state_not_restored,
  defect:state_stale, defect:snapshot_ahead, defect:snapshot_behind,
  defect:old_rows, defect:nan_padding, defect:scales_lost,
  defect:wrong_log_base, defect:empty_lse_zero

\b
examples:
  kvlab drift --quick
  kvlab drift --cache build/drift --out build/drift-tables
  kvlab drift --conditions forced_fixed,forced_before_fix --dcp-sizes 1,8 --csv out.csv
"""
QUICK_SIZES, SIZES = (1, 4), (1, 2, 4, 8)
QUICK_REQUESTS, QUICK_TOKENS = 12, 24
QUICK_DTYPES = ("float32", "fp8")
#: What --out writes.
TABLES = ("summary.csv", "requests.csv", "positions.csv", "events.csv", "tokens.csv", "origin.json")
#: The first columns of the table that people and CSV get.
COLUMNS = (
    "condition",
    "dcp_size",
    "dtype",
    "max_abs_dlogprob",
    "mean_abs_dlogprob",
    "kl",
    "repetition_rate",
    "retractions",
)
_SHOWN = ("floor", "nan_tokens", "restored_requests", "drifting_restored", "collateral_requests")


def conditions_of(text: str) -> tuple[str, ...]:
    """Names of conditions, joined by commas. Errors: BadParameter."""
    from kvlab.lab.drift import NAMES

    return _names(text, NAMES)


def dtypes_of(text: str) -> tuple[str, ...]:
    """Names of dtypes, joined by commas. Errors: BadParameter."""
    from kvlab.lab.drift import DTYPES

    return _names(text, DTYPES)


def _names(text: str, known: Sequence[str]) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    wrong = next((name for name in found if name not in known), None)
    if wrong is not None:
        raise typer.BadParameter(
            f"the list holds names of {', '.join(known)}: got {wrong!r} at place "
            f"{found.index(wrong) + 1} of {len(found)}"
        )
    if len(set(found)) != len(found):
        raise typer.BadParameter(f"each name stands once in the list: got {text!r}")
    return found


def run(
    ctx: typer.Context,
    model: Annotated[
        Path | None,
        option("PATH", "Folder of a checkpoint (default: data/checkpoints/tiny-kimi-linear)."),
    ] = None,
    prompts: Annotated[
        Path | None, option("FILE", "Requests of your own, as data/drift/*.jsonl.")
    ] = None,
    quick: Annotated[
        bool,
        option(
            None,
            f"{QUICK_REQUESTS} requests of {QUICK_TOKENS} tokens, DCP sizes 1,4, float32 and fp8: "
            f"under a minute.",
            "--quick",
        ),
    ] = False,
    requests: Annotated[int | None, option("N", "The first N requests only (48).", min=1)] = None,
    dcp_sizes: Annotated[
        Sequence[int] | None, option("LIST", "DCP sizes (1,2,4,8).", parser=output.sizes)
    ] = None,
    conditions: Annotated[
        Sequence[str] | None,
        option("LIST", "Names joined by commas (all; see below).", parser=conditions_of),
    ] = None,
    dtypes: Annotated[
        Sequence[str] | None,
        option("LIST", "Of float32, bfloat16, fp8 (all).", parser=dtypes_of),
    ] = None,
    seed: Annotated[int, option("N", "Of the tokens drawn.", min=0)] = 0,
    temperature: Annotated[
        float, option("T", "Of the tokens drawn; repetition depends on it.")
    ] = 0.7,
    jobs: output.Jobs = None,
    cache: output.Cache = None,
    out: Annotated[Path | None, option("DIR", "Write all result tables to the folder DIR.")] = None,
    as_json: Json = False,
    csv: Annotated[
        Path | None, output.csv_option("one row a condition, DCP size and dtype")
    ] = None,
) -> int:
    """What DCP, retraction and known defects do to a real model's logprobs.

    Runs a real model over the sharded pools, once for each condition, DCP size and dtype: without
    retraction, with it, with the code before the fix, and with each known defect. Every token is
    that of a reference without DCP and retraction, so that logprobs can be compared; a second run
    draws its own tokens. Numbers are measured; the requests are synthetic. With --cache a study
    that was killed goes on where it stopped. A value that is not there (all NaN, or a view that
    was not run) is an empty field in a CSV and null in JSON, and reads back as NaN.
    """
    files = [] if model is None else [*model.glob("*.json"), *model.glob("*.safetensors")]
    written = {} if out is None else {f"--out ({name})": out / name for name in TABLES}
    line = output.begin(
        ctx,
        {"--prompts": prompts, "--model": model, **{f"--model ({f.name})": f for f in files}},
        {"--cache": cache, "--out": out, **written},
        {},
    )
    from kvlab.lab.drift import (
        DTYPES,
        NAMES,
        DriftStudy,
        default_prompts,
        read_prompts,
        write_study,
    )

    if out is not None:
        require_writable(out)
    asked = default_prompts() if prompts is None else read_prompts(prompts)
    wanted = requests or (min(QUICK_REQUESTS, len(asked.tokens)) if quick else None)
    if wanted is not None:
        asked = asked.head(wanted, QUICK_TOKENS if quick else None)
    study = DriftStudy(
        model=model or default_model(),
        prompts=asked,
        dcp_sizes=tuple(dcp_sizes or (QUICK_SIZES if quick else SIZES)),
        conditions=tuple(conditions or NAMES),
        dtypes=tuple(dtypes or (QUICK_DTYPES if quick else DTYPES)),
        seed=seed,
        temperature=temperature,
    )
    try:
        with output.progress("run") as told:
            result = study.run(
                jobs=jobs,
                cache=cache,
                progress=told,
                note=output.note,
                command=line,
            )
    except KeyboardInterrupt:
        if cache is not None:
            output.note(f"\nfinished runs are kept in {cache}")
        raise
    if out is not None:
        write_study(result, out)
        output.note(f"wrote the tables to {out}")
    output.deliver(ctx, lambda: _text(result), lambda: _document(result), lambda: _table(result))
    return 0


def default_model() -> Path:
    """The folder of the checkpoint that ships with kvlab. Errors: KvlabError without one."""
    from kvlab.memory.published import data_path

    return data_path("checkpoints", "tiny-kimi-linear", "config.json").parent


def _table(result: "Study") -> output.Columns:
    rest = [name for name in result.summary.columns if name not in COLUMNS]
    return output.columns_of(result.summary[[*COLUMNS, *rest]])


def _document(result: "Study") -> dict[str, object]:
    from kvlab.lab.drift import answers, verdicts

    return {
        "label": "measured",
        "workload": "synthetic",
        "rows": output.records(_table(result)),
        "verdicts": [
            {"name": v.name, "claim": v.claim, "outcome": v.outcome, "evidence": v.evidence}
            for v in verdicts(result.summary)
        ],
        "question": [
            {"defect": a.defect.name, "judgement": a.judgement, "why": a.why}
            for a in answers(result.summary)
        ],
        "origin": dict(result.origin),
    }


def _text(result: "Study") -> list[str | Table]:
    from kvlab.lab.drift import argument, verdicts

    told = result.summary
    return [
        f"measured: {told['requests'].max()} synthetic requests, {told['tokens'].max():,} tokens; "
        f"drift in nats against one rank without retraction, in the same dtype\n",
        Table(output.columns_of(told[[*COLUMNS, *_SHOWN]])),
        "",
        *(f"- {verdict.text}" for verdict in verdicts(told)),
        "",
        *argument(told),
    ]

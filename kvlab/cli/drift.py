"""``kvlab drift``: what DCP, retraction and defects do to a real model's logprobs, measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli import output
from kvlab.cli.options import Cache, Jobs, Json, csv_option, names, numbers, option
from kvlab.files import require_writable

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
SIZES = (1, 2, 4, 8)
QUICK = "12 requests of 24 tokens, DCP sizes 1,4, float32 and fp8: under a minute."
#: What --out writes.
TABLES = ("summary.csv", "requests.csv", "positions.csv", "events.csv", "tokens.csv", "origin.json")
#: The first columns of the table that people and CSV get.
COLUMNS = (
    *("condition", "dcp_size", "dtype", "max_abs_dlogprob", "mean_abs_dlogprob", "kl"),
    *("repetition_rate", "retractions"),
)
_SHOWN = ("floor", "nan_tokens", "restored_requests", "drifting_restored", "collateral_requests")


def known_conditions() -> Sequence[str]:
    """What --conditions takes."""
    from kvlab.lab.drift import NAMES

    return NAMES


def known_dtypes() -> Sequence[str]:
    """What --dtypes takes."""
    from kvlab.lab.drift import DTYPES

    return DTYPES


def run(
    ctx: typer.Context,
    model: Annotated[
        Path | None, option("PATH", "A checkpoint's folder (data/checkpoints/tiny-kimi-linear).")
    ] = None,
    prompts: Annotated[
        Path | None, option("FILE", "Requests of your own, as data/drift/*.jsonl.")
    ] = None,
    quick: Annotated[bool, option(None, QUICK, "--quick")] = False,
    requests: Annotated[int | None, option("N", "The first N requests only (48).", min=1)] = None,
    dcp_sizes: Annotated[
        Sequence[int] | None, option("LIST", "DCP sizes (1,2,4,8).", parser=numbers(int))
    ] = None,
    conditions: Annotated[
        Sequence[str] | None,
        option("LIST", "Joined by commas (all; see below).", parser=names(known_conditions)),
    ] = None,
    dtypes: Annotated[
        Sequence[str] | None,
        option("LIST", "Of float32, bfloat16, fp8 (all).", parser=names(known_dtypes)),
    ] = None,
    seed: Annotated[int, option("N", "Of the tokens drawn.", min=0)] = 0,
    temperature: Annotated[
        float, option("T", "Of the tokens drawn; repetition depends on it.")
    ] = 0.7,
    jobs: Jobs = None,
    cache: Cache = None,
    out: Annotated[Path | None, option("DIR", "Write all result tables to the folder DIR.")] = None,
    as_json: Json = False,
    csv: Annotated[Path | None, csv_option("one row a condition, DCP size and dtype")] = None,
) -> None:
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
    line = output.begin(ctx, {f"--model ({f.name})": f for f in files} | written)
    from kvlab.lab import drift
    from kvlab.memory.published import data_path

    if out is not None:
        require_writable(out)
    asked = drift.default_prompts() if prompts is None else drift.read_prompts(prompts)
    wanted = requests or (min(12, len(asked.tokens)) if quick else None)
    if wanted is not None:
        asked = asked.head(wanted, 24 if quick else None)
    shipped = ("checkpoints", "tiny-kimi-linear", "config.json")
    study = drift.DriftStudy(
        model=model or data_path(*shipped).parent,
        prompts=asked,
        dcp_sizes=tuple(dcp_sizes or ((1, 4) if quick else SIZES)),
        conditions=tuple(conditions or drift.NAMES),
        dtypes=tuple(dtypes or (("float32", "fp8") if quick else drift.DTYPES)),
        seed=seed,
        temperature=temperature,
    )
    with output.kept(cache, "runs"), output.progress("run") as told:
        result = study.run(jobs=jobs, cache=cache, progress=told, note=output.note, command=line)
    if out is not None:
        drift.write_study(result, out)
        output.note(f"wrote the tables to {out}")
    summary = result.summary
    rest = [name for name in summary.columns if name not in COLUMNS]
    table = output.columns_of(summary[[*COLUMNS, *rest]])

    def text() -> list[str | output.Table]:
        return [
            f"measured: {summary['requests'].max()} synthetic requests, "
            f"{summary['tokens'].max():,} tokens; drift in nats against one rank without "
            f"retraction, in the same dtype\n",
            output.Table({name: table[name] for name in (*COLUMNS, *_SHOWN)}),
            "",
            *(f"- {verdict.text}" for verdict in drift.verdicts(summary)),
            "",
            *drift.argument(summary),
        ]

    def document() -> dict[str, object]:
        return {
            "label": "measured",
            "workload": "synthetic",
            "rows": output.records(table),
            "verdicts": [
                {"name": v.name, "claim": v.claim, "outcome": v.outcome, "evidence": v.evidence}
                for v in drift.verdicts(summary)
            ],
            "question": [
                {"defect": a.defect.name, "judgement": a.judgement, "why": a.why}
                for a in drift.answers(summary)
            ],
            "origin": dict(result.origin),
        }

    output.deliver(ctx, text, document, lambda: table)

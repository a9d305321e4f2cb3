"""``kvlab drift``: what DCP, retraction and defects do to a real model's logprobs, measured."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from kvlab.cli.doctor_project import DRIFT
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
from kvlab.cli.values import sizes, whole
from kvlab.lab.drift import (
    DTYPES,
    NAMES,
    DriftStudy,
    Study,
    answers,
    argument,
    default_prompts,
    read_prompts,
    result_folder,
    verdicts,
    write_study,
)
from kvlab.memory.published import data_path

SUMMARY = "what DCP, retraction and known defects do to a real model's logprobs"
DESCRIPTION = """\
Run a real model over the sharded pools, once for each condition, DCP size and dtype: without
retraction, with it, with the code before the fix, and with each known defect. Every token is that
of a reference without DCP and retraction, so that logprobs can be compared; a second run draws its
own tokens. Numbers are measured; the requests are synthetic. With --cache a study that was killed
goes on where it stopped. A value that is not there (all NaN, or a view that was not run) is an
empty field in a CSV and null in JSON, and reads back as NaN.
"""
EPILOG = f"""\
conditions:
  {", ".join(NAMES[:5])},
  {("," + chr(10) + "  ").join(", ".join(NAMES[i : i + 3]) for i in range(5, len(NAMES), 3))}

examples:
  kvlab drift --quick
  kvlab drift --cache build/drift --out build/drift-tables
  kvlab drift --conditions forced_fixed,forced_before_fix --dcp-sizes 1,8 --csv out.csv
"""
QUICK_SIZES, SIZES = (1, 4), (1, 2, 4, 8)
QUICK_REQUESTS, QUICK_TOKENS = 12, 24
QUICK_DTYPES = ("float32", "fp8")
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kvlab drift``."""
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        help="folder of a checkpoint (default: data/checkpoints/tiny-kimi-linear)",
    )
    what.add_argument(
        "--prompts", type=Path, metavar="FILE", help="requests of your own, as data/drift/*.jsonl"
    )
    what.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_REQUESTS} requests of {QUICK_TOKENS} tokens, DCP sizes 1,4, float32 and fp8: "
        f"under a minute",
    )
    what.add_argument(
        "--requests", type=whole(1), metavar="N", help="the first N requests only (48)"
    )
    what.add_argument("--dcp-sizes", type=sizes, metavar="LIST", help="DCP sizes (1,2,4,8)")
    what.add_argument(
        "--conditions",
        type=names(NAMES),
        default=NAMES,
        metavar="LIST",
        help="names joined by commas (all; see below)",
    )
    what.add_argument(
        "--dtypes", type=names(DTYPES), metavar="LIST", help=f"of {', '.join(DTYPES)} (all)"
    )
    what.add_argument(
        "--seed", type=whole(0), default=0, metavar="N", help="of the tokens drawn (%(default)s)"
    )
    what.add_argument(
        "--temperature",
        type=float,
        default=0.7,
        metavar="T",
        help="of the tokens drawn (%(default)s); repetition depends on it",
    )
    work = parser.add_argument_group("how it is run")
    work.add_argument(
        "--jobs", type=whole(1), metavar="N", help="processes (default: as many as cores)"
    )
    work.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep finished runs in DIR and use those there"
    )
    work.add_argument(
        "--out", type=Path, metavar="DIR", help="write all result tables to the folder DIR"
    )
    add_output_arguments(parser, "one row a condition, DCP size and dtype")


def names(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """A reader of names joined by commas, each of ``known``, none twice."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(","))
        wrong = next((name for name in found if name not in known), None)
        if wrong is not None:
            raise argparse.ArgumentTypeError(
                f"the list holds names of {', '.join(known)}: got {wrong!r} at place "
                f"{found.index(wrong) + 1} of {len(found)}"
            )
        if len(set(found)) != len(found):
            raise argparse.ArgumentTypeError(f"each name stands once in the list: got {text!r}")
        return found

    return read


def places(given: argparse.Namespace) -> tuple[Places, Places]:
    """What the options read, what they write."""
    model = given.model and [*given.model.glob("*.json"), *given.model.glob("*.safetensors")]
    read: dict[str, Path | None] = {f"--model ({path.name})": path for path in model or ()}
    tables = given.out and {f"--out ({name})": given.out / name for name in DRIFT}
    outputs = {"--csv": file_of(given.csv), "--cache": given.cache, "--out": given.out}
    read["--model"] = given.model
    return {"--prompts": given.prompts, **read}, outputs | (tables or {})


def run(given: argparse.Namespace) -> int:
    """Run the study that the options describe; return the exit code."""
    quick = given.quick
    if given.out is not None:
        result_folder(given.out)
    prompts = default_prompts() if given.prompts is None else read_prompts(given.prompts)
    wanted = given.requests or (min(QUICK_REQUESTS, len(prompts.tokens)) if quick else None)
    if wanted is not None:
        prompts = prompts.head(wanted, QUICK_TOKENS if quick else None)
    study = DriftStudy(
        model=given.model if given.model is not None else default_model(),
        prompts=prompts,
        dcp_sizes=given.dcp_sizes or (QUICK_SIZES if quick else SIZES),
        conditions=given.conditions,
        dtypes=given.dtypes or (QUICK_DTYPES if quick else DTYPES),
        seed=given.seed,
        temperature=given.temperature,
    )
    try:
        with progress("run") as told:
            result = study.run(
                jobs=given.jobs,
                cache=given.cache,
                progress=told,
                note=lambda sentence: print(sentence, file=sys.stderr),
                command=given.line,
            )
    except KeyboardInterrupt:
        if given.cache is not None:
            print(f"\nfinished runs are kept in {given.cache}", file=sys.stderr)
        raise
    if given.out is not None:
        write_study(result, given.out)
        print(f"wrote the tables to {given.out}", file=sys.stderr)
    deliver(Answer(lambda: _text(result), lambda: _document(result), lambda: _table(result)), given)
    return 0


def default_model() -> Path:
    """The folder of the checkpoint that ships with kvlab. Errors: KvlabError without one."""
    return data_path("checkpoints", "tiny-kimi-linear", "config.json").parent


def _table(result: Study) -> pd.DataFrame:
    rest = [name for name in result.summary.columns if name not in COLUMNS]
    return result.summary[[*COLUMNS, *rest]]


def _document(result: Study) -> dict[str, object]:
    return {
        "label": "measured",
        "workload": "synthetic",
        "rows": records(_table(result)),
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


def _text(result: Study) -> str:
    told = result.summary
    return "\n".join(
        [
            f"measured: {told['requests'].max()} synthetic requests, {told['tokens'].max():,} "
            f"tokens; drift in nats against one rank without retraction, in the same dtype",
            "",
            aligned(told[[*COLUMNS, *_SHOWN]]),
            "",
            *(f"- {verdict.text}" for verdict in verdicts(told)),
            "",
            *argument(told),
        ]
    )

"""Train the tiny checkpoint, measure it, and draw its loss curve.

From the project's root:

    python -m scripts.train_tiny OUT             about an hour on two cores
    python -m scripts.train_tiny OUT --smoke     the same path in a minute, for a model of no use

OUT then holds the checkpoint as the library writes it (at most 6 MB), log.jsonl (recipe and corpus,
then a line every 100 steps), loss-curve.csv with its figure, and measured.json: held-out bits a
byte, recall with and without its rows, and the origin. There is no state of the optimizers, so a
training that was stopped cannot go on; the same seed takes the same course again.
"""

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from rich.progress import Progress

from kvlab.engine.model import load_model
from kvlab.engine.model.tiny import new_tiny_model
from kvlab.files import whole_file
from kvlab.lab.origin import collect_origin
from kvlab.viz.drift import loss_curve_figure
from kvlab.viz.save import save_figure
from scripts.train_tiny import recall
from scripts.train_tiny.corpus import SYMBOLS, Corpus, read_corpus
from scripts.train_tiny.kda import training_kda
from scripts.train_tiny.loop import LOG, Recipe, smoke, train

COMMAND = "python -m scripts.train_tiny OUT"
WEIGHTS, MEASURED = "model.safetensors", "measured.json"


@dataclass(frozen=True, slots=True)
class Sample:
    """How much is measured: ``windows`` of held-out text of ``length`` bytes, ``questions``."""

    windows: int = 256
    length: int = 512
    questions: int = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Train or measure; 0 when the folder is complete, 1 if there is a training, 130 if stopped."""
    given = parser().parse_args(argv)
    folder: Path = given.out
    recipe = smoke(given.seed) if given.smoke else Recipe(seed=given.seed)
    sample = Sample(windows=8, length=192, questions=2) if given.smoke else Sample()
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    corpus = read_corpus()
    if not given.measure_only:
        if (folder / LOG).exists() or (folder / WEIGHTS).exists():
            print(
                f"train_tiny: {folder} holds a training, which cannot be continued; measure it "
                f"with --measure-only, or name another folder",
                file=sys.stderr,
            )
            return 1
        try:
            console = Console(stderr=True)
            with Progress(console=console, disable=not console.is_terminal) as bar, training_kda():
                task = bar.add_task("step", total=recipe.steps)
                advance = partial(bar.advance, task)
                train(new_tiny_model(recipe.seed), corpus, recipe, folder, advance)
        except KeyboardInterrupt:
            print(
                f"train_tiny: interrupted; {folder} holds the weights of the last line of its log, "
                f"if there is one: --measure-only measures them",
                file=sys.stderr,
            )
            return 130
    finish(folder, sample, corpus)
    print(f"{folder}: trained, measured and drawn")
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(
        prog="python -m scripts.train_tiny",
        description="Train the tiny Kimi Linear on this Python's standard library.",
        epilog="The defaults are those of the shipped checkpoint: 43 minutes with one thread.",
    )
    made.add_argument("out", type=Path, metavar="OUT", help="a folder without a training")
    made.add_argument("--smoke", action="store_true", help="a few short steps, under a minute")
    made.add_argument("--seed", type=int, metavar="N", default=2026, help="default 2026")
    made.add_argument("--threads", type=int, metavar="N", help="threads of torch")
    made.add_argument(
        "--measure-only", action="store_true", help="train nothing, measure what lies in OUT"
    )
    return made


def finish(folder: Path, sample: Sample, corpus: Corpus) -> None:
    """Measure the checkpoint as it lies in ``folder``; write the two tables and the figure."""
    header, lines = read_log(folder)
    recipe, weights = header["recipe"], folder / WEIGHTS
    origin = collect_origin(COMMAND, int(recipe["seed"]), _parameters(recipe), "cpu")
    facts = measure(load_model(folder), corpus, sample) | {
        "steps": lines[-1]["step"],
        "checkpoint": {
            "file": WEIGHTS,
            "bytes": weights.stat().st_size,
            "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        },
        "text": corpus.about,
        "same_text_as_training": corpus.about["blake2b"] == header["corpus"]["blake2b"],
        "origin": origin.as_dict(),
    }
    # One fact a line: the long lists stay readable.
    body = ",\n".join(f" {json.dumps(name)}: {json.dumps(fact)}" for name, fact in facts.items())
    with whole_file(folder / MEASURED) as part:
        part.write_text(f"{{\n{body}\n}}\n", encoding="utf-8")
    curve = pd.DataFrame(lines)
    figure = loss_curve_figure(curve, facts["recall_chance"], origin)
    save_figure(figure, "loss-curve", curve, origin, folder)


def measure(model: Any, corpus: Corpus, sample: Sample) -> dict[str, Any]:
    """Held-out loss (plain logits), and recall under each of ``CHANGES`` (the engine)."""
    bits = recall.window_bits(
        recall.plain_logits(model),
        corpus.held_out,
        sequences=sample.windows,
        length=sample.length,
    )
    asked = recall.draw_questions(corpus.held_out, sample.questions)
    found: dict[str, Any] = {}
    first = recall.logits_after(model, asked, recall.keep)
    for name, change in recall.CHANGES.items():
        logits = recall.logits_after(model, asked, change)
        moved = (logits.log_softmax(-1) - first.log_softmax(-1)).abs()
        right = recall.right_bytes(logits, asked)
        of = asked.asked.shape[1]
        found[name] = {
            "score": round(sum(right) / (of * len(right)), 4),
            "standard_error": _standard_error([n / of for n in right]),
            "max_abs_dlogprob": float(f"{float(moved.max()):.3g}"),
            "right": right,
        }
    return {
        "status": "measured",
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "held_out": {
            "bits_per_byte": round(statistics.fmean(bits), 4),
            "standard_error": _standard_error(bits),
            "windows": sample.windows,
            "window_bytes": sample.length,
        },
        "recall": found,
        "recall_chance": 1 / len(SYMBOLS),
        "recall_questions": len(asked.tokens),
        "recall_bytes_a_question": int(asked.asked.shape[1]),
        "torch_threads": torch.get_num_threads(),
    }


def read_log(folder: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Header (recipe and corpus) and lines of a training's log."""
    rows = [json.loads(row) for row in (folder / LOG).read_text(encoding="utf-8").splitlines()]
    return rows[0], rows[1:]


def _standard_error(values: Sequence[float]) -> float:
    return round(statistics.stdev(values) / len(values) ** 0.5, 4) if len(values) > 1 else 0.0


def _parameters(recipe: dict[str, Any]) -> dict[str, Any]:
    """What a footer has room for; the log holds the rest of each phase."""
    given = {name: value for name, value in recipe.items() if name not in ("seed", "phases")}
    return {
        "phases_of_at_most": [phase["steps"] for phase in recipe["phases"]],
        "sequences_of": [phase["mix"]["length"] for phase in recipe["phases"]],
    } | given


if __name__ == "__main__":
    raise SystemExit(main())

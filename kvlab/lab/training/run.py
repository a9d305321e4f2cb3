"""Train a folder's checkpoint, or take one that is there, and write what was measured of it.

The folder then holds

    config.json  generation_config.json  model.safetensors    the checkpoint, at most 6 MB
    log.jsonl        recipe and corpus, then a line every 100 steps
    loss-curve.csv   the same lines as a table
    measured.json    held-out bits a byte, recall with and without its rows, and the origin

Nothing else: no pickle, and no state of the optimizers, so a training that was stopped cannot go
on. It can be measured as it is, or made again: the same seed takes the same course.
"""

import hashlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from kvlab.engine.model import load_model
from kvlab.engine.model.tiny import Model, new_tiny_model, training_kda
from kvlab.errors import StudyError
from kvlab.lab.origin import collect_origin
from kvlab.lab.training.corpus import Corpus, read_corpus
from kvlab.lab.training.exchange import CHANGES, draw_questions, logits_after, right_bytes
from kvlab.lab.training.kda import chunk_kda
from kvlab.lab.training.loop import LOG, Recipe, Told, plain_logits, train
from kvlab.lab.training.measure import CHANCE, window_bits

WEIGHTS, MEASURED, CURVE = "model.safetensors", "measured.json", "loss-curve.csv"
MOST_BYTES = 6_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """How much is measured: ``windows`` of held-out text of ``length`` bytes, ``questions``."""

    windows: int = 256
    length: int = 512
    questions: int = 64


def make(folder: Path, recipe: Recipe, sample: Sample, told: Told | None = None) -> None:
    """Train into ``folder`` and measure. Errors: StudyError when it holds a training already."""
    if (folder / LOG).exists() or (folder / WEIGHTS).exists():
        raise StudyError(
            f"a training begins in a folder without one: {folder.name!r} holds {_progress(folder)}"
            f"; measure that with --measure-only, or name another folder: a training cannot be "
            f"continued, and the same seed takes the same course again"
        )
    corpus = read_corpus()
    model: Any = new_tiny_model(recipe.seed)
    with training_kda(chunk_kda):
        train(model, corpus, recipe, folder, told)
    finish(folder, sample, corpus)


def finish(folder: Path, sample: Sample, corpus: Corpus | None = None) -> None:
    """Measure the checkpoint as it lies in ``folder``, and write the two tables.

    Errors: StudyError for a folder without log or weights, or with more than 6 MB of them.
    """
    header, lines = read_log(folder)
    weights = folder / WEIGHTS
    if not weights.is_file() or weights.stat().st_size > MOST_BYTES:
        size = f"{weights.stat().st_size:,} bytes" if weights.is_file() else "no such file"
        raise StudyError(
            f"a checkpoint has a {WEIGHTS} of at most {MOST_BYTES:,} bytes: {folder.name!r} has "
            f"{size}; train it with kvlab.lab.training"
        )
    text = read_corpus() if corpus is None else corpus
    recipe = header["recipe"]
    origin = collect_origin(
        "python -m kvlab.lab.training OUT", int(recipe["seed"]), _parameters(recipe), "cpu"
    )
    # After the origin: a table of the project that has changed would make its commit dirty.
    pd.DataFrame(lines).to_csv(folder / CURVE, index=False, lineterminator="\n")
    facts = measure(load_model(folder), text, sample) | {
        "steps": lines[-1]["step"],
        "checkpoint": {
            "file": WEIGHTS,
            "bytes": weights.stat().st_size,
            "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        },
        "text": text.about,
        "same_text_as_training": text.about["blake2b"] == header["corpus"]["blake2b"],
        "origin": origin.as_dict(),
    }
    # One fact a line: the long lists stay readable.
    body = ",\n".join(f" {json.dumps(name)}: {json.dumps(fact)}" for name, fact in facts.items())
    (folder / MEASURED).write_text(f"{{\n{body}\n}}\n", encoding="utf-8")


def measure(model: Model, corpus: Corpus, sample: Sample) -> dict[str, Any]:
    """Held-out loss (plain logits), and recall under each change of ``exchange`` (the engine)."""
    bits = window_bits(
        plain_logits(model), corpus.held_out, sequences=sample.windows, length=sample.length
    )
    asked = draw_questions(corpus.held_out, sample.questions)
    recall: dict[str, Any] = {}
    first = logits_after(model, asked, CHANGES["in_place"])
    for name, change in CHANGES.items():
        logits = first if name == "in_place" else logits_after(model, asked, change)
        moved = (logits.log_softmax(-1) - first.log_softmax(-1)).abs()
        right = right_bytes(logits, asked)
        of = asked.asked.shape[1]
        recall[name] = {
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
        "recall": recall,
        "recall_chance": CHANCE,
        "recall_questions": len(asked.tokens),
        "recall_bytes_a_question": int(asked.asked.shape[1]),
        "torch_threads": torch.get_num_threads(),
    }


def read_log(folder: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Header (recipe and corpus) and lines. Errors: StudyError without a line, or not a log."""
    place = folder / LOG
    try:
        rows = [json.loads(row) for row in place.read_text(encoding="utf-8").splitlines()]
        header, lines = rows[0], rows[1:]
        if not lines or not header["recipe"]["phases"] or not header["corpus"]["blake2b"]:
            raise ValueError(f"{len(rows)} lines and no finished step")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StudyError(
            f"a training keeps a header and a line every few steps in {LOG}: {folder.name!r} has "
            f"none that can be read ({error.__class__.__name__}); name the folder of a training, "
            f"or train one"
        ) from error
    return header, lines


def _standard_error(values: Sequence[float]) -> float:
    return round(statistics.stdev(values) / len(values) ** 0.5, 4) if len(values) > 1 else 0.0


def _parameters(recipe: dict[str, Any]) -> dict[str, Any]:
    """What a footer has room for; the log holds the rest of each phase."""
    given = {name: value for name, value in recipe.items() if name not in ("seed", "phases")}
    steps, lengths = ([p["steps"] for p in recipe["phases"]],
                      [p["mix"]["length"] for p in recipe["phases"]])  # fmt: skip
    return {"phases_of_at_most": steps, "sequences_of": lengths} | given


def _progress(folder: Path) -> str:
    try:
        header, lines = read_log(folder)
    except StudyError:
        return "weights or a log, and no finished line of it"
    most = sum(phase["steps"] for phase in header["recipe"]["phases"])
    return f"{lines[-1]['step']} of at most {most} steps"

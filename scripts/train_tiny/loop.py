"""The training loop: steps, learning rate, a log, and the weights of its last line.

Matrices of the layers are trained with Muon, all else (embedding, norms, convolutions, the decay's
own weights) with AdamW.

Recall is learned at once or, in an hour, not at all: with 4 to 24 pairs in 512 bytes from the
start, 4 million bytes taught nothing, with 1 to 3 pairs in 96 bytes half a million were enough. So
a recipe has phases, from few pairs close by to many far away. A phase ends after ``steps``, or as
soon as the model ranks the asked bytes first often enough (``until``, over the last 40 steps). The
rate warms up over 40 steps, stays, and in the last phase falls on a cosine to a twentieth.
"""

import json
import math
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import nn

from scripts.train_tiny.corpus import Corpus, Mix, batch
from scripts.train_tiny.recall import plain_logits, recall_score, window_bits

LOG = "log.jsonl"


@dataclass(frozen=True, slots=True)
class Phase:
    """At most ``steps`` batches of ``mix``; ``until``: share of asked bytes ranked first that ends
    the phase, None for never."""

    steps: int
    mix: Mix
    until: float | None = None


PHASES = (
    Phase(500, Mix(rows=42, length=96, fewest=1, most=3, filler=8, plain=4), until=0.6),
    Phase(500, Mix(rows=32, length=128, fewest=1, most=6, filler=16), until=0.85),
    Phase(400, Mix(rows=16, length=256, fewest=2, most=12, filler=64), until=0.9),
    Phase(1000, Mix(rows=8, length=512)),
)
WARM_STEPS, WINDOW = 40, 40


@dataclass(frozen=True, slots=True)
class Recipe:
    """``phases``; rates of the two optimizers; ``every`` steps a line of the log and a copy of the
    weights. The defaults made the shipped checkpoint."""

    phases: tuple[Phase, ...] = PHASES
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    weight_decay: float = 0.05
    seed: int = 2026
    every: int = 100

    @property
    def steps(self) -> int:
        """The most steps that it can take."""
        return sum(phase.steps for phase in self.phases)


def smoke(seed: int) -> Recipe:
    """A few short steps, to show that the path is whole; the model learns next to nothing."""
    easy = Phase(3, Mix(rows=4, length=96, fewest=1, most=3, filler=8, plain=4), until=0.6)
    return Recipe((easy, Phase(3, Mix(rows=4, length=192))), every=3, seed=seed)


def factor(step: int, last: bool, steps: int, done: int) -> float:
    """Share of the full rate at the ``step``-th step of a phase of ``steps``, counted from 0, with
    ``done`` steps before it in the whole training; only the ``last`` phase lowers it."""
    warm = min(1.0, (done + 1) / WARM_STEPS)
    fall = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)) if last else 1.0
    return warm * fall


def optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon over the matrices of the layers, AdamW over the rest."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        inner = weight.dim() == 2 and "embed" not in name and "lm_head" not in name
        (matrices if inner else rest).append(weight)
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_rate, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(rest, lr=recipe.adam_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(
    model: Any, corpus: Corpus, recipe: Recipe, folder: Path, told: Callable[[], object]
) -> list[dict[str, float]]:
    """Train in place; each line of the log goes to ``folder/log.jsonl`` as it comes, with the
    weights of that step beside it, and ``told`` is called after each step. Returns the lines.

    ``model``: a causal language model of transformers over 256 tokens. Equal inputs give equal
    lines on the same machine with the same number of threads, but for ``seconds``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG
    log.write_text(json.dumps({"recipe": asdict(recipe), "corpus": corpus.about}) + "\n")
    rng = np.random.default_rng(recipe.seed)
    steppers = optimizers(model, recipe)
    groups = [group for stepper in steppers for group in stepper.param_groups]
    rates = [group["lr"] for group in groups]
    lines: list[dict[str, float]] = []
    losses: list[float] = []
    began, done, tokens = time.perf_counter(), 0, 0
    for number, phase in enumerate(recipe.phases):
        last = number + 1 == len(recipe.phases)
        scores: deque[float] = deque(maxlen=WINDOW)
        for step in range(phase.steps):
            share = factor(step, last, phase.steps, done)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * share
            loss, score = _step(model, corpus, phase.mix, steppers, rng)
            losses.append(loss)
            scores.append(score)
            done, tokens = done + 1, tokens + phase.mix.rows * phase.mix.length
            wanted = math.inf if phase.until is None else phase.until
            learned = len(scores) == WINDOW and statistics.fmean(scores) >= wanted
            over = learned or step + 1 == phase.steps
            if done % recipe.every == 0 or (over and last):
                line: dict[str, float] = {"step": done, "phase": number + 1, "tokens": tokens}
                line |= {
                    "train_recall": round(statistics.fmean(scores), 4),
                    "train_bits_per_byte": round(statistics.fmean(losses) / math.log(2), 4),
                }
                line |= _measured(model, corpus) | {
                    "seconds": round(time.perf_counter() - began, 1)
                }
                lines.append(line)
                losses = []
                save(model, folder)
                with log.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            told()
            if over:
                break
    return lines


def _step(
    model: Any, corpus: Corpus, mix: Mix, steppers: list[torch.optim.Optimizer], rng: Generator
) -> tuple[float, float]:
    """One step: the loss in nats a byte, and the share of asked bytes that were ranked first."""
    model.train()
    made, asked = batch(corpus.train, mix, rng)
    data, places = torch.from_numpy(made).long(), torch.from_numpy(asked)[:, 1:]
    output = model(input_ids=data, labels=data, use_cache=False)
    output.loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for stepper in steppers:
        stepper.step()
        stepper.zero_grad(set_to_none=True)
    right = output.logits.detach()[:, :-1].argmax(-1) == data[:, 1:]
    recalled = float(right[places].float().mean()) if bool(places.any()) else 0.0
    return float(output.loss.detach()), recalled


def save(model: Any, folder: Path) -> None:
    """Config and weights in the library's own format, each file whole or not at all: a training
    that is killed while it writes leaves the files of the step before."""
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
        model.save_pretrained(part)
        for file in sorted(Path(part).iterdir()):
            file.chmod(0o644)  # the library writes weights for their owner alone
            file.replace(folder / file.name)


def _measured(model: Any, corpus: Corpus) -> dict[str, float]:
    """Of held-out text, in sequences of 512 bytes whatever the phase."""
    model.train(False)
    logits = plain_logits(model)
    bits = window_bits(logits, corpus.held_out, sequences=16, length=512)
    score = recall_score(logits, corpus.held_out, sequences=8, length=512, pairs=12)
    return {
        "held_out_bits_per_byte": round(statistics.fmean(bits), 4),
        "recall": round(score, 4),
    }

"""The training loop: steps, learning rate, log, and the weights as they are so far.

Matrices of the layers are trained with Muon, all else (embedding, norms, convolutions, the decay's
own weights) with AdamW. The rate warms up over 2 % of the steps and falls on a cosine to a tenth:
of 100 steps the first two run at 50 % and 100 %, step 51 at 55 %, and the last at 10 %.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kvlab.lab.training.corpus import Corpus, batch
from kvlab.lab.training.measure import bits_per_byte, recall_score

LOG = "log.jsonl"
# Called after each step with (done, total).
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """``steps`` of ``rows`` sequences of ``length`` bytes; rates of the two optimizers; ``every``
    steps a line of the log and a copy of the weights. The defaults made the shipped checkpoint."""

    steps: int = 2400
    rows: int = 16
    length: int = 512
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    weight_decay: float = 0.05
    seed: int = 2026
    every: int = 100


def smoke(seed: int) -> Recipe:
    """A few short steps, to show that the path is whole; the model learns next to nothing."""
    return Recipe(steps=6, rows=4, length=192, every=3, seed=seed)


def factor(step: int, steps: int) -> float:
    """Share of the full rate at a step, counted from 0."""
    warm = max(1, steps // 50)
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


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
    model: Any, corpus: Corpus, recipe: Recipe, folder: Path, told: Told | None = None
) -> list[dict[str, float]]:
    """Train in place; each line of the log goes to ``folder/log.jsonl`` as it comes, with the
    weights of that step beside it. Returns the lines.

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
    seen: list[float] = []
    began = time.perf_counter()
    for step in range(recipe.steps):
        model.train()
        share = factor(step, recipe.steps)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * share
        data = torch.from_numpy(batch(corpus.train, recipe.rows, recipe.length, rng)).long()
        loss = model(input_ids=data, labels=data, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        seen.append(float(loss.detach()))
        if (step + 1) % recipe.every == 0 or step + 1 == recipe.steps:
            lines.append(_line(model, corpus, recipe, step + 1, seen, time.perf_counter() - began))
            seen = []
            save(model, folder)
            with log.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
        if told is not None:
            told(step + 1, recipe.steps)
    return lines


def save(model: Any, folder: Path) -> None:
    """Config and weights in the library's own format, each file whole or not at all: a training
    that is killed while it writes leaves the files of the step before."""
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
        model.save_pretrained(part)
        for file in sorted(Path(part).iterdir()):
            file.chmod(0o644)  # the library writes weights for their owner alone
            file.replace(folder / file.name)


def _line(
    model: Any, corpus: Corpus, recipe: Recipe, step: int, seen: list[float], seconds: float
) -> dict[str, float]:
    model.train(False)
    logits, length = plain_logits(model), recipe.length
    bits = bits_per_byte(logits, corpus.held_out, sequences=16, length=length)
    score = recall_score(logits, corpus.held_out, sequences=8, length=length, pairs=12)
    return {
        "step": step,
        "tokens": step * recipe.rows * length,
        "train_bits_per_byte": round(sum(seen) / len(seen) / math.log(2), 4),
        "held_out_bits_per_byte": round(bits, 4),
        "recall": round(score, 4),
        "seconds": round(seconds, 1),
    }


def plain_logits(model: Any) -> Callable[[Tensor], Tensor]:
    """The model's own logits ``(B, T, 256)`` of tokens ``(B, T)``, without a cache."""

    def logits(tokens: Tensor) -> Tensor:
        made: Tensor = model(input_ids=tokens, use_cache=False).logits
        return made

    return logits

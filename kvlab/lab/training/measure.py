"""What the log of a training says of a model: held-out loss in bits a byte, and recall.

Both are of plain logits, without pools, and both draw the same sequences every time, so lines of a
log can be compared. ``exchange`` asks the harder question, where the recall comes from.

Worked example: a model that gives each of the 256 bytes the same chance needs 8 bits a byte, and
names a value byte in one of 16 cases if it has learnt no more than how values look.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kvlab.lab.training.corpus import SYMBOLS, Bytes, recall, text

CHANCE = 1 / len(SYMBOLS)
# int64 (B, T) to float (B, T, 256).
Logits = Callable[[Tensor], Tensor]


@torch.no_grad()
def window_bits(logits: Logits, source: Bytes, *, sequences: int, length: int) -> list[float]:
    """Bits a byte of each of ``sequences`` windows of ``source``, each of ``length`` bytes; the
    first byte of a window is given, the others are predicted. More windows begin with the same."""
    rng = np.random.default_rng(1)
    lines = torch.from_numpy(np.stack([text(source, length, rng) for _ in range(sequences)])).long()
    nats: list[float] = []
    for part in torch.split(lines, 8):
        made = logits(part)[:, :-1].float().transpose(1, 2)
        lost = functional.cross_entropy(made, part[:, 1:], reduction="none")
        nats += lost.mean(1).tolist()
    return [loss / math.log(2) for loss in nats]


def bits_per_byte(logits: Logits, source: Bytes, *, sequences: int, length: int) -> float:
    """Mean of ``window_bits``."""
    bits = window_bits(logits, source, sequences=sequences, length=length)
    return sum(bits) / len(bits)


@torch.no_grad()
def recall_score(
    logits: Logits, source: Bytes, *, sequences: int, length: int, pairs: int
) -> float:
    """Share, 0 to 1, of the value bytes after a ``get`` that are ranked first. Values of a second
    ``get`` of a sequence count too, and can be known from the first."""
    rng = np.random.default_rng(2)
    right = asked = 0
    for _ in range(sequences):
        made = recall(source, length, rng, pairs)
        line = torch.from_numpy(made.data.copy()).long()
        best = logits(line[None])[0].argmax(-1)
        places = torch.from_numpy(made.asked)
        right += int((best[places - 1] == line[places]).sum())
        asked += len(places)
    return right / asked

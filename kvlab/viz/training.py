"""The loss curve of a training (``scripts/train_tiny``), and its recall.

Left, bits a byte of the training batches and of held-out text; right, the recall of the log beside
chance. Both against the bytes seen.

Worked example: after 100 steps of 42 sequences of 96 bytes a point lies at 0.4 million bytes. A
grey line stands before the first point of each later phase: its batches are another text.
"""

from itertools import pairwise

import pandas as pd
from matplotlib.figure import Figure

from kvlab.errors import StudyError
from kvlab.lab.origin import Origin
from kvlab.viz.style import BLUE, DARK_GREY, LIGHT_GREY, ORANGE, VERMILLION, caption, figure

NAME = "loss-curve"
COLUMNS = ("phase", "tokens", "train_bits_per_byte", "held_out_bits_per_byte", "recall")


def loss_curve_figure(log: pd.DataFrame, chance: float, origin: Origin) -> Figure:
    """Two panels: loss and recall.

    ``log``: the lines of a training (``phase``, ``tokens``, ``train_bits_per_byte``,
    ``held_out_bits_per_byte``, ``recall``); ``chance``: of a value byte, 0 to 1. Errors:
    StudyError for a table without these columns or without a row.
    """
    missing = [column for column in COLUMNS if column not in log]
    if missing or log.empty:
        raise StudyError(
            f"a loss curve is drawn from the lines of a training: got {len(log)} rows, columns "
            f"missing: {', '.join(missing) or 'none'}; pass the table that scripts.train_tiny wrote"
        )
    fig = figure("double", height=2.6)
    left, right = fig.subplots(1, 2)
    seen = log["tokens"] / 1e6
    for at in _changes(log):
        for ax in (left, right):
            ax.axvline(at / 1e6, color=LIGHT_GREY, lw=1, zorder=0)
    left.plot(seen, log["train_bits_per_byte"], "--s", color=ORANGE, label="training batches")
    left.plot(seen, log["held_out_bits_per_byte"], "-o", color=BLUE, label="held-out text")
    left.set(xlabel="bytes seen (millions)", ylabel="bits a byte", xlim=(0, None), ylim=(0, None))
    left.set_title("Loss")
    left.legend(loc="lower left")
    right.plot(seen, log["recall"], "-o", color=BLUE)
    right.axhline(chance, color=VERMILLION, ls="--", lw=1)
    right.annotate(
        f"chance {chance:.4g}", (1, chance), (-2, 3), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", color=DARK_GREY, fontsize=8,
    )  # fmt: skip
    right.set(xlabel="bytes seen (millions)", ylabel="share right", xlim=(0, None), ylim=(0, 1.02))
    right.set_title("Recall of value bytes")
    fig.suptitle("Training of the tiny model", x=0.01, ha="left")
    return caption(
        fig,
        "Bits a byte: mean cross-entropy of the next byte, base 2; training: mean over the steps "
        "since the point before, held-out: 16 windows of files that training never saw. Recall: "
        "share of the value bytes after a get that the model ranks first, over 8 sequences of "
        "held-out text with 12 pairs. Grey lines: phases of the training begin, with more pairs, "
        "farther away. Measured.",
        origin,
    )


def _changes(log: pd.DataFrame) -> list[float]:
    """Bytes seen half-way between the last point of a phase and the first of the next."""
    points = list(zip(log["phase"].tolist(), log["tokens"].tolist(), strict=True))
    return [(a[1] + b[1]) / 2 for a, b in pairwise(points) if a[0] != b[0]]

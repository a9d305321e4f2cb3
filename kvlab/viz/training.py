"""The loss curve of a training, and its recall: ``python -m kvlab.viz.training OUT`` draws it.

Left, bits a byte of the training batches and of held-out text; right, the recall of the log beside
chance. Both against the bytes seen. The folder is one that ``kvlab.lab.training`` wrote; figure and
footer come from its ``loss-curve.csv`` and ``measured.json``, and nothing is computed again.

Worked example: after 100 steps of 42 sequences of 96 bytes a point lies at 0.4 million bytes. A
grey line stands before the first point of each later phase: its batches are another text.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from kvlab.errors import KvlabError, StudyError
from kvlab.lab.origin import Origin
from kvlab.viz.save import save_figure
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
            f"missing: {', '.join(missing) or 'none'}; pass the table that kvlab.lab.training wrote"
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


def parser() -> argparse.ArgumentParser:
    """The options of ``python -m kvlab.viz.training``."""
    made = argparse.ArgumentParser(
        prog="python -m kvlab.viz.training",
        description="Draw the loss curve of a training: SVG, PDF, PNG, and JSON with the origin.",
    )
    made.add_argument("out", type=Path, metavar="OUT", help="a folder of kvlab.lab.training")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the curve of a folder into it: 0, or 1 with a sentence."""
    folder: Path = parser().parse_args(argv).out
    try:
        log, facts = _read(folder)
        fig = loss_curve_figure(log, facts["recall_chance"], Origin(**facts["origin"]))
        save_figure(fig, NAME, log, Origin(**facts["origin"]), folder)
    except KvlabError as error:
        print(f"kvlab training: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {NAME}.svg, .pdf, .png, .csv, .json")
    return 0


def _read(folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    try:
        facts = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
        return pd.read_csv(folder / f"{NAME}.csv"), facts
    except (OSError, ValueError) as error:
        raise StudyError(
            f"a loss curve is drawn from {NAME}.csv and measured.json of a training: "
            f"{folder.name!r} gives {type(error).__name__}; name a folder of "
            f"python -m kvlab.lab.training, or measure it with --measure-only"
        ) from error


if __name__ == "__main__":
    raise SystemExit(main())

"""Merge explorer: the weight that each rank's output gets, beside the weight it should have.

Set the lse of each rank, say which ranks are empty and how the backend reports that, and read the
lse in the wrong base; the bars show both weights, and the last line the two outputs.
"""

import math
from typing import Any

import ipywidgets as widgets
import pandas as pd

from kvlab.errors import StudyError
from kvlab.lab.merge_case import REPORTED, Base, Merge, MergeCase
from kvlab.viz.canvas import MARGIN_IN, Canvas
from kvlab.viz.panel import Drawing, Panel, Spot, twin
from kvlab.viz.style import BLACK, DARK_GRAY, OWNED, VERMILLION, Role, Width

NAME = "merge-explorer"
MOST = 4
DEFINITION = (
    "Weight of a rank in the merge, exp(lse - L) with L the logsumexp over the ranks that have "
    "keys. Blue: right; vermillion: as merged from what the backend reports. out of rank r is "
    "r + 1, of an empty rank 0, so the output is the weighted sum. Computed."
)
RIGHT, MERGED = Role("right", OWNED.color), Role("as merged", VERMILLION)
TOP_IN, RANK_IN, BAR_IN = 0.62, 0.44, 0.15
SAME = 1e-9


def _told(row: Any) -> str:
    lse = "no keys" if row["empty"] else f"lse {row['lse']:g} nats"
    return (
        f"Rank {row['rank']}: {lse}, read as {number(row['reported'])}, out {row['out']:g}; right "
        f"weight {number(row['right_weight'])}, merged {number(row['weight'])}."
    )


def number(value: float) -> str:
    """A weight or an lse in few digits: "0.25", "-inf", "NaN"."""
    if math.isnan(value):
        return "NaN"
    return f"{value:.4g}" if math.isfinite(value) else f"{value:+}"


def _sentence(case: MergeCase, weights: "pd.Series[float]") -> str:
    right, merged = case.outputs()
    if all(case.empty):
        told = "Every rank is empty: there is nothing to attend to, and the right output is 0"
    else:
        told = f"The right output is {number(right)}"
    if abs(merged - right) <= SAME:
        return f"{told}; the merge gives the same."
    off = "not a number" if math.isnan(merged) else f"{abs(merged - right):.3g} off"
    given = [rank for rank, gone in enumerate(case.empty) if gone]
    why = []
    if given and not weights[given].eq(0).all():
        why.append(f"empty rank {', '.join(map(str, given))} reported as {case.reported} weighs in")
    if case.log_base == "wrong":
        why.append("an lse in base 2 was read as nats")
    because = f": {' and '.join(why)}" if why else ""
    return f"{told}; the merge gives {number(merged)}, {off}{because}. Nothing raises."


def draw_merge(
    ranks: int = 4,
    lse_0: float = 2.0,
    lse_1: float = 1.0,
    lse_2: float = -1.0,
    lse_3: float = 0.5,
    empty_0: bool = False,
    empty_1: bool = False,
    empty_2: bool = False,
    empty_3: bool = True,
    reported: str = "0",
    log_base: Base = "right",
    merge: Merge = "checked",
    width: Width = "double",
) -> Drawing:
    """The weight that each rank's output gets, beside the weight it should have.

    Table: one row a rank: lse, what is reported, out, the right weight and the merged one.

    Errors: StudyError for other than 1 to 4 ranks, an lse that is not finite, an unknown word.
    """
    if ranks not in range(1, MOST + 1):
        raise StudyError(f"this merge has 1 to {MOST} ranks, one for each lse: got ranks={ranks!r}")
    lse, empty = (lse_0, lse_1, lse_2, lse_3), (empty_0, empty_1, empty_2, empty_3)
    case = MergeCase(lse[:ranks], empty[:ranks], reported, log_base, merge)
    table = case.table()
    rows: list[Any] = table.to_dict("records")
    bottom = TOP_IN + len(rows) * RANK_IN
    canvas = Canvas(width, "Weights of the ranks: right, and as merged")
    lse_x, read_x, bar_x = (0.62, 1.35, 2.1) if width == "double" else (0.52, 0.95, 1.4)
    room = canvas.wide - bar_x - 0.62
    for x, head in ((MARGIN_IN, "rank"), (lse_x, "lse"), (read_x, "read as"), (bar_x, "weight")):
        canvas.text(x, TOP_IN - 0.12, head, 7.5, DARK_GRAY)
    for at, row in enumerate(rows):
        y = TOP_IN + at * RANK_IN
        canvas.text(MARGIN_IN, y + RANK_IN / 2, f"{row['rank']}", 8.5, bold=True)
        canvas.text(lse_x, y + RANK_IN / 2, "empty" if row["empty"] else number(row["lse"]), 7.5)
        canvas.text(read_x, y + RANK_IN / 2, number(row["reported"]), 7.5)
        for name, look, down in (("right_weight", RIGHT, 0.04), ("weight", MERGED, 0.21)):
            share = row[name]
            long = 0.0 if math.isnan(share) else share * room
            canvas.box((bar_x, y + down, max(long, 0.004), BAR_IN), look)
            off = name == "weight" and not abs(share - row["right_weight"]) <= SAME
            canvas.text(bar_x + long + 0.06, y + down + BAR_IN / 2, number(share), 7,
                        VERMILLION if off else BLACK, bold=off)  # fmt: skip
    right, merged = case.outputs()
    canvas.line([(MARGIN_IN, bottom + 0.04), (canvas.wide - MARGIN_IN, bottom + 0.04)])
    words = f"output: right {number(right)}, merged {number(merged)}"
    bad = not abs(merged - right) <= SAME
    canvas.text(MARGIN_IN, bottom + 0.2, words, 8.5, VERMILLION if bad else BLACK, bold=True)
    canvas.keys(bottom + 0.45, [(RIGHT, RIGHT.label), (MERGED, MERGED.label)])
    spots = [Spot(MARGIN_IN, TOP_IN + at * RANK_IN, canvas.wide - 0.2, RANK_IN, _told(row))
             for at, row in enumerate(rows)]  # fmt: skip
    return Drawing(canvas.finish(bottom + 0.62), _sentence(case, table["weight"]), table, spots)


def merge_explorer() -> Panel:
    """Drag the lse of up to four ranks; empty shards and the log base as the backend has them."""

    def lse() -> tuple[widgets.Widget, str]:
        slider = widgets.FloatSlider(min=-6, max=6, step=0.5)
        return slider, "logsumexp of the rank's scores, nats"

    return Panel(
        draw_merge,
        name=NAME,
        definition=DEFINITION,
        ranks=range(1, MOST + 1),
        lse_0=lse(),
        lse_1=lse(),
        lse_2=lse(),
        lse_3=lse(),
        empty_0=False,
        empty_1=False,
        empty_2=False,
        empty_3=False,
        reported=([*REPORTED], "what the backend reports for an empty rank"),
        log_base={"as the merge expects": "right", "base 2, read as nats": "wrong"},
        merge={"checked: NaN and +inf are empty": "checked", "plain softmax": "plain"},
    )


merge_explorer_figure = twin(draw_merge, NAME, DEFINITION)

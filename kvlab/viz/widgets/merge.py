"""Merge explorer: the weight that each rank's output gets, beside the weight it should have.

Set the lse of each rank, say which ranks are empty and how the backend reports that, and read the
lse in the wrong base; the bars show both weights, and the last line the two outputs.

Worked example: four ranks of equal lse weigh 1/4 each; with rank 3 empty and reported as 0 the
checked merge cannot tell, and gives it a share; reported as NaN it gives none.
"""

import math
from functools import lru_cache
from typing import Any

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from kvlab.errors import StudyError
from kvlab.lab.merge_case import REPORTED, Base, Merge, MergeCase
from kvlab.viz.exported import publishable
from kvlab.viz.panel import Panel
from kvlab.viz.panel_html import Spot
from kvlab.viz.spaces import Look, look_of
from kvlab.viz.style import BLACK, DARK_GREY, OWNED, VERMILLION, WRONG
from kvlab.viz.widgets.canvas import Canvas, Width

NAME = "merge-explorer"
MOST = 4
DEFINITION = (
    "Weight of a rank in the merge, exp(lse - L) with L the logsumexp over the ranks that have "
    "keys. Blue: right; vermillion: as merged from what the backend reports. out of rank r is "
    "r + 1, of an empty rank 0, so the output is the weighted sum. Computed."
)
RIGHT, MERGED = look_of(OWNED), Look(VERMILLION, BLACK)
TOP_IN, RANK_IN, BAR_IN = 0.62, 0.44, 0.15
SAME = 1e-9


def case_of(
    ranks: int,
    reported: str,
    log_base: Base,
    merge: Merge,
    **each: Any,
) -> MergeCase:
    """The case of the controls: ``lse_0``, ``empty_0`` and so on, of which ``ranks`` count.

    Errors: StudyError for more ranks than there are controls, and as ``MergeCase``.
    """
    if ranks not in range(1, MOST + 1):
        raise StudyError(f"this merge has 1 to {MOST} ranks, one for each lse: got ranks={ranks!r}")
    lse = tuple(float(each[f"lse_{rank}"]) for rank in range(ranks))
    empty = tuple(bool(each[f"empty_{rank}"]) for rank in range(ranks))
    return MergeCase(lse, empty, reported, log_base, merge)


@lru_cache(maxsize=256)
def _table(case: MergeCase) -> pd.DataFrame:
    return case.table()


def merge_table(**values: Any) -> pd.DataFrame:
    """One row a rank: lse, what is reported, out, the right weight and the merged one."""
    return _table(case_of(**values)).copy()


def merge_hover(**values: Any) -> list[Spot]:
    """A box a rank, with its numbers."""
    rows = _table(case_of(**values)).to_dict("records")
    return [
        Spot(0.08, TOP_IN + at * RANK_IN, 7.0, RANK_IN, _told(row)) for at, row in enumerate(rows)
    ]


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


def _sentence(case: MergeCase) -> str:
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
    if given and not _table(case).loc[given, "weight"].eq(0).all():
        why.append(f"empty rank {', '.join(map(str, given))} reported as {case.reported} weighs in")
    if case.log_base == "wrong":
        why.append("an lse in base 2 was read as nats")
    because = f": {' and '.join(why)}" if why else ""
    return f"{told}; the merge gives {number(merged)}, {off}{because}. Nothing raises."


def _draw(width: Width = "double", **values: Any) -> tuple[Figure, str]:
    case = case_of(**values)
    rows = _table(case).to_dict("records")
    bottom = TOP_IN + len(rows) * RANK_IN
    canvas = Canvas(width, bottom + 0.62, "Weights of the ranks: right, and as merged")
    double = width == "double"
    lse_x, read_x, bar_x = (0.62, 1.35, 2.1) if double else (0.52, 0.95, 1.4)
    room = canvas.wide - bar_x - 0.62
    for x, head in ((0.08, "rank"), (lse_x, "lse"), (read_x, "read as"), (bar_x, "weight")):
        canvas.text(x, TOP_IN - 0.12, head, 7.5, DARK_GREY)
    for at, row in enumerate(rows):
        y = TOP_IN + at * RANK_IN
        canvas.text(0.08, y + RANK_IN / 2, f"{row['rank']}", 8.5, bold=True)
        canvas.text(lse_x, y + RANK_IN / 2, "empty" if row["empty"] else number(row["lse"]), 7.5)
        canvas.text(read_x, y + RANK_IN / 2, number(row["reported"]), 7.5)
        for name, look, down in (("right_weight", RIGHT, 0.04), ("weight", MERGED, 0.21)):
            share = row[name]
            long = 0.0 if math.isnan(share) else share * room
            canvas.box(bar_x, y + down, max(long, 0.004), BAR_IN, look)
            bold = name == "weight" and not abs(share - row["right_weight"]) <= SAME
            canvas.text(bar_x + long + 0.06, y + down + BAR_IN / 2, number(share), 7,
                        WRONG.color if bold else BLACK, bold=bold)  # fmt: skip
    right, merged = case.outputs()
    canvas.line([(0.08, bottom + 0.04), (canvas.wide - 0.08, bottom + 0.04)])
    words = f"output: right {number(right)}, merged {number(merged)}"
    bad = not abs(merged - right) <= SAME
    canvas.text(0.08, bottom + 0.2, words, 8.5, WRONG.color if bad else BLACK, bold=True)
    canvas.keys(bottom + 0.45, [(RIGHT, "right"), (MERGED, "as merged")], 0.08)
    return canvas.finish(), _sentence(case)


def _values(
    ranks: int,
    lse: tuple[float, ...],
    empty: tuple[bool, ...],
    reported: str,
    log_base: str,
    merge: str,
) -> dict[str, object]:
    return {
        "ranks": ranks,
        **{f"lse_{rank}": value for rank, value in enumerate(lse)},
        **{f"empty_{rank}": value for rank, value in enumerate(empty)},
        **{"reported": reported, "log_base": log_base, "merge": merge},
    }


def merge_explorer() -> Panel:
    """Drag the lse of up to four ranks; empty shards and the log base as the backend has them."""

    def lse(value: float) -> widgets.FloatSlider:
        return widgets.FloatSlider(
            min=-6, max=6, step=0.5, value=value, tooltip="logsumexp of the rank's scores, nats"
        )

    return Panel(
        _draw,
        name=NAME,
        table=merge_table,
        hover=merge_hover,
        definition=DEFINITION,
        ranks=widgets.IntSlider(min=1, max=MOST, value=4),
        lse_0=lse(2.0),
        lse_1=lse(1.0),
        lse_2=lse(-1.0),
        lse_3=lse(0.5),
        empty_0=False,
        empty_1=False,
        empty_2=False,
        empty_3=widgets.Checkbox(value=True, indent=False),
        reported=widgets.Dropdown(
            options=list(REPORTED), value="0", tooltip="what the backend reports for an empty rank"
        ),
        log_base={"as the merge expects": "right", "base 2, read as nats": "wrong"},
        merge={"checked: NaN and +inf are empty": "checked", "plain softmax": "plain"},
    )


def merge_explorer_figure(
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
    *,
    width: Width = "double",
) -> Figure:
    """The picture of ``merge_explorer`` with its caption; arguments are the controls.

    Errors: StudyError for other than 1 to 4 ranks, an lse that is not finite, an unknown word.
    """
    lse = (lse_0, lse_1, lse_2, lse_3)
    empty = (empty_0, empty_1, empty_2, empty_3)
    values = _values(ranks, lse, empty, reported, log_base, merge)
    return publishable(_draw, values, NAME, DEFINITION, width)[0]

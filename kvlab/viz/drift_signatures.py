"""Signatures of the defects side by side: a line a defect, a column a measured sign.

A cell holds the number, and a bar behind it as long as its share, so the matrix reads in grey too.
The same columns stand for one rank and for several: what a defect does at DCP 1 is the first thing
that tells two of them apart.

Worked example: 12 of 40 restored requests that drift are "12/40" over a bar of three tenths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kvlab.lab.drift import DTYPES, PREFIX, REPORTED, condition, defect
from kvlab.lab.origin import Origin
from kvlab.viz.drift_scale import require_rows, roomy
from kvlab.viz.style import BLACK, DARK_GREY, LIGHT_GREY, SKY, caption, figure

ROW_IN = 0.235
HEAD_PT = 6.2
BASELINE = "forced_fixed"
NOT_THERE = "–"
SHARE = f"{REPORTED[0]} of {REPORTED[1]}"
NEEDED = (
    *("condition", "dcp_size", "dtype", "requests", "tokens", "restored_requests"),
    *("drifting_restored", "repeating_restored", "collateral_requests", "nan_tokens"),
    *("median_onset", "max_from_fixed"),
)


@dataclass(frozen=True, slots=True)
class Sign:
    """A column: its head, and the count and the whole of its share; without a whole, no bar."""

    head: str
    count: str
    whole: str | None


SIGNS = (
    Sign("acts", "max_from_fixed", None),
    Sign("drift", "drifting_restored", "restored_requests"),
    Sign("repeat", "repeating_restored", "restored_requests"),
    Sign("others\nhurt", "collateral_requests", "requests"),
    Sign("NaN\nshare", "nan_tokens", "tokens"),
    Sign("onset,\ntokens", "median_onset", None),
)
#: What stands over the two columns that share it: their first, and their last.
SHARED = ("restored that", 1, 2)


def signature_figure(
    summary: pd.DataFrame,
    origin: Origin,
    *,
    verdicts: Mapping[str, str] | None = None,
    dcp_sizes: Sequence[int] = (1, 4),
    width: Literal["single", "double"] = "double",
) -> Figure:
    """The matrix; a first line shows the run with the fix and no defect.

    Args:
        summary: the table of that name; each defect in float32, or the first dtype that it has.
        verdicts: by name of a defect, the judgement of ``answers`` for the last column.
    """
    require_rows(summary, NEEDED, "a matrix of signatures")
    table = summary[summary["dcp_size"].isin(list(dcp_sizes))]
    names = [n for n in dict.fromkeys(table["condition"]) if n.startswith(PREFIX)]
    require_rows(table[table["condition"].isin(names)], NEEDED, "a matrix of signatures")
    lines = [*([BASELINE] if (table["condition"] == BASELINE).any() else []), *names]
    fig = roomy(figure(width, height=0.95 + ROW_IN * len(lines)))
    ax = fig.subplots()
    gap = 0.5
    for block, size in enumerate(dcp_sizes):
        left = block * (len(SIGNS) + gap)
        head = f"DCP {size}"
        ax.text(left, -1.95, head, fontsize=8.5, fontweight="bold", va="bottom")
        for j, sign in enumerate(SIGNS):
            ax.text(left + j + 0.5, -0.62, sign.head, fontsize=HEAD_PT, ha="center", va="bottom")
        text, first, last = SHARED
        middle = left + (first + last + 1) / 2
        ax.text(middle, -1.12, text, fontsize=HEAD_PT, ha="center", va="bottom")
        for y, name in enumerate(lines):
            rows = table[table["condition"].eq(name) & table["dcp_size"].eq(size)]
            for j, sign in enumerate(SIGNS):
                _cell(ax, left + j, y, *_sign(_first(rows), sign))
    right = len(dcp_sizes) * (len(SIGNS) + gap) - gap
    if verdicts is not None:
        ax.text(
            right + 0.3, -0.62, f"makes {SHARE}\nrepeat at c = 1?", fontsize=HEAD_PT, va="bottom"
        )
        for y, name in enumerate(lines):
            word = verdicts.get(name.removeprefix(PREFIX), "")
            ax.text(right + 0.3, y, word, fontsize=6.8, va="center")
        right += 2.6
    ax.set(xlim=(-0.1, right), ylim=(len(lines) - 0.4, -2.2), xticks=[])
    names = [_name(table, name) for name in lines]
    if width == "single":
        names = ["\n".join(wrap(name, 16)) for name in names]
    ax.set_yticks(range(len(lines)), names, fontsize=7.5 if width == "double" else 6.2)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    fig.suptitle("Signatures of the defects", x=0.01, ha="left")
    return caption(fig, _definition(verdicts is not None), origin)


def _definition(judged: bool) -> str:
    text = (
        "Acts: a dot if any logprob differs from that of the same schedule without the "
        "defect. Restored that drift: requests with a |Δℓ| above 2 ε after they came back, of "
        "those that came back. Restored that repeat: ρ at least 0.25 above the reference's. "
        "Others hurt: requests that drift before they were ever restored, of all. NaN share: of "
        "all tokens. Onset: median of the tokens from the return to the first |Δℓ| above 2 ε. "
        "* hypothetical: no thread reports it. Measured."
    )
    return text + (
        (
            " Last column, from the signs at c = 1: cannot: no bit changes, or too few drift; "
            f"too many: nearly all that drift repeat, and more than {SHARE}; not excluded: all "
            f"others. {SHARE} is reported."
        )
        if judged
        else ""
    )


def _name(table: pd.DataFrame, name: str) -> str:
    if name == BASELINE:
        return "none: with the fix"
    known = condition(name)
    dtype = _first(table[table["condition"] == name])["dtype"]
    star = "*" if defect(name.removeprefix(PREFIX)).hypothetical else ""
    return known.title + star + ("" if dtype == "float32" else f" ({dtype})")


def _first(rows: pd.DataFrame) -> dict[str, Any]:
    """The row of the first dtype; nothing of no rows."""
    order = rows["dtype"].map(list(DTYPES).index).sort_values(kind="stable")
    return {str(k): v for k, v in rows.loc[order.index[0]].items()} if len(rows) else {}


def _sign(row: dict[str, Any], sign: Sign) -> tuple[str, float | None]:
    """Text of a cell, and the share of its bar."""
    value = row.get(sign.count)
    if value is None or (pd.isna(value) and sign.count == "median_onset"):
        return NOT_THERE, None
    if sign.count == "max_from_fixed":
        # NaN against a number has no distance, and is a change.
        changed = pd.isna(value) or value > 0 or row["nan_tokens"] > 0
        return ("●" if changed else NOT_THERE), None
    if pd.isna(value):
        return "", None
    if sign.whole is None:
        return f"{value:g}", None
    whole = float(row[sign.whole])
    if whole == 0:
        return NOT_THERE, None
    share = float(value) / whole
    if sign.count == "nan_tokens":  # of hundreds or thousands: too long as a fraction
        return f"{share:.0%}", share
    return f"{int(value)}/{int(whole)}", share


def _cell(ax: Axes, x: float, y: float, text: str, share: float | None) -> None:
    if share is not None:
        ax.add_patch(Rectangle((x + 0.04, y - 0.4), 0.92 * share, 0.8, fc=SKY, ec="none"))
        ax.add_patch(Rectangle((x + 0.04, y - 0.4), 0.92, 0.8, fc="none", ec=LIGHT_GREY, lw=0.5))
    color = DARK_GREY if text == NOT_THERE or (share == 0) else BLACK
    ax.text(x + 0.5, y, text, ha="center", va="center", fontsize=HEAD_PT, color=color)

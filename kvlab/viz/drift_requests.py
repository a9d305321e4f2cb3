"""Each request of each condition as a mark: how far its worst token drifted.

A mean hides what a user meets: four bad requests of 48 are a mean near the floor. So every request
is drawn, those that were restored apart from those that were not, and a bar marks the median.

Worked example: 48 requests of which 12 drift by 3 nats and 36 by 0 are 12 marks at 3, 36 in the
grey band of zeros, and a bar there.
"""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvlab.lab.drift import DTYPES, UPSTREAM_TOLERANCE, condition, metric
from kvlab.lab.origin import Origin
from kvlab.viz.drift_scale import (
    PQ,
    TOLERANCE_TEXT,
    ZeroLog,
    legend_in,
    require_rows,
    roomy,
    tolerance_line,
)
from kvlab.viz.style import BLACK, BLUE, GREEN, ORANGE, caption, figure

ROW_IN = 0.25
SPREAD = 0.17
SHORT = f"{UPSTREAM_TOLERANCE:.2f}, upstream (reported)"
#: Of the same run under two names, the one that is left out.
TWIN, KEPT = "defect:widened_as_rows", "forced_before_fix"


def drift_by_condition_figure(
    requests: pd.DataFrame,
    origin: Origin,
    *,
    floors: Mapping[str, float] | None = None,
    dcp_sizes: Sequence[int] = (1, 4),
    width: Literal["single", "double"] = "double",
) -> Figure:
    """One line a condition, one mark a request at its largest |Δℓ|; one panel a DCP size.

    ``requests``: condition, dcp_size, dtype, rid, restored_at, max_abs_dlogprob, nan_tokens. Each
    condition is drawn in float32, or in the first dtype that it has, which its name then says.
    ``floors``: ε of each dtype, nats (column ``floor`` of the summary), a tick in each line; None:
    no tick.
    """
    needed = ("condition", "dcp_size", "dtype", "rid", "restored_at", "max_abs_dlogprob")
    require_rows(requests, (*needed, "nan_tokens"), "drift by condition")
    table = requests[requests["dcp_size"].isin(list(dcp_sizes))]
    require_rows(table, needed, "drift by condition")
    shown = _shown(table)
    lost = table["nan_tokens"] > 0
    worst = table["max_abs_dlogprob"].mask(lost)
    table = table.assign(worst=worst)
    scale = ZeroLog.over(worst.to_numpy(), keep=[UPSTREAM_TOLERANCE])
    wide = width == "double"
    lines = 3 if wide else 5
    rows_in = 0.5 + ROW_IN * len(shown)
    fig = roomy(figure(width, height=rows_in + 0.55 + 0.19 * lines))
    grid = fig.add_gridspec(2, len(dcp_sizes), height_ratios=[rows_in, 0.19 * lines])
    for j, size in enumerate(dcp_sizes):
        ax = fig.add_subplot(grid[0, j])
        _panel(ax, table[table["dcp_size"] == size], shown, scale, floors or {})
        scale.draw(ax, "x", most=6 if wide else 4)
        ax.set_title(f"DCP {size}", fontsize=8.5)
        names = [_name(known, dtype) for known, dtype in shown]
        names = names if wide else ["\n".join(wrap(name, 19)) for name in names]
        ax.set_yticks(range(len(shown)), names, fontsize=7.5 if wide else 6.5)
        ax.tick_params(labelleft=j == 0)
    below = fig.add_subplot(grid[1, :])
    legend_in(below, _handles(TOLERANCE_TEXT if wide else SHORT, bool(floors)), 2 if wide else 1)
    fig.suptitle("The worst token of each request", x=0.01, ha="left")
    twin = (
        f" {condition(TWIN).title[0].upper()}{condition(TWIN).title[1:]}: the run named "
        f"'{condition(KEPT).title}'."
        if {TWIN, KEPT} <= set(table["condition"])
        else ""
    )
    return caption(
        fig,
        f"max |Δℓ|: {metric('max_abs_dlogprob').definition}, of one request; |Δℓ|: "
        f"{metric('abs_dlogprob').definition}, in nats; {PQ}. Reference: one rank, no "
        "retraction, same dtype. The band at 0 holds requests with equal bits, that at NaN those "
        f"with a token that has no logprob.{twin} Measured; the dotted line is reported.",
        origin,
    )


def _shown(table: pd.DataFrame) -> list[tuple[str, str]]:
    """(condition, dtype) of each line, in the order of the table."""
    there = list(dict.fromkeys(table["condition"]))
    names = [name for name in there if name != TWIN or KEPT not in there]
    found = []
    for name in names:
        has = set(table.loc[table["condition"] == name, "dtype"])
        found.append((name, next(dtype for dtype in DTYPES if dtype in has)))
    return found


def _name(name: str, dtype: str) -> str:
    return condition(name).title + ("" if dtype == "float32" else f" ({dtype})")


def _panel(
    ax: Axes,
    table: pd.DataFrame,
    shown: Sequence[tuple[str, str]],
    scale: ZeroLog,
    floors: Mapping[str, float],
) -> None:
    for y, (name, dtype) in enumerate(shown):
        mine = table[table["condition"].eq(name) & table["dtype"].eq(dtype)]
        if mine.empty:
            continue
        if y % 2:
            ax.axhspan(y - 0.5, y + 0.5, fc="#F6F6F6", ec="none", zorder=-1)
        back = mine["restored_at"].notna()
        for rows, side, color, marker, fill in (
            (mine[back], -1, ORANGE, "D", ORANGE),
            (mine[~back], 1, BLUE, "o", "none"),
        ):
            # A place by rid, the same in each condition: marks of one request can be followed.
            heights = y + side * (0.05 + SPREAD * (rows["rid"] * 0.618 % 1))
            ax.plot(scale.place(rows["worst"]), heights, ls="", marker=marker, ms=2.8, mfc=fill,
                    mec=color if fill == "none" else "#5A3D00", mew=0.5, zorder=3)  # fmt: skip
        values = np.sort(scale.place(mine["worst"]))
        middle = float(values[(len(values) - 1) // 2])
        ax.plot([middle, middle], [y - 0.36, y + 0.36], "-", color=BLACK, lw=1.6, marker="",
                zorder=4)  # fmt: skip
        if dtype in floors:
            at = float(scale.place(floors[dtype]))
            ax.plot([at, at], [y - 0.5, y + 0.5], "-", color=GREEN, lw=1.0, marker="", zorder=2,
                    label=f"floor {name}")  # fmt: skip
    tolerance_line(ax, "x")
    ax.set(ylim=(len(shown) - 0.4, -0.6), xlabel="max |Δℓ| of a request (nats)")
    ax.tick_params(axis="y", length=0)


def _handles(tolerance: str, floors: bool) -> list[Line2D]:
    marks: dict[str, Any] = {"ls": "", "ms": 4.0, "mew": 0.6}
    floor = Line2D([], [], marker="|", ms=11, mew=1.0, ls="", color=GREEN,
                   label="noise floor ε of the dtype")  # fmt: skip
    return [
        Line2D([], [], marker="D", color=ORANGE, mec="#5A3D00", label="restored", **marks),
        Line2D([], [], marker="o", mfc="none", mec=BLUE, label="never restored", **marks),
        Line2D([], [], marker="|", ms=9, mew=1.6, ls="", color=BLACK, label="median request"),
        *([floor] if floors else []),
        Line2D([], [], color=BLACK, ls=(0, (1, 1)), lw=1.0, marker="", label=tolerance),
    ]

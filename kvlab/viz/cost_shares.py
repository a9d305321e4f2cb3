"""Merge and owner write beside one copy of the bytes that they must move, by that size.

Small calls are bound by the start of the work, large ones by memory: over the bytes one sees where
the one ends and the other begins. Colour is the contender, the marker the DCP size.

Worked example: a merge that reads 16 MiB and writes 2 MiB is beside a copy of 9 MiB, half of both.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvlab.lab.bench.cost import PARTS
from kvlab.lab.origin import Origin
from kvlab.viz.cost import (
    MARKERS,
    OTHER_MARKER,
    Mark,
    aim_lines,
    bytes_axis,
    device_name,
    not_measured,
    require_points,
    say_nothing,
    spread_line,
)
from kvlab.viz.strips import legend_below
from kvlab.viz.style import BLACK, BLUE, DARK_GREY, GREEN, ORANGE, VERMILLION, caption, figure

COLUMNS = ("part", "contender", "dcp_size", "bytes", "q1", "value", "q3", "aim")
COLORS = (BLUE, VERMILLION, GREEN, ORANGE, BLACK)


def shares_figure(points: pd.DataFrame, origin: Origin, missing: Sequence[str] = ()) -> Figure:
    """One panel an op: share of the speed of one copy, over the bytes of that copy.

    ``points``: of ``share_points``. ``missing``: sentences of what was not measured.
    Errors: StudyError for a table without its columns.
    """
    require_points(points, COLUMNS, "merge and owner write")
    fig = figure("double", height=3.4)
    title = f"Merge and owner write beside one copy: {device_name(origin)}"
    fig.suptitle(title, x=0.01, ha="left")
    axes = fig.subplots(1, len(PARTS), sharey=True)
    for ax, (part, name) in zip(axes, PARTS.items(), strict=True):
        ax.set_title(name)
        _panel(ax, points[points["part"] == part])
    axes[0].set_ylabel("share of one copy (measured)")
    text = (
        "Time of one copy of the bytes that must move, over ours: 1 is the ceiling. Medians, bars "
        "are quartiles, measured in turns in one run, inputs rotated past the caches."
    )
    return caption(fig, text + not_measured(missing), origin)


def _panel(ax: Axes, points: pd.DataFrame) -> None:
    if points.empty:
        say_nothing(ax)
        return
    names = sorted(points["contender"].unique())
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    sizes = sorted(points["dcp_size"].unique())
    kinds = points[["contender", "dcp_size"]].drop_duplicates()
    for name, size in kinds.itertuples(index=False, name=None):
        mine = points[(points["contender"] == name) & (points["dcp_size"] == size)]
        marker = MARKERS.get(int(size), OTHER_MARKER)
        spread_line(ax, mine, "bytes", f"{name}, c={size:g}", Mark(colors[name], None, marker))
    ax.axhline(1, color=DARK_GREY, lw=0.8, zorder=1)
    aim_lines(ax, points["aim"])
    ax.set_ylim(0, max(1.1, 1.05 * float(np.nanmax(points["q3"]))))
    bytes_axis(ax, points["bytes"], "bytes of the copy")
    ax.grid(axis="y")
    handles = [Line2D([], [], color=colors[name], lw=4, marker="", label=name) for name in names]
    shapes = {c: MARKERS.get(int(c), OTHER_MARKER) for c in sizes}
    handles += [
        Line2D([], [], color=DARK_GREY, ls="", marker=shape, label=f"c={c:g}")
        for c, shape in shapes.items()
    ]
    legend_below(ax, handles, ncols=2)

"""Backup and restore over the tokens of a request: beside upstream's loop, and beside one copy.

Above, how many times as fast as upstream's loop; below, which share of the speed of one copy of the
same bytes. Full lines are the smaller layer count, dashed ones the larger; colour and marker are
the DCP size.

Worked example: upstream 6 ms, ours 1.5 ms, one copy 1.2 ms: the ratio is 4, the share 0.8.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from kvlab.lab.origin import Origin
from kvlab.viz.cost import (
    COLORS,
    MARKERS,
    OTHER_MARKER,
    Mark,
    aim_lines,
    count_axis,
    device_name,
    not_measured,
    require_points,
    say_nothing,
    spread_line,
)
from kvlab.viz.drift_scale import legend_in
from kvlab.viz.style import BLACK, DARK_GREY, caption, figure

COLUMNS = ("op", "measure", "layers", "tokens", "dcp_size", "q1", "value", "q3", "aim")
OPS = ("backup", "restore")
MEASURES = {"ratio": "times upstream's speed", "share": "share of one copy"}
DASHES = ("-", "--", ":", "-.")


def copies_figure(points: pd.DataFrame, origin: Origin, missing: Sequence[str] = ()) -> Figure:
    """Two panels an op, ratio above share; one line a layer count and DCP size.

    ``points``: of ``copy_points``. ``missing``: sentences of what was not measured.
    Errors: StudyError for a table without its columns.
    """
    require_points(points, COLUMNS, "backup and restore")
    fig = figure("double", height=5.0)
    title = f"Backup and restore beside upstream's loop and one copy: {device_name(origin)}"
    fig.suptitle(title, x=0.01, ha="left")
    layers = sorted(points["layers"].unique())
    sizes = sorted(points["dcp_size"].unique())
    grid = fig.add_gridspec(3, len(OPS), height_ratios=[1, 1, 0.2])
    first: dict[str, Axes] = {}
    for row, (measure, name) in enumerate(MEASURES.items()):
        for column, op in enumerate(OPS):
            ax = fig.add_subplot(grid[row, column], sharey=first.get(measure))
            first.setdefault(measure, ax)
            mine = points[(points["op"] == op) & (points["measure"] == measure)]
            _panel(ax, mine, layers, measure)
            ax.set_title(op if row == 0 else "")
            if column == 0:
                ax.set_ylabel(f"{name}\n(measured)")
    legend_in(fig.add_subplot(grid[2, :]), _handles(layers, sizes), ncols=6)
    text = (
        "Above: time of upstream's loop (a layer at a time, chunks of 8,192 rows) over ours. "
        "Below: time of one copy of the same bytes over ours, so 1 is the ceiling. Medians, bars "
        "are quartiles, measured in turns in one run. Tokens: of the request, over all ranks; one "
        "rank copies its rows of all layers."
    )
    return caption(fig, text + not_measured(missing), origin)


def _panel(ax: Axes, points: pd.DataFrame, layers: list[float], measure: str) -> None:
    if points.empty:
        say_nothing(ax)
        return
    kinds = points[["layers", "dcp_size"]].drop_duplicates()
    for layer, size in kinds.itertuples(index=False, name=None):
        line = points[(points["layers"] == layer) & (points["dcp_size"] == size)]
        mark = Mark(
            COLORS.get(int(size), BLACK),
            DASHES[layers.index(layer) % len(DASHES)],
            MARKERS.get(int(size), OTHER_MARKER),
        )
        spread_line(ax, line, "tokens", f"{layer:g} layers, c={size:g}", mark)
    ax.axhline(1, color=DARK_GREY, lw=0.8, zorder=1)
    aim_lines(ax, points["aim"])
    count_axis(ax, points["tokens"], "tokens of the request")
    if measure == "ratio":
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(0, max(1.1, 1.05 * float(np.nanmax(points["q3"]))))
    ax.grid(axis="y")


def _handles(layers: list[float], sizes: list[float]) -> list[Line2D]:
    dashes = {n: DASHES[i % len(DASHES)] for i, n in enumerate(layers)}
    by_layers = [
        Line2D([], [], color=DARK_GREY, ls=dash, marker="", label=f"{n:g} layers")
        for n, dash in dashes.items()
    ]
    by_size = [
        Line2D(
            [],
            [],
            color=COLORS.get(int(c), BLACK),
            ls="",
            marker=MARKERS.get(int(c), OTHER_MARKER),
            label=f"c={c:g}",
        )
        for c in sizes
    ]
    return by_layers + by_size

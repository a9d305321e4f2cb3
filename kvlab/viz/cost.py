"""What operations cost: localization, backup and restore, merge and owner write.

A point is a median with a bar from its first to its third quartile. A figure is drawn of whatever
rows there are: axes without a point say so, and the caption has the sentences of ``missing``, what
was not measured.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from kvlab.lab.bench.cost import PARTS
from kvlab.lab.bench.ops import count_text
from kvlab.lab.origin import Origin
from kvlab.viz import style
from kvlab.viz.style import Stroke, caption, doubling_axis, figure, legend_below, legend_in

NOT_MEASURED = "not measured yet"
#: Of a DCP size, the same in every figure of costs.
SIZES: Mapping[int, Stroke] = {
    1: Stroke(style.BLUE, "-", "o"),
    2: Stroke(style.VERMILLION, "-", "s"),
    3: Stroke(style.BLACK, "-", "v"),
    4: Stroke(style.GREEN, "-", "^"),
    8: Stroke(style.PURPLE, "-", "D"),
}
OTHER_SIZE = Stroke(style.BLACK, "-", "P")
MOST_TICKS = 5
OPS = ("backup", "restore")
MEASURES = {"ratio": "times upstream's speed", "share": "share of one copy"}
DASHES = ("-", "--", ":", "-.")
SHARE_COLORS = (style.BLUE, style.VERMILLION, style.GREEN, style.ORANGE, style.BLACK)


def localize_figure(points: pd.DataFrame, origin: Origin, missing: Sequence[str] = ()) -> Figure:
    """One line a contender: nanoseconds an id over the ids of a run.

    Time an id, not a run: a method that is bound by memory is then a level line, a fixed cost
    falls with the length.
    ``points``: of ``localize_points``.
    """
    fig = figure("double", height=3.4)
    ax = fig.subplots()
    ax.set_title(f"What a localization costs, by the length of the run: {_device(origin)}")
    if _has_points(ax, points):
        for name, mine in points.groupby("contender", sort=False):
            each = mine[["seconds_q1", "seconds", "seconds_q3"]].mul(1e9).div(mine["ids"], axis=0)
            line = each.set_axis(["q1", "value", "q3"], axis=1).assign(ids=mine["ids"])
            _spread_line(ax, line, "ids", str(name))
        _count_axis(ax, points["ids"], "ids of the run")
        ax.set_yscale("log")
        _plain_numbers(ax)
        ax.set_ylabel("ns an id (measured)")
        legend_below(ax, ax.get_legend_handles_labels()[0], ncols=3)
    text = (
        "Time of one rank's localization divided by the ids of the run: medians, bars are "
        "quartiles, measured. Runs are rotated past the caches. Copy: one that moves as many "
        "bytes as a checked localization must (all ids read, the rows of one rank written)."
    )
    return caption(fig, text + _not_measured(missing), origin)


def copies_figure(points: pd.DataFrame, origin: Origin, missing: Sequence[str] = ()) -> Figure:
    """Backup and restore: times upstream's speed above share of one copy, one line a layer count
    (dash) and DCP size (color and marker).
    ``points``: of ``copy_points``.
    """
    fig = figure("double", height=5.0)
    title = f"Backup and restore beside upstream's loop and one copy: {_device(origin)}"
    fig.suptitle(title, x=0.01, ha="left")
    layers = sorted(points["layers"].unique())
    dashes = {n: DASHES[i % len(DASHES)] for i, n in enumerate(layers)}
    grid = fig.add_gridspec(3, len(OPS), height_ratios=[1, 1, 0.2])
    first: dict[str, Axes] = {}
    for row, (measure, name) in enumerate(MEASURES.items()):
        for column, op in enumerate(OPS):
            ax = fig.add_subplot(grid[row, column], sharey=first.get(measure))
            first.setdefault(measure, ax)
            ax.set_title(op if row == 0 else "")
            if column == 0:
                ax.set_ylabel(f"{name}\n(measured)")
            mine = points[(points["op"] == op) & (points["measure"] == measure)]
            if not _has_points(ax, mine):
                continue
            kinds: Any = mine.groupby(["layers", "dcp_size"])
            for (layer, size), line in kinds:
                look = replace(SIZES.get(size, OTHER_SIZE), dash=dashes[layer])
                _spread_line(ax, line, "tokens", f"{layer:g} layers, c={size:g}", look)
            _ceiling(ax, mine)
            _count_axis(ax, mine["tokens"], "tokens of the request")
            if measure == "ratio":
                ax.set_yscale("log", base=2)
                _plain_numbers(ax, "x")
            else:
                _from_zero(ax, mine)
    handles = [
        Line2D([], [], color=style.DARK_GRAY, ls=dash, marker="", label=f"{n:g} layers")
        for n, dash in dashes.items()
    ]
    handles += _size_keys(points)
    legend_in(fig.add_subplot(grid[2, :]), handles, ncols=6)
    text = (
        "Above: time of upstream's loop (a layer at a time, chunks of 8,192 rows) over ours. "
        "Below: time of one copy of the same bytes over ours, so 1 is the ceiling. Medians, bars "
        "are quartiles, measured in turns in one run. Tokens: of the request, over all ranks; one "
        "rank copies its rows of all layers."
    )
    return caption(fig, text + _not_measured(missing), origin)


def shares_figure(points: pd.DataFrame, origin: Origin, missing: Sequence[str] = ()) -> Figure:
    """Merge and owner write: share of the speed of one copy, over the bytes of that copy. Color is
    the contender, the marker the DCP size.

    Small calls are bound by the start of the work, large ones by memory: over the bytes one sees
    where the one ends and the other begins.
    ``points``: of ``share_points``.
    """
    fig = figure("double", height=3.4)
    fig.suptitle(f"Merge and owner write beside one copy: {_device(origin)}", x=0.01, ha="left")
    axes = fig.subplots(1, len(PARTS), sharey=True)
    for ax, (part, title) in zip(axes, PARTS.items(), strict=True):
        ax.set_title(title)
        mine = points[points["part"] == part]
        if not _has_points(ax, mine):
            continue
        names = sorted(mine["contender"].unique())
        colors = {name: SHARE_COLORS[i % len(SHARE_COLORS)] for i, name in enumerate(names)}
        kinds: Any = mine.groupby(["contender", "dcp_size"])
        for (name, size), line in kinds:
            look = Stroke(colors[name], "none", SIZES.get(size, OTHER_SIZE).marker)
            _spread_line(ax, line, "bytes", f"{name}, c={size:g}", look)
        _ceiling(ax, mine)
        _from_zero(ax, mine)
        _bytes_axis(ax, mine["bytes"], "bytes of the copy")
        handles = [Line2D([], [], color=colors[n], lw=4, marker="", label=n) for n in names]
        legend_below(ax, [*handles, *_size_keys(mine, style.DARK_GRAY)], ncols=2)
    axes[0].set_ylabel("share of one copy (measured)")
    text = (
        "Time of one copy of the bytes that must move, over ours: 1 is the ceiling. Medians, bars "
        "are quartiles, measured in turns in one run, inputs rotated past the caches."
    )
    return caption(fig, text + _not_measured(missing), origin)


def _has_points(ax: Axes, points: pd.DataFrame) -> bool:
    """Whether there is a point to draw; where there is none, the axes say so."""
    if points.empty:
        ax.text(0.5, 0.5, NOT_MEASURED, color=style.DARK_GRAY, ha="center", va="center",
                transform=ax.transAxes)  # fmt: skip
        ax.set(xticks=[], yticks=[])
    else:
        ax.grid(axis="y")
    return not points.empty


def _spread_line(
    ax: Axes, points: pd.DataFrame, x: str, label: str, stroke: Stroke | None = None
) -> None:
    """One series: q1, value, q3 of ``points`` over its column ``x``, as the next line of the cycle
    unless it has a stroke."""
    look: dict[str, Any] = {}
    if stroke is not None:
        look = {"color": stroke.color, "ls": stroke.dash, "marker": stroke.marker}
    at = points.sort_values(x)
    low, middle, high = (at[name].to_numpy(dtype=np.float64) for name in ("q1", "value", "q3"))
    ax.errorbar(
        at[x].to_numpy(dtype=np.float64),
        middle,
        yerr=np.clip(np.stack([middle - low, high - middle]), 0, None),
        label=label,
        lw=1.2,
        elinewidth=1.0,
        capsize=2.0,
        **look,
    )


def _ceiling(ax: Axes, points: pd.DataFrame) -> None:
    """A line at 1, and a dotted line for each aim with its number at the right."""
    ax.axhline(1, color=style.DARK_GRAY, lw=0.8, zorder=1)
    for value in sorted(points["aim"].dropna().round(3).unique()):
        ax.axhline(value, color=style.BLACK, ls=(0, (1, 1.5)), lw=1.0, zorder=1)
        ax.annotate(
            f"aim {value:g}", (1, value), (-2, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", fontsize=7,
        )  # fmt: skip


def _from_zero(ax: Axes, points: pd.DataFrame) -> None:
    ax.set_ylim(0, max(1.1, 1.05 * float(np.nanmax(points["q3"]))))


def _plain_numbers(ax: Axes, unit: str = "") -> None:
    """Ticks of a logarithmic axis as numbers, not as powers."""
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{unit}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _count_axis(ax: Axes, values: Iterable[float], label: str) -> None:
    """Each of ``values`` with its tick: 131072 as 128k."""
    ticks = sorted({int(value) for value in values})
    doubling_axis(ax, ticks, label, [count_text(tick) for tick in ticks])


def _bytes_axis(ax: Axes, values: "pd.Series[float]", label: str) -> None:
    """At most five ticks at powers of two: 2**20 as 1 MiB."""
    low, high = math.ceil(math.log2(values.min())), math.floor(math.log2(values.max()))
    ticks = [2**n for n in range(low, high + 1, max(1, -(-(high - low) // (MOST_TICKS - 1))))]
    doubling_axis(ax, ticks, label, [bytes_text(tick) for tick in ticks])


def bytes_text(count: int) -> str:
    """ "512 B", "4 KiB", "1 MiB": in the largest unit of which there is one."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count} B"


def _size_keys(points: pd.DataFrame, color: str = "") -> list[Line2D]:
    """The entry of each DCP size in a legend, in its color or in one for all."""
    sizes = sorted(points["dcp_size"].unique())
    looks = [SIZES.get(size, OTHER_SIZE) for size in sizes]
    return [
        Line2D([], [], color=color or look.color, ls="", marker=look.marker, label=f"c={size:g}")
        for size, look in zip(sizes, looks, strict=True)
    ]


def _device(origin: Origin) -> str:
    """The device of a title, without driver and cores: "cpu", "NVIDIA H200"."""
    return origin.device.partition(" (")[0]


def _not_measured(sentences: Sequence[str]) -> str:
    """What a caption says of the cases that are missing; "" if none is."""
    return f" Not here: {'. '.join(sentences)}." if sentences else ""

"""Time of one localization over the length of its run: checked, unchecked, mask, op, copy.

Time an id, not a run: a method that is bound by memory is then a level line, a fixed cost falls
with the length, and both axes are logarithmic, so that a factor is the same distance everywhere.

Worked example: 131,072 ids in 100 us are 0.76 ns an id.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from kvlab.lab.bench import ops
from kvlab.lab.origin import Origin
from kvlab.viz.cost import (
    Mark,
    count_axis,
    device_name,
    not_measured,
    require_points,
    say_nothing,
    spread_line,
)
from kvlab.viz.strips import legend_below
from kvlab.viz.style import (
    BLACK,
    BLUE,
    DARK_GREY,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    caption,
    figure,
)

COLUMNS = ("contender", "ids", "seconds_q1", "seconds", "seconds_q3")
MARKS: Mapping[str, Mark] = MappingProxyType(
    {
        ops.COPY: Mark(DARK_GREY, ":", "_"),
        ops.STRIDE: Mark(SKY, (0, (8, 2)), "P"),
        ops.MASK: Mark(ORANGE, (0, (5, 1, 1, 1, 1, 1)), "v"),
        ops.CHECKED: Mark(GREEN, "-.", "^"),
        ops.FIRST: Mark(PURPLE, "--", "D"),
        ops.op_name(ops.LOCALIZE, "torch"): Mark(BLUE, "-", "o"),
        ops.op_name(ops.LOCALIZE, "triton"): Mark(VERMILLION, "--", "s"),
    }
)
OTHER = Mark(BLACK, "-", "X")


def localize_figure(points: pd.DataFrame, origin: Origin, missing: Sequence[str] = ()) -> Figure:
    """One line a contender: nanoseconds an id over the ids of a run.

    ``points``: of ``localize_points``. ``missing``: sentences of what was not measured.
    Errors: StudyError for a table without its columns.
    """
    require_points(points, COLUMNS, "localization")
    fig = figure("double", height=3.4)
    ax = fig.subplots()
    ax.set_title(f"What a localization costs, by the length of the run: {device_name(origin)}")
    if points.empty:
        say_nothing(ax)
    else:
        names = [name for name in MARKS if name in set(points["contender"])]
        names += sorted(set(points["contender"]) - set(names))
        for name in names:
            mine = points[points["contender"] == name]
            each = mine[["seconds_q1", "seconds", "seconds_q3"]].div(mine["ids"], axis=0)
            line = each.set_axis(["q1", "value", "q3"], axis=1).assign(ids=mine["ids"])
            spread_line(ax, line, "ids", name, MARKS.get(name, OTHER), scale=1e9)
        count_axis(ax, points["ids"], "ids of the run")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_ylabel("ns an id (measured)")
        ax.grid(axis="y")
        legend_below(ax, ax.get_legend_handles_labels()[0], ncols=3, room_pt=33)
    text = (
        "Time of one rank's localization divided by the ids of the run: medians, bars are "
        "quartiles, measured. Runs are rotated past the caches. Copy: one that moves as many "
        "bytes as a checked localization must (all ids read, the rows of one rank written)."
    )
    return caption(fig, text + not_measured(missing), origin)

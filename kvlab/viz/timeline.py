"""The picture of a run: one bar a request, marks where it left and came back, the pool below.

Worked example: a request that ran in steps 0 to 111, sat on the host until 191 and ran to 270 is
three bars in one line, a triangle down at 112 and a triangle up at 191.
"""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvlab.lab.origin import Origin
from kvlab.viz.strips import box, frame, legend_below, patches
from kvlab.viz.style import (
    BLACK,
    BLUE,
    DARK_GREY,
    ORANGE,
    OTHER,
    OWNED,
    SKY,
    VERMILLION,
    Role,
    caption,
    figure,
)

STATES: Mapping[str, Role] = {
    "waiting": Role("waiting", OTHER.color, "", "s", BLACK),
    "running": Role("running", OWNED.color, "", "o", OWNED.ink),
    "retracted": Role("on the host", ORANGE, "////", "D", BLACK),
}
#: What ends a stay, and how it is marked: marker, colour, words.
MARKS: Mapping[str, tuple[str, str, str]] = {
    "retract": ("v", VERMILLION, "retracted"),
    "resume": ("^", BLACK, "resumed"),
    "finish": ("o", BLACK, "finished"),
    "abort": ("X", VERMILLION, "aborted"),
}


def timeline_figure(intervals: pd.DataFrame, fill: pd.DataFrame, origin: Origin) -> Figure:
    """Bars of requests above, the pool's fill below, over the steps of one run.

    ``intervals``: rid, state, begin, end, left_by; ``fill``: step, tokens, held_tokens,
    capacity_tokens; both of ``kvlab.lab.timeline``. Meant for at most some 20 requests.
    """
    rids = sorted(intervals["rid"].unique())
    fig = figure("double", height=2.4 + 0.26 * len(rids))
    top, low = fig.subplots(2, 1, sharex=True, height_ratios=[0.26 * len(rids) + 0.3, 1.3])
    line = {rid: y for y, rid in enumerate(rids)}
    for stay in intervals.to_dict("records"):
        y = line[stay["rid"]]
        if stay["end"] > stay["begin"]:
            box(top, stay["begin"], y, stay["end"] - stay["begin"], STATES[stay["state"]], 0.6)
        if stay["left_by"] in MARKS:
            marker, color, _ = MARKS[stay["left_by"]]
            style = {"marker": marker, "color": color, "mec": "#FFFFFF", "mew": 0.6}
            top.plot(stay["end"], y, ls="", ms=7, clip_on=False, zorder=3, **style)
    steps = int(intervals["end"].max())
    frame(top, rids, "request ", (0, steps), "")
    top.set_title("Who runs, who waits on the host")
    capacity = int(fill["capacity_tokens"].iloc[0])
    low.step(fill["step"], fill["held_tokens"], where="post", color=BLUE, ls="-", marker="")
    low.fill_between(fill["step"], fill["tokens"], step="post", color=SKY, alpha=0.6, lw=0)
    low.axhline(capacity, color=DARK_GREY, ls="--", lw=1)
    low.set(ylim=(0, 1.12 * capacity), ylabel="tokens", xlabel="step of the node")
    low.set_title("How full the pool is", fontsize=8.5)
    used = [kind for kind in MARKS if (intervals["left_by"] == kind).any()]
    lasting = intervals[intervals["end"] > intervals["begin"]]
    states = [role for state, role in STATES.items() if (lasting["state"] == state).any()]
    handles = [
        *patches(states),
        *[_mark(kind) for kind in used],
        Line2D([], [], color=BLUE, ls="-", marker="", label="pages held, in tokens"),
        *patches([Role("tokens with KV", SKY, "", "s", BLACK)]),
        Line2D([], [], color=DARK_GREY, ls="--", lw=1, marker="", label="capacity"),
    ]
    legend_below(low, handles, ncols=5)
    return caption(
        fig,
        "Steps of a simulated decode node on real pools of all ranks. A request holds whole "
        "widened pages of W = P * c slots; one is retracted when the next forward needs more "
        "pages than are free.",
        origin,
    )


def _mark(kind: str) -> Line2D:
    marker, color, words = MARKS[kind]
    return Line2D([], [], ls="", marker=marker, ms=7, color=color, mec="#FFFFFF", label=words)

"""The time-line of one run with the tokens that it produced.

A line a request over the steps of the node. While a request runs, each step makes one token, and
the cell of that step shows it, shaded by its drift; while it sits on the host, the line is hatched.
So a reader sees which token came next after the return, and from which token on it is another one.

Worked example: a request that makes "get a" in steps 3 to 7 and leaves at step 8 for six steps is
five cells, a hatched bar of six, and a triangle where it comes back.
"""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from kvlab.engine import Event
from kvlab.errors import StudyError
from kvlab.lab.drift import MARGIN, UPSTREAM_TOLERANCE, metric
from kvlab.lab.origin import Origin
from kvlab.lab.timeline import intervals
from kvlab.viz.drift_scale import PQ, legend_in, require_rows
from kvlab.viz.strips import box, frame, patches
from kvlab.viz.style import BLACK, DARK_GREY, SKY, VERMILLION, Role, caption, figure

HEIGHT, ROW_IN, TITLE_IN = 0.74, 0.27, 0.16
#: Letters of a line of the title that fit the page at every resolution.
TITLE_LETTERS = 64
MOST_STEPS, MOST_REQUESTS = 72, 10
WAITING = Role("waiting", "#FFFFFF", "....", "_", BLACK)
HOST = Role("on the host", "#F8E3B4", "////", "D", BLACK)
# Darker is worse, so that a grey print keeps the order; the letters of the last two are bold.
EQUAL = Role("equal bits", "#FFFFFF", "", "o", BLACK)
FLOOR = Role("|Δℓ| within 2 ε", "#D9D9D9", "", "s", BLACK)
ABOVE = Role(f"|Δℓ| up to {UPSTREAM_TOLERANCE:.2f}", SKY, "", "^", BLACK)
FAR = Role(f"|Δℓ| above {UPSTREAM_TOLERANCE:.2f}", VERMILLION, "", "X", BLACK)
LOST = Role("no number", BLACK, "", "v", "#FFFFFF")
LEVELS = (EQUAL, FLOOR, ABOVE, FAR, LOST)
#: Bytes that are no letter.
SIGNS = {0x20: "·", 0x0A: "↵", 0x09: "→"}


def glyph(token: int) -> str:
    """One letter for a byte: itself if ASCII has a picture of it, a sign for blanks, else "□"."""
    if token in SIGNS:
        return SIGNS[token]
    return chr(token) if 0x20 < token < 0x7F else "□"


def level(drift: float, floor: float) -> Role:
    """How a token is shaded: by |Δℓ| in nats, against the floor ε and the reported tolerance."""
    if not np.isfinite(drift):
        return LOST
    if drift == 0:
        return EQUAL
    if drift <= MARGIN * floor:
        return FLOOR
    return ABOVE if drift <= UPSTREAM_TOLERANCE else FAR


def tokens_figure(
    events: pd.DataFrame,
    tokens: pd.DataFrame,
    floor: float,
    origin: Origin,
    *,
    rids: Sequence[int] | None = None,
    run: str = "",
) -> Figure:
    """Tokens and stays of some requests of one run, always of double width.

    Args:
        events: step, event, rid, tokens of the whole run.
        tokens: rid, position, step, token (a byte), abs_dlogprob, restored.
        floor: ε of the dtype, nats.
        rids: the requests; by default up to 10 that fit into 72 steps, of which most came back.
        run: words for the title, on lines of their own: condition, DCP size, dtype.

    Errors: StudyError for tables without rows or columns, a request that is not in them, or a floor
    that is no number.
    """
    require_rows(events, ("step", "event", "rid", "tokens"), "a time-line of tokens")
    needed = ("rid", "position", "step", "token", "abs_dlogprob", "restored")
    require_rows(tokens, needed, "a time-line of tokens")
    if not np.isfinite(floor) or floor < 0:
        raise StudyError(
            f"tokens are shaded against the floor of a dtype, in nats, at least 0: got {floor}; "
            f"pass the floor of the summary"
        )
    stays = intervals(Event(*row) for row in events.itertuples(index=False, name=None))
    chosen = choose(stays) if rids is None else list(rids)
    unknown = sorted(set(chosen) - set(tokens["rid"]))
    if unknown:
        raise StudyError(
            f"the requests of a time-line are in its tables: got {unknown[0]} (and "
            f"{len(unknown) - 1} more), which is not; pass rids of the table of tokens"
        )
    mine = stays[stays["rid"].isin(chosen)]
    first = int(mine["begin"].min()) - 1  # the token of the prefill is drawn a step before
    drawn = tokens[tokens["rid"].isin(chosen)]
    last = max(int(mine["end"].max()), int(drawn["step"].max()) + 1)
    title = _title(run)
    fig = figure("double", height=1.05 + ROW_IN * len(chosen) + TITLE_IN * (len(title) - 1))
    lines_in = 2 * 0.19
    grid = fig.add_gridspec(
        2, 1, height_ratios=[float(fig.get_figheight()) - lines_in - 0.3, lines_in]
    )
    ax, below = fig.add_subplot(grid[0]), fig.add_subplot(grid[1])
    size = float(np.clip(7.0 * 60 / (last - first), 3.5, 7.0))
    for y, rid in enumerate(chosen):
        _stays(ax, y, mine[mine["rid"] == rid])
        _tokens(ax, y, tokens[tokens["rid"] == rid].sort_values("position"), floor, size)
    frame(ax, chosen, "request ", (first, last), "step of the node: one forward, one token a cell")
    ax.set_title("\n".join(title))
    there = [level(float(drift), floor) for drift in tokens["abs_dlogprob"]]
    shades = [role for role in LEVELS if role in there]
    states = [role for name, role in (("waiting", WAITING), ("retracted", HOST))
              if _lasts(mine, name)]  # fmt: skip
    mark = Line2D([], [], ls="", marker="^", ms=6, color=BLACK, mec="#FFFFFF", label="came back")
    handles = [*patches(shades), *patches(states), *([mark] if _came_back(mine) else [])]
    legend_in(below, handles, 4)
    return caption(
        fig,
        f"Shade: |Δℓ|, {metric('abs_dlogprob').definition}, in nats; {PQ}; "
        f"ε = {floor:.2g} nats is the largest without retraction. · is a blank, ↵ a line's "
        "end, □ another byte. A request makes one token a step while it runs; its first is the "
        "prefill's. Tokens are those of the reference (teacher forcing). "
        f"{_which(len(chosen), stays) if rids is None else ''}Measured.",
        origin,
    )


def choose(stays: pd.DataFrame) -> list[int]:
    """Up to 10 requests that arrive and end within 72 steps of which most came back, by rid."""
    ends = stays.groupby("rid").agg(begin=("begin", "min"), end=("end", "max"))
    back = set(stays.loc[stays["left_by"] == "resume", "rid"])
    best: list[int] = []
    for start in ends["begin"].unique().tolist():
        inside = ends[ends["begin"].ge(start) & ends["end"].le(start + MOST_STEPS)]
        rids = sorted(inside.index, key=lambda rid: (rid not in back, rid))[:MOST_REQUESTS]
        if sum(rid in back for rid in rids) > sum(rid in back for rid in best) or not best:
            best = rids
    return sorted(int(rid) for rid in best or ends.index[:MOST_REQUESTS])


def _title(run: str) -> list[str]:
    """The lines of the title; one line for all would be cut off where letters come out wider."""
    head = "Tokens of a run, and where requests came back"
    return [f"{head}:", *wrap(run, TITLE_LETTERS)] if run.strip() else [head]


def _which(shown: int, stays: pd.DataFrame) -> str:
    return (
        f"Shown: {shown} of {stays['rid'].nunique()} requests, of the first {MOST_STEPS} steps in "
        f"which most of {MOST_REQUESTS} came back. "
    )


def _stays(ax: Axes, y: float, stays: pd.DataFrame) -> None:
    for stay in stays.to_dict("records"):
        wide = stay["end"] - stay["begin"]
        if stay["state"] != "running" and wide > 0:
            role = WAITING if stay["state"] == "waiting" else HOST
            box(ax, stay["begin"], y, wide, role, HEIGHT * 0.55)
        if stay["left_by"] == "resume":
            ax.plot(stay["end"], y + 0.36, ls="", marker="^", ms=6, color=BLACK, mec="#FFFFFF",
                    mew=0.6, zorder=5, clip_on=False)  # fmt: skip


def _tokens(ax: Axes, y: float, tokens: pd.DataFrame, floor: float, size: float) -> None:
    steps = tokens["step"].tolist()
    if len(steps) > 1 and steps[0] == steps[1]:
        steps[0] -= 1
    for step, token, drift in zip(steps, tokens["token"], tokens["abs_dlogprob"], strict=True):
        if pd.isna(step):
            continue
        role = level(float(drift), floor)
        corner = (step, y - HEIGHT / 2)
        ax.add_patch(Rectangle(corner, 1, HEIGHT, fc=role.color, ec=DARK_GREY, lw=0.3))
        weight = "bold" if role in (FAR, LOST) else "normal"
        ax.text(step + 0.5, y, glyph(int(token)), ha="center", va="center", fontsize=size,
                color=role.ink, family="DejaVu Sans Mono", fontweight=weight, clip_on=True,
                parse_math=False)  # fmt: skip


def _lasts(stays: pd.DataFrame, state: str) -> bool:
    return bool(((stays["state"] == state) & (stays["end"] > stays["begin"])).any())


def _came_back(stays: pd.DataFrame) -> bool:
    return bool((stays["left_by"] == "resume").any())

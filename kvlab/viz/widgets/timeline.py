"""Retraction time-line: requests as bars, retractions and returns as marks, the pool below.

One run of a small decode node, made once for each setting; the step under the cursor
is shown in numbers. More ranks hold more tokens, so retractions vanish as the DCP size grows.

Worked example: six requests that need some 520 tokens at most, 64 rows a rank: at DCP 2 the node
retracts, at DCP 8 it does not.
"""

from functools import lru_cache
from typing import Any

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from kvlab.errors import StudyError
from kvlab.lab.timeline import NodeWalk, Restore, node_walk
from kvlab.viz.exported import publishable
from kvlab.viz.panel import Panel
from kvlab.viz.panel_html import Spot
from kvlab.viz.spaces import Look, look_of
from kvlab.viz.style import BLACK, BLUE, DARK_GREY, SKY, VERMILLION, Role
from kvlab.viz.timeline import MARKS, STATES
from kvlab.viz.widgets.canvas import MARGIN_IN, Box, Canvas, Width, keys_height

NAME = "retraction-timeline"
SIZES, CAPACITIES = [1, 2, 4, 8], [32, 48, 64, 80, 96, 128, 160, 192, 256]
DEFINITION = (
    "Steps of a simulated decode node. Top: requests; bottom: tokens in "
    "the pool, and in whole widened pages of W = P * c slots, P = 4; dashed: capacity, rows a rank "
    "times c. A request is retracted when the next forward needs more pages than are free; it "
    "comes back from its backup, or is computed again. Vermillion line: the step under the cursor."
)
HELD = Role("tokens with KV", SKY, "", "s", BLACK)
LEFT_IN, TOP_IN, LINE_IN, BAR_IN, FILL_IN = 0.85, 0.52, 0.27, 0.17, 0.95


def walk_of(dcp_size: int, capacity: int, restore: Restore) -> NodeWalk:
    """The run. Errors: StudyError when no request fits, so that there is no step to show."""
    walk = node_walk(dcp_size, capacity, restore)
    if not walk.steps:
        raise StudyError(
            f"a time-line needs a request that fits the pool with its reserve: {capacity} rows a "
            f"rank at DCP {dcp_size} are {walk.layout.capacity_tokens} tokens, and all "
            f"{walk.result.counters.aborted} requests were aborted; take more rows or more ranks"
        )
    return walk


def timeline_table(dcp_size: int, capacity: int, restore: Restore, step: int = 0) -> pd.DataFrame:
    """One row a stay: request, state, begin, end (steps, end excluded), tokens, what ended it."""
    return walk_of(dcp_size, capacity, restore).stays.copy()


def timeline_hover(dcp_size: int, capacity: int, restore: Restore, step: int = 0) -> list[Spot]:
    """A box a stay, with its steps and tokens."""
    walk = walk_of(dcp_size, capacity, restore)
    return [
        Spot(*box, _stay(stay))
        for stay, box in _boxes(walk, "double")
        if stay["end"] > stay["begin"]
    ]


def _stay(stay: Any) -> str:
    state = STATES[stay["state"]].label
    steps = f"steps {stay['begin']} to {stay['end'] - 1}"
    return (
        f"Request {stay['rid']}, {state}, {steps}, {stay['first_tokens']} to "
        f"{stay['last_tokens']} KV tokens, then {stay['left_by']}."
    )


def _scale(walk: NodeWalk, width: Width) -> tuple[float, float]:
    """Inches of a step, and of the whole line."""
    room = {"double": 7.2, "single": 3.5}[width] - LEFT_IN - 0.55
    return room / walk.steps, room


def _boxes(walk: NodeWalk, width: Width) -> list[tuple[dict[str, Any], Box]]:
    step_in, _ = _scale(walk, width)
    line = {rid: y for y, rid in enumerate(sorted(set(walk.stays["rid"])))}
    found: list[tuple[dict[str, Any], Box]] = []
    stays: Any = walk.stays.to_dict("records")
    for stay in stays:
        y = TOP_IN + line[stay["rid"]] * LINE_IN + (LINE_IN - BAR_IN) / 2
        x = LEFT_IN + stay["begin"] * step_in
        found.append((dict(stay), (x, y, (stay["end"] - stay["begin"]) * step_in, BAR_IN)))
    return found


def _draw(
    dcp_size: int, capacity: int, restore: Restore, step: int, width: Width = "double"
) -> tuple[Figure, str]:
    walk = walk_of(dcp_size, capacity, restore)
    step = min(step, walk.steps - 1)
    step_in, room = _scale(walk, width)
    rids = sorted(set(walk.stays["rid"]))
    low = TOP_IN + len(rids) * LINE_IN + 0.3 + FILL_IN
    entries = _entries(walk)
    words = [text for _, text in entries]
    canvas = Canvas(width, low + 0.3 + keys_height(width, words, MARGIN_IN),
                    "Who runs, who is on the host")  # fmt: skip
    way = "backup" if restore == "backup" else "recompute"
    told = f"DCP {dcp_size}, {capacity} rows a rank, restored by {way}"
    canvas.text(MARGIN_IN, 0.3, told, 8)
    for y, rid in enumerate(rids):
        middle = TOP_IN + (y + 0.5) * LINE_IN
        canvas.text(LEFT_IN - 0.06, middle, f"request {rid}", 7.5, align="right")
    for stay, box in _boxes(walk, width):
        if stay["end"] > stay["begin"]:
            canvas.box(*box, look_of(STATES[stay["state"]]))
        if stay["left_by"] in MARKS:
            marker, color, _ = MARKS[stay["left_by"]]
            canvas.mark(box[0] + box[2], box[1] + BAR_IN / 2, marker, color)
    _fill(canvas, walk, low, step_in, room)
    at = LEFT_IN + (step + 0.5) * step_in
    canvas.line([(at, TOP_IN - 0.06), (at, low)], VERMILLION, 1.2)
    canvas.text(at, low + 0.1, f"{step}", 7.5, VERMILLION, "center", bold=True)
    if at < LEFT_IN + room - 0.7:
        canvas.text(LEFT_IN + room, low + 0.1, f"{walk.steps} steps", 7, DARK_GREY, "right")
    if at > LEFT_IN + 0.25:
        canvas.text(LEFT_IN, low + 0.1, "0", 7, DARK_GREY)
    canvas.keys(low + 0.36, entries, MARGIN_IN)
    return canvas.finish(), _sentence(walk, step)


def _entries(walk: NodeWalk) -> list[tuple[Look | tuple[str, str], str]]:
    """The legend: what this run shows."""
    stays = walk.stays
    found: list[tuple[Look | tuple[str, str], str]] = [
        (look_of(role), role.label)
        for name, role in STATES.items()
        if (stays["state"] == name).any()
    ]
    for kind, (marker, color, words) in MARKS.items():
        if (stays["left_by"] == kind).any():
            found.append(((marker, color), words))
    return [*found, (look_of(HELD), HELD.label), (("line", BLUE), "whole pages")]


def _fill(canvas: Canvas, walk: NodeWalk, low: float, step_in: float, room: float) -> None:
    """Tokens and whole pages in the pool over the steps, up to the capacity."""
    capacity = walk.layout.capacity_tokens
    tall = FILL_IN / (1.1 * capacity)
    edges = [LEFT_IN + at * step_in for at in range(walk.steps + 1)]
    tokens, held = ([low - v * tall for v in walk.fill[name]] for name in ("tokens", "held_tokens"))
    canvas.ax.fill_between(
        edges, [*tokens, tokens[-1]], low, step="post", color=SKY, lw=0, zorder=1
    )
    outline = [(x, y) for left, right, y in zip(edges, edges[1:], held, strict=False)
               for x in (left, right)]  # fmt: skip
    canvas.line([(edges[0], low), *outline, (edges[-1], low)], BLUE, 1.0)
    roof = low - capacity * tall
    canvas.line([(LEFT_IN, roof), (LEFT_IN + room, roof)], DARK_GREY, 0.9, "--")
    canvas.line([(LEFT_IN, low), (LEFT_IN + room, low)])
    canvas.text(LEFT_IN - 0.06, roof, f"{capacity}", 7, align="right")
    canvas.text(LEFT_IN - 0.06, (low + roof) / 2, "tokens", 7.5, align="right")
    canvas.text(LEFT_IN - 0.06, low, "0", 7, align="right")


@lru_cache(maxsize=512)
def _told(walk: NodeWalk, step: int) -> str:
    now = walk.at(step)

    def named(state: str) -> str:
        return ", ".join(map(str, now[state])) or "nobody"  # type: ignore[call-overload]

    happened = ", ".join(f"request {rid} {kind}" for kind, rid in now["events"])  # type: ignore[attr-defined]
    return (
        f"Step {step}: running {named('running')}; on the host {named('retracted')}; waiting "
        f"{named('waiting')}; {now['tokens']} tokens in {now['pages']} of "
        f"{walk.layout.num_pages} pages; events: {happened or 'none'}."
    )


def _sentence(walk: NodeWalk, step: int) -> str:
    counts = walk.result.counters
    return (
        f"{_told(walk, step)} In the whole run: {counts.retracted_requests} retractions, "
        f"{counts.resumed_requests} returns from the host, {counts.recomputed_tokens} tokens "
        f"computed again, {counts.aborted} of {counts.requests} requests aborted (simulated)."
    )


def _bounds(
    dcp_size: int, capacity: int, restore: Restore, **_: object
) -> dict[str, tuple[int, int]]:
    return {"step": (0, max(0, node_walk(dcp_size, capacity, restore).steps - 1))}


def retraction_timeline() -> Panel:
    """Drag DCP size, rows a rank and step; choose how a victim comes back."""
    return Panel(
        _draw,
        name=NAME,
        table=timeline_table,
        hover=timeline_hover,
        steps="step",
        bounds=_bounds,
        definition=DEFINITION,
        dcp_size=widgets.SelectionSlider(options=SIZES, value=2, tooltip="c: ranks"),
        capacity=widgets.SelectionSlider(
            options=CAPACITIES, value=64, tooltip="rows of the pool of one rank"
        ),
        restore={"from its backup": "backup", "computed again": "recompute"},
        step=widgets.IntSlider(min=0, max=300, value=0),
    )


def retraction_timeline_figure(
    dcp_size: int = 2,
    capacity: int = 64,
    restore: Restore = "backup",
    step: int = 0,
    *,
    width: Width = "double",
) -> Figure:
    """The picture of ``retraction_timeline`` with its caption; arguments are the controls.

    A ``step`` past the end shows the last one. Errors: StudyError when no request fits the pool,
    or for a step below 0.
    """
    values = {"dcp_size": dcp_size, "capacity": capacity, "restore": restore, "step": step}
    return publishable(_draw, values, NAME, DEFINITION, width)[0]

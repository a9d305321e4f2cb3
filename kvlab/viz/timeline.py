"""Who runs, who waits on the host, and how full the pool is, over the steps of a run.

One bar a stay of a request, marks where it left and came back, the pool below. ``timeline_figure``
draws a recorded run; ``retraction_timeline`` a small decode node whose size and way back are to be
chosen: more ranks hold more tokens, so retractions vanish as the DCP size grows.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from kvlab.errors import StudyError
from kvlab.lab.origin import Origin
from kvlab.lab.timeline import NodeWalk, Restore, node_walk
from kvlab.viz import style
from kvlab.viz.canvas import MARGIN_IN, Box, Canvas, Key
from kvlab.viz.panel import Drawing, Panel, Spot, twin
from kvlab.viz.style import Role, Width, caption, width_in

STATES: Mapping[str, Role] = {
    "waiting": Role("waiting", style.OTHER.color),
    "running": Role("running", style.OWNED.color, ink=style.OWNED.ink),
    "retracted": Role("on the host", style.ORANGE, "////"),
}
#: What ends a stay, and how it is marked: marker, color, words.
MARKS: Mapping[str, tuple[str, str, str]] = {
    "retract": ("v", style.VERMILLION, "retracted"),
    "resume": ("^", style.BLACK, "resumed"),
    "finish": ("o", style.BLACK, "finished"),
    "abort": ("X", style.VERMILLION, "aborted"),
}
HELD = Role("tokens with KV", style.SKY)
LEFT_IN, TOP_IN, LINE_IN, BAR_IN, FILL_IN = 0.85, 0.52, 0.27, 0.17, 0.95

NAME = "retraction-timeline"
DEFINITION = (
    "Steps of a simulated decode node. Top: requests; bottom: tokens in "
    "the pool, and in whole widened pages of W = P * c slots, P = 4; dashed: capacity, rows a rank "
    "times c. A request is retracted when the next forward needs more pages than are free; it "
    "comes back from its backup, or is computed again. Vermillion line: the step under the cursor."
)


class Run:
    """The picture of one run: ``stays`` as ``intervals``, ``fill`` as ``pool_fill``."""

    def __init__(self, stays: pd.DataFrame, fill: pd.DataFrame, width: Width) -> None:
        self.stays, self.fill = stays, fill
        self.steps = len(fill)
        self.room = width_in(width) - LEFT_IN - 0.55
        self.step_in = self.room / self.steps
        self.rids = sorted(set(stays["rid"]))
        self.low = TOP_IN + len(self.rids) * LINE_IN + 0.3 + FILL_IN

    def boxes(self) -> Iterator[tuple[Any, Box]]:
        """Each stay with its bar."""
        line = {rid: y for y, rid in enumerate(self.rids)}
        stays: Any = self.stays.itertuples()
        for stay in stays:
            y = TOP_IN + line[stay.rid] * LINE_IN + (LINE_IN - BAR_IN) / 2
            left, wide = stay.begin * self.step_in, (stay.end - stay.begin) * self.step_in
            yield stay, (LEFT_IN + left, y, wide, BAR_IN)

    def draw(self, canvas: Canvas) -> None:
        """Bars and marks, and the pool below."""
        for y, rid in enumerate(self.rids):
            middle = TOP_IN + (y + 0.5) * LINE_IN
            canvas.text(LEFT_IN - 0.06, middle, f"request {rid}", 7.5, align="right")
        for stay, box in self.boxes():
            if stay.end > stay.begin:
                canvas.box(box, STATES[stay.state])
            if stay.left_by in MARKS:
                marker, color, _ = MARKS[stay.left_by]
                canvas.mark(box[0] + box[2], box[1] + BAR_IN / 2, marker, color)
        self._draw_fill(canvas)

    def _draw_fill(self, canvas: Canvas) -> None:
        """Tokens and whole pages in the pool over the steps, up to the capacity."""
        capacity, low = int(self.fill["capacity_tokens"].iloc[0]), self.low
        tall = FILL_IN / (1.1 * capacity)
        edges = [LEFT_IN + at * self.step_in for at in range(self.steps + 1)]
        tokens, held = ([low - v * tall for v in self.fill[n]] for n in ("tokens", "held_tokens"))
        canvas.ax.fill_between(
            edges, [*tokens, tokens[-1]], low, step="post", color=style.SKY, lw=0, zorder=1
        )
        outline = [(x, y) for left, right, y in zip(edges, edges[1:], held, strict=False)
                   for x in (left, right)]  # fmt: skip
        canvas.line([(edges[0], low), *outline, (edges[-1], low)], style.BLUE, 1.0)
        roof = low - capacity * tall
        canvas.line([(LEFT_IN, roof), (LEFT_IN + self.room, roof)], style.DARK_GRAY, 0.9, "--")
        canvas.text(LEFT_IN - 0.06, roof, f"{capacity}", 7, align="right")
        canvas.text(LEFT_IN - 0.06, (low + roof) / 2, "tokens", 7.5, align="right")
        canvas.text(LEFT_IN - 0.06, low, "0", 7, align="right")

    def entries(self) -> list[tuple[Key, str]]:
        """The legend: what this run shows."""
        lasting = set(self.stays.loc[self.stays["end"] > self.stays["begin"], "state"])
        found: list[tuple[Key, str]] = [
            (role, role.label) for state, role in STATES.items() if state in lasting
        ]
        ends = set(self.stays["left_by"])
        found += [((mark, color), words) for kind, (mark, color, words) in MARKS.items()
                  if kind in ends]  # fmt: skip
        return [*found, (HELD, HELD.label), (("line", style.BLUE), "whole pages"),
                (("line", style.DARK_GRAY), "capacity")]  # fmt: skip


def timeline_figure(stays: pd.DataFrame, fill: pd.DataFrame, origin: Origin) -> Figure:
    """Bars of requests above, the pool's fill below; meant for at most some 20 requests.

    ``stays``: of ``intervals``, ``fill``: of ``pool_fill`` (``kvlab.lab.timeline``).
    """
    run = Run(stays, fill, "double")
    canvas = Canvas("double", "Who runs, who waits on the host")
    run.draw(canvas)
    canvas.scale(LEFT_IN, run.low, run.step_in, (0, run.steps), "step of the node")
    bottom = run.low + 0.5
    fig = canvas.finish(bottom + canvas.keys(bottom, run.entries()))
    return caption(
        fig,
        "Steps of a simulated decode node on real pools of all ranks. A request holds whole "
        "widened pages of W = P * c slots; one is retracted when the next forward needs more "
        "pages than are free.",
        origin,
    )


def draw_timeline(
    dcp_size: int = 2,
    capacity: int = 64,
    restore: Restore = "backup",
    step: int = 0,
    width: Width = "double",
) -> Drawing:
    """Requests as bars over the steps, the pool below, one step under the cursor.

    Table: one row a stay: request, state, begin, end (steps, end excluded), tokens, what ended it.

    A ``step`` past the end shows the last one. Errors: StudyError when no request fits the pool,
    or for a step below 0.
    """
    walk = node_walk(dcp_size, capacity, restore)
    if not walk.steps:
        raise StudyError(
            f"a time-line needs a request that fits the pool with its reserve: {capacity} rows a "
            f"rank at DCP {dcp_size} are {walk.layout.capacity_tokens} tokens, and all "
            f"{walk.result.counters.aborted} requests were aborted; take more rows or more ranks"
        )
    step = min(step, walk.steps - 1)
    told = _told(walk, step)
    run = Run(walk.stays, walk.fill, width)
    canvas = Canvas(width, "Who runs, who is on the host")
    way = f"DCP {dcp_size}, {capacity} rows a rank, restored by {restore}"
    canvas.text(MARGIN_IN, 0.3, way, 8)
    run.draw(canvas)
    low, right = run.low, LEFT_IN + run.room
    canvas.line([(LEFT_IN, low), (right, low)])
    at = LEFT_IN + (step + 0.5) * run.step_in
    canvas.line([(at, TOP_IN - 0.06), (at, low)], style.VERMILLION, 1.2)
    canvas.text(at, low + 0.1, f"{step}", 7.5, style.VERMILLION, "center", bold=True)
    if at < right - 0.7:
        canvas.text(right, low + 0.1, f"{walk.steps} steps", 7, style.DARK_GRAY, "right")
    if at > LEFT_IN + 0.25:
        canvas.text(LEFT_IN, low + 0.1, "0", 7, style.DARK_GRAY)
    keys_in = canvas.keys(low + 0.36, run.entries())
    counts = walk.result.counters
    sentence = (
        f"{told} In the whole run: {counts.retracted_requests} retractions, "
        f"{counts.resumed_requests} returns from the host, {counts.recomputed_tokens} tokens "
        f"computed again, {counts.aborted} of {counts.requests} requests aborted (simulated)."
    )
    spots = [Spot(*box, _stay(stay)) for stay, box in run.boxes() if stay.end > stay.begin]
    return Drawing(canvas.finish(low + 0.3 + keys_in), sentence, walk.stays.copy(), spots)


def _stay(stay: Any) -> str:
    return (
        f"Request {stay.rid}, {STATES[stay.state].label}, steps {stay.begin} to {stay.end - 1}, "
        f"{stay.first_tokens} to {stay.last_tokens} KV tokens, then {stay.left_by}."
    )


def _told(walk: NodeWalk, step: int) -> str:
    now: dict[str, Any] = walk.at(step)

    def named(state: str) -> str:
        return ", ".join(map(str, now[state])) or "nobody"

    happened = ", ".join(f"request {rid} {kind}" for kind, rid in now["events"])
    return (
        f"Step {step}: running {named('running')}; on the host {named('retracted')}; waiting "
        f"{named('waiting')}; {now['tokens']} tokens in {now['pages']} of "
        f"{walk.layout.num_pages} pages; events: {happened or 'none'}."
    )


def _bounds(
    dcp_size: int, capacity: int, restore: Restore, **_: object
) -> dict[str, tuple[int, int]]:
    return {"step": (0, max(0, node_walk(dcp_size, capacity, restore).steps - 1))}


def retraction_timeline() -> Panel:
    """Drag DCP size, rows a rank and step; choose how a victim comes back."""
    return Panel(
        draw_timeline,
        name=NAME,
        steps="step",
        bounds=_bounds,
        definition=DEFINITION,
        dcp_size=([1, 2, 4, 8], "c: ranks"),
        capacity=([32, 48, 64, 80, 96, 128, 160, 192, 256], "rows of the pool of one rank"),
        restore={"from its backup": "backup", "computed again": "recompute"},
        step=range(301),
    )


retraction_timeline_figure = twin(draw_timeline, NAME, DEFINITION)

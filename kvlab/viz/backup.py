"""Backup and restore of one request: every row of every rank, step by step.

``backup_steps_figure`` has all steps of a right backup below each other; ``backup_stepper`` goes
through them one by one, with the fix and without it. All steps of a setting are run once on real
pools, so a step is only a drawing.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from kvlab.index import DcpLayout
from kvlab.lab.backup_walk import STEPS, BackupWalk, Pool, backup_walk
from kvlab.lab.origin import Origin
from kvlab.viz import style
from kvlab.viz.canvas import MARGIN_IN, Box, Canvas, Key
from kvlab.viz.panel import Drawing, Panel, Spot, twin
from kvlab.viz.style import Role, Width, caption, width_in

VICTIM = style.OWNED
FREE = Role("no token", style.WHITE)
# The others by their number: enough of them for small pools, then from the start again.
OTHERS = (
    Role("", style.LIGHT_GRAY),
    Role("", style.SKY),
    Role("", style.ORANGE),
    Role("", style.GREEN),
)
LEFT_IN, TOP_IN, RANK_IN, CELL_IN, GAP_IN = 0.55, 0.82, 0.3, 0.2, 0.12

NAME = "backup-stepper"
DEFINITION = (
    "Every row of every rank, read from real pools after each step. A number is the position whose "
    "token the row holds, a color its request (blue: the one that is backed up); white: no token; "
    "hatched: padding page. Vermillion frame: a row of a running request that does not hold its "
    "token. Right of the gap: the rank's copy on the host."
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the rows of a pool stand: inches of a cell, and where the host copies begin."""

    layout: DcpLayout
    wide: float
    host: float

    @classmethod
    def of(cls, layout: DcpLayout, cells: pd.DataFrame, width: Width) -> "Grid":
        """The grid of a pool and of the longest host copy in ``cells``."""
        rows, on_host = layout.rows_per_rank, cells.loc[cells["place"] == "host", "row"]
        host_rows = 1 + int(on_host.max()) if len(on_host) else 1
        room = width_in(width) - LEFT_IN - 0.1 - GAP_IN
        wide = min(0.24, room / (rows + host_rows))
        return cls(layout, wide, LEFT_IN + rows * wide + GAP_IN)

    def box(self, cell: Any, top: float) -> Box:
        """The box of a row, given as a line of a table of cells."""
        left = self.host if cell.place == "host" else LEFT_IN
        return left + cell.row * self.wide, top + cell.rank * RANK_IN, self.wide, CELL_IN


def draw_rows(canvas: Canvas, grid: Grid, cells: pd.DataFrame, victim: int, top: float) -> float:
    """One line a rank: every row of the pool, and of the host copy beside it; returns the bottom.

    ``cells``: rank, place ('buffer', 'host'), row, request, position (-1: none), and perhaps
    ``verdict``, not empty where a row is to be framed.
    """
    lay = grid.layout
    bottom = top + lay.dcp_size * RANK_IN
    for rank in range(lay.dcp_size):
        middle = top + rank * RANK_IN + CELL_IN / 2
        canvas.text(LEFT_IN - 0.06, middle, f"rank {rank}", 7.5, align="right")
    page_in = lay.page_size * grid.wide
    every = max(1, round(0.22 / page_in + 0.49))
    for page in range(lay.num_pages + 1):
        x = LEFT_IN + page * page_in
        canvas.line([(x, top - 0.03), (x, bottom - 0.06)], style.BLACK, 0.6)
        if page % every == 0:
            canvas.text(x + page_in / 2, top - 0.1, f"{page}", 6.5, style.DARK_GRAY, "center")
    canvas.text(grid.host, top - 0.1, "host", 6.5, style.DARK_GRAY)
    rows: Any = cells.itertuples()
    for cell in rows:
        box = grid.box(cell, top)
        padding = cell.place == "buffer" and cell.row < lay.first_row
        look = style.PADDING if padding else look_of(cell.request, victim)
        canvas.cell(box, look, str(cell.position) if cell.request >= 0 else "")
        if getattr(cell, "verdict", ""):
            canvas.outline(box, width=1.4)
    return bottom


def look_of(request: int, victim: int) -> Role:
    """The look of a row that holds a token of ``request``."""
    if request < 0:
        return FREE
    return VICTIM if request == victim else OTHERS[request % len(OTHERS)]


def backup_steps_figure(
    cells: pd.DataFrame, victim: int, layout: DcpLayout, origin: Origin
) -> Figure:
    """One panel a step, one line a rank.

    ``cells``: of ``BackupWalk.table``; pools of more than some 30 rows a rank leave no room for the
    numbers.
    """
    grid = Grid.of(layout, cells, "double")
    title = f"Request {victim} is backed up, freed, and restored, on all ranks"
    canvas = Canvas("double", title)
    low = 0.22
    for number, step in enumerate(cells["step"].unique(), start=1):
        canvas.text(MARGIN_IN, low + 0.15, f"{number}. {step}", 8.5, bold=True)
        here = cells[cells["step"] == step]
        low = draw_rows(canvas, grid, here, victim, low + 0.42)
    label = "pages of the buffer (page 0 is padding), and the host copy of the rank"
    canvas.text(LEFT_IN, low + 0.05, label, 8)
    entries: list[tuple[Key, str]] = [
        (look_of(r, victim), f"request {r} (victim)" if r == victim else f"request {r}")
        for r in sorted(set(cells["request"]) - {-1})
    ]
    fig = canvas.finish(low + 0.27 + canvas.keys(low + 0.27, entries))
    return caption(
        fig,
        "Every row of every rank, read from real pools after each step; a number is the position "
        "whose token the row holds, a color the request. White rows hold no token, hatched rows "
        "are the padding page.",
        origin,
    )


def draw_backup(
    step: int = 0,
    fix: bool = True,
    dcp_size: int = 4,
    page_size: int = 2,
    length: int = 12,
    pool: Pool = "low",
    width: Width = "double",
) -> Drawing:
    """One request leaves for the host and comes back: all rows after one step.

    Table: one row for each row that holds a token: rank, place, row, request, position, verdict.

    Errors: StudyError for a length below 1, an unknown pool or step; LayoutError for sizes.
    """
    walk = backup_walk(dcp_size, page_size, length, pool, fix)
    now = walk.at(step)
    way = f"{'with' if fix else 'without'} the fix{': the process has ended' if now.failed else ''}"
    canvas = Canvas(width, f"Step {step}: {now.name}, {way}")
    _draw_path(canvas, step, now.failed)
    grid = Grid.of(walk.layout, pd.concat([one.cells for one in walk.steps]), width)
    bottom = draw_rows(canvas, grid, now.cells, walk.victim, TOP_IN)
    entries: list[tuple[Key, str]] = [
        (VICTIM, f"request {walk.victim}, the victim"),
        *((other, "") for other in OTHERS[:-1]),
        (OTHERS[-1], "other requests, a color each"),
        (FREE, "no token"),
        (style.PADDING, "padding page (0)"),
    ]
    if (now.cells["verdict"] != "").any():
        entries.append((("s", style.VERMILLION), "wrong row (framed)"))
    canvas.keys(bottom + 0.14, entries)
    fig = canvas.finish(bottom + (0.5 if width == "double" else 0.72))
    rows: Any = now.cells.itertuples()
    spots = [Spot(*grid.box(cell, TOP_IN), _told(walk, cell)) for cell in rows]
    table = now.cells[now.cells["request"] >= 0].reset_index(drop=True)
    return Drawing(fig, f"Step {step} of {len(STEPS) - 1}, {now.name}. {now.told}", table, spots)


def _draw_path(canvas: Canvas, step: int, failed: bool) -> None:
    """The names of all steps in a line, this one bold."""
    room = (canvas.wide - 2 * MARGIN_IN) / len(STEPS)
    size = 7.5 if room > 1 else 5.2
    for at, name in enumerate(STEPS):
        here = at == step
        color = style.DARK_GRAY if not here else style.VERMILLION if failed else style.BLACK
        left = MARGIN_IN + at * room
        canvas.text(left, 0.42, name, size, color, bold=here)
        reached = style.BLACK if at <= step else "#C8C8C8"
        canvas.line([(left, 0.52), (left + 0.92 * room, 0.52)], reached, 2.0)


def _told(walk: BackupWalk, cell: Any) -> str:
    if cell.place == "host":
        where = f"Host copy of rank {cell.rank}, line {cell.row}"
    else:
        page = cell.row // walk.layout.page_size
        where = f"Rank {cell.rank}, row {cell.row}, {f'page {page}' if page else 'padding page'}"
    if cell.request < 0:
        return f"{where}: no token."
    wrong = ", not what belongs here" if cell.verdict else ""
    return f"{where}: request {cell.request}, position {cell.position}{wrong}."


def backup_stepper() -> Panel:
    """Step through backup, free, re-allocation and restore; fix on or off."""
    return Panel(
        draw_backup,
        name=NAME,
        steps="step",
        definition=DEFINITION,
        step=range(len(STEPS)),
        fix=True,
        dcp_size=([1, 2, 4, 8], "c: ranks"),
        page_size=([1, 2], "P: rows of a page"),
        length=(range(1, 17), "cached positions of a request"),
        pool={"few pages in use": "low", "pool full": "full"},
    )


backup_stepper_figure = twin(draw_backup, NAME, DEFINITION)

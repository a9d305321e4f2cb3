"""Backup stepper: one request leaves for the host and comes back, on all ranks, row by row.

Step forward and back; switch the fix off to see what each rank saved then, and whose rows it wrote
over. All steps of a setting are run once on real pools, so a step is only a drawing.

Worked example: DCP 4, 12 positions, fix on: four ranks save 3 rows each, and all 12 positions are
right in the end; fix off: each saves 12 rows, of other tokens, and nothing is raised.
"""

from functools import lru_cache
from typing import Any

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from kvlab.lab.backup_walk import STEPS, BackupWalk, Pool, backup_walk
from kvlab.viz.backup import FREE, OTHERS, VICTIM
from kvlab.viz.exported import publishable
from kvlab.viz.panel import Panel
from kvlab.viz.panel_html import Spot
from kvlab.viz.spaces import Look, look_of
from kvlab.viz.style import BLACK, DARK_GREY, PADDING, VERMILLION, WRONG
from kvlab.viz.widgets.canvas import Box, Canvas, Width

NAME = "backup-stepper"
SIZES, PAGE_SIZES, LENGTHS = [1, 2, 4, 8], [1, 2], (1, 16)
DEFINITION = (
    "Every row of every rank, read from real pools after each step. A number is the position whose "
    "token the row holds, a colour its request (blue: the one that is backed up); white: no token; "
    "hatched: padding page. Vermillion frame: a row of a running request that does not hold its "
    "token. Right of the gap: the rank's copy on the host."
)
LEFT_IN, TOP_IN, RANK_IN, CELL_IN, GAP_IN = 0.55, 0.82, 0.3, 0.2, 0.12


@lru_cache(maxsize=64)
def _boxes(walk: BackupWalk, width: Width) -> tuple[float, float]:
    """Inches of a cell, and where the host copies begin."""
    rows = walk.layout.rows_per_rank
    host = max(
        (int(step.cells.loc[step.cells["place"] == "host", "row"].max()) + 1
         for step in walk.steps if (step.cells["place"] == "host").any()), default=1,
    )  # fmt: skip
    room = {"double": 7.2, "single": 3.5}[width] - LEFT_IN - 0.1 - GAP_IN
    wide = min(0.24, room / (rows + host))
    return wide, LEFT_IN + rows * wide + GAP_IN


def _box(walk: BackupWalk, cell: Any, width: Width) -> Box:
    wide, host = _boxes(walk, width)
    left = host if cell.place == "host" else LEFT_IN
    return left + cell.row * wide, TOP_IN + cell.rank * RANK_IN, wide, CELL_IN


def backup_table(
    dcp_size: int, page_size: int, length: int, pool: Pool, fix: bool, step: int
) -> pd.DataFrame:
    """One row for each row that holds a token: rank, place, row, request, position, verdict."""
    cells = backup_walk(dcp_size, page_size, length, pool, fix).at(step).cells
    return cells[cells["request"] >= 0].reset_index(drop=True)


def backup_hover(
    dcp_size: int, page_size: int, length: int, pool: Pool, fix: bool, step: int
) -> list[Spot]:
    """A box a row, with what it holds."""
    walk = backup_walk(dcp_size, page_size, length, pool, fix)
    cells: Any = walk.at(step).cells.itertuples()
    return [Spot(*_box(walk, cell, "double"), _told(walk, cell)) for cell in cells]


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


def _draw(
    dcp_size: int,
    page_size: int,
    length: int,
    pool: Pool,
    fix: bool,
    step: int,
    width: Width = "double",
) -> tuple[Figure, str]:
    walk = backup_walk(dcp_size, page_size, length, pool, fix)
    now = walk.at(step)
    bottom = TOP_IN + dcp_size * RANK_IN
    canvas = Canvas(width, bottom + (0.5 if width == "double" else 0.72),
                    f"Step {step}: {now.name}, {'with' if fix else 'without'} the fix"
                    f"{': the process has ended' if now.failed else ''}")  # fmt: skip
    _path(canvas, step, now.failed)
    wide, host = _boxes(walk, width)
    for rank in range(dcp_size):
        canvas.text(LEFT_IN - 0.06, TOP_IN + rank * RANK_IN + CELL_IN / 2, f"rank {rank}", 7.5,
                    align="right")  # fmt: skip
    lay = walk.layout
    every = max(1, round(0.22 / (wide * lay.page_size) + 0.49))
    for page in range(lay.num_pages + 1):
        x = LEFT_IN + page * lay.page_size * wide
        canvas.line([(x, TOP_IN - 0.03), (x, bottom - 0.06)], BLACK, 0.6)
        if page % every == 0:
            canvas.text(x + lay.page_size * wide / 2, TOP_IN - 0.1, f"{page}", 6.5, DARK_GREY,
                        "center")  # fmt: skip
    canvas.text(host, TOP_IN - 0.1, "host", 6.5, DARK_GREY)
    cells: Any = now.cells.itertuples()
    for cell in cells:
        box = _box(walk, cell, width)
        padding = cell.place == "buffer" and cell.row < lay.first_row
        look = look_of(PADDING) if padding else _look(cell.request, walk.victim)
        canvas.cell(*box, look, str(cell.position) if cell.request >= 0 else "")
        if cell.verdict:
            canvas.outline(box, width=1.4)
    entries: list[Any] = [
        (look_of(VICTIM), f"request {walk.victim}, the victim"),
        *((look_of(other), "") for other in OTHERS[:-1]),
        (look_of(OTHERS[-1]), "other requests, a colour each"),
        (look_of(FREE), "no token"),
        (look_of(PADDING), "padding page (0)"),
    ]
    if (now.cells["verdict"] != "").any():
        entries.append((("s", VERMILLION), "wrong row (framed)"))
    canvas.keys(bottom + 0.14, entries, 0.08)
    return canvas.finish(), f"Step {step} of {len(STEPS) - 1}, {now.name}. {now.told}"


def _look(request: int, victim: int) -> Look:
    if request < 0:
        return look_of(FREE)
    return look_of(VICTIM if request == victim else OTHERS[request % len(OTHERS)])


def _path(canvas: Canvas, step: int, failed: bool) -> None:
    """The names of all steps in a line, this one bold."""
    room = (canvas.wide - 0.16) / len(STEPS)
    size = 7.5 if room > 1 else 5.2
    for at, name in enumerate(STEPS):
        color = BLACK if at == step else DARK_GREY
        here = at == step
        canvas.text(0.08 + at * room, 0.42, name, size, WRONG.color if here and failed else color,
                    bold=here)  # fmt: skip
        line = [(0.08 + at * room, 0.52), (0.08 + (at + 0.92) * room, 0.52)]
        canvas.line(line, BLACK if at <= step else "#C8C8C8", 2.0)


def backup_stepper() -> Panel:
    """Step through backup, free, re-allocation and restore; fix on or off."""
    return Panel(
        _draw,
        name=NAME,
        table=backup_table,
        hover=backup_hover,
        steps="step",
        definition=DEFINITION,
        step=widgets.IntSlider(min=0, max=len(STEPS) - 1, value=0),
        fix=widgets.Checkbox(value=True, indent=False, description="with the fix"),
        dcp_size=widgets.SelectionSlider(options=SIZES, value=4, tooltip="c: ranks"),
        page_size=widgets.SelectionSlider(options=PAGE_SIZES, value=2, tooltip="P: rows of a page"),
        length=widgets.IntSlider(
            min=LENGTHS[0], max=LENGTHS[1], value=12, tooltip="cached positions of a request"
        ),
        pool={"few pages in use": "low", "pool full": "full"},
    )


def backup_stepper_figure(
    step: int = 0,
    fix: bool = True,
    dcp_size: int = 4,
    page_size: int = 2,
    length: int = 12,
    pool: Pool = "low",
    *,
    width: Width = "double",
) -> Figure:
    """The picture of ``backup_stepper`` with its caption; arguments are the controls.

    Errors: StudyError for a length below 1, an unknown pool or step; LayoutError for sizes.
    """
    values = {
        **{"step": step, "fix": fix, "dcp_size": dcp_size},
        **{"page_size": page_size, "length": length, "pool": pool},
    }
    return publishable(_draw, values, NAME, DEFINITION, width)[0]

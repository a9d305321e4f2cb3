"""The picture of a right backup: every row of every rank, step by step.

Worked example, c=2, P=2, 3 cached positions in page 3: before, rank 0 holds positions 0 and 2 in
rows 6 and 7; backed up, its host copy has them in lines 0 and 1; restored into page 1, they lie
in rows 2 and 3.
"""

from collections.abc import Hashable, Iterable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kvlab.index import DcpLayout
from kvlab.lab.origin import Origin
from kvlab.viz.strips import box, frame, legend_below
from kvlab.viz.style import (
    BLACK,
    DARK_GREY,
    GREEN,
    LIGHT_GREY,
    ORANGE,
    OWNED,
    PADDING,
    SKY,
    Role,
    caption,
    figure,
)

VICTIM = OWNED
FREE = Role("no token", "#FFFFFF", "", "_", BLACK)
# The others in order of their number: enough of them for small pools, then from the start again.
OTHERS = (
    Role("", LIGHT_GREY, "", "s", BLACK),
    Role("", SKY, "", "D", BLACK),
    Role("", ORANGE, "", "^", BLACK),
    Role("", GREEN, "", "v", BLACK),
)


def backup_steps_figure(
    cells: pd.DataFrame, victim: int, layout: DcpLayout, origin: Origin
) -> Figure:
    """One panel a step, one line a rank: every row of the pool, and of the host copy beside it.

    ``cells``: step, rank, place ('buffer', 'host'), row, request, position (-1: none), as
    ``BackupTrace.cells``; pools of more than some 30 rows a rank leave no room for the numbers.
    """
    steps = list(cells["step"].unique())
    fig = figure("double", height=0.7 + len(steps) * (0.5 + 0.19 * layout.dcp_size))
    axes = fig.subplots(len(steps), 1, squeeze=False)[:, 0]
    looks = _looks(sorted(set(cells["request"]) - {-1}), victim)
    host_at = layout.rows_per_rank + 1
    end = host_at + int(cells.loc[cells["place"] == "host", "row"].max()) + 1
    for number, (ax, step) in enumerate(zip(axes, steps, strict=True), start=1):
        for cell in cells[cells["step"] == step].to_dict("records"):
            _cell(ax, cell, looks, host_at, layout.first_row)
        frame(ax, range(layout.dcp_size), "rank ", (0, end), "")
        _name_pages(ax, layout, (host_at + end) / 2)
        ax.set_title(f"{number}. {step}", fontsize=8.5)
    axes[-1].set_xlabel("page of the buffer (page 0 is padding), and the host copy of the rank")
    fig.suptitle(
        f"Request {victim} is backed up, freed, and restored, on all ranks", x=0.01, ha="left"
    )
    names = {r: f"request {r} (victim)" if r == victim else f"request {r}" for r in looks}
    handles = [Patch(fc=look.color, ec=DARK_GREY, label=names[r]) for r, look in looks.items()]
    legend_below(axes[-1], handles, ncols=len(handles), room_pt=30)
    return caption(
        fig,
        "Every row of every rank, read from real pools after each step; a number is the position "
        "whose token the row holds, a colour the request. White rows hold no token, hatched rows "
        "are the padding page.",
        origin,
    )


def _looks(requests: Iterable[int], victim: int) -> dict[int, Role]:
    others = iter([r for r in requests if r != victim])
    looks = {r: OTHERS[i % len(OTHERS)] for i, r in enumerate(others)}
    return {**looks, victim: VICTIM}


def _cell(
    ax: Axes, cell: dict[Hashable, Any], looks: dict[int, Role], host_at: int, first_row: int
) -> None:
    """One row of one rank, with the position that it holds."""
    on_host, row, y = cell["place"] == "host", cell["row"], cell["rank"]
    padding = not on_host and row < first_row
    look = PADDING if padding else looks.get(cell["request"], FREE)
    x = row + (host_at if on_host else 0)
    box(ax, x, y, 1, look, height=1)
    if cell["request"] >= 0:
        told = str(cell["position"])
        ax.text(x + 0.5, y, told, ha="center", va="center", fontsize=6.5, color=look.ink)


def _name_pages(ax: Axes, layout: DcpLayout, host: float) -> None:
    """Page numbers under the buffer, a stronger line at each page's begin."""
    size = layout.page_size
    pages = range(layout.num_pages + 1)
    ax.set_xticks([*[(page + 0.5) * size for page in pages], host], [*map(str, pages), "host"])
    ax.tick_params(axis="x", length=0, pad=1)
    for page in range(layout.num_pages + 2):
        ax.plot([page * size] * 2, [-0.5, layout.dcp_size - 0.5], "k-", marker="", lw=1.2)

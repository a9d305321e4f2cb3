"""Strips: lines of hatched rectangles, one a rank or a request, from the top down.

A span of equal values is one rectangle, so that a pool of a thousand pages stays a small file and
a grey print stays readable.

    >>> spans(["right", "right", "lost"])
    [(0, 2, 'right'), (2, 3, 'lost')]
"""

import io
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import ScaledTranslation

from kvlab.viz.save import CSS_PX_PER_IN, METADATA, Picture, show
from kvlab.viz.style import DARK_GREY, Role

HEIGHT = 0.8
Value = TypeVar("Value", bound=Hashable)


def spans(values: Iterable[Value]) -> list[tuple[int, int, Value]]:
    """(begin, end, value) of each run of equal values, end excluded."""
    found: list[tuple[int, int, Value]] = []
    begin = 0
    for value, run in groupby(values):
        end = begin + len(list(run))
        found.append((begin, end, value))
        begin = end
    return found


def strip(
    ax: Axes, y: float, runs: Iterable[tuple[int, int, str]], roles: Mapping[str, Role]
) -> None:
    """A line of rectangles at height ``y``, each looking like the role that its value names."""
    for begin, end, value in runs:
        box(ax, begin, y, end - begin, roles[value])


def box(ax: Axes, x: float, y: float, width: float, role: Role, height: float = HEIGHT) -> None:
    """One rectangle from ``x``, ``width`` wide, its middle at height ``y``."""
    corner = (x, y - height / 2)
    look = Rectangle(corner, width, height, fc=role.color, ec=DARK_GREY, lw=0.4, hatch=role.hatch)
    ax.add_patch(look)


def frame(
    ax: Axes, names: Iterable[object], prefix: str, xlim: tuple[int, int], xlabel: str
) -> None:
    """Name the lines from the top down, and leave no frame but the bottom."""
    labels = [f"{prefix}{name}" for name in names]
    ax.set_yticks(range(len(labels)), labels)
    ax.set(ylim=(len(labels) - 0.4, -0.6), xlim=xlim, xlabel=xlabel)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def legend_below(
    ax: Axes,
    handles: Iterable[Artist],
    ncols: int,
    room_pt: float = 33,
    title: str | None = None,
) -> None:
    """A legend ``room_pt`` points under the axes, where ticks and label end.

    A figure's own legend would stand at the very bottom, in the caption.
    """
    down = ScaledTranslation(0, -room_pt / 72, ax.figure.dpi_scale_trans)
    below = ax.transAxes + down
    ax.legend(
        handles=handles,
        ncols=ncols,
        title=title,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=below,
        borderaxespad=0,
    )


def patches(roles: Iterable[Role]) -> list[Patch]:
    """Legend entries of areas."""
    return [
        Patch(fc=role.color, ec=DARK_GREY, hatch=role.hatch, lw=0.4, label=role.label)
        for role in roles
    ]


def compact(fig: Figure) -> Picture:
    """``fig`` for a notebook of many figures: as ``show`` does, at one dot a CSS pixel.

    Half the bytes of a picture at 144 dpi, and a tenth less by a slower search for the best
    compression; the saved PNG, PDF and SVG are as fine as ever.
    """
    out, told = io.BytesIO(), dict(METADATA["png"])
    fig.savefig(out, format="png", dpi=CSS_PX_PER_IN, metadata=told, pil_kwargs={"optimize": True})
    return replace(show(fig), png=out.getvalue())

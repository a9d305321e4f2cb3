"""What tests ask of a drawn figure: where its parts are, and what its lines and cells say."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvlab.viz.canvas import Box, Canvas
from kvlab.viz.style import Role

SETTLING_DRAWS = 4  # constrained layout starts from what the last draw left


def settle(fig: Figure) -> None:
    """Draw until the layout rests."""
    for _ in range(1 if fig.get_layout_engine() is None else SETTLING_DRAWS):
        fig.draw_without_rendering()


def nothing_overlaps(fig: Figure) -> bool:
    """Whether captions, axes and legends keep apart and lie inside the figure."""
    settle(fig)
    if fig.get_layout_engine() is None:  # a canvas: its axes are the page
        texts = [text for ax in fig.axes for text in ax.texts] + fig.texts
        bodies = [text.get_window_extent().padded(-1) for text in texts if text.get_text()]
    else:
        bodies = [text.get_window_extent() for text in fig.texts if text.get_text()]
        bodies += [box for ax in fig.axes if (box := ax.get_tightbbox()) is not None]
    page = fig.bbox.padded(2)
    inside = all(page.contains(b.x0, b.y0) and page.contains(b.x1, b.y1) for b in bodies)
    apart = not any(a.overlaps(b) for a, b in combinations(bodies, 2))
    return inside and apart and all(map(_legend_is_clear, fig.axes))


def _legend_is_clear(ax: Axes) -> bool:
    """Whether the legend touches no label of the axes below it."""
    legend, labels = ax.get_legend(), ax.xaxis.get_tightbbox()
    return legend is None or labels is None or not legend.get_window_extent().overlaps(labels)


def words_of(fig: Figure) -> list[str]:
    """All legend words of a figure."""
    legends = [legend for ax in fig.axes if (legend := ax.get_legend()) is not None]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def told(fig: Figure) -> list[str]:
    """All words that stand in the axes, not in cells."""
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def curves(ax: Axes) -> list[list[float]]:
    """The heights of each line that has more than two points."""
    heights = [np.asarray(line.get_ydata(), dtype=float).tolist() for line in ax.lines]
    return [curve for curve in heights if len(curve) > 2]


@contextmanager
def cells() -> Iterator[list[tuple[Box, Role, str]]]:
    """Box, look and text of every cell that is put on a canvas meanwhile."""
    found: list[tuple[Box, Role, str]] = []
    draw = Canvas.cell

    def kept(self: Canvas, box: Box, role: Role, text: str = "", **more: Any) -> None:
        found.append((box, role, text))
        draw(self, box, role, text, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Canvas, "cell", kept)
        yield found

"""What tests ask of a drawn figure: where its parts are, and the numbers of its lines."""

from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SETTLING_DRAWS = 4  # constrained layout starts from what the last draw left


def nothing_overlaps(fig: Figure) -> bool:
    """Whether captions, axes and legends keep apart and lie inside the figure."""
    for _ in range(SETTLING_DRAWS):
        fig.draw_without_rendering()
    texts = [text.get_window_extent() for text in fig.texts if text.get_text()]
    bodies = [box for ax in fig.axes if (box := ax.get_tightbbox()) is not None]
    page = fig.bbox.padded(1)
    inside = all(page.contains(b.x0, b.y0) and page.contains(b.x1, b.y1) for b in texts + bodies)
    apart = not any(a.overlaps(b) for a, b in combinations(texts + bodies, 2))
    return inside and apart and all(map(_legend_is_clear, fig.axes))


def _legend_is_clear(ax: Axes) -> bool:
    """Whether the legend touches no label of the axes below it."""
    legend, labels = ax.get_legend(), ax.xaxis.get_tightbbox()
    return legend is None or labels is None or not legend.get_window_extent().overlaps(labels)


def legend_words(ax: Axes) -> list[str]:
    """The words of the legend; none if there is no legend."""
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def curves(ax: Axes) -> list[list[float]]:
    """The heights of each line that has more than two points."""
    heights = [np.asarray(line.get_ydata(), dtype=float).tolist() for line in ax.lines]
    return [curve for curve in heights if len(curve) > 2]

"""Small multiples: figures at their own size, each under its title, in one figure.

Worked example: three figures of 3.5 in stand two in a line of a page of 7.2 in, the third below.
"""

import io
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.image import imread

from kvlab.viz.save import SCREEN_DPI, png_bytes
from kvlab.viz.style import WIDTH_IN

TITLE_IN, GAP_IN = 0.3, 0.125


def grid(tiles: Sequence[tuple[str, Figure]], columns: int | None) -> Figure:
    """The figures of ``tiles`` at their own size, each under its title, in one figure.

    ``columns``: pictures a line; None: as many as fit the width of a page.
    """
    wide = max(fig.get_figwidth() for _, fig in tiles)
    high = max(fig.get_figheight() for _, fig in tiles) + TITLE_IN
    across = columns or max(1, int(WIDTH_IN["double"] / wide + 0.1))
    across = min(across, len(tiles))
    down = -(-len(tiles) // across)
    page = Figure(figsize=(wide * across + GAP_IN * (across - 1), high * down))
    for at, (title, fig) in enumerate(tiles):
        left = (at % across) * (wide + GAP_IN)
        top = high * (down - at // across) - TITLE_IN
        width, height = fig.get_size_inches()
        box = (left / page.get_figwidth(), (top - height) / page.get_figheight())
        ax = page.add_axes((*box, width / page.get_figwidth(), height / page.get_figheight()))
        ax.imshow(imread(io.BytesIO(png_bytes(fig, SCREEN_DPI[0]))), aspect="auto")
        ax.set_axis_off()
        ax.set_title(title, pad=4)
    return page

"""Pictures for a notebook of many figures: a third of the bytes, by a palette.

A figure has few colours: roles, greys, and the edges of letters. With 16 levels a channel that is
nearly always less than 256 different ones, so a pixel needs one byte and not three. The saved PNG,
PDF and SVG are as fine as ever.

Worked example: 16 levels are 0, 17, 34 .. 255; the blue (0, 114, 178) becomes (0, 119, 170).
"""

import io
from dataclasses import replace

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from kvlab.errors import KvlabError
from kvlab.viz.save import CSS_PX_PER_IN, Picture, show

LEVELS = (16, 8, 6)  # of a channel: the first that gives at most 256 colours; 6 always does
MOST_COLORS = 256


def small(fig: Figure, dpi: int = CSS_PX_PER_IN) -> Picture:
    """``fig`` with a palette; size and words are those of ``show``.

    ``dpi``: 96 is one dot a CSS pixel, 144 suits a picture of much small text.
    """
    shown = show(fig)
    before = fig.dpi
    try:
        fig.set_dpi(dpi)
        canvas = FigureCanvasAgg(fig)
        canvas.draw()  # type: ignore[no-untyped-call]
        pixels = np.asarray(canvas.buffer_rgba())[:, :, :3]  # type: ignore[no-untyped-call]
    finally:
        fig.set_dpi(before)
    return replace(shown, png=indexed_png(pixels))


def indexed_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG with a palette of the uint8 RGB picture ``(height, width, 3)``, each channel rounded to
    at most 16 levels. Errors: KvlabError for another shape or an empty picture."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise KvlabError(
            f"a picture is an array (height, width, 3) with at least one pixel: got shape "
            f"{pixels.shape}; pass RGB without transparency"
        )
    height, width, _ = pixels.shape
    for levels in LEVELS:
        step = 255 / (levels - 1)
        coarse = np.round(np.round(pixels / step) * step).astype(np.uint8)
        palette, index = np.unique(coarse.reshape(-1, 3), axis=0, return_inverse=True)
        if len(palette) <= MOST_COLORS:
            break
    picture = Image.fromarray(index.reshape(height, width).astype(np.uint8))
    picture.putpalette(palette.tobytes())
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return out.getvalue()

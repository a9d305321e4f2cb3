"""A figure measured in inches from its upper left corner, for pictures that are redrawn often.

The usual axes ask a layout engine where they fit, which draws everything twice. Here every box and
text is put where it belongs, in one pass, with one collection for all boxes of a look and one for
each letter of the cells: a thousand numbers cost some ten artists. Because a box lies where it was
put, its hover box is the same four numbers.

Worked example:

    >>> canvas = Canvas("single", 1.0, "Two cells")
    >>> canvas.cell(0.1, 0.3, 0.2, 0.2, Look("#FFFFFF", "#000000"), "7")
    >>> canvas.finish().get_size_inches().tolist()
    [3.5, 1.0]
"""

from functools import lru_cache
from typing import Literal

from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from kvlab.viz.spaces import SMALLEST_PT, Look
from kvlab.viz.style import BLACK, DARK_GREY, VERMILLION, WIDTH_IN, use_style

Width = Literal["single", "double"]
MARGIN_IN = 0.08
KEY_IN, KEY_LINE_IN = 0.16, 0.2
LETTER_EM = 0.6  # mean width of a letter of DejaVu Sans, in units of its size
MONO_EM, CAP_EM = 0.602, 0.729  # width of a letter of DejaVu Sans Mono, height of a digit
Box = tuple[float, float, float, float]
Corners = tuple[tuple[float, float], ...]


class Canvas:
    """A figure under construction; all places and sizes in inches, y downwards."""

    def __init__(self, width: Width, height: float, title: str) -> None:
        self.wide, self.high = WIDTH_IN[width], height
        use_style()
        self._fig = Figure(figsize=(self.wide, height))
        self.ax = self._fig.add_axes((0, 0, 1, 1))
        self.ax.set(xlim=(0, self.wide), ylim=(height, 0))
        self.ax.set_axis_off()
        size = 9.5 if width == "double" else 8.5
        self._fig.suptitle(title, x=MARGIN_IN / self.wide, y=1 - 0.06 / height, ha="left", va="top",
                           fontsize=size)  # fmt: skip
        self._boxes: dict[tuple[Look, str, float], list[Corners]] = {}
        self._letters: dict[tuple[str, float, str, bool], list[tuple[float, float]]] = {}
        self._frames: dict[float, list[Corners]] = {}
        self._lines: list[tuple[list[tuple[float, float]], str, float, str]] = []

    def box(
        self, x: float, y: float, wide: float, high: float, look: Look, edge: str = DARK_GREY,
        line: float = 0.4,
    ) -> None:  # fmt: skip
        """A filled box with its upper left corner at (x, y)."""
        self._boxes.setdefault((look, edge, line), []).append(_corners(x, y, wide, high))

    def cell(
        self, x: float, y: float, wide: float, high: float, look: Look, text: str = "",
        edge: str = DARK_GREY, bold: bool = False,
    ) -> None:  # fmt: skip
        """A box with a text of its own letters in its middle, left out where it does not fit."""
        self.box(x, y, wide, high, look, edge)
        size = min(7.5, 72 * 0.86 * high, 72 * 0.94 * wide / (MONO_EM * max(1, len(text))))
        if not text or size < SMALLEST_PT:
            return
        left = x + wide / 2 - MONO_EM * len(text) * size / 144
        base = y + high / 2 + CAP_EM * size / 144
        for at, letter in enumerate(text):
            if letter != " ":
                place = left + at * MONO_EM * size / 72, base
                key = letter, round(size, 2), look.ink, bold
                self._letters.setdefault(key, []).append(place)

    def text(
        self, x: float, y: float, text: str, size: float = 8.0, color: str = BLACK,
        align: str = "left", bold: bool = False,
    ) -> None:  # fmt: skip
        """A text whose middle in height is at ``y``."""
        self.ax.text(
            x, y, text, fontsize=size, color=color, ha=align, va="center", parse_math=False,
            fontweight="bold" if bold else "normal",
        )  # fmt: skip

    def line(
        self, points: list[tuple[float, float]], color: str = DARK_GREY, width: float = 0.8,
        dash: str = "-",
    ) -> None:  # fmt: skip
        """A line through ``points``."""
        self._lines.append((points, color, width, dash))

    def mark(self, x: float, y: float, marker: str, color: str, size: float = 7) -> None:
        """A marker with its middle at (x, y)."""
        self.ax.plot([x], [y], ls="", marker=MarkerStyle(marker), ms=size, color=color,
                     mec="#FFFFFF", mew=0.6, zorder=6, clip_on=False)  # fmt: skip

    def outline(self, box: Box, width: float = 1.8) -> None:
        """A dashed frame around a box, whatever fills it."""
        x, y, wide, high = box
        self._frames.setdefault(width, []).append(_corners(x, y, wide, high))

    def keys(self, y: float, entries: list[tuple[Look | tuple[str, str], str]], x: float) -> float:
        """A legend from (x, y) on, in as many lines as it needs: boxes, or (marker, colour),
        where the marker may be "line".

        Returns the height that it took.
        """
        at, down = x, 0.0
        for look, words in entries:
            need = KEY_IN + 0.05 + len(words) * LETTER_EM * 7.5 / 72 + 0.12
            if at > x and at + need > self.wide - MARGIN_IN:
                at, down = x, down + KEY_LINE_IN
            if isinstance(look, Look):
                self.box(at, y + down - 0.05, KEY_IN, 0.1, look)
            elif look[0] == "line":
                self.line([(at, y + down), (at + KEY_IN, y + down)], look[1], 1.4)
            else:
                self.mark(at + KEY_IN / 2, y + down, *look, size=6)
            self.text(at + KEY_IN + 0.05, y + down, words, 7.5)
            at += need
        return down + KEY_LINE_IN

    def finish(self) -> Figure:
        """The figure, with all boxes and lines in it."""
        for (look, edge, width), boxes in self._boxes.items():
            drawn = PolyCollection(boxes, facecolor=look.face, edgecolor=edge, linewidth=width)
            drawn.set(clip_on=False, zorder=1)
            if look.hatch:
                drawn.set_hatch(look.hatch)
            self.ax.add_collection(drawn, autolim=False)
        for width, boxes in self._frames.items():
            frames = PolyCollection(boxes, facecolor="none", edgecolor=VERMILLION, zorder=5)
            frames.set(linewidth=width, linestyle=(0, (3, 1)), clip_on=False)
            self.ax.add_collection(frames, autolim=False)
        for points, color, width, dash in self._lines:
            self.ax.add_collection(
                LineCollection([points], colors=color, linewidths=width, linestyles=dash, zorder=3),
                autolim=False,
            )
        for (letter, size, ink, bold), places in self._letters.items():
            inches = Affine2D().scale(size / 72) + self._fig.dpi_scale_trans
            glyphs = PathCollection(
                [outline_of(letter, bold)],
                offsets=places,
                offset_transform=self.ax.transData,
                facecolors=ink,
                linewidths=0,
                zorder=2,
            )
            glyphs.set_transform(inches)
            self.ax.add_collection(glyphs, autolim=False)
        return self._fig


def _corners(x: float, y: float, wide: float, high: float) -> Corners:
    return (x, y), (x + wide, y), (x + wide, y + high), (x, y + high)


@lru_cache(maxsize=512)
def outline_of(letter: str, bold: bool) -> Path:
    """The outline of a letter of DejaVu Sans Mono, 1 unit its size, from its base line."""
    weight = "bold" if bold else "normal"
    return TextPath(
        (0, 0), letter, 1, prop=FontProperties(family="DejaVu Sans Mono", weight=weight)
    )


def keys_height(width: Width, words: list[str], x: float) -> float:
    """Inches that ``Canvas.keys`` takes for these words, before there is a canvas."""
    at, lines = x, 1
    for word in words:
        need = KEY_IN + 0.05 + len(word) * LETTER_EM * 7.5 / 72 + 0.12
        if at > x and at + need > WIDTH_IN[width] - MARGIN_IN:
            at, lines = x, lines + 1
        at += need
    return lines * KEY_LINE_IN

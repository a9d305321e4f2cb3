"""A figure measured in inches from its upper left corner: cells, bars, lines and marks.

The usual axes ask a layout engine where they fit, which draws everything twice. Here every box and
text is put where it belongs, in one pass, with one collection for all boxes of a look and one for
each letter of the cells: a thousand numbers cost some ten artists. Because a box lies where it was
put, its hover box is the same four numbers.

Ranks are ordered, so their colors are a scale (cividis, made for color-blind readers) from dark
to light and not a set of hues: hues are for the roles of ``kvlab.viz.style``.
"""

from collections.abc import Sequence
from functools import lru_cache

import matplotlib as mpl
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from kvlab.viz.style import BLACK, DARK_GRAY, VERMILLION, WHITE, Role, Width, use_style, width_in

MARGIN_IN = 0.08
KEY_IN, KEY_LINE_IN = 0.16, 0.2
SMALLEST_PT, LARGEST_PT = 5.0, 7.5
LETTER_EM = 0.6  # mean width of a letter of DejaVu Sans, in units of its size
MONO_EM, CAP_EM = 0.602, 0.729  # width of a letter of DejaVu Sans Mono, height of a digit
LINE_EM = 1.16  # from one line of a cell to the next
TICK_IN = 0.45  # from one number of an axis to the next, at least
ROUND = tuple(step * 10**power for power in range(5) for step in (1, 2, 5))
Point = tuple[float, float]
#: Left, top, width, height in inches.
Box = tuple[float, float, float, float]
#: The look of an entry of a legend: a box, a marker with its color, or ("line", color).
Key = Role | tuple[str, str]

OUTSIDE = Role("", WHITE, ink=DARK_GRAY)


@lru_cache(maxsize=512)
def rank_role(rank: int, dcp_size: int) -> Role:
    """The look of what ``rank`` of ``dcp_size`` owns."""
    face = to_hex(mpl.colormaps["cividis"](0.08 + 0.88 * rank / max(1, dcp_size - 1)))
    return Role(f"rank {rank}", face, ink=ink_on(face))


def ink_on(face: str) -> str:
    """Black or white, whichever has more contrast on ``face`` (at least 4.5 on any color)."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(face)]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return BLACK if (luminance + 0.05) ** 2 > 0.05 * 1.05 else WHITE


def font_size(text: str, wide: float, high: float) -> float | None:
    """The points at which ``text`` fits a cell of this size in inches; None if it would be tiny.

    >>> font_size("21", 0.2, 0.16), font_size("24575", 0.2, 0.16)
    (7.5, None)
    """
    lines = text.split("\n")
    tall = 0.86 if len(lines) == 1 else 0.98 / (LINE_EM * len(lines))
    by_width = 72 * 0.94 * wide / (MONO_EM * max(1, *map(len, lines)))
    size = min(LARGEST_PT, 72 * tall * high, by_width)
    return size if size >= SMALLEST_PT else None


class Canvas:
    """A figure under construction; all places and sizes in inches, y downwards."""

    def __init__(self, width: Width, title: str) -> None:
        self.wide = width_in(width)
        use_style()
        self._fig = Figure(figsize=(self.wide, 1.0))
        self.ax = self._fig.add_axes((0, 0, 1, 1))
        self.ax.set_axis_off()
        self._title = self._fig.suptitle(
            title, x=MARGIN_IN / self.wide, ha="left", va="top",
            fontsize=9.5 if width == "double" else 8.5,
        )  # fmt: skip
        self._boxes: dict[tuple[Role, str, float], list[list[Point]]] = {}
        self._letters: dict[tuple[str, float, str, bool], list[Point]] = {}
        self._frames: dict[float, list[list[Point]]] = {}

    def box(self, box: Box, role: Role, edge: str = DARK_GRAY, line: float = 0.4) -> None:
        """A filled box."""
        self._boxes.setdefault((role, edge, line), []).append(_corners(box))

    def cell(
        self, box: Box, role: Role, text: str = "", edge: str = DARK_GRAY, bold: bool = False
    ) -> None:
        """A box with a text of its own letters in its middle, left out where it does not fit."""
        self.box(box, role, edge)
        x, y, wide, high = box
        size = font_size(text, wide, high)
        if size is None:
            return
        lines = text.split("\n")
        base = y + high / 2 + (CAP_EM - LINE_EM * (len(lines) - 1)) * size / 144
        for row, line in enumerate(lines):
            left = x + wide / 2 - MONO_EM * len(line) * size / 144
            for at, letter in enumerate(line):
                if letter == " ":
                    continue
                place = left + at * MONO_EM * size / 72, base + row * LINE_EM * size / 72
                key = letter, round(size, 2), role.ink, bold
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
        self, points: Sequence[Point], color: str = DARK_GRAY, width: float = 0.8, dash: str = "-"
    ) -> None:
        """A line through ``points``."""
        drawn = LineCollection([points], colors=color, linewidths=width, linestyles=dash, zorder=3)
        self.ax.add_collection(drawn, autolim=False)

    def mark(self, x: float, y: float, marker: str, color: str, size: float = 7) -> None:
        """A marker with its middle at (x, y)."""
        self.ax.plot([x], [y], ls="", marker=marker, ms=size, color=color,
                     mec=WHITE, mew=0.6, zorder=6, clip_on=False)  # fmt: skip

    def outline(self, box: Box, width: float = 1.8) -> None:
        """A dashed frame around a box, whatever fills it."""
        self._frames.setdefault(width, []).append(_corners(box))

    def scale(self, x: float, y: float, unit: float, ends: tuple[int, int], label: str) -> None:
        """A horizontal axis of whole numbers from (x, y) on, ``unit`` inches each."""
        first, last = ends
        every = next(n for n in ROUND if n * unit >= TICK_IN or n == ROUND[-1])
        self.line([(x, y), (x + (last - first) * unit, y)])
        for at in range(-(-first // every) * every, last + 1, every):
            self.text(x + (at - first) * unit, y + 0.09, f"{at}", 7, align="center")
        self.text(x + (last - first) * unit / 2, y + 0.25, label, 8, align="center")

    def keys(self, y: float, entries: Sequence[tuple[Key, str]], x: float = MARGIN_IN) -> float:
        """A legend from (x, y) on, in as many lines as it needs; returns its height."""
        at, down = x, 0.0
        for look, words in entries:
            need = KEY_IN + 0.05 + len(words) * LETTER_EM * 7.5 / 72 + 0.12
            if at > x and at + need > self.wide - MARGIN_IN:
                at, down = x, down + KEY_LINE_IN
            if isinstance(look, Role):
                self.box((at, y + down - 0.05, KEY_IN, 0.1), look)
            elif look[0] == "line":
                self.line([(at, y + down), (at + KEY_IN, y + down)], look[1], 1.4)
            else:
                self.mark(at + KEY_IN / 2, y + down, *look, size=6)
            self.text(at + KEY_IN + 0.05, y + down, words, 7.5)
            at += need
        return down + KEY_LINE_IN

    def finish(self, height: float) -> Figure:
        """The figure, with all boxes and letters in it."""
        self._fig.set_size_inches(self.wide, height)
        self._title.set_y(1 - 0.06 / height)
        self.ax.set(xlim=(0, self.wide), ylim=(height, 0))
        for (role, edge, width), boxes in self._boxes.items():
            drawn = PolyCollection(boxes, facecolor=role.color, edgecolor=edge, linewidth=width)
            drawn.set(clip_on=False, zorder=1, hatch=role.hatch or None)
            self.ax.add_collection(drawn, autolim=False)
        for width, boxes in self._frames.items():
            frames = PolyCollection(boxes, facecolor="none", edgecolor=VERMILLION, zorder=5)
            frames.set(linewidth=width, linestyle=(0, (3, 1)), clip_on=False)
            self.ax.add_collection(frames, autolim=False)
        for (letter, size, ink, bold), places in self._letters.items():
            glyphs = PathCollection(
                [outline_of(letter, bold)],
                offsets=places,
                offset_transform=self.ax.transData,
                facecolors=ink,
                linewidths=0,
                zorder=2,
            )
            glyphs.set_transform(Affine2D().scale(size / 72) + self._fig.dpi_scale_trans)
            self.ax.add_collection(glyphs, autolim=False)
        return self._fig


def _corners(box: Box) -> list[Point]:
    x, y, wide, high = box
    return [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high)]


@lru_cache(maxsize=512)
def outline_of(letter: str, bold: bool) -> Path:
    """The outline of a letter of DejaVu Sans Mono, 1 unit its size, from its base line."""
    weight = "bold" if bold else "normal"
    font = FontProperties(family="DejaVu Sans Mono", weight=weight)
    return TextPath((0, 0), letter, 1, prop=font)

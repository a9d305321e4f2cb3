"""One look for all figures: colors that color-blind readers can tell apart, and roles.

A reader learns the roles once: what this rank owns is blue, what another rank owns is gray, a
wrong row is vermillion. Color never stands alone: roles differ in hatch or in gray too, and lines
in dash and marker, so a gray print still reads.

Worked example:

    >>> fig = figure("single", height=2.0)
    >>> _ = fig.subplots().bar([0, 1], [3, 1], color=[OWNED.color, WRONG.color])
    >>> fig.get_size_inches().tolist()
    [3.5, 2.0]

Figures are made without pyplot: nothing is shown twice in a notebook, nothing stays in memory.
Colors: Okabe and Ito, "Color Universal Design" (2008), without the yellow, which white swallows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.rcsetup import cycler
from matplotlib.ticker import NullLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import ArrayLike, NDArray

from kvlab.errors import KvlabError
from kvlab.lab.origin import Origin

Width = Literal["single", "double"]
WIDTH_IN: Mapping[str, float] = {"single": 3.5, "double": 7.2}

DEFINITION_PT, FOOTER_PT = 7.5, 6.0
LINE_SPACING = 1.3
MARGIN_PT = 5.0
LETTER_EM = 0.54  # width of a letter in a line of text, in units of its size, at most
LEGEND_DOWN_PT = 33  # where ticks and label of an axis end
DEFINITION_ID, FOOTER_ID = "kvlab-definition", "kvlab-footer"

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
WHITE, LIGHT_GRAY, DARK_GRAY = "#FFFFFF", "#D4D4D4", "#595959"


@dataclass(frozen=True, slots=True)
class Role:
    """What an area means, and how it is filled; ``ink`` is the color of text that stands on it."""

    label: str
    color: str
    hatch: str = ""
    ink: str = BLACK  # contrast at least 4.5


OWNED = Role("owned by this rank", BLUE, ink=WHITE)
OTHER = Role("owned by another rank", LIGHT_GRAY)
PADDING = Role("padding page", WHITE, "////")
WRONG = Role("wrong row", VERMILLION, "xxx")
SILENT = Role("silent: another request's row", ORANGE, "\\\\\\")
STRADDLING = Role("straddling: partly out of range", PURPLE, "...")
ASSERT = Role("out of range: device-side assert", BLACK, ink=WHITE)


@dataclass(frozen=True, slots=True)
class Stroke:
    """How a line is drawn: all three differ between lines, so that none depends on the others."""

    color: str
    dash: Any  # as matplotlib has it; "none": marks alone
    marker: str


# Seven lines that differ in color, dash and marker at once.
CYCLE = (
    cycler(color=[BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK])
    + cycler(linestyle=["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1))])
    + cycler(marker=["o", "s", "^", "D", "v", "P", "X"])
)

STYLE: Mapping[str, object] = {
    "axes.prop_cycle": CYCLE,
    "axes.axisbelow": True,
    "axes.grid": False,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.0,
    "axes.titleweight": "bold",
    "figure.facecolor": WHITE,
    "figure.titlesize": 9.5,
    "figure.titleweight": "bold",
    "font.family": ["DejaVu Sans"],  # ships with matplotlib, so every machine has it
    "font.size": 8.5,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "image.cmap": "cividis",
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    "savefig.facecolor": WHITE,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    # Exports. Type 42 keeps text text in PDF; paths draw the same SVG where no font is
    # installed (text as text is half the size, and wrong on a machine without DejaVu Sans).
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "kvlab",
}


def use_style() -> None:
    """Make ``STYLE`` matplotlib's defaults in this process. ``figure`` and ``Canvas`` call it.

    Matplotlib reads fonts, widths and cycle when a mark is made, so a style that ends with the
    making of the figure would leave the marks in the library's own look.
    """
    keys: dict[Any, Any] = dict(STYLE)  # matplotlib 3.11 types the keys as literals, 3.10 as str
    mpl.rcParams.update(keys)


def width_in(width: str) -> float:
    """Inches of "single" (one column of a paper) or "double". Errors: KvlabError for another."""
    if width not in WIDTH_IN:
        names = ", ".join(map(repr, WIDTH_IN))
        raise KvlabError(f"a figure's width is one of {names}: got {width!r}")
    return WIDTH_IN[width]


def figure(width: Width = "single", height: float = 2.6, beside: float = 0.04167) -> Figure:
    """An empty figure, laid out so that nothing overlaps; ``height`` and the room ``beside`` the
    labels are inches. Errors: as ``width_in``."""
    use_style()
    engine = ConstrainedLayoutEngine(w_pad=beside)
    return Figure(figsize=(width_in(width), height), layout=engine)


def caption(fig: Figure, definition: str, origin: Origin) -> Figure:
    """Write what the figure shows and where it comes from under the axes; return ``fig``.

    The figure grows downwards by the height of the text, so the axes keep their size.

    Args:
        definition: one or two sentences that define the metric, with its unit.
        origin: the footer, see ``Origin.footer``.

    Errors: KvlabError for a figure that has a caption.
    """
    if any(text.get_gid() == FOOTER_ID for text in fig.texts):
        raise KvlabError("a figure has one caption: this one has it already; write it last")
    wide, high = (float(inches) for inches in fig.get_size_inches())
    room = wide * 72 - 3 * MARGIN_PT
    blocks = []
    for gid, text, size, color in (
        (DEFINITION_ID, definition, DEFINITION_PT, BLACK),
        (FOOTER_ID, origin.footer(), FOOTER_PT, DARK_GRAY),
    ):
        letters = int(room / (LETTER_EM * size))
        lines = [line for given in text.splitlines() for line in wrap(given, letters)]
        blocks.append((gid, lines, size, color))
    heights = [len(lines) * size * LINE_SPACING for _, lines, size, _ in blocks]
    extra = sum(heights) + MARGIN_PT * (len(blocks) + 1)
    total = high * 72 + extra
    _lift(fig, extra / total)
    fig.set_size_inches(wide, total / 72)
    top = extra - MARGIN_PT
    for (gid, lines, size, color), tall in zip(blocks, heights, strict=True):
        fig.text(
            MARGIN_PT / (wide * 72),
            top / total,
            "\n".join(lines),
            fontsize=size,
            color=color,
            linespacing=LINE_SPACING,
            va="top",
            gid=gid,
            in_layout=False,
            parse_math=False,
        )
        top -= tall + MARGIN_PT
    return fig


def _lift(fig: Figure, share: float) -> None:
    """Keep the lowest ``share`` of the figure free of all that is in it."""
    engine = fig.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, share, 1, 1 - share))
        return
    for ax in fig.axes:  # a canvas: everything stands where it was put
        left, bottom, wide, high = ax.get_position().bounds
        ax.set_position((left, share + (1 - share) * bottom, wide, (1 - share) * high))
    for text in fig.texts:
        x, y = text.get_position()
        text.set_position((x, share + (1 - share) * y))


def legend_below(ax: Axes, handles: Iterable[Artist], ncols: int, title: str | None = None) -> None:
    """A legend under the ticks and the label of the axes.

    A figure's own legend would stand at the very bottom, in the caption.
    """
    down = ScaledTranslation(0, -LEGEND_DOWN_PT / 72, ax.figure.dpi_scale_trans)
    ax.legend(
        handles=list(handles),
        ncols=ncols,
        title=title,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=ax.transAxes + down,
        borderaxespad=0,
    )


def legend_in(ax: Axes, handles: Iterable[Artist], ncols: int) -> None:
    """A legend of several panels, in axes of its own of which nothing else is seen."""
    ax.set_axis_off()
    ax.set(xticks=[], yticks=[])
    ax.legend(handles=list(handles), ncols=ncols, loc="upper center", borderaxespad=0)


def doubling_axis(ax: Axes, values: Iterable[float], label: str, names: Sequence[str]) -> None:
    """A horizontal axis of powers of two with a tick at each of ``values``, called ``names``."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(values), list(names))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(label)


@dataclass(frozen=True, slots=True)
class ZeroLog:
    """A logarithmic axis of decades ``low`` to ``high`` (powers of ten), with a gray band below for
    exact zeros, and, if ``nan``, one above for values that are no number.

    Worked example: of the values 0, 3e-6 and 0.2 the decades are 1e-6 to 1, and the zero stands
    where 1e-7 would:

        >>> scale = ZeroLog.over([0.0, 3e-6, 0.2])
        >>> scale.place([0.0, 3e-6]).tolist()
        [1e-07, 3e-06]
    """

    low: int
    high: int
    nan: bool = False

    @classmethod
    def over(cls, values: ArrayLike, *, keep: Iterable[float] = ()) -> "ZeroLog":
        """The scale on which all of ``values`` and ``keep`` have a place; an empty one has three
        decades below 1."""
        given = np.asarray(values, dtype=np.float64).ravel()
        nan = bool((~np.isfinite(given)).any())
        real = np.concatenate([given[np.isfinite(given)], list(keep)])
        real = np.abs(real[real != 0])
        if not len(real):
            return cls(-3, 0, nan)
        low = math.floor(math.log10(float(real.min())) + 1e-9)
        high = math.ceil(math.log10(float(real.max())) - 1e-9)
        return cls(low, max(high, low + 1), nan)

    @property
    def zero(self) -> float:
        """Where exact zeros stand."""
        return float(10.0 ** (self.low - 1))

    @property
    def no_number(self) -> float:
        """Where NaN and infinities stand."""
        return float(10.0 ** (self.high + 1))

    def place(self, values: ArrayLike) -> NDArray[np.float64]:
        """Heights of ``values``; a zero and a NaN get theirs."""
        given = np.abs(np.asarray(values, dtype=np.float64))
        return np.where(np.isfinite(given), np.where(given == 0, self.zero, given), self.no_number)

    def draw(self, ax: Axes, along: Literal["x", "y"] = "y", most: int = 7) -> None:
        """Scale, limits, at most ``most`` decades, and bands of one axis."""
        below, above = 10.0 ** (self.low - 1.6), 10.0 ** (self.high + (1.6 if self.nan else 0.15))
        every = -(-(self.high - self.low + 1) // most)
        decades = list(range(self.high, self.low - 1, -every))
        if along == "x" and every > 1:  # side by side, the outermost would touch 0 and NaN
            decades = [n for n in decades if n > self.low and not (self.nan and n == self.high)]
        ticks = [self.zero, *(10.0**n for n in decades)]
        names = ["0", *(f"$10^{{{n}}}$" if n else "1" for n in decades)]
        bands = [(below, 10.0 ** (self.low - 0.4))]
        if self.nan:
            ticks, names = [*ticks, self.no_number], [*names, "NaN"]
            bands.append((10.0 ** (self.high + 0.4), above))
        upright = along == "y"
        for begin, end in bands:
            (ax.axhspan if upright else ax.axvspan)(begin, end, fc="#DDDDDD", ec="none", zorder=0)
        ax.set(**{f"{along}scale": "log", f"{along}lim": (below, above)})
        axis = ax.yaxis if upright else ax.xaxis
        axis.set_ticks(ticks, names)
        axis.set_minor_locator(NullLocator())
        axis.grid(True)

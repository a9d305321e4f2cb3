"""A logarithmic axis with a place for exact zeros and one for no number, and looks of conditions.

Drift spans seven decades, and the two values that say most are on none of them: a drift of exactly
0 (the same bits came out) and NaN. So zeros stand in a grey band below the lowest decade, NaN in
one above the highest, and both bands carry their name on the axis.

Worked example: of the values 0, 3e-6 and 0.2 the decades are 1e-6 to 1, and the zero stands where
1e-7 would:

    >>> scale = ZeroLog.over([0.0, 3e-6, 0.2])
    >>> scale.place([0.0, 3e-6]).tolist()
    [1e-07, 3e-06]
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullLocator
from numpy.typing import ArrayLike, NDArray

from kvlab.errors import StudyError
from kvlab.lab.drift import DTYPES, NAMES, UPSTREAM_TOLERANCE
from kvlab.lab.origin import Origin
from kvlab.viz.style import BLACK, BLUE, DARK_GREY, GREEN, PURPLE, VERMILLION

Floats = NDArray[np.float64]
BAND = "#DDDDDD"
MOST_TICKS = 7
LEGEND_LINE_IN = 0.19
ROOM_IN = 0.16
KEPT = ("model", "model_sha256", "requests")
#: What the letters of a definition stand for.
PQ = "p: next-token distribution of the reference, q: that of the run"
TOLERANCE_TEXT = f"{UPSTREAM_TOLERANCE:.2f}: tolerance of the upstream PD test (reported)"


@dataclass(frozen=True, slots=True)
class Look:
    """How the line of a condition is drawn: all three differ, so none depends on the others."""

    color: str
    dash: Any
    marker: str


LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "no_retraction": Look(DARK_GREY, ":", "s"),
        "forced_fixed": Look(BLUE, "-", "o"),
        "forced_before_fix": Look(VERMILLION, "--", "X"),
        "natural": Look(GREEN, "-.", "^"),
        "recompute": Look(PURPLE, (0, (5, 1, 1, 1, 1, 1)), "D"),
    }
)


@dataclass(frozen=True, slots=True)
class ZeroLog:
    """Decades ``low`` to ``high`` (powers of ten) with a band below for 0, and, if ``nan``, one
    above for values that are no number."""

    low: int
    high: int
    nan: bool = False

    @classmethod
    def over(cls, values: ArrayLike, *, keep: Iterable[float] = ()) -> "ZeroLog":
        """The scale on which all of ``values`` and ``keep`` have a place; an empty one has three
        decades below 1."""
        given = np.asarray(values, dtype=np.float64).ravel()
        real = np.concatenate([given[np.isfinite(given)], list(keep)])
        real = np.abs(real[real != 0])
        if not len(real):
            return cls(-3, 0, bool((~np.isfinite(given)).any()))
        low = math.floor(math.log10(float(real.min())) + 1e-9)
        high = math.ceil(math.log10(float(real.max())) - 1e-9)
        return cls(low, max(high, low + 1), bool((~np.isfinite(given)).any()))

    @property
    def zero(self) -> float:
        """Where exact zeros stand."""
        return float(10.0 ** (self.low - 1))

    @property
    def no_number(self) -> float:
        """Where NaN and infinities stand."""
        return float(10.0 ** (self.high + 1))

    def place(self, values: ArrayLike) -> Floats:
        """Heights of ``values``; a zero and a NaN get theirs."""
        given = np.abs(np.asarray(values, dtype=np.float64))
        return np.where(np.isfinite(given), np.where(given == 0, self.zero, given), self.no_number)

    def draw(self, ax: Axes, along: Literal["x", "y"] = "y", most: int = MOST_TICKS) -> None:
        """Set scale, limits, at most ``most`` ticks of decades, and bands of one axis of ``ax``."""
        below, above = 10.0 ** (self.low - 1.6), 10.0 ** (self.high + (1.6 if self.nan else 0.15))
        every = -(-(self.high - self.low + 1) // most)
        decades = list(range(self.high, self.low - 1, -every))
        if along == "x" and every > 1:  # side by side, the outermost would touch 0 and NaN
            decades = [n for n in decades if n > self.low and not (self.nan and n == self.high)]
        ticks = [self.zero, *(10.0**n for n in decades)]
        names = ["0", *(f"10{superscript(n)}" if n else "1" for n in decades)]
        bands = [(below, 10.0 ** (self.low - 0.4))]
        if self.nan:
            ticks, names = [*ticks, self.no_number], [*names, "NaN"]
            bands.append((10.0 ** (self.high + 0.4), above))
        axis = ax.yaxis if along == "y" else ax.xaxis
        span = ax.axhspan if along == "y" else ax.axvspan
        for begin, end in bands:
            span(begin, end, fc=BAND, ec="none", zorder=0)
        if along == "y":
            ax.set_yscale("log")
            ax.set_ylim(below, above)
        else:
            ax.set_xscale("log")
            ax.set_xlim(below, above)
        axis.set_ticks(ticks, names)
        axis.set_minor_locator(NullLocator())
        axis.grid(True)


def superscript(number: int) -> str:
    """``number`` as an exponent: -6 as "⁻⁶"."""
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def panels(
    fig: Figure, rows: int, cols: int, lines: int, *, sharex: bool = False
) -> tuple[list[list[Axes]], Axes]:
    """``rows`` x ``cols`` axes with one vertical scale, and below them all, ``lines`` of text high,
    axes without a frame for the legend, which thus takes room from no column."""
    legend_in = lines * LEGEND_LINE_IN
    each = (float(fig.get_figheight()) - legend_in) / rows
    grid = fig.add_gridspec(rows + 1, cols, height_ratios=[each] * rows + [legend_in])
    axes: list[list[Axes]] = []
    for i in range(rows):
        axes.append([])
        for j in range(cols):
            first = axes[0][0] if i or j else None
            shared = axes[0][j] if sharex and i else None
            ax = fig.add_subplot(grid[i, j], sharey=first, sharex=shared)
            ax.tick_params(labelleft=j == 0, labelbottom=not sharex or i == rows - 1)
            axes[i].append(ax)
    return axes, fig.add_subplot(grid[rows, :])


def roomy(fig: Figure) -> Figure:
    """``fig`` with room beside long labels.

    Hinting makes a word at 200 dpi up to a tenth wider than at the 100 dpi of the layout, and its
    first letters would leave the page.
    """
    engine = fig.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)  # kvlab.viz.style.figure gives it
    engine.set(w_pad=ROOM_IN)
    return fig


def legend_in(ax: Axes, handles: Iterable[Artist], ncols: int) -> None:
    """A legend in axes of its own, of which nothing else is seen."""
    ax.set_axis_off()
    ax.set(xticks=[], yticks=[])
    ax.legend(handles=list(handles), ncols=ncols, loc="upper center", borderaxespad=0)


def tolerance_line(ax: Axes, along: Literal["x", "y"] = "y") -> None:
    """The reported tolerance of the upstream test."""
    line = ax.axhline if along == "y" else ax.axvline
    line(UPSTREAM_TOLERANCE, color=BLACK, ls=(0, (1, 1)), lw=1.0, zorder=1)


def origin_of(told: Mapping[str, Any], keep: Iterable[str] = KEPT) -> Origin:
    """The origin of a recorded study (``Study.origin``), for a footer: of the parameters only
    ``keep``, since its lists are longer than a figure is wide. Errors: StudyError."""
    names = [field.name for field in fields(Origin)]
    lacks = [name for name in names if name not in told]
    facts = {} if lacks else told["parameters"]
    lacks += [f"parameters.{k}" for k in keep if not lacks and k not in facts]
    if lacks:
        raise StudyError(
            f"the origin of a study has {', '.join(names)}: this one lacks {', '.join(lacks)}; "
            f"pass Study.origin of read_study"
        )
    return Origin(**{**{n: told[n] for n in names}, "parameters": {k: facts[k] for k in keep}})


def require_rows(table: pd.DataFrame, columns: Iterable[str], what: str) -> pd.DataFrame:
    """``table`` if it has rows and ``columns``, and of these known conditions and dtypes.

    Errors: StudyError.
    """
    columns = tuple(columns)
    missing = [column for column in columns if column not in table]
    if missing or table.empty:
        raise StudyError(
            f"{what} is drawn from a table of the drift study: got {len(table)} rows, columns "
            f"missing: {', '.join(missing) or 'none'}; pass a table of read_study that has the "
            f"condition, the DCP size and the dtype asked for"
        )
    for name, known in (("condition", NAMES), ("dtype", DTYPES)):
        wrong = table[~table[name].isin(known)] if name in columns else table.head(0)
        if len(wrong):
            raise StudyError(
                f"{what} is drawn of {name}s that a study has, {', '.join(known)}: got "
                f"{wrong[name].tolist()[0]!r} in row {wrong.index.tolist()[0]}; leave such rows out"
            )
    return table

"""What the figures of costs share: axes of sizes, points with their quartiles, words for gaps.

A figure is drawn of whatever rows there are. Where there is none, its axes say so instead of
showing an empty frame, and the caption names the cases that were not measured.

Worked example: a median of 0.8 with quartiles 0.7 and 0.9 is a mark at 0.8 with a bar from 0.7 to
0.9; the tick of 131,072 ids reads 128k.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from kvlab.errors import StudyError
from kvlab.lab.bench.ops import count_text
from kvlab.lab.origin import Origin
from kvlab.viz.style import BLACK, BLUE, DARK_GREY, GREEN, PURPLE, VERMILLION

NOT_MEASURED = "not measured yet"
#: Marker and colour of a DCP size, the same in every figure of costs.
MARKERS: Mapping[int, str] = MappingProxyType({1: "o", 2: "s", 3: "v", 4: "^", 8: "D"})
COLORS: Mapping[int, str] = MappingProxyType(
    {1: BLUE, 2: VERMILLION, 3: BLACK, 4: GREEN, 8: PURPLE}
)
OTHER_MARKER = "P"
MOST_TICKS = 5


@dataclass(frozen=True, slots=True)
class Mark:
    """How a series is drawn: colour, dash (None: marks alone), marker, full or open."""

    color: str
    dash: Any
    marker: str
    full: bool = True


def require_points(table: pd.DataFrame, columns: Iterable[str], what: str) -> pd.DataFrame:
    """``table`` if it has ``columns``; rows it may lack. Errors: StudyError."""
    absent = [column for column in columns if column not in table]
    if absent:
        raise StudyError(
            f"{what} is drawn from a table of kvlab.lab.bench.cost: columns missing: "
            f"{', '.join(absent)}; pass one of its *_points"
        )
    return table


def spread_line(
    ax: Axes, points: pd.DataFrame, x: str, label: str, mark: Mark, scale: float = 1.0
) -> None:
    """One series: q1, value, q3 of ``points`` times ``scale`` over its column ``x``."""
    at = points.sort_values(x)
    middle = at["value"].to_numpy(dtype=np.float64) * scale
    low = middle - at["q1"].to_numpy(dtype=np.float64) * scale
    high = at["q3"].to_numpy(dtype=np.float64) * scale - middle
    ax.errorbar(
        at[x].to_numpy(dtype=np.float64),
        middle,
        yerr=np.clip(np.stack([low, high]), 0, None),
        label=label,
        color=mark.color,
        ls="none" if mark.dash is None else mark.dash,
        marker=mark.marker,
        mfc=mark.color if mark.full else "#FFFFFF",
        mec=mark.color,
        lw=1.2,
        elinewidth=1.0,
        capsize=2.0,
    )


def say_nothing(ax: Axes, text: str = NOT_MEASURED) -> None:
    """Words in the middle of axes that have no point."""
    ax.text(0.5, 0.5, text, ha="center", va="center", color=DARK_GREY, transform=ax.transAxes)
    ax.set(xticks=[], yticks=[])


def count_axis(ax: Axes, values: Iterable[float], label: str) -> None:
    """A logarithmic axis of powers of two, each of ``values`` with its tick: 131072 as 128k."""
    ticks = sorted({int(value) for value in values})
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [count_text(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(label)


def bytes_axis(ax: Axes, values: Iterable[float], label: str) -> None:
    """A logarithmic axis of bytes with at most five ticks at powers of two: 2**20 as 1 MiB."""
    given = [float(value) for value in values]
    low, high = math.ceil(math.log2(min(given))), math.floor(math.log2(max(given)))
    ticks = [2**n for n in range(low, high + 1, max(1, -(-(high - low) // (MOST_TICKS - 1))))]
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [bytes_text(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(label)


def bytes_text(count: int) -> str:
    """ "512 B", "4 KiB", "1 MiB": in the largest unit of which there is one."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count} B"


def aim_lines(ax: Axes, values: Iterable[float]) -> None:
    """A dotted line for each aim, with its number at the right."""
    for value in sorted({round(float(value), 3) for value in values if value == value}):
        ax.axhline(value, color=BLACK, ls=(0, (1, 1.5)), lw=1.0, zorder=1)
        ax.annotate(
            f"aim {value:g}",
            (1, value),
            (-2, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=7,
        )


def device_name(origin: Origin) -> str:
    """The device of a title, without driver and cores: "cpu", "NVIDIA H200"."""
    return origin.device.partition(" (")[0]


def not_measured(sentences: Sequence[str]) -> str:
    """What a caption says of the cases that are missing; "" if none is."""
    return f" Not here: {'. '.join(sentences)}." if sentences else ""

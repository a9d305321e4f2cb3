"""One look for all figures: colours that colour-blind readers can tell apart, and roles.

A reader learns the roles once: what this rank owns is blue, what another rank owns is grey, a
wrong row is vermillion. Colour never stands alone: each role has a hatch for areas and a marker
for points, and lines differ in dash and marker too, so a grey print still reads.

Worked example:

    >>> fig = figure(width="single", height=2.0)
    >>> _ = fig.subplots().bar([0, 1], [3, 1], color=[OWNED.color, WRONG.color])
    >>> fig.get_size_inches().tolist()
    [3.5, 2.0]

Figures are made without pyplot: nothing is shown twice in a notebook, nothing stays in memory.
Colours: Okabe and Ito, "Color Universal Design" (2008), without the yellow, which white swallows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.rcsetup import cycler
from matplotlib.textpath import text_to_path

from kvlab.errors import KvlabError
from kvlab.lab.origin import Origin

WIDTH_IN: Mapping[str, float] = MappingProxyType({"single": 3.5, "double": 7.2})
HEIGHT_IN: Mapping[str, float] = MappingProxyType({"single": 2.6, "double": 3.4})
SMALLEST_IN, LARGEST_IN = 0.5, 20.0

DEFINITION_PT, FOOTER_PT = 7.5, 6.0
LINE_SPACING = 1.3
MARGIN_PT = 5.0
DEFINITION_ID, FOOTER_ID = "kvlab-definition", "kvlab-footer"

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
LIGHT_GREY, DARK_GREY = "#D4D4D4", "#595959"


@dataclass(frozen=True, slots=True)
class Role:
    """What a mark means: ``color`` for all marks, ``hatch`` for areas, ``marker`` for points."""

    label: str
    color: str
    hatch: str
    marker: str
    ink: str  # colour of text that stands on ``color``, contrast at least 4.5


OWNED = Role("owned by this rank", BLUE, "", "o", "#FFFFFF")
OTHER = Role("owned by another rank", LIGHT_GREY, "", "s", BLACK)
PADDING = Role("padding page", "#FFFFFF", "////", "_", BLACK)
WRONG = Role("wrong row", VERMILLION, "xxx", "X", BLACK)
SILENT = Role("silent: another request's row", ORANGE, "\\\\\\", "D", BLACK)
STRADDLING = Role("straddling: partly out of range", PURPLE, "...", "^", BLACK)
ASSERT = Role("out of range: device-side assert", BLACK, "", "v", "#FFFFFF")

ROLES: Mapping[str, Role] = MappingProxyType(
    {
        "owned": OWNED,
        "other": OTHER,
        "padding": PADDING,
        "wrong": WRONG,
        "silent": SILENT,
        "straddling": STRADDLING,
        "assert": ASSERT,
    }
)

# Seven lines that differ in colour, dash and marker at once.
CYCLE = (
    cycler(color=[BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK])
    + cycler(linestyle=["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1))])
    + cycler(marker=["o", "s", "^", "D", "v", "P", "X"])
)

STYLE: Mapping[str, object] = MappingProxyType(
    {
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
        "figure.facecolor": "#FFFFFF",
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
        "savefig.facecolor": "#FFFFFF",
        "xtick.labelsize": 8.0,
        "ytick.labelsize": 8.0,
        # Exports. Type 42 keeps text text in PDF; paths draw the same SVG where no font is
        # installed (text as text is half the size, and wrong on a machine without DejaVu Sans).
        "pdf.fonttype": 42,
        "svg.fonttype": "path",
        "svg.hashsalt": "kvlab",
    }
)


def use_style() -> None:
    """Make ``STYLE`` matplotlib's defaults in this process. ``figure`` calls it.

    Matplotlib reads fonts, widths and cycle when a mark is made, so a style that ends with the
    making of the figure would leave the marks in the library's own look.
    """
    keys: dict[Any, Any] = dict(STYLE)  # matplotlib 3.11 types the keys as literals, 3.10 as str
    mpl.rcParams.update(keys)


def figure(width: Literal["single", "double"] = "single", height: float | None = None) -> Figure:
    """An empty figure of a journal's column width, laid out so that nothing overlaps.

    Args:
        width: "single" is 3.5 in, "double" is 7.2 in.
        height: inches; by default 2.6 for single and 3.4 for double.

    Errors: KvlabError for another width, or a height outside 0.5 to 20 in.
    """
    if width not in WIDTH_IN:
        raise KvlabError(
            f"a figure's width is one of {', '.join(map(repr, WIDTH_IN))}: got {width!r}"
        )
    tall = HEIGHT_IN[width] if height is None else height
    if not SMALLEST_IN <= tall <= LARGEST_IN:
        raise KvlabError(
            f"a figure's height lies in [{SMALLEST_IN}, {LARGEST_IN}] inches: got height={height}"
        )
    use_style()
    return Figure(figsize=(WIDTH_IN[width], tall), layout="constrained")


def caption(fig: Figure, definition: str, origin: Origin) -> Figure:
    """Write what the figure shows and where it comes from under the axes; return ``fig``.

    The figure grows downwards by the height of the text, so the axes keep their size and nothing
    overlaps.

    Args:
        definition: one or two sentences that define the metric, with its unit.
        origin: the footer, see ``Origin.footer``.

    Errors: KvlabError for an empty definition, a figure that has a caption, or one that was not
    made by ``figure``.
    """
    engine = fig.get_layout_engine()
    if not isinstance(engine, ConstrainedLayoutEngine):
        raise KvlabError(
            "a caption needs constrained layout, which makes room for it: this figure has layout "
            f"{type(engine).__name__ if engine else None!r}; make it with kvlab.viz.style.figure"
        )
    if any(text.get_gid() == FOOTER_ID for text in fig.texts):
        raise KvlabError("a figure has one caption: this one has it already; write it last")
    if not definition.strip():
        raise KvlabError(
            f"a caption defines what is shown: got {definition!r}; say it in a sentence, with unit"
        )
    width_in, height_in = fig.get_size_inches()
    # Hinting makes a line wider than its outline, by up to 3 % at the resolution of a screen.
    room = (width_in * 72 - 3 * MARGIN_PT) * 0.97
    blocks = [
        (DEFINITION_ID, wrapped(definition, DEFINITION_PT, room), DEFINITION_PT, BLACK),
        (FOOTER_ID, wrapped(origin.footer(), FOOTER_PT, room), FOOTER_PT, DARK_GREY),
    ]
    heights = [len(lines) * size * LINE_SPACING for _, lines, size, _ in blocks]
    extra = sum(heights) + MARGIN_PT * (len(blocks) + 1)
    total = height_in * 72 + extra
    fig.set_size_inches(width_in, total / 72)
    engine.set(rect=(0, extra / total, 1, 1 - extra / total))
    top = extra - MARGIN_PT
    for (gid, lines, size, color), high in zip(blocks, heights, strict=True):
        fig.text(
            MARGIN_PT / (width_in * 72),
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
        top -= high + MARGIN_PT
    return fig


def wrapped(text: str, size: float, room: float) -> list[str]:
    """``text`` in lines of at most ``room`` points at font size ``size``, both in points.

    Line breaks in ``text`` stay. A word wider than ``room`` gets a line of its own.
    """
    font = FontProperties(family="DejaVu Sans", size=size)
    lines: list[str] = []
    for paragraph in text.strip().splitlines():
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}".strip()
            width = text_to_path.get_text_width_height_descent(longer, font, ismath=False)[0]
            if line and width > room:
                lines.append(line)
                line = word
            else:
                line = longer
        lines.append(line)
    return lines

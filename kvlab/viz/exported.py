"""A drawn figure as it leaves the notebook: with its definition and its origin below it.

``publishable(draw, values, ...)`` draws, writes the caption, and says where the figure is from; the
"Export" button of a panel and the static twin of an explorer both come here, so that they give the
same picture.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from kvlab.errors import KvlabError
from kvlab.lab.findings import output_folder
from kvlab.lab.folders import Folder
from kvlab.lab.origin import Origin, collect_origin
from kvlab.viz.save import figure_definition
from kvlab.viz.style import FOOTER_ID, WIDTH_IN, caption

Draw = Callable[..., Figure | tuple[Figure, str]]


def drawn(draw: Draw, values: Mapping[str, object]) -> tuple[Figure, str]:
    """Figure and sentence of ``draw``, "" where it gives none.

    Errors: TypeError for another result; what ``draw`` raises.
    """
    result = draw(**values)
    fig, text = result if isinstance(result, tuple) else (result, "")
    if not isinstance(fig, Figure):
        raise TypeError(f"draw returns a Figure, or a Figure and a str: got {type(fig)}")
    return fig, text


def publishable(
    draw: Draw,
    values: Mapping[str, object],
    command: str,
    definition: str | None = None,
    width: str | None = None,
) -> tuple[Figure, Origin]:
    """The figure of ``values`` with a caption, and its origin.

    Args:
        command: of the origin: what makes the figure again.
        definition: of the caption; None takes the sentence of ``draw``.
        width: "single" or "double" (columns of a paper), None for the figure's own.

    Errors: KvlabError for a width that ``draw`` cannot give; what ``draw`` raises.
    """
    asked = dict(values)
    if width is not None and width not in WIDTH_IN:
        raise KvlabError(
            f"a figure's width is one of {', '.join(map(repr, WIDTH_IN))}: got {width!r}"
        )
    if width is not None and takes_width(draw):
        asked["width"] = width
    fig, text = drawn(draw, asked)
    wide = float(fig.get_figwidth())
    if width is not None and abs(wide - WIDTH_IN[width]) > 0.01:
        raise KvlabError(
            f"a figure is exported as wide as it is drawn: got width={width!r} "
            f"({WIDTH_IN[width]} in) for a figure of {wide:g} in; leave width out, or give draw "
            f"an argument width"
        )
    origin = collect_origin(command, None, {k: _plain(v) for k, v in values.items()}, "cpu")
    if not figure_definition(fig):
        captioned(fig, definition or text or f"Drawn by {command}", origin)
    return fig, origin


def target(folder: Path | str | None) -> Path:
    """Where an export goes, made; None: ``output_folder()``. "~" is the reader's home.

    Errors: KvlabError for a folder that cannot be made or written.
    """
    path = output_folder() if folder is None else Path(folder).expanduser()
    Folder(
        path, "a figure is saved in a folder that can be written", "name another: export(folder)"
    ).require_writable()
    return path


def slug_of(draw: Draw) -> str:
    """A name for the files of ``draw``: its own in a-z, 0-9 and -, "panel" where nothing is left.

    ``slug_of(owner_map)`` is "owner-map".
    """
    name = "-".join(re.findall(r"[a-z0-9]+", getattr(draw, "__name__", "").lower()))
    return name if name and name != "lambda" else "panel"


def takes_width(draw: Draw) -> bool:
    """Whether ``draw`` has an argument ``width``, for one column or two."""
    return "width" in inspect.signature(draw).parameters


def captioned(fig: Figure, definition: str, origin: Origin) -> Figure:
    """As ``style.caption``, also for a figure whose axes stand where they were put.

    Errors: as ``style.caption``.
    """
    moves = isinstance(fig.get_layout_engine(), ConstrainedLayoutEngine)
    if moves or any(text.get_gid() == FOOTER_ID for text in fig.texts):
        return caption(fig, definition, origin)
    before, places = float(fig.get_figheight()), [(ax, ax.get_position().bounds) for ax in fig.axes]
    texts = [(text, text.get_position()) for text in fig.texts]
    fig.set_layout_engine("constrained")
    try:
        caption(fig, definition, origin)
    finally:
        fig.set_layout_engine("none")  # where the axes stand is said below
    share = before / float(fig.get_figheight())
    for ax, (left, bottom, wide, high) in places:
        ax.set_position((left, 1 - share + share * bottom, wide, share * high))
    for text, (x, y) in texts:
        text.set_position((x, 1 - share + share * y))
    return fig


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value

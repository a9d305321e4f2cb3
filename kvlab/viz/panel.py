"""One picture with controls, which stays a picture where no kernel runs.

``Panel(draw, dcp_size=[1, 2, 4, 8], start=range(0, 32))`` calls ``draw(dcp_size=..., start=...)``
whenever a control moves and shows the figure that it returns, or the ``Drawing``: a figure, the
sentence below it, the numbers in it, and boxes with words for those who hover over them. Controls:

    True                     tick box
    range(1, 9)              slider over 1 .. 8
    [1, 2, 4, 8]             slider that stops at these numbers
    ["fixed", "before"]      menu, also for a dict of label to value
    (shorthand, "tooltip")   the same, with words for those who hover over it
    a widget                 as it is

A control starts at the default that ``draw`` has for it, else at its first value.

One pattern, because the others fail somewhere: an ``Output`` widget flickers and stays empty in
static views, pyplot shows twice and leaks, an ``Image`` widget has no words for the blind.
Here an ``<img>`` of fixed size holds a PNG, with an image map whose boxes the browser itself
explains on hovering, and the cell's output holds the same PNG beside the widget, for readers
without a kernel.
"""

import base64
import gc
import hashlib
import html
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ParamSpec

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from kvlab.errors import KvlabError
from kvlab.lab.findings import require_slug
from kvlab.lab.origin import Origin, collect_origin
from kvlab.viz.save import (
    CSS_PX_PER_IN,
    ENDINGS,
    SCREEN_DPI,
    Picture,
    figure_definition,
    figure_title,
    png_bytes,
    save_figure,
    small_png,
)
from kvlab.viz.style import caption, use_style, width_in

P = ParamSpec("P")
MOST_ROWS, TEXT_ROWS = 60, 20
# White ground in dark themes too, with a frame that shows on either; text takes the theme's color.
GROUND = "background:#FFFFFF;border:1px solid #8C8C8C;display:block;max-width:none"
INK = "color:var(--jp-content-font-color1, inherit)"


@dataclass(frozen=True, slots=True)
class Spot:
    """A box of a picture and the sentence that hovering shows; inches from the upper left."""

    x: float
    y: float
    wide: float
    high: float
    text: str

    def pixels(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom in CSS pixels."""
        ends = (self.x, self.y, self.x + self.wide, self.y + self.high)
        left, top, right, bottom = (round(CSS_PX_PER_IN * end) for end in ends)
        return left, top, right, bottom


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """What a move of a control draws. ``text``: the sentence below the picture; ``table``: the
    numbers behind it, None for the values of the controls; ``spots``: hover boxes."""

    figure: Figure
    text: str = ""
    table: pd.DataFrame | None = None
    spots: Sequence[Spot] = ()


Draw = Callable[..., Figure | tuple[Figure, str] | Drawing]


class Panel:
    """Controls above a picture above a sentence. Not a widget itself: ``widget`` is.

    Args:
        draw: called with one keyword a control; returns a figure, a figure and a sentence, or a
            Drawing. A KvlabError that it raises is shown as the sentence, and the last picture
            stays. With an argument ``width`` ("single", "double") it can be exported for one
            column or two.
        name: stable name of exported files, a slug.
        steps: a slider that gets buttons for one step back and one forward.
        bounds: called as ``draw``; of sliders whose ends depend on the others, (low, high) by name.
        definition: what an exported figure says below it; by default the sentence.
        controls: by name, see the head of this module.

    Errors: KvlabError for a control that no shorthand describes, or a name that is no slug.
    """

    def __init__(
        self,
        draw: Draw,
        *,
        name: str = "panel",
        steps: str | None = None,
        bounds: Callable[..., Mapping[str, tuple[int, int]]] | None = None,
        definition: str | None = None,
        **controls: object,
    ) -> None:
        use_style()
        self.name = require_slug(name, "figure")
        self._draw, self._bounds, self._definition = draw, bounds, definition
        asked = signature(draw).parameters
        starts = {key: asked[key].default if key in asked else Parameter.empty for key in controls}
        self._controls = {key: control(key, spec, starts[key]) for key, spec in controls.items()}
        self._drawing: Drawing | None = None
        self._drawn: dict[str, object] = {}  # values of the picture, where the controls are refused
        self._quiet = False
        self.text = ""
        self._image, self._note, self._below = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._said = widgets.HTML()
        self.widget = self._build(steps, "width" in asked)
        self._bind()
        for made in self._controls.values():
            made.observe(self._moved, names="value")
        self._redraw()

    @property
    def values(self) -> dict[str, object]:
        """The value of each control, by name."""
        return {name: made.value for name, made in self._controls.items()}

    def control(self, name: str) -> widgets.Widget:
        """The widget of a control. Errors: KvlabError for one that is not there."""
        if name not in self._controls:
            raise KvlabError(f"a control is one of {', '.join(self._controls)}: got {name!r}")
        return self._controls[name]

    def set(self, **values: object) -> "Panel":
        """Move controls as a user would, and draw once. All values are taken, or none.

        Errors: KvlabError for a control that is not there, or a value that it cannot take.
        """
        before = self.values
        for name in values:
            self.control(name)
        self._quiet = True
        try:
            self._move(values)
        except KvlabError:
            self._move(before)
            raise
        finally:
            self._quiet = False
        self._redraw()
        return self

    def drawing(self) -> Drawing:
        """The drawing of the current values. Raises what ``draw`` raises."""
        return drawn(self._draw, self.values)

    def table(self) -> pd.DataFrame:
        """The numbers behind the picture; the values of the controls where there are no others."""
        table = self.drawing().table
        return pd.DataFrame([self.values]) if table is None else table

    def export(self, folder: Path | str | None = None, width: str | None = None) -> list[Path]:
        """Save the picture with its caption, its numbers and its origin; returns the files.

        Args:
            folder: by default where the figures of notebooks go, see ``output_folder``.
            width: "single" or "double", for one column of a paper or two; None: as drawn.

        Errors: KvlabError for a width that ``draw`` cannot give; what ``draw`` raises; OSError.
        """
        drawing, origin = published(self._draw, self.values, self.name, self._definition, width)
        saved = save_figure(drawing.figure, self.name, self.table(), origin, folder)
        return [saved.path(ending) for ending in ENDINGS]

    def __repr__(self) -> str:
        told = [self._alt(), self.text]
        if self._drawing is not None and self._drawing.table is not None:
            told.append(self._drawing.table.to_string(index=False, max_rows=TEXT_ROWS))
        return "\n".join(told).strip()

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
        data: dict[str, object] = dict(self.widget._repr_mimebundle_() or {})
        data["text/plain"] = repr(self)
        if self._drawing is None:
            return data | {"text/html": self._note.value}, {}
        # That of the screen in few colors, a third of it, since it is kept in a file.
        png = small_png(self._drawing.figure, SCREEN_DPI)
        still = Picture.of(self._drawing.figure, png, f"{self._alt()}\n{self.text}".strip())
        picture, size = still._repr_mimebundle_()
        page = picture_html(still, self._drawing.spots) + sentence_html(self.text)
        if self._drawing.table is not None:
            rows = table_html(self._drawing.table)
            page += f"<details><summary>Table</summary>{rows}</details>"
        return data | {"image/png": picture["image/png"], "text/html": page}, size

    def _alt(self) -> str:
        shown = self._drawn or self.values
        settings = ", ".join(f"{label(name)} = {value}" for name, value in shown.items())
        title = figure_title(self._drawing.figure) if self._drawing else "no picture"
        return f"{title or 'figure without title'} [{settings}]"

    def _build(self, steps: str | None, widths: bool) -> widgets.VBox:
        """The controls, ``steps`` with its buttons, above picture, sentence and tools."""
        row: list[widgets.Widget] = []
        for name, made in self._controls.items():
            row += [made, *(step_buttons(made) if name == steps else [])]
        export = button("Export", "download", "export", f"Save the figure {self.name}: "
                        f"{', '.join(ending.upper() for ending in ENDINGS)}")  # fmt: skip
        self._columns = widgets.Dropdown(
            options={"two columns": "double", "one column": "single"} if widths else {"": None},
            description="as wide as",
            tooltip="Width of the exported figure, in columns of a paper",
            layout=widgets.Layout(width="auto"),
        )
        export.on_click(self._export_clicked)
        self._shown = widgets.ToggleButton(
            description="Table", icon="table", tooltip="Show the numbers behind the picture"
        )
        self._shown.add_class("kvlab-table")
        self._shown.observe(lambda _: self._show_table(), names="value")
        tools = [self._shown, export, *([self._columns] if widths else []), self._said]
        lines = [widgets.HBox(line, layout={"flex_flow": "row wrap"}) for line in (row, tools)]
        made = widgets.VBox([lines[0], self._image, self._note, lines[1], self._below])
        made.add_class("kvlab-panel")
        made.add_class(f"kvlab-{self.name}")
        return made

    def _export_clicked(self, _: object) -> None:
        try:
            paths = self.export(width=self._columns.value)
        except (KvlabError, OSError) as error:
            told = f"Not saved: {html.escape(str(error))}"
            self._said.value = f'<span role="alert">{told}</span>'
            return
        place = f"{os.path.relpath(paths[0].parent)}/{self.name}.{{{','.join(ENDINGS)}}}"
        self._said.value = f'<span role="status">Saved {html.escape(place)}</span>'

    def _show_table(self) -> None:
        table = None if self._drawing is None else self._drawing.table
        self._below.value = "" if table is None or not self._shown.value else table_html(table)

    def _moved(self, change: object) -> None:
        if self._quiet:
            return
        self._quiet = True
        try:
            self._bind()
        finally:
            self._quiet = False
        self._redraw()

    def _move(self, values: Mapping[str, object]) -> None:
        """Move controls; those whose ends depend on the others come last."""
        late = [name for name in values if name in self._ends()]
        for name in (name for name in values if name not in late):
            move(name, self._controls[name], values[name])
        self._bind()
        for name in late:
            move(name, self._controls[name], values[name])

    def _ends(self) -> Mapping[str, tuple[int, int]]:
        return {} if self._bounds is None else self._bounds(**self.values)

    def _bind(self) -> None:
        """Let sliders run as far as the others allow; a value outside is pulled in."""
        for name, (low, high) in self._ends().items():
            slider = self._controls[name]
            # The wider range first: a slider refuses a minimum above its maximum.
            slider.max = max(slider.max, low, high)
            slider.min = low
            slider.max = high

    def _redraw(self) -> None:
        # A full collection of a process that has loaded torch takes longer than the drawing.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._draw_now()
        finally:
            if collecting:
                gc.enable()

    def _draw_now(self) -> None:
        values = self.values
        try:
            drawing = drawn(self._draw, values)
            png = png_bytes(drawing.figure, SCREEN_DPI)
            # The sentence follows the picture, so the title is enough.
            alt = figure_title(drawing.figure) or drawing.text
            picture = Picture.of(drawing.figure, png, alt)
            shown = picture_html(picture, drawing.spots)
        except Exception as error:
            refused = isinstance(error, KvlabError)
            told = str(error) if refused else f"{type(error).__name__}: {error}"
            self.text = f"Not drawn: {told}"
            self._note.value = sentence_html("", told)
            if refused:
                return
            raise  # a bug; a kernel hides it in its log, so the sentence is said before
        self._drawn, self._drawing, self.text = values, drawing, drawing.text
        self._image.value = shown
        self._note.value = sentence_html(self.text)
        self._show_table()


def drawn(draw: Draw, values: Mapping[str, object]) -> Drawing:
    """The drawing of ``draw``, whatever of it ``draw`` gives."""
    result = draw(**values)
    if isinstance(result, Drawing):
        return result
    return Drawing(*result) if isinstance(result, tuple) else Drawing(result)


def published(
    draw: Draw,
    values: Mapping[str, object],
    command: str,
    definition: str | None = None,
    width: str | None = None,
) -> tuple[Drawing, Origin]:
    """The drawing of ``values`` with a caption, and its origin.

    Args:
        command: of the origin: what makes the figure again.
        definition: of the caption; None takes the sentence of ``draw``.
        width: "single" or "double" (columns of a paper), None for the figure's own.

    Errors: KvlabError for a width that ``draw`` cannot give; what ``draw`` raises.
    """
    asked = dict(values)
    if width is not None:
        width_in(width)
        if "width" not in signature(draw).parameters:
            raise KvlabError(
                f"a figure is exported as wide as it is drawn: got width={width!r} for one whose "
                f"width does not change; leave width out, or give draw an argument width"
            )
        asked["width"] = width
    drawing = drawn(draw, asked)
    origin = collect_origin(command, None, values, "cpu")
    if not figure_definition(drawing.figure):
        caption(drawing.figure, definition or drawing.text or f"Drawn by {command}", origin)
    return drawing, origin


def twin(draw: Callable[P, Drawing], name: str, definition: str) -> Callable[P, Figure]:
    """The static twin of a panel: ``draw``, with the same arguments, as a figure with its caption.

    ``width`` is one of its arguments. Errors: what ``draw`` raises.
    """

    @wraps(draw)
    def made(*args: P.args, **kwargs: P.kwargs) -> Figure:
        asked = signature(draw).bind(*args, **kwargs)
        asked.apply_defaults()
        values: dict[str, Any] = dict(asked.arguments)
        width = values.pop("width")
        return published(draw, values, name, definition, width)[0].figure

    return made


def label(name: str) -> str:
    """The name of a control as a reader sees it: "dcp_size" -> "dcp size"."""
    return name.replace("_", " ")


def control(name: str, spec: object, start: object = Parameter.empty) -> widgets.Widget:
    """The widget for ``spec``, with a label, that reports a value when the user lets go.

    Errors: KvlabError for what no shorthand describes, and for a widget without a value.
    """
    tooltip = None
    if isinstance(spec, tuple) and len(spec) == 2:
        spec, tooltip = spec
    made = spec if isinstance(spec, widgets.Widget) else _from_shorthand(name, spec)
    if not made.has_trait("value"):
        raise KvlabError(f"a control has a value: {name} is a {type(made).__name__}")
    if start is not Parameter.empty:
        made.value = start
    if tooltip is not None:
        made.tooltip = tooltip
    if not made.description:
        made.description = label(name)
    if made.has_trait("continuous_update"):
        made.continuous_update = False
    if made.has_trait("style") and hasattr(made.style, "description_width"):
        made.style.description_width = "initial"
    made.add_class(f"kvlab-control-{name.replace('_', '-')}")
    return made


def _from_shorthand(name: str, spec: object) -> widgets.Widget:
    if isinstance(spec, bool):
        return widgets.Checkbox(value=spec, indent=False)
    if isinstance(spec, range) and spec:
        return widgets.IntSlider(min=spec[0], max=spec[-1], step=spec.step, value=spec[0])
    if isinstance(spec, dict) and spec:
        return widgets.Dropdown(options=list(spec.items()))
    if isinstance(spec, list) and spec:
        slides = len(spec) > 1 and all(isinstance(one, int | float) for one in spec)
        return (widgets.SelectionSlider if slides else widgets.Dropdown)(options=spec)
    raise KvlabError(
        f"a control is a bool, a range, a list, a dict or a widget: {name} is {spec!r}"
    )


def move(name: str, moved: widgets.Widget, value: object) -> None:
    """Set a control as a user would. Errors: KvlabError for a value that it cannot take."""
    try:
        moved.value = value
        taken = moved.value == value  # sliders pull a value into their range without a word
    except Exception:  # TraitError and what a widget's own validators raise
        taken = False
    if not taken:
        takes = f"values like {moved.value!r}"
        if moved.has_trait("options"):
            takes = "one of " + ", ".join(str(name) for name in moved._options_labels)
        elif moved.has_trait("min"):
            takes = f"{moved.min} to {moved.max}"
        raise KvlabError(f"control {name} takes {takes}: got {value!r}; the panel is unchanged")


def button(words: str, icon: str, name: str, tooltip: str) -> widgets.Button:
    """A button that a test finds by its class ``kvlab-<name>``."""
    made = widgets.Button(
        description=words, icon=icon, tooltip=tooltip, layout=widgets.Layout(width="auto")
    )
    made.add_class(f"kvlab-{name}")
    return made


def step_buttons(slider: widgets.Widget) -> list[widgets.Widget]:
    """Buttons that move ``slider`` by its step, back and forward, and stop at its ends."""

    def step(words: str, icon: str, by: int) -> widgets.Button:
        made = button(words, icon, words.lower(), f"One step {words.lower()}")

        def press(_: object) -> None:
            slider.value = min(slider.max, max(slider.min, slider.value + by * slider.step))

        made.on_click(press)
        return made

    return [step("Back", "step-backward", -1), step("Next", "step-forward", 1)]


def picture_html(picture: Picture, spots: Iterable[Spot] = ()) -> str:
    """The picture at its size, with the boxes of ``spots`` over it."""
    areas = "".join(map(_area, spots))
    # Named after what is in it: the same in every run, another for other boxes on the same page.
    name = f"kvlab-{hashlib.sha256(picture.png + areas.encode()).hexdigest()[:12]}"
    use = f' usemap="#{name}"' if areas else ""
    made = f'<map name="{name}">{areas}</map>' if areas else ""
    data = base64.b64encode(picture.png).decode()
    return (
        f'<div style="overflow-x:auto"><img src="data:image/png;base64,{data}" decoding="sync" '
        f'width="{picture.width}" height="{picture.height}" alt="{html.escape(picture.alt)}"{use} '
        f'style="{GROUND}">{made}</div>'
    )


def _area(spot: Spot) -> str:
    coordinates = ",".join(map(str, spot.pixels()))
    told = html.escape(spot.text)
    return f'<area shape="rect" coords="{coordinates}" alt="{told}" title="{told}">'


def sentence_html(text: str, error: str | None = None) -> str:
    """What stands below a picture: ``text``, or the ``error`` that left the picture as it was."""
    if error is not None:
        return f'<p role="alert" style="{INK}"><b>Not drawn:</b> {html.escape(error)}</p>'
    return f'<p style="{INK}">{html.escape(text)}</p>' if text else ""


def table_html(table: pd.DataFrame) -> str:
    """The first rows, and how many there are if that is not all."""
    shown = table.head(MOST_ROWS).to_html(index=False, border=0, na_rep="")
    more = f"<p>The first {MOST_ROWS} of {len(table)} rows.</p>" if len(table) > MOST_ROWS else ""
    return f'<div style="overflow-x:auto;{INK}">{shown}{more}</div>'

"""One picture with controls, which stays a picture where no kernel runs.

``Panel(draw, name="counts", definition="...", dcp_size=[1, 2, 4, 8], start=range(0, 32))`` calls
``draw(dcp_size=..., start=...)`` whenever a control moves and shows the ``Drawing`` that it
returns. Controls:

    True                     tick box
    range(1, 9)              slider over 1 .. 8
    [1, 2, 4, 8]             slider that stops at these numbers
    ["fixed", "before"]      menu, also for a dict of label to value
    (shorthand, "tooltip")   the same, with words for those who hover over it
    a widget                 as it is

A control starts at the default that ``draw`` has for it, else at its first value.

An ``Output`` widget flickers and stays empty in static views, pyplot shows twice and leaks, an
``Image`` widget has no words for the blind. So an ``<img>`` of fixed size holds a PNG, with an
image map whose boxes the browser itself explains on hovering, and the cell's output holds the same
PNG beside the widget, for readers without a kernel.
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
    figure_title,
    png_bytes,
    save_figure,
    small_png,
)
from kvlab.viz.style import caption, use_style

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
    """What a move of a control draws: a figure, the sentence below it, the numbers in it, and
    hover boxes."""

    figure: Figure
    text: str
    table: pd.DataFrame
    spots: Sequence[Spot] = ()


class Panel:
    """Controls above a picture above a sentence. Not a widget itself: ``widget`` is.

    Args:
        draw: called with one keyword a control, and for an export with ``width`` ("single",
            "double": columns of a paper). A KvlabError that it raises is shown as the sentence,
            and the last picture stays.
        name: stable name of exported files, a slug.
        definition: what an exported figure says below it.
        steps: a slider that gets buttons for one step back and one forward.
        bounds: called as ``draw``; of sliders whose ends depend on the others, (low, high) by name.
        controls: by name, see the head of this module.

    Errors: KvlabError for a control that no shorthand describes, or a name that is no slug.
    """

    def __init__(
        self,
        draw: Callable[..., Drawing],
        *,
        name: str,
        definition: str,
        steps: str | None = None,
        bounds: Callable[..., Mapping[str, tuple[int, int]]] = lambda **_: {},
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
        self.widget = self._build(steps)
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
        return self._draw(**self.values)

    def table(self) -> pd.DataFrame:
        """The numbers behind the picture."""
        return self.drawing().table

    def export(self, folder: Path | str | None = None, width: str = "double") -> list[Path]:
        """Save the picture with its caption, its numbers and its origin; returns the files.

        Args:
            folder: by default where the figures of notebooks go, see ``output_folder``.
            width: "single" or "double", for one column of a paper or two.

        Errors: what ``draw`` raises; OSError.
        """
        drawing, origin = _published(self._draw, self.values, width, self.name, self._definition)
        saved = save_figure(drawing.figure, self.name, drawing.table, origin, folder)
        return [saved.path(ending) for ending in ENDINGS]

    def __repr__(self) -> str:
        told = [self._alt(), self.text]
        if self._drawing is not None:
            told.append(self._drawing.table.to_string(index=False, max_rows=TEXT_ROWS))
        return "\n".join(told)

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
        data: dict[str, object] = dict(self.widget._repr_mimebundle_() or {})
        data["text/plain"] = repr(self)
        if self._drawing is None:
            return data | {"text/html": self._note.value}, {}
        # That of the screen in few colors, a third of it, since it is kept in a file.
        png = small_png(self._drawing.figure, SCREEN_DPI)
        still = Picture(self._drawing.figure, png, f"{self._alt()}\n{self.text}")
        picture, size = still._repr_mimebundle_()  # type: ignore[no-untyped-call]
        page = picture_html(still, self._drawing.spots) + sentence_html(self.text)
        page += f"<details><summary>Table</summary>{table_html(self._drawing.table)}</details>"
        return data | {"image/png": picture["image/png"], "text/html": page}, size

    def _alt(self) -> str:
        shown = self._drawn or self.values
        settings = ", ".join(f"{name.replace('_', ' ')} = {v}" for name, v in shown.items())
        title = figure_title(self._drawing.figure) if self._drawing else "no picture"
        return f"{title} [{settings}]"

    def _build(self, steps: str | None) -> widgets.VBox:
        """The controls, ``steps`` with its buttons, above picture, sentence and tools."""
        row: list[widgets.Widget] = []
        for name, made in self._controls.items():
            row += [made, *(step_buttons(made) if name == steps else [])]
        export = button("Export", "download", "export", f"Save the figure {self.name}: "
                        f"{', '.join(ending.upper() for ending in ENDINGS)}")  # fmt: skip
        export.on_click(self._export_clicked)
        self._columns = widgets.Dropdown(
            options={"two columns": "double", "one column": "single"},
            description="as wide as",
            tooltip="Width of the exported figure, in columns of a paper",
            layout=widgets.Layout(width="auto"),
        )
        self._shown = widgets.ToggleButton(
            description="Table", icon="table", tooltip="Show the numbers behind the picture"
        )
        self._shown.add_class("kvlab-table")
        self._shown.observe(lambda _: self._show_table(), names="value")
        tools = [self._shown, export, self._columns, self._said]
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
        drawing = self._drawing if self._shown.value else None
        self._below.value = "" if drawing is None else table_html(drawing.table)

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
        late = [name for name in values if name in self._bounds(**self.values)]
        for name in (name for name in values if name not in late):
            move(name, self._controls[name], values[name])
        self._bind()
        for name in late:
            move(name, self._controls[name], values[name])

    def _bind(self) -> None:
        """Let sliders run as far as the others allow; a value outside is pulled in."""
        for name, (low, high) in self._bounds(**self.values).items():
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
        try:
            drawing = self.drawing()
        except Exception as error:
            refused = isinstance(error, KvlabError)
            told = str(error) if refused else f"{type(error).__name__}: {error}"
            self.text = f"Not drawn: {told}"
            self._note.value = sentence_html(told, refused=True)
            if refused:
                return
            raise  # a bug; a kernel hides it in its log, so the sentence is said before
        # The sentence follows the picture, so the title is enough.
        png = png_bytes(drawing.figure, SCREEN_DPI)
        picture = Picture(drawing.figure, png, figure_title(drawing.figure))
        self._drawn, self._drawing, self.text = self.values, drawing, drawing.text
        self._image.value = picture_html(picture, drawing.spots)
        self._note.value = sentence_html(self.text)
        self._show_table()


def _published(
    draw: Callable[..., Drawing],
    values: Mapping[str, object],
    width: str,
    command: str,
    definition: str,
) -> tuple[Drawing, Origin]:
    """The drawing of ``values`` with a caption, and its origin, made again by ``command``."""
    drawing = draw(**values, width=width)
    origin = collect_origin(command, None, values, "cpu")
    caption(drawing.figure, definition, origin)
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
        return _published(draw, values, width, name, definition)[0].figure

    return made


def control(name: str, spec: object, start: object) -> widgets.Widget:
    """The widget for ``spec``, with a label, that reports a value when the user lets go.

    Errors: KvlabError for what no shorthand describes.
    """
    tooltip = None
    if isinstance(spec, tuple) and len(spec) == 2:
        spec, tooltip = spec
    made = spec if isinstance(spec, widgets.Widget) else _from_shorthand(name, spec)
    if start is not Parameter.empty:
        made.value = start
    if tooltip is not None:
        made.tooltip = tooltip
    if not made.description:
        made.description = name.replace("_", " ")
    if made.has_trait("continuous_update"):
        made.continuous_update = False
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
    name = f"kvlab-{hashlib.sha256(picture.data + areas.encode()).hexdigest()[:12]}"
    use = f' usemap="#{name}"' if areas else ""
    made = f'<map name="{name}">{areas}</map>' if areas else ""
    data = base64.b64encode(picture.data).decode()
    return (
        f'<div style="overflow-x:auto"><img src="data:image/png;base64,{data}" decoding="sync" '
        f'width="{picture.width}" height="{picture.height}" alt="{html.escape(picture.alt)}"{use} '
        f'style="{GROUND}">{made}</div>'
    )


def _area(spot: Spot) -> str:
    coordinates = ",".join(map(str, spot.pixels()))
    told = html.escape(spot.text)
    return f'<area shape="rect" coords="{coordinates}" alt="{told}" title="{told}">'


def sentence_html(text: str, refused: bool = False) -> str:
    """What stands below a picture; ``refused``: why the picture is as it was."""
    role, head = (' role="alert"', "<b>Not drawn:</b> ") if refused else ("", "")
    return f'<p{role} style="{INK}">{head}{html.escape(text)}</p>'


def table_html(table: pd.DataFrame) -> str:
    """The first rows, and how many there are if that is not all."""
    shown = table.head(MOST_ROWS).to_html(index=False, border=0, na_rep="")
    more = f"<p>The first {MOST_ROWS} of {len(table)} rows.</p>" if len(table) > MOST_ROWS else ""
    return f'<div style="overflow-x:auto;{INK}">{shown}{more}</div>'

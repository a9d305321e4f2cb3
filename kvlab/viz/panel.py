"""One picture with sliders, which stays a picture where no kernel runs.

``Panel(draw, dcp_size=[1, 2, 4, 8], start=range(0, 32))`` calls ``draw(dcp_size=..., start=...)``
whenever a control moves and shows the figure that it returns. ``draw`` may also return a figure
and a sentence; the sentence stands below the picture.

Shorthands for controls, and the value each starts with:

    True                     tick box
    range(1, 9)              slider over 1 .. 8, starts at 1
    (1, 8) or (1, 8, 2)      slider from 1 to 8 including 8, in steps of 1 or 2
    (0.0, 1.0)               slider over numbers, in a hundred steps
    [1, 2, 4, 8]             slider that stops at these numbers
    ["fixed", "before"]      menu, also for a dict of label to value
    a widget                 as it is, if it has a value

One pattern, because the others fail somewhere: an ``Output`` widget flickers and stays empty in
static views, pyplot shows twice and leaks. Here a PNG goes into an ``Image`` of fixed size, and
the cell's output holds the same PNG beside the widget, for readers without a kernel.
"""

import html
import io
import itertools
from collections.abc import Callable, Mapping, Sequence

import ipywidgets as widgets
from matplotlib.figure import Figure
from matplotlib.image import imread

from kvlab.errors import KvlabError
from kvlab.viz.save import SCREEN_DPI, Picture, png_bytes, show
from kvlab.viz.style import WIDTH_IN, figure, use_style, wrapped

Draw = Callable[..., Figure | tuple[Figure, str]]
TITLE_IN, GAP_IN = 0.3, 0.125
OUT_OF_SIGHT = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"


class Panel:
    """Controls above a picture above a sentence. Not a widget itself: ``widget`` is.

    Args:
        draw: called with one keyword a control; returns a figure, or a figure and a sentence. A
            KvlabError that it raises is shown as the sentence, and the last picture stays.
        controls: see the shorthands above.

    Errors: KvlabError for no controls, or one that no shorthand describes.
    """

    def __init__(self, draw: Draw, **controls: object) -> None:
        if not controls:
            raise KvlabError(
                "a panel has at least one control: got none; pass e.g. dcp_size=[1, 2, 4], or "
                "show the figure without a panel"
            )
        use_style()
        self._draw = draw
        self._controls = {name: _control(name, spec) for name, spec in controls.items()}
        self._picture: Picture | None = None
        self._quiet = False
        self.text = ""
        self._image = widgets.Image(format="png")
        self._note = widgets.HTML()
        for control in self._controls.values():
            control.observe(self._moved, names="value")
        row = widgets.HBox(
            list(self._controls.values()), layout=widgets.Layout(flex_flow="row wrap")
        )
        self.widget = widgets.VBox([row, self._image, self._note])
        self._redraw()

    @property
    def values(self) -> dict[str, object]:
        """The value of each control, by name."""
        return {name: control.value for name, control in self._controls.items()}

    def set(self, **values: object) -> "Panel":
        """Move controls as a user would, and draw once. All values are taken, or none.

        Errors: KvlabError for a control that is not there, or a value that it cannot take.
        """
        before = self.values
        self._quiet = True
        try:
            for name, value in values.items():
                self._move(name, value)
        except KvlabError:
            for name, value in before.items():
                self._controls[name].value = value
            raise
        finally:
            self._quiet = False
        self._redraw()
        return self

    def figure(self) -> Figure:
        """The figure of the current values, to be saved. Raises what ``draw`` raises."""
        return self._drawn(self.values)[0]

    def atlas(self, columns: int | None = None, **values: Sequence[object]) -> Figure:
        """Small multiples for readers without a kernel: one picture a value, in one figure.

        Args:
            columns: pictures a row; by default as many as fit the width of a page.
            values: for one or more controls the values to show; all combinations are drawn, and
                the other controls keep their current value.

        Errors: KvlabError for unknown controls, no values, and whatever ``draw`` raises.
        """
        for name in values:
            self._require(name)
        if not values or not all(values.values()):
            raise KvlabError(
                "an atlas names the values to show: pass e.g. "
                f"{next(iter(self._controls))}=[...] with at least one value; got {dict(values)}"
            )
        tiles = []
        for combination in itertools.product(*values.values()):
            chosen = dict(zip(values, combination, strict=True))
            title = ", ".join(f"{_label(name)} = {value}" for name, value in chosen.items())
            tiles.append((title, self._drawn(self.values | chosen)[0]))
        return _grid(tiles, columns)

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
        data: dict[str, object] = dict(self.widget._repr_mimebundle_() or {})
        still, size = (self._picture or _notice(self.text))._repr_mimebundle_()
        settings = ", ".join(f"{_label(name)} = {value}" for name, value in self.values.items())
        still["text/plain"] = f"{still['text/plain']} [{settings}]\n{self.text}".strip()
        size["image/png"]["alt"] = still["text/plain"]
        return data | still, size

    def _drawn(self, values: Mapping[str, object]) -> tuple[Figure, str]:
        result = self._draw(**values)
        fig, text = result if isinstance(result, tuple) else (result, "")
        if not isinstance(fig, Figure):
            raise TypeError(f"draw returns a Figure, or a Figure and a str: got {type(fig)}")
        return fig, text

    def _moved(self, change: object) -> None:
        if not self._quiet:
            self._redraw()

    def _redraw(self) -> None:
        try:
            fig, self.text = self._drawn(self.values)
        except KvlabError as error:
            self.text = f"Not drawn: {error}"
            self._note.value = f'<p role="alert"><b>Not drawn:</b> {html.escape(str(error))}</p>'
            if self._picture is None:
                self._image.layout.display = "none"
            return
        self._picture = picture = show(fig)
        self._image.layout.display = None
        self._image.width, self._image.height = str(picture.width), str(picture.height)
        self._image.value = picture.png
        # Image has no alt text, and the tooltip that could stand in for it makes JupyterLab's
        # image view fail; so the sentence carries it for screen readers, out of sight.
        shown = f"<p>{html.escape(self.text)}</p>" if self.text else ""
        self._note.value = f'{shown}<p style="{OUT_OF_SIGHT}">{html.escape(picture.alt)}</p>'

    def _require(self, name: str) -> None:
        if name not in self._controls:
            raise KvlabError(
                f"a control is one of {', '.join(self._controls)}: got {name!r}; controls are "
                "named when the panel is made"
            )

    def _move(self, name: str, value: object) -> None:
        self._require(name)
        control = self._controls[name]
        try:
            control.value = value
            taken = control.value == value  # sliders pull a value into their range without a word
        except Exception:  # TraitError and what a widget's own validators raise
            taken = False
        if not taken:
            raise KvlabError(
                f"control {name} takes {_range(control)}: got {value!r}; the panel is unchanged"
            )


def _label(name: str) -> str:
    return name.replace("_", " ")


def _range(control: widgets.Widget) -> str:
    """The values that ``control`` takes, in words."""
    if control.has_trait("options"):
        return "one of " + ", ".join(str(label) for label in control._options_labels)
    if control.has_trait("min"):
        return f"{control.min} to {control.max}"
    return f"values like {control.value!r}"


def _control(name: str, spec: object) -> widgets.Widget:
    """The widget for ``spec``, with a label, that reports a value when the user lets go."""
    control = spec if isinstance(spec, widgets.Widget) else _from_shorthand(name, spec)
    if not control.has_trait("value"):
        raise KvlabError(
            f"a control has a value: {name} is a {type(control).__name__}; use a slider, a menu or "
            "a tick box"
        )
    if control.has_trait("description") and not control.description:
        control.description = _label(name)
    if control.has_trait("continuous_update"):
        control.continuous_update = False
    if control.has_trait("style") and hasattr(control.style, "description_width"):
        control.style.description_width = "initial"
    return control


def _from_shorthand(name: str, spec: object) -> widgets.Widget:
    if isinstance(spec, bool):
        return widgets.Checkbox(value=spec, indent=False)
    if isinstance(spec, range) and spec and spec.step > 0:
        return widgets.IntSlider(min=spec[0], max=spec[-1], step=spec.step, value=spec[0])
    if isinstance(spec, tuple) and len(spec) in (2, 3) and all(map(_is_number, spec)):
        low, high, *rest = spec
        if low < high and all(step > 0 for step in rest):
            if all(isinstance(number, int) for number in spec):
                return widgets.IntSlider(min=low, max=high, step=(rest or [1])[0], value=low)
            step = (rest or [(high - low) / 100])[0]
            return widgets.FloatSlider(min=low, max=high, step=step, value=low)
    if isinstance(spec, dict) and spec:
        return widgets.Dropdown(options=list(spec.items()))
    if isinstance(spec, list) and spec:
        slides = len(spec) > 1 and all(map(_is_number, spec))
        return (widgets.SelectionSlider if slides else widgets.Dropdown)(options=spec)
    raise KvlabError(
        f"a control is a bool, a range, (low, high) or (low, high, step) with low < high, a list, "
        f"a dict or a widget: {name} is {spec!r}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _notice(text: str) -> Picture:
    """A picture of a sentence, for a panel that could not draw anything yet."""
    lines = wrapped(text, 9, WIDTH_IN["double"] * 72 - 20)
    fig = figure("double", height=0.3 + 0.2 * len(lines))
    fig.text(0.01, 0.5, "\n".join(lines), fontsize=9, va="center", parse_math=False)
    return show(fig, alt="no picture")


def _grid(tiles: Sequence[tuple[str, Figure]], columns: int | None) -> Figure:
    """The figures of ``tiles`` at their own size, each under its title, in one figure."""
    wide = max(fig.get_figwidth() for _, fig in tiles)
    high = max(fig.get_figheight() for _, fig in tiles) + TITLE_IN
    across = columns or max(1, int(WIDTH_IN["double"] / wide + 0.1))
    across = min(across, len(tiles))
    down = -(-len(tiles) // across)
    page = Figure(figsize=(wide * across + GAP_IN * (across - 1), high * down))
    for at, (title, fig) in enumerate(tiles):
        left = (at % across) * (wide + GAP_IN)
        top = high * (down - at // across) - TITLE_IN
        width, height = fig.get_size_inches()
        box = (left / page.get_figwidth(), (top - height) / page.get_figheight())
        ax = page.add_axes((*box, width / page.get_figwidth(), height / page.get_figheight()))
        ax.imshow(imread(io.BytesIO(png_bytes(fig, SCREEN_DPI[0]))), aspect="auto")
        ax.set_axis_off()
        ax.set_title(title, pad=4)
    return page

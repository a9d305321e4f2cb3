"""One picture with controls, which stays a picture where no kernel runs.

``Panel(draw, dcp_size=[1, 2, 4, 8], start=range(0, 32))`` calls ``draw(dcp_size=..., start=...)``
whenever a control moves and shows the figure that it returns. ``draw`` may also return a figure
and a sentence; the sentence stands below the picture. ``kvlab.viz.controls`` has the shorthands
for controls.

One pattern, because the others fail somewhere: an ``Output`` widget flickers and stays empty in
static views, pyplot shows twice and leaks, an ``Image`` widget has no words for who cannot see.
Here an ``<img>`` of fixed size holds a PNG, and the cell's output holds the same PNG beside the
widget, for readers without a kernel.
"""

import gc
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from kvlab.errors import KvlabError
from kvlab.lab.findings import require_slug
from kvlab.viz import controls
from kvlab.viz.atlas import grid
from kvlab.viz.exported import Draw, drawn, publishable, slug_of, takes_width, target
from kvlab.viz.panel_html import Spot, notice, picture_html, sentence_html, table_html
from kvlab.viz.panel_tools import ENDINGS, WRAP, Tools, step_buttons
from kvlab.viz.save import (
    CSS_PX_PER_IN,
    SCREEN_DPI,
    Picture,
    figure_title,
    png_bytes,
    save_figure,
)
from kvlab.viz.small import small
from kvlab.viz.style import use_style

TEXT_ROWS = 20


class Panel:
    """Controls above a picture above a sentence. Not a widget itself: ``widget`` is.

    Args:
        draw: called with one keyword a control; returns a figure, or a figure and a sentence. A
            KvlabError that it raises is shown as the sentence, and the last picture stays. With an
            argument ``width`` ("single", "double") it can be exported for one column or two.
        name: stable name of exported files, a slug; by default made of that of ``draw``.
        table: the numbers behind the picture, called as ``draw``; a button shows them, an export
            saves them. None: the values of the controls.
        hover: boxes of the picture with a sentence each, called as ``draw``.
        steps: a slider that gets buttons for one step back and one forward.
        bounds: called as ``draw``; of sliders whose ends depend on the others, (low, high) by name.
        definition: what an exported figure says below it; by default the sentence.
        controls: see ``kvlab.viz.controls``.

    Errors: KvlabError for no controls, one that no shorthand describes, ``steps`` that is none, or
    a name that is no slug.
    """

    def __init__(
        self,
        draw: Draw,
        *,
        name: str | None = None,
        table: Callable[..., pd.DataFrame] | None = None,
        hover: Callable[..., Iterable[Spot]] | None = None,
        steps: str | None = None,
        bounds: Callable[..., Mapping[str, tuple[int, int]]] | None = None,
        definition: str | None = None,
        **controls_: object,
    ) -> None:
        if not controls_:
            raise KvlabError(
                "a panel has at least one control: got none; pass e.g. dcp_size=[1, 2, 4], or "
                "show the figure without a panel"
            )
        use_style()
        self.name = require_slug(slug_of(draw) if name is None else name, "figure")
        self._draw, self._table, self._hover = draw, table, hover
        self._bounds, self._definition = bounds, definition
        self._controls = {key: controls.control(key, spec) for key, spec in controls_.items()}
        self._picture: Picture | None = None
        self._figure: Figure | None = None
        self._drawn: dict[str, object] = {}  # values of the picture, where the controls are refused
        self._quiet = False
        self.text = ""
        self._image, self._note = widgets.HTML(), widgets.HTML()
        self._tools = Tools(
            self.name,
            lambda width: self.export(width=width),
            (lambda: table(**(self._drawn or self.values))) if table is not None else None,
            takes_width(draw),
        )
        self.widget = self._build(steps)
        self._bind()
        for control in self._controls.values():
            control.observe(self._moved, names="value")
        self._redraw()

    @property
    def values(self) -> dict[str, object]:
        """The value of each control, by name."""
        return {name: control.value for name, control in self._controls.items()}

    def control(self, name: str) -> widgets.Widget:
        """The widget of a control. Errors: KvlabError for one that is not there."""
        self._require(name)
        return self._controls[name]

    def set(self, **values: object) -> "Panel":
        """Move controls as a user would, and draw once. All values are taken, or none.

        Errors: KvlabError for a control that is not there, or a value that it cannot take.
        """
        before = self.values
        for name in values:
            self._require(name)
        self._quiet = True
        try:
            # Those whose ends depend on the others come last.
            late = [name for name in values if name in self._ends()]
            for name in (name for name in values if name not in late):
                controls.move(name, self._controls[name], values[name])
            self._bind()
            for name in late:
                controls.move(name, self._controls[name], values[name])
        except KvlabError:
            self._restore(before)
            raise
        finally:
            self._quiet = False
        self._redraw()
        return self

    def figure(self) -> Figure:
        """The figure of the current values, to be saved. Raises what ``draw`` raises."""
        return drawn(self._draw, self.values)[0]

    def table(self) -> pd.DataFrame:
        """The numbers behind the picture; the values of the controls where there are no others."""
        if self._table is None:
            return pd.DataFrame([self.values])
        return self._table(**self.values)

    def export(self, folder: Path | str | None = None, width: str | None = None) -> list[Path]:
        """Save the picture with its caption, its numbers and its origin; returns the files.

        Args:
            folder: by default where the figures of notebooks go, see ``output_folder``.
            width: "single" or "double", for one column of a paper or two; None: as drawn.

        Errors: KvlabError for a width that ``draw`` cannot give, or a folder that cannot be
        written; what ``draw`` raises.
        """
        fig, origin = publishable(self._draw, self.values, self.name, self._definition, width)
        saved = save_figure(fig, self.name, self.table(), origin, target(folder))
        return [saved.path(ending) for ending in ENDINGS]

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
            title = ", ".join(f"{controls.label(name)} = {value}" for name, value in chosen.items())
            tiles.append((title, drawn(self._draw, self.values | chosen)[0]))
        return grid(tiles, columns)

    def __repr__(self) -> str:
        told = [self._alt(), self.text]
        if self._table is not None and self._picture is not None:
            told.append(self._table(**self._drawn).to_string(index=False, max_rows=TEXT_ROWS))
        return "\n".join(told).strip()

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
        data: dict[str, object] = dict(self.widget._repr_mimebundle_() or {})
        picture = self._still()
        still, size = picture._repr_mimebundle_()
        still["text/plain"] = repr(self)
        size["image/png"]["alt"] = f"{self._alt()}\n{self.text}".strip()
        if self._table is not None and self._picture is not None:
            table = table_html(self._table(**self._drawn))
            rows = f"<details><summary>Table</summary>{table}</details>"
            still["text/html"] = (
                picture_html(picture, self._spots()) + sentence_html(self.text) + rows
            )
        return data | still, size

    def _alt(self) -> str:
        shown = self._drawn or self.values
        settings = ", ".join(f"{controls.label(n)} = {value}" for n, value in shown.items())
        alt = self._picture.alt if self._picture else "no picture"
        return f"{alt} [{settings}]"

    def _still(self) -> Picture:
        """The picture that is kept in a file: that of the screen in few colours, a third of it."""
        if self._picture is None or self._figure is None:
            return notice(self.text)
        return replace(self._picture, png=small(self._figure, SCREEN_DPI[0]).png)

    def _spots(self) -> list[Spot]:
        return [] if self._hover is None else list(self._hover(**self._drawn))

    def _build(self, steps: str | None) -> widgets.VBox:
        """The controls, ``steps`` with its buttons, above picture, sentence and tools."""
        if steps is not None:
            self._require(steps)
        row: list[widgets.Widget] = []
        for name, control in self._controls.items():
            row += [control, *(step_buttons(control) if name == steps else [])]
        line = widgets.HBox(row, layout=widgets.Layout(flex_flow=WRAP))
        made = widgets.VBox([line, self._image, self._note, self._tools.line, self._tools.below])
        made.add_class("kvlab-panel")
        made.add_class(f"kvlab-{self.name}")
        return made

    def _moved(self, change: object) -> None:
        if not self._quiet:
            self._quiet = True
            try:
                self._bind()
            finally:
                self._quiet = False
            self._redraw()

    def _ends(self) -> Mapping[str, tuple[int, int]]:
        return {} if self._bounds is None else self._bounds(**self.values)

    def _bind(self) -> None:
        for name, ends in self._ends().items():
            controls.bound(self._controls[name], *ends)

    def _restore(self, before: Mapping[str, object]) -> None:
        late = [n for n in before if n in self._ends()]
        for name in [n for n in before if n not in late]:
            self._controls[name].value = before[name]
        self._bind()
        for name in late:
            self._controls[name].value = before[name]

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
            fig, text = drawn(self._draw, values)
            size = [round(inches * CSS_PX_PER_IN) for inches in fig.get_size_inches()]
            png = png_bytes(fig, SCREEN_DPI[0])
            # The sentence follows the picture, so the title is enough.
            alt = figure_title(fig) or text or "figure without title"
            picture = Picture(png, size[0], size[1], alt)
            shown = picture_html(picture, [] if self._hover is None else self._hover(**values))
        except Exception as error:
            refused = isinstance(error, KvlabError)
            told = str(error) if refused else f"{type(error).__name__}: {error}"
            self.text = f"Not drawn: {told}"
            self._note.value = sentence_html("", told)
            if refused:
                return
            raise  # a bug; a kernel hides it in its log, so the sentence is said before
        self._drawn, self._figure, self._picture, self.text = values, fig, picture, text
        self._image.value = shown
        self._note.value = sentence_html(self.text)
        self._tools.refresh()

    def _require(self, name: str) -> None:
        if name not in self._controls:
            raise KvlabError(
                f"a control is one of {', '.join(self._controls)}: got {name!r}; controls are "
                "named when the panel is made"
            )

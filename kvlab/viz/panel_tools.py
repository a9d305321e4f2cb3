"""The buttons of a panel: one step back and forward, export, and the table behind the picture.

Worked example: ``step_buttons(slider)`` are two buttons of which the second moves the slider from 3
to 4, and does nothing at its end.
"""

import html
import os
from collections.abc import Callable
from pathlib import Path

import ipywidgets as widgets
import pandas as pd

from kvlab.errors import KvlabError
from kvlab.viz.panel_html import table_html

ENDINGS = ("svg", "pdf", "png", "csv", "json")
WRAP = "row wrap"


def step_buttons(slider: widgets.Widget) -> list[widgets.Widget]:
    """Buttons that move ``slider`` by its step, back and forward."""
    made = []
    for words, icon, sign in (("Back", "step-backward", -1), ("Next", "step-forward", 1)):
        button = widgets.Button(
            description=words,
            icon=icon,
            tooltip=f"One step {'back' if sign < 0 else 'forward'}",
            layout=widgets.Layout(width="auto"),
        )
        button.add_class(f"kvlab-{words.lower()}")

        def press(_: object, by: int = sign) -> None:
            slider.value = min(slider.max, max(slider.min, slider.value + by * slider.step))

        button.on_click(press)
        made.append(button)
    return made


class Tools:
    """The line below a picture. ``line`` and ``below`` are its widgets.

    Args:
        name: of the exported files.
        export: called with "single", "double" or None, gives the files that it wrote.
        table: the table of the current values, None where there is none.
        widths: whether the figure can be drawn for one column or two.
    """

    def __init__(
        self,
        name: str,
        export: Callable[[str | None], list[Path]],
        table: Callable[[], pd.DataFrame] | None,
        widths: bool,
    ) -> None:
        self._name, self._run, self._table = name, export, table
        self.export = widgets.Button(
            description="Export",
            icon="download",
            tooltip=f"Save the figure {name} as {', '.join(e.upper() for e in ENDINGS)}",
        )
        self.export.add_class("kvlab-export")
        self.export.on_click(self._clicked)
        self.columns = widgets.Dropdown(
            options={"two columns": "double", "one column": "single"},
            description="as wide as",
            tooltip="Width of the exported figure, in columns of a paper",
            layout=widgets.Layout(width="auto"),
        )
        self.shown = widgets.ToggleButton(
            description="Table", icon="table", tooltip="Show the numbers behind the picture"
        )
        self.shown.add_class("kvlab-table")
        self.shown.observe(lambda _: self.refresh(), names="value")
        self.said, self.below = widgets.HTML(), widgets.HTML()
        self._widths = widths
        made = [self.export, *([self.columns] if widths else []), self.said]
        made = [self.shown, *made] if table is not None else made
        self.line = widgets.HBox(made, layout=widgets.Layout(flex_flow=WRAP))

    def refresh(self) -> None:
        """Show the table of the values as they are now, or none."""
        there = self.shown.value and self._table is not None
        self.below.value = table_html(self._table()) if there and self._table else ""

    def _clicked(self, _: object) -> None:
        try:
            paths = self._run(str(self.columns.value) if self._widths else None)
        except (KvlabError, OSError) as error:
            self.said.value = f'<span role="alert">Not saved: {html.escape(str(error))}</span>'
            return
        place = f"{os.path.relpath(paths[0].parent)}/{self._name}.{{{','.join(ENDINGS)}}}"
        self.said.value = f'<span role="status">Saved {html.escape(place)}</span>'

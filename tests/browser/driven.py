"""A panel in the browser: its controls moved by mouse and by keys, its picture and words read.

A *twin* is the same explorer made in the test's own process. After each move the twin is given the
value that the browser's control shows, and both must have the same picture, byte by byte, and the
same sentence: so a move does in the browser what the function says, and not only something.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kvlab.viz.panel import Panel

from .notebook import SHOWN_MS, OpenNotebook

if TYPE_CHECKING:
    from playwright.sync_api import Locator

SOURCE = re.compile(r'src="data:image/png;base64,([^"]+)"')
SHOWS = """([name, source, told]) => {
  const panel = document.querySelector(`.jp-OutputArea-output .kvlab-${name}`);
  return panel?.querySelector('img')?.src.endsWith(source)
    && panel.querySelector('.widget-html-content > p')?.innerText === told;
}"""


def picture_of(twin: Panel) -> bytes:
    """The PNG that the twin shows."""
    found = SOURCE.search(twin.widget.children[1].value)
    assert found is not None, twin.text
    return base64.b64decode(found[1])


class Driven:
    """The panel ``name`` of an open notebook."""

    def __init__(self, notebook: OpenNotebook, name: str) -> None:
        self.page, self.name = notebook.page, name
        self.root: Locator = self.page.locator(f".jp-OutputArea-output .kvlab-{name}")

    def picture(self) -> bytes:
        """The bytes of the PNG on the screen."""
        source = self.root.locator("img").get_attribute("src") or ""
        return base64.b64decode(source.partition("base64,")[2])

    def sentence(self) -> str:
        """What stands below the picture."""
        return self.root.locator(".widget-html-content > p").first.inner_text()

    def shows(self, twin: Panel) -> None:
        """Wait until picture and sentence are those of the twin. Fails with both sentences."""
        want = base64.b64encode(picture_of(twin)).decode()
        try:
            self.page.wait_for_function(SHOWS, arg=[self.name, want, words(twin)], timeout=SHOWN_MS)
        except Exception:  # of playwright: the assertion below says more
            assert self.sentence() == words(twin), twin.values
            raise AssertionError(f"another picture than that of {twin.values}") from None

    def control(self, name: str) -> Locator:
        """The control ``name``: label, handle, readout."""
        return self.root.locator(f".kvlab-control-{name.replace('_', '-')}")

    def handle(self, name: str) -> Locator:
        """What takes the keys of the control ``name``."""
        return self.control(name).locator("[role=slider], select, input").first

    def drag(self, name: str, share: float) -> None:
        """Drag the handle of a slider to a share of its way, 0 to 1."""
        handle, track = self.handle(name), self.control(name).locator(".noUi-base")
        handle.scroll_into_view_if_needed()
        start, way = handle.bounding_box(), track.bounding_box()
        assert start is not None and way is not None
        x, y = start["x"] + start["width"] / 2, start["y"] + start["height"] / 2
        end = way["x"] + share * way["width"]
        mouse = self.page.mouse
        mouse.move(x, y)
        mouse.down()
        mouse.move((x + end) / 2, y)
        mouse.move(end, y)
        mouse.up()

    def click(self, name: str) -> None:
        """Click one of the buttons "back", "next", "table", "export"."""
        self.root.locator(f".kvlab-{name}").click()

    def move(self, twin: Panel, name: str, by: str) -> object:
        """Move a control by "mouse" or "keys" to another value, which is returned; the twin knows
        what there is to choose from, and is left as it was."""
        widget = twin.control(name)
        if isinstance(widget, widgets.Checkbox):
            return self._toggle(name, by, bool(widget.value))
        if isinstance(widget, widgets.Text):
            return self._write(name, by)
        if isinstance(widget, widgets.Dropdown):
            return self._choose(name, by, widget)
        if isinstance(widget, widgets.SelectionSlider):
            values = list(dict(widget._options_full).values())
            low, high, step, at = 0, len(values) - 1, 1, values.index(widget.value)
        else:
            values = None
            low, high, step, at = widget.min, widget.max, widget.step, widget.value
        up = at + step <= high
        if by == "keys":
            self.handle(name).focus()
            self.page.keyboard.press("ArrowRight" if up else "ArrowLeft")
            aim: Any = at + step if up else at - step
        else:
            share = 0.7 if (at - low) / (high - low) <= 0.5 else 0.3
            self.drag(name, share)
            aim = low + round(share * (high - low) / step) * step
        return values[aim] if values is not None else self._read(name, aim, high - low, by)

    def _read(self, name: str, aim: float, span: float, by: str) -> float:
        """The number beside a slider: as aimed by keys, within some pixels of it by mouse."""
        text = self.control(name).locator(".widget-readout").inner_text().replace("−", "-")
        value = float(text) if "." in text else int(text)
        near = 0 if by == "keys" else max(1, span * 0.03)
        assert abs(value - aim) <= near, (name, value, aim)
        return value

    def _toggle(self, name: str, by: str, before: bool) -> bool:
        if by == "keys":
            self.handle(name).focus()
            self.page.keyboard.press("Space")
        else:
            self.handle(name).click()
        return not before

    def _write(self, name: str, by: str) -> str:
        text = {"keys": "5, 2", "mouse": "2, 7"}[by]
        if by == "keys":
            self.handle(name).focus()
            self.page.keyboard.press("Control+A")
        else:
            self.handle(name).click(click_count=3)
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        return text

    def _choose(self, name: str, by: str, widget: widgets.Dropdown) -> object:
        labels = [label for label, _ in widget._options_full]
        values = [value for _, value in widget._options_full]
        at = values.index(widget.value)
        to = at + 1 if at + 1 < len(values) else at - 1
        if by == "keys":
            # JupyterLab takes arrows for itself, except in a menu that is open.
            self.handle(name).focus()
            for key in ("Space", "ArrowDown" if to > at else "ArrowUp", "Enter"):
                self.page.keyboard.press(key)
        else:
            self.handle(name).select_option(index=to)
        assert len(set(labels)) == len(labels)
        return values[to]


def words(twin: Panel) -> str:
    """The twin's sentence as a browser shows it: blanks are one."""
    return " ".join(twin.text.split())

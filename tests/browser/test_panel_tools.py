"""What stands around an explorer: export, table, themes, the way of the Tab key, saved state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

import nbformat
import pandas as pd
import pytest
from PIL import Image

from kvlab.viz.panel import Panel
from kvlab.viz.save import EXPORT_DPI
from kvlab.viz.style import WIDTH_IN
from kvlab.viz.widgets import merge_explorer, owner_explorer

from .axe import violations
from .driven import Driven
from .lab import Lab
from .notebook import SHOWN_MS, OpenNotebook, keep

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CELLS = [f"from kvlab.viz.widgets import {n}\n{n}()" for n in ("owner_explorer", "merge_explorer")]
STATE = "application/vnd.jupyter.widget-state+json"
# The sliders of ipywidgets 8.1 have the role of a slider and no attribute for a name; the visible
# label beside each is not tied to it. Nothing in Python reaches that element.
NAMELESS = ("aria-input-field-name", "noUi-handle")
CONTRAST = """element => {
  const parts = text => (text.match(/[0-9.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ink = light(parts(getComputedStyle(element).color));
  let at = element, ground = [255, 255, 255];
  for (; at; at = at.parentElement) {
    const found = parts(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] === 1) { ground = found; break }
  }
  const paper = light(ground);
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}"""


@pytest.fixture(scope="module")
def notebook(chromium: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    """A notebook with two explorers, open and run."""
    made = OpenNotebook(chromium, lab, lab.write("tools", *CELLS))
    made.run_all(60_000)
    yield made
    made.close()


@pytest.fixture
def owner(notebook: OpenNotebook) -> tuple[Driven, Panel]:
    """The owner explorer as it begins, and its twin."""
    notebook.run_cell(0)
    driven, twin = Driven(notebook, "owner-explorer"), owner_explorer()
    driven.shows(twin)
    return driven, twin


@pytest.mark.parametrize(
    ("columns", "width"), [("one column", "single"), ("two columns", "double")]
)
def test_export_saves_what_is_on_the_screen(
    owner: tuple[Driven, Panel], lab: Lab, columns: str, width: str
) -> None:
    driven, twin = owner
    driven.handle("dcp_size").focus()
    driven.page.keyboard.press("ArrowRight")
    driven.shows(twin.set(dcp_size=8))
    driven.root.locator("select").last.select_option(columns)
    driven.click("export")
    said = driven.root.locator("span[role]")
    said.wait_for(timeout=SHOWN_MS)
    keep(driven.root, f"exported_{width}")
    assert re.fullmatch(r"Saved .*owner-explorer\.\{svg,pdf,png,csv,json\}", said.inner_text())
    files = {path.suffix: path for path in lab.figures.glob("owner-explorer.*")}
    assert sorted(files) == [".csv", ".json", ".pdf", ".png", ".svg"]
    pd.testing.assert_frame_equal(
        pd.read_csv(files[".csv"]), pd.read_csv(StringIO(twin.table().to_csv(index=False)))
    )
    with Image.open(files[".png"]) as image:
        assert image.width == round(WIDTH_IN[width] * EXPORT_DPI)


def test_the_table_button_shows_the_numbers_of_the_picture(owner: tuple[Driven, Panel]) -> None:
    driven, twin = owner
    driven.click("table")
    table = driven.root.locator("table")
    table.wait_for(timeout=SHOWN_MS)
    assert table.locator("tbody tr").count() == len(twin.table())
    first = table.locator("tbody tr").first.locator("td").all_inner_texts()
    assert first == ["" if pd.isna(v) else str(v) for v in twin.table().astype(object).iloc[0]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_words_of_a_panel_can_be_read_in_both_themes(
    notebook: OpenNotebook, owner: tuple[Driven, Panel], theme: str
) -> None:
    driven, _ = owner
    driven.click("table")
    driven.root.locator("table").wait_for(timeout=SHOWN_MS)
    notebook.theme(theme)
    try:
        keep(driven.root, f"panel_{theme}")
        for part in ("p", "label:visible", "button", "td", "th", "select", ".widget-readout"):
            assert driven.root.locator(part).first.evaluate(CONTRAST) >= 4.5, part
        grave = violations(notebook.page, ".kvlab-panel")
        assert [v for v in grave if v[0] != NAMELESS[0] or NAMELESS[1] not in v[1]] == []
        ground = "e => getComputedStyle(e).backgroundColor"
        assert driven.root.locator("img").evaluate(ground) == "rgb(255, 255, 255)"
    finally:
        notebook.theme("light")


@pytest.mark.parametrize("name", ["owner-explorer", "merge-explorer"])
def test_tab_reaches_every_control_in_the_order_in_which_they_stand(
    notebook: OpenNotebook, name: str
) -> None:
    twin = owner_explorer() if name == "owner-explorer" else merge_explorer()
    notebook.run_cell(0 if name == "owner-explorer" else 1)
    driven = Driven(notebook, name)
    driven.shows(twin)
    first, *_ = twin.values
    driven.handle(first).focus()
    where = """() => {
      const at = document.activeElement.closest(
        '[class*="kvlab-control-"], button, .widget-dropdown');
      return at?.className.match(/kvlab-(?:control-)?([a-z0-9-]+)/)?.[1] ?? at?.className;
    }"""
    seen: list[str] = []
    for _ in range(4 * len(twin.values) + 10):
        at = notebook.page.evaluate(where)
        if at and at not in seen:
            seen.append(at)
        if at and "widget-dropdown" in at:
            break
        notebook.page.keyboard.press("Tab")
    controls = [control.replace("_", "-") for control in twin.values]
    steps = ["back", "next"] if name == "owner-explorer" else []
    assert seen[:-1] == [*controls, *steps, "table", "export"]
    assert "widget-dropdown" in seen[-1]


def test_a_saved_notebook_opens_with_the_explorer_as_it_was_left(
    chromium: Browser, lab: Lab
) -> None:
    path = lab.write("saved", CELLS[0])
    notebook, twin = OpenNotebook(chromium, lab, path), owner_explorer()
    try:
        notebook.run_all(60_000)
        driven = Driven(notebook, "owner-explorer")
        driven.handle("slot").focus()
        notebook.page.keyboard.press("ArrowRight")
        driven.shows(twin.set(slot=22))
        notebook.command("docmanager:save")
        notebook.page.wait_for_function(
            "() => !window.jupyterapp.shell.currentWidget.model.dirty", timeout=SHOWN_MS
        )
    finally:
        notebook.close()
    saved = nbformat.read(lab.folder / path, as_version=4)  # type: ignore[no-untyped-call]
    state = saved.metadata["widgets"][STATE]["state"]
    assert 22 in [model["state"].get("value") for model in state.values()]
    again = OpenNotebook(chromium, lab, path)  # a new kernel, in which nothing has run
    try:
        driven = Driven(again, "owner-explorer")
        driven.shows(twin)
        assert driven.control("slot").locator(".widget-readout").inner_text() == "22"
        keep(driven.root, "saved_state")
    finally:
        again.close()

"""The report's pages in Chromium: nothing is fetched or too wide, axe-core has no complaint.

The pages are those of the committed notebooks and texts, written without running a notebook; the
gallery has the figures of two explorers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvlab.viz.widgets import backup_stepper, owner_explorer
from tests.report.test_site import write_committed

from .axe import violations
from .notebook import SHOTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.slow]
# Wider than the window, and not inside of a box that scrolls by itself.
TOO_WIDE = """() => {
  const boxes = [...document.querySelectorAll('*')].filter(
    e => ['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX));
  const wide = e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
  return document.documentElement.scrollWidth <= document.documentElement.clientWidth ? [] :
    [...document.querySelectorAll('body *')]
      .filter(e => wide(e) && !boxes.some(b => b !== e && b.contains(e)))
      .map(e => e.tagName + ' ' + e.textContent.slice(0, 40));
}"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of what is committed, with a gallery of figures."""
    made = tmp_path_factory.mktemp("site")
    for panel in (owner_explorer(), backup_stepper()):
        panel.export(made / "figures")
    return write_committed(made)


def opened(browser: Browser, width: int, scheme: str = "light") -> Page:
    """A new window, ``width`` CSS pixels wide, in the light or the dark theme."""
    dark = scheme == "dark"
    size = {"width": width, "height": 900}
    page = browser.new_page(viewport=size, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]
    # Nothing leaves the machine: what is asked for elsewhere is refused, and told in the console.
    page.route(lambda url: not url.startswith(("file:", "data:")), _refuse)
    return page


def _refuse(route: Route) -> None:
    route.abort()


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_window_or_asks_for_anything_elsewhere(
    chromium: Browser, folder: Path, width: int
) -> None:
    page, said = opened(chromium, width), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith(("file:", "data:")) else said.append(r.url),
    )
    paths = sorted(folder.rglob("*.html"))
    assert len(paths) > 15
    for path in paths:
        page.goto(path.as_uri())
        assert page.evaluate(TOO_WIDE) == [], path.name
        if path.stem in ("index", "figures", "00_start_here", "troubleshooting"):
            where = path.relative_to(folder).with_suffix("").as_posix().replace("/", "_")
            SHOTS.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=SHOTS / f"site_{where}_{width}.png")
    page.close()
    assert said == []


def chosen(folder: Path, every: bool) -> list[Path]:
    """Every page but the longer ones of the API, which say more in the same form; or one of each
    template: axe-core takes seconds for a long page."""
    by_size = sorted(folder.rglob("*.html"), key=lambda path: path.stat().st_size)
    layers = [path for path in by_size if path.parent.name == "api" and path.stem != "index"]
    notebooks = [path for path in by_size if path.parent.name == "notebooks"]
    left_out = [*layers[1:], *([] if every else notebooks[1:])]
    found = [path for path in by_size if path not in left_out]
    assert len(found) > (14 if every else 7)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_grave_on_any_page(chromium: Browser, folder: Path, scheme: str) -> None:
    page = opened(chromium, 1280, scheme)
    # Only colours differ in the dark.
    rules = None if scheme == "light" else ["color-contrast", "link-in-text-block"]
    found = {}
    for path in chosen(folder, every=scheme == "light"):
        page.goto(path.as_uri())
        if grave := violations(page, rules=rules):
            found[path.relative_to(folder).as_posix()] = grave[:3]
    page.screenshot(path=SHOTS / f"site_{scheme}.png")
    page.close()
    assert found == {}


def test_the_first_tab_offers_to_skip_to_the_content(chromium: Browser, folder: Path) -> None:
    page = opened(chromium, 1280)
    page.goto((folder / "index.html").as_uri())
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    assert focused.inner_text() == "Skip to content"
    box = focused.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.close()


def test_the_theme_of_the_system_is_followed(chromium: Browser, folder: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = opened(chromium, 1280, scheme)
        page.goto((folder / "index.html").as_uri())
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.close()
    assert grounds == ["rgb(255, 255, 255)", "rgb(22, 25, 29)"]


def test_the_table_behind_a_figure_opens_by_keyboard(chromium: Browser, folder: Path) -> None:
    page = opened(chromium, 390)
    page.goto((folder / "figures.html").as_uri())
    summary = page.locator("summary", has_text="Table: ").first
    summary.focus()
    assert not page.get_by_role("cell", name="2").first.is_visible()
    page.keyboard.press("Enter")
    assert page.get_by_role("cell", name="2").first.is_visible()
    page.close()


def test_a_long_table_of_contents_is_folded_on_a_small_window(
    chromium: Browser, folder: Path
) -> None:
    seen = []
    for width in (390, 1280):
        page = opened(chromium, width)
        page.goto((folder / "notebooks" / "01_two_index_spaces.html").as_uri())
        seen.append(page.locator(".beside li").first.is_visible())
        page.close()
    assert seen == [False, True]

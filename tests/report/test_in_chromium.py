"""The pages in a real browser: no page is wider than the window, nothing is fetched, keys work.

Needs Chromium and playwright; without them these tests are skipped and say how to get them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvlab.report import Report

from .test_site import write_committed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

driver = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium is on the PATH: on Debian, apt-get install chromium"
    ),
    pytest.mark.slow,
]
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests here."""
    with driver.sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield made
        made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, report: Report) -> Path:
    """The site of what is committed, with the gallery of the small report."""
    made = write_committed(tmp_path_factory.mktemp("site"))
    shutil.copytree(report.folder / "figures", made / "figures")
    shutil.copy(report.folder / "figures.html", made / "figures.html")
    return made


def opened(browser: Browser, width: int, scheme: str = "light") -> Page:
    """A new window, ``width`` CSS pixels wide, in the light or the dark theme."""
    dark = scheme == "dark"
    size = {"width": width, "height": 900}
    return browser.new_page(viewport=size, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_window_or_asks_for_anything_elsewhere(
    browser: Browser, folder: Path, width: int
) -> None:
    page, said = opened(browser, width), list[str]()
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
    page.close()
    assert said == []


def test_the_first_tab_offers_to_skip_to_the_content(browser: Browser, folder: Path) -> None:
    page = opened(browser, 1280)
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


def test_the_theme_of_the_system_is_followed(browser: Browser, folder: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = opened(browser, 1280, scheme)
        page.goto((folder / "index.html").as_uri())
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.close()
    assert grounds == ["rgb(255, 255, 255)", "rgb(22, 25, 29)"]


def test_the_table_behind_a_figure_opens_by_keyboard(browser: Browser, folder: Path) -> None:
    page = opened(browser, 390)
    page.goto((folder / "figures.html").as_uri())
    summary = page.locator("summary", has_text="Table: 1 row").first
    summary.focus()
    assert not page.get_by_role("cell", name="2").first.is_visible()
    page.keyboard.press("Enter")
    assert page.get_by_role("cell", name="2").first.is_visible()
    page.close()


def test_a_long_table_of_contents_is_folded_on_a_small_window(
    browser: Browser, folder: Path
) -> None:
    seen = []
    for width in (390, 1280):
        page = opened(browser, width)
        page.goto((folder / "notebooks" / "01_two_index_spaces.html").as_uri())
        seen.append(page.locator(".beside li").first.is_visible())
        page.close()
    assert seen == [False, True]

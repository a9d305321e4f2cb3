"""The report's pages in Chromium: nothing leaves the machine, axe-core has no complaint.

The report is that of tests/report: the committed notebooks and texts, and two tiny notebooks, one
of which asks for a picture from elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvlab.report.notebook_files import find_notebooks
from tests.report.built import ELSEWHERE, ROOT, build_once

from .axe import violations
from .notebook import SHOTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.notebook, pytest.mark.slow]
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
# One of each form: axe-core takes seconds for a long page.
AXE_PAGES = (
    *("index", "search", "figures", "commands", "glossary", "api/kvlab.attn"),
    *("notebooks/00_start_here", "notebooks/02_panel"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report."""
    return build_once(tmp_path_factory).folder


def opened(browser: Browser, width: int = 1280, scheme: str = "light") -> Page:
    """A new window, ``width`` CSS pixels wide, in the light or the dark theme."""
    dark = scheme == "dark"
    size = {"width": width, "height": 900}
    return browser.new_page(viewport=size, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_window_or_asks_for_anything_elsewhere(
    chromium: Browser, folder: Path, width: int
) -> None:
    page, asked, said = opened(chromium, width), set[str](), list[str]()
    # What the policy of a page forbids begins and fails; it never leaves the browser.
    page.on("requestfinished", lambda request: asked.add(request.url.partition(":")[0]))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    paths = sorted(folder.rglob("*.html"))
    names = {path.relative_to(folder).with_suffix("").as_posix() for path in paths}
    assert {
        *AXE_PAGES,
        *(f"notebooks/{path.stem}" for path in find_notebooks([ROOT / "notebooks"])),
    } <= names
    for path in paths:
        page.goto(path.as_uri())
        assert page.evaluate(TOO_WIDE) == [], path.name
        if path.stem in ("index", "figures", "00_start_here", "troubleshooting"):
            where = path.relative_to(folder).with_suffix("").as_posix().replace("/", "_")
            SHOTS.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=SHOTS / f"site_{where}_{width}.png")
    page.close()
    assert asked <= {"file", "data"}
    # The one notebook that asks for something: the browser kept to the policy of the page.
    assert said
    assert all(ELSEWHERE in line and "violates" in line for line in said), said


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_grave(chromium: Browser, folder: Path, scheme: str, width: int) -> None:
    page, found = opened(chromium, width, scheme), {}
    # Only colors differ in the dark, and not with the width.
    rules = None if scheme == "light" else ["color-contrast", "link-in-text-block"]
    for name in AXE_PAGES:
        page.goto((folder / f"{name}.html").as_uri())
        if grave := violations(page, rules=rules):
            found[name] = grave[:3]
    page.screenshot(path=SHOTS / f"site_{scheme}_{width}.png")
    page.close()
    assert found == {}


def test_the_theme_of_the_system_is_followed_and_can_be_changed(
    chromium: Browser, folder: Path
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        page = opened(chromium, scheme=scheme)
        page.goto((folder / "index.html").as_uri())
        seen.append(page.evaluate(ground))
        page.locator(".theme-toggle:visible").first.click()
        page.wait_for_function(f"before => {ground} !== before", arg=seen[-1])
        page.close()
    assert seen[0] != seen[1]


def test_a_word_is_found_by_the_search_without_a_server(chromium: Browser, folder: Path) -> None:
    page = opened(chromium)
    page.goto((folder / "index.html").as_uri())
    page.locator("input[name=q]:visible").fill("interleave")
    page.keyboard.press("Enter")
    page.locator("#search-results li a", has_text="Glossary").first.wait_for()
    page.close()


def test_code_is_copied_by_keyboard_without_prompts_and_tables_open(
    chromium: Browser, folder: Path
) -> None:
    page = opened(chromium, 390)
    page.add_init_script("navigator.clipboard.writeText = async text => { window.copied = text }")
    page.goto((folder / "teaching.html").as_uri())
    page.locator(".highlight-pycon button.copy").first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("window.copied")
    assert copied.strip() and ">>>" not in copied
    page.goto((folder / "figures.html").as_uri())
    page.locator("summary", has_text="Table: 1 row").focus()
    assert not page.get_by_role("cell", name="2").first.is_visible()
    page.keyboard.press("Enter")
    assert page.get_by_role("cell", name="2").first.is_visible()
    page.close()


def test_the_first_tab_offers_to_skip_to_the_content(chromium: Browser, folder: Path) -> None:
    page = opened(chromium)
    page.goto((folder / "index.html").as_uri())
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to content"
    page.close()

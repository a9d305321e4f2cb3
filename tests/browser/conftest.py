"""The server and the browser that the tests here share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from .lab import Lab
from .notebook import OpenNotebook

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SWITCHES = (
    "--no-sandbox",  # Chromium refuses to run as root with one
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

Open = Callable[[str], OpenNotebook]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One server for all tests of this process."""
    made = Lab(tmp_path_factory.mktemp("lab"))
    try:
        yield made.wait()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser a file of tests: its driver keeps an event loop running in this thread, which the
    tests of other folders must not find."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(SWITCHES)
        )
        yield made
        made.close()


@pytest.fixture
def open_notebook(chromium: Browser, lab: Lab) -> Iterator[Open]:
    """``open_notebook(path)`` opens what the server has there; closed at the end of the test."""
    opened: list[OpenNotebook] = []

    def make(path: str) -> OpenNotebook:
        opened.append(OpenNotebook(chromium, lab, path))
        return opened[-1]

    yield make
    for notebook in opened:
        notebook.close()

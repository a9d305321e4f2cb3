"""A notebook open in JupyterLab, driven as a reader drives it.

Two habits of JupyterLab bite here. Its toolbar says idle before the kernel is connected, and cells
that are sent then are lost without a word: so the kernel itself is asked, and cells that nobody
took after some seconds are sent once more. And ``evaluate`` waits without an end for a promise: so
nothing is awaited in the page, and each wait has its own end.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .lab import ROOT, Lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

SHOTS = ROOT / "build" / "browser"
OPEN_MS, TAKEN_MS, RUN_MS, SHOWN_MS = 60_000, 8_000, 200_000, 20_000
CONNECTED = """() => {
  const notebook = window.jupyterapp?.shell?.currentWidget;
  const kernel = notebook?.sessionContext?.session?.kernel;
  return notebook?.content?.widgets?.length > 0
    && kernel?.connectionStatus === 'connected' && kernel?.status === 'idle';
}"""
PROMPTS = """() => [...document.querySelectorAll('.jp-CodeCell')]
  .filter(cell => window.jupyterapp.shell.currentWidget.content.widgets
    .find(w => w.node === cell)?.model.sharedModel.source.trim())
  .map(cell => cell.querySelector('.jp-InputPrompt').textContent)"""
TAKEN = f"() => ({PROMPTS})().some(p => /[*0-9]/.test(p))"
# A cell that raises ends the run: the cells after it keep the prompt that nobody took.
ENDED = f"""() => {{
  const prompts = ({PROMPTS})();
  const failed = document.querySelector('[data-mime-type="application/vnd.jupyter.error"]');
  return !prompts.some(p => p.includes('*')) && (failed || prompts.every(p => /[0-9]/.test(p)));
}}"""
OUTPUTS = """() => window.jupyterapp.shell.currentWidget.content.widgets
  .flatMap((w, cell) => (w.model.outputs?.toJSON() ?? [])
    .filter(o => o.output_type === 'error')
    .map(o => `cell ${cell}: ${o.ename}: ${o.evalue}`))"""
STATE = """() => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel;
  return `the kernel is ${kernel?.status} and ${kernel?.connectionStatus}`;
}"""
CHOOSE = """i => {
  const cells = window.jupyterapp.shell.currentWidget.content;
  cells.deselectAll(); cells.activeCellIndex = i; cells.mode = 'command';
}"""
COUNT = "i => window.jupyterapp.shell.currentWidget.content.widgets[i].model.executionCount"


class OpenNotebook:
    """One notebook in one window of the browser."""

    def __init__(self, browser: Browser, lab: Lab, path: str, width: int = 1280) -> None:
        self.lab, self.path = lab, path
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900})
        self.strangers: list[str] = []
        self.page.route(lambda url: not _is_here(url), self._refuse)
        # A workspace of its own, else JupyterLab opens what the last window had open as well.
        space = secrets.token_hex(8)
        self.page.goto(lab.url(f"lab/workspaces/{space}/tree/{path}"), timeout=OPEN_MS)
        self.page.wait_for_function(CONNECTED, timeout=OPEN_MS)

    def run_all(self, most_ms: int = RUN_MS) -> None:
        """Run every cell, and return when none is left or one has raised.

        Errors: AssertionError, with the prompts, when that takes longer than ``most_ms``.
        """
        for _ in range(2):
            self.command("notebook:run-all-cells")
            if self._waited(TAKEN, TAKEN_MS):
                break
        if not self._waited(ENDED, most_ms):
            told = f"{self.page.evaluate(STATE)}, the prompts are {self.prompts()}"
            raise AssertionError(f"{self.path} ran for more than {most_ms} ms: {told}")

    def run_cell(self, at: int) -> Locator:
        """Run one cell again and return it, when the kernel is done with it."""
        before = self.page.evaluate(COUNT, at)
        cell = self.cell(at)
        self.page.evaluate(CHOOSE, at)
        self.command("notebook:run-cell")
        self.page.wait_for_function(
            f"([i, before]) => ({COUNT})(i) && ({COUNT})(i) !== before "
            "&& window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status "
            "=== 'idle'",
            arg=[at, before],
            timeout=SHOWN_MS * 3,
        )
        return cell

    def type_cell(self, at: int, source: str) -> None:
        """Put ``source`` in place of what stands in a cell, at the cursor of its editor."""
        self.cell(at).locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Escape")

    def cell(self, at: int) -> Locator:
        """The cell of that number, from 0."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(at)

    def prompts(self) -> list[str]:
        """What stands before each code cell that is not empty."""
        return list(self.page.evaluate(PROMPTS))

    def errors(self) -> list[str]:
        """Each output that is an error, in words."""
        return list(self.page.evaluate(OUTPUTS))

    def command(self, name: str, **arguments: Any) -> None:
        """Send a command of JupyterLab, without waiting for its end."""
        self.page.evaluate(
            "([name, told]) => { window.jupyterapp.commands.execute(name, told) }",
            [name, arguments],
        )

    def theme(self, name: str) -> None:
        """Change to the theme "light" or "dark"."""
        self.command("apputils:change-theme", theme=f"JupyterLab {name.capitalize()}")
        light = "false" if name == "dark" else "true"
        shown = f'body[data-jp-theme-light="{light}"]'
        self.page.wait_for_selector(shown, state="attached", timeout=SHOWN_MS)
        self.page.wait_for_timeout(800)  # it fades in

    def shoot(self, name: str, most_px: int = 6000) -> None:
        """Keep a picture of the whole notebook in build/browser/."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        tall = self.page.evaluate(
            "() => { const all = document.querySelector('.jp-WindowedPanel-outer');"
            " all.scrollTop = 0; return all.scrollHeight }"
        )
        size = self.page.viewport_size or {"width": 1280, "height": 900}
        self.page.set_viewport_size({**size, "height": min(most_px, tall + 140)})
        self.page.wait_for_timeout(300)
        self.page.screenshot(path=SHOTS / f"{name}.png")
        self.page.set_viewport_size(size)

    def close(self) -> None:
        """Close the window and end the kernel."""
        self.page.close()
        self.lab.end_kernels()

    def _waited(self, condition: str, most_ms: int) -> bool:
        from playwright.sync_api import TimeoutError as TooLong

        try:
            self.page.wait_for_function(condition, timeout=most_ms)
        except TooLong:
            return False
        return True

    def _refuse(self, route: Any) -> None:
        self.strangers.append(route.request.url)
        route.abort()


def keep(thing: Locator, name: str) -> Path:
    """Keep a picture of a part of a page in build/browser/."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    path = SHOTS / f"{name}.png"
    thing.screenshot(path=path)
    return path


def _is_here(url: str) -> bool:
    return re.match(r"(https?|wss?)://127\.0\.0\.1[:/]|file:|data:|blob:|about:", url) is not None

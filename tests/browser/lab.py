"""A JupyterLab of its own on the loopback address, over copies of the notebooks.

Port and token are random, every folder of Jupyter is a temporary one, and nothing is asked of the
network. The settings are those of ``make lab`` with what a test needs on top: all cells are in the
page (no windowing), and nothing is saved unless a test saves it.
"""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "scripts" / "lab" / "overrides.json"
FOR_TESTS: dict[str, dict[str, object]] = {
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
START_S = 60


class Lab:
    """A running server. ``folder`` is what it serves, ``figures`` where its kernels save."""

    def __init__(self, home: Path) -> None:
        self.folder, self.figures, self._home = home / "served", home / "figures", home
        self.folder.mkdir()
        self.token, self.port = secrets.token_hex(24), _free_port()
        settings = home / "settings"
        settings.mkdir()
        told = json.loads(SETTINGS.read_text(encoding="utf-8")) | FOR_TESTS
        (settings / "overrides.json").write_text(json.dumps(told), encoding="utf-8")
        self._log = (home / "server.log").open("wb")
        self._process = subprocess.Popen(
            self._command(settings),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> "Lab":
        """Return when it answers. Errors: RuntimeError with its last words when it does not."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self.url("api/status"), timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        told = (self._home / "server.log").read_text(encoding="utf-8", errors="replace")
        self.stop()
        raise RuntimeError(f"JupyterLab did not answer within {START_S} s: {told[-800:]}")

    def url(self, path: str) -> str:
        """The address of ``path``, with the token."""
        return f"http://127.0.0.1:{self.port}/{path}?token={self.token}"

    def copy(self, notebook: Path) -> str:
        """Serve a copy of a notebook without its outputs; returns its path below ``folder``.

        Without outputs no cell can pass for one that ran.
        """
        made = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
        for cell in made.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(made, self.folder / notebook.name)  # type: ignore[no-untyped-call]
        return notebook.name

    def write(self, name: str, *cells: str) -> str:
        """Serve a new notebook of these code cells; returns its path below ``folder``."""
        made = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
        made.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]  # type: ignore[no-untyped-call]
        made.metadata.kernelspec = {
            "name": "python3", "display_name": "Python 3", "language": "python",
        }  # fmt: skip
        nbformat.write(made, self.folder / f"{name}.ipynb")  # type: ignore[no-untyped-call]
        return f"{name}.ipynb"

    def end_kernels(self) -> None:
        """End the kernels of all notebooks: a page that is closed leaves its own running."""
        with urllib.request.urlopen(self.url("api/sessions"), timeout=30) as answer:
            found = json.load(answer)
        for session in found:
            asked = urllib.request.Request(
                self.url(f"api/sessions/{session['id']}"),
                method="DELETE",
                # A token in a header, unlike one in an address, needs no cookie against forgery.
                headers={"Authorization": f"token {self.token}"},
            )
            urllib.request.urlopen(asked, timeout=30).close()

    def stop(self) -> None:
        """End the server and the kernels that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            try:
                os.killpg(self._process.pid, signal.SIGTERM)
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()

    def _command(self, settings: Path) -> list[str]:
        options = {
            "--ServerApp.ip": "127.0.0.1",
            "--ServerApp.port": self.port,
            "--ServerApp.port_retries": 0,
            "--ServerApp.root_dir": self.folder,
            "--IdentityProvider.token": self.token,
            "--LabApp.app_settings_dir": settings,
            "--LabApp.extension_manager": "readonly",
            "--LabApp.news_url": "",
            "--LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        }
        flags = ["--no-browser", "--expose-app-in-browser"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            flags.append("--allow-root")
        return [
            *(sys.executable, "-m", "jupyterlab", *flags),
            *(f"{name}={value}" for name, value in options.items()),
        ]

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not re.match("JUPYTER|KVLAB_|PYTEST_", k)}
        home = self._home
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "OMP_NUM_THREADS": "1",
            **kept,
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(home / "user-settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
            "KVLAB_FIGURES": str(self.figures),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "PYTHONPATH": os.pathsep.join(path),
        }


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])

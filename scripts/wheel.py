"""What a wheel has beside the modules: data/ and docs/, as kvlab/_data and kvlab/_docs.

In a checkout ``kvlab.files.shipped`` finds both beside the package, so an editable install copies
nothing. pyproject.toml names the class below, which setuptools runs.
"""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py


class WithFolders(build_py):  # type: ignore[misc]  # setuptools ships no types
    """The usual step, and then the two folders."""

    def run(self) -> None:
        """Build the modules; copy the folders beside them."""
        super().run()
        if not self.editable_mode:
            for folder in ("data", "docs"):
                place = Path(self.build_lib, "kvlab", f"_{folder}")
                shutil.copytree(
                    folder, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
                )

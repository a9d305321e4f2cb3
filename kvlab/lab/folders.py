"""Folders that a study writes to: asked before the work, and a file whole or not at all.

Worked example: a study with a cache of a full disk says so before its first run, and one that is
killed while it keeps a run leaves ``<key>.<process>.part``, which nobody reads.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvlab.errors import StudyError


@dataclass(frozen=True, slots=True)
class Folder:
    """``path``; ``rule`` and ``instead``: what the error of a folder that cannot be written says.

    Errors, of both methods: StudyError with the rule, the path and what the system says.
    """

    path: Path
    rule: str
    instead: str

    def require_writable(self) -> None:
        """Make the folder and write into it; nothing stays."""
        with self._told():
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f"{os.getpid()}.part"
            probe.touch()
            probe.unlink()

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        """The file ``name``, which ``write`` fills under another name; it appears when whole."""
        part = self.path / f"{name}.{os.getpid()}.part"
        with self._told():
            write(part)
            part.replace(self.path / name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StudyError(
                f"{self.rule}: {str(self.path)!r} gives {error.strerror or error}; {self.instead}"
            ) from None


def cache_folder(path: Path) -> Folder:
    """A folder in which finished runs are kept."""
    return Folder(path, "a cache is a folder that can be written", "name another folder, or none")

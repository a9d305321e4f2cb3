"""Folders that a study writes to: asked before the work, and a file whole or not at all."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvlab.errors import StudyError
from kvlab.files import clear_leftovers, whole_file


@dataclass(frozen=True, slots=True)
class Folder:
    """``path``; ``rule`` and ``instead``: what the error of a folder that cannot be written says.

    Errors, of both methods: StudyError with the rule, the path and what the system says.
    """

    path: Path
    rule: str
    instead: str

    def require_writable(self) -> None:
        """Make the folder and write into it; nothing stays, nor what killed writers left."""
        with self._told():
            self.path.mkdir(parents=True, exist_ok=True)
            clear_leftovers(self.path)
            tempfile.TemporaryFile(dir=self.path).close()

    def put(self, name: str, content: str | bytes) -> None:
        """The file ``name``, whole or not at all; text is UTF-8."""
        with self._told(), whole_file(self.path / name) as part:
            part.write_bytes(content.encode() if isinstance(content, str) else content)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StudyError(
                f"{self.rule}: {str(self.path)!r} gives {error.strerror or error}; {self.instead}"
            ) from None

"""The one way to write a file: whole or not at all.

    with whole_file(Path("counts.csv")) as part:
        frame.to_csv(part)

``part`` is a new file beside the place (a move between file systems is a copy, which can be cut
off) and locked while it is written: one that nobody locks is of a process that was killed.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from kvlab.errors import StudyError

PREFIX = ".kvlab-"


@contextmanager
def whole_file(place: Path) -> Iterator[Path]:
    """The path to write to; it becomes ``place`` if the block ends well. A link is followed; a pipe
    or a device is itself the path, for there is nothing to put in its place.

    Errors: OSError as the system raises it.
    """
    if place.exists() and not place.is_file():
        yield place
        return
    place = Path(os.path.realpath(place))
    clear_leftovers(place.parent)
    part, handle = _locked_part(place)
    while not part.exists():  # another writer took it for a left-over just before it was locked
        os.close(handle)
        part, handle = _locked_part(place)
    try:
        yield part
        if place.exists():
            part.chmod(place.stat().st_mode)
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)
        os.close(handle)


def _locked_part(place: Path) -> tuple[Path, int]:
    part = place.with_name(f"{PREFIX}{uuid4().hex}{place.suffix}")
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    with suppress(OSError):  # a file system without locks: its left-overs stay
        fcntl.flock(handle, fcntl.LOCK_EX)
    return part, handle


def clear_leftovers(folder: Path) -> None:
    """Remove the parts in ``folder`` whose writers are gone."""
    for part in folder.glob(f"{PREFIX}*"):
        with suppress(OSError), part.open("rb") as file:  # a part that is being written is locked
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def require_writable(folder: Path) -> None:
    """Make a folder and write into it, before the work; nothing stays, nor what killed writers
    left. Errors: StudyError."""
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
        tempfile.TemporaryFile(dir=folder).close()


def put(place: Path, content: str | bytes) -> None:
    """Write a file whole; text is UTF-8. Errors: StudyError."""
    with _told(place), whole_file(place) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def _told(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StudyError(
            f"{str(place)!r} cannot be written: {error.strerror or error}; name another place"
        ) from None


def shipped(folder: str) -> Path:
    """Where the project's ``folder`` is, "data" or "docs": an installed kvlab has it inside."""
    package = Path(__file__).resolve().parent
    inside = package / f"_{folder}"
    return inside if inside.is_dir() else package.parent / folder

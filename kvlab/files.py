"""The one way to write a file: whole or not at all.

    with whole_file(Path("counts.csv")) as part:
        frame.to_csv(part)

``part`` is a new file of a random name beside the place; if the block ends well it becomes the
place, in one step; if the block raises, the place stays as it was. Beside, and not in a temporary
folder, since a move between file systems is a copy, which can be cut off. A part is locked while it
is written. One that nobody locks is of a process that was killed: the next writer removes it.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = ".kvlab-"


@contextmanager
def whole_file(place: Path) -> Iterator[Path]:
    """The path to write to; it becomes ``place`` if the block ends well. A link is followed; a pipe
    or a device is itself the path, for there is nothing to put in its place.

    Errors: OSError as the system raises it; the caller says what the file was for.
    """
    if place.exists() and not place.is_file():
        yield place
        return
    place = Path(os.path.realpath(place))
    clear_leftovers(place.parent)
    handle, part = _locked_part(place)
    while not part.exists():  # another writer took it for a left-over just before it was locked
        os.close(handle)
        handle, part = _locked_part(place)
    try:
        yield part
        part.chmod(0o666 & ~_umask() if not place.exists() else place.stat().st_mode)
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)
        os.close(handle)


def shipped(folder: str) -> Path:
    """Where the project's ``folder`` is, "data" or "docs": an installed kvlab has it inside."""
    package = Path(__file__).resolve().parent
    inside = package / f"_{folder}"
    return inside if inside.is_dir() else package.parent / folder


def clear_leftovers(folder: Path) -> None:
    """Remove the parts in ``folder`` whose writers are gone."""
    for part in folder.glob(f"{PREFIX}*"):
        with suppress(OSError), part.open("rb") as file:  # a part that is being written is locked
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def _locked_part(place: Path) -> tuple[int, Path]:
    handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=place.suffix, dir=place.parent)
    with suppress(OSError):  # a file system without locks: its left-overs stay
        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle, Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

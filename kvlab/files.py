"""The one way to write a file: whole or not at all.

    with whole_file(Path("counts.csv")) as part:
        frame.to_csv(part)

``part`` is a new file of a random name beside the place; if the block ends well it becomes the
place, in one step; if the block raises, the place stays as it was. Beside, and not in a temporary
folder, since a move between file systems is a copy, which can be cut off.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".kvlab-"


@contextmanager
def whole_file(place: Path) -> Iterator[Path]:
    """The path to write to; it becomes ``place`` if the block ends well. A link is followed.

    Errors: OSError as the system raises it; the caller says what the file was for.
    """
    place = Path(os.path.realpath(place))
    handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=place.suffix, dir=place.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o666 & ~_umask() if not place.exists() else place.stat().st_mode)
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

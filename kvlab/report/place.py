"""The place of a report: a folder that is replaced as a whole, or not at all.

    with swapped_in(Path("build/report")) as half:
        ...                         write everything below ``half``, a new folder beside the place

If the block ends well, ``half`` becomes the place; if it raises, the old folder stays as it was.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvlab.report.stamps import ReportError

MANIFEST = "manifest.json"


@contextmanager
def swapped_in(out: Path) -> Iterator[Path]:
    """A new folder beside ``out`` that becomes ``out`` if the block ends well.

    Errors: ReportError, before the block runs, if ``out`` is a file, holds something else than a
    report, or cannot be replaced; ReportError after it if the disk fails.
    """
    try:
        _require_free(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise _not_written(out, error) from None
    half, old = work / "new", work / "old"
    try:
        half.mkdir()
        if out.exists():  # try the move now: notebooks that took minutes must not run in vain
            os.replace(out, old)
            os.replace(old, out)
        yield half
        if out.exists():
            os.replace(out, old)
        os.replace(half, out)
    except OSError as error:
        raise _not_written(out, error) from error
    finally:
        if old.exists() and not out.exists():  # after an interrupt too
            os.replace(old, out)
        shutil.rmtree(work, ignore_errors=True)


def _require_free(out: Path) -> None:
    """``out`` must be new, empty, or an earlier report."""
    if out.exists() and not out.is_dir():
        raise ReportError(f"a report is a folder: {out} is a file; name another place with --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise ReportError(
            f"a report replaces its folder: {out} holds other files and no {MANIFEST}; name an "
            "empty or a new folder with --out"
        )


def _not_written(out: Path, error: OSError) -> ReportError:
    return ReportError(
        f"the report cannot be written to {out}: {error.strerror or error}; name another place "
        "with --out, or make room"
    )

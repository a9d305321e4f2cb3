"""The place of a report: a folder that is replaced as a whole, or not at all.

    with swapped_in(Path("build/report")) as half:
        ...                         write everything below ``half``, a new folder beside the place

If the block ends well, ``half`` becomes the place; if it raises, the old report stays as it was.
Nothing but an earlier report is replaced, and only if it holds no file that it did not come with.
Meanwhile ``.report.kvlab`` beside the place is locked. A run that is killed leaves that folder and
no lock; the next run finds it, puts back the old report if need be, and removes the rest.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kvlab.report.notebook_files import ReportError

MANIFEST = "manifest.json"
FORMAT = "kvlab-report-2"
WORK = ("new", "old", "source", "trees", "jupyter_execute")  # of a run, beside the place
LEFT_BY_DESKTOPS = {".DS_Store", "Thumbs.db"}


class TakenError(Exception):
    """A folder is locked by another run."""


@contextmanager
def swapped_in(out: Path) -> Iterator[Path]:
    """A new folder beside ``out`` that becomes ``out`` if the block ends well. A link stays one.

    Errors: ReportError, before the block runs, if ``out`` is no place for a report, another report
    is being written there, or it cannot be replaced; ReportError after it if the disk fails.
    """
    place = Path(os.path.realpath(out))
    work = place.parent / f".{place.name}.kvlab"
    half, old = work / "new", work / "old"
    try:
        _require_free(out, place)
        place.parent.mkdir(parents=True, exist_ok=True)
        with held(work, WORK):
            try:
                _put_back(old, place)
                for left_over in WORK:
                    shutil.rmtree(work / left_over, ignore_errors=True)
                half.mkdir()
                if place.exists():  # try the move now: notebooks must not run in vain for minutes
                    os.replace(place, old)
                    os.replace(old, place)
                yield half
                _require_free(out, place)
                if place.exists():
                    os.replace(place, old)
                os.replace(half, place)
            finally:
                _put_back(old, place)  # after an interrupt too
    except TakenError:
        raise ReportError(
            f"a report has its place for itself: another report is being written here, to {out}; "
            "wait for it, or name another place with --out"
        ) from None
    except OSError as error:
        raise ReportError(
            f"the report cannot be written to {out}: {error.strerror or error}; name another place "
            "with --out, or make room"
        ) from error


@contextmanager
def held(folder: Path, ours: Sequence[str] = (".",)) -> Iterator[None]:
    """``folder``, made if need be and locked while the block runs; then what is ``ours`` in it is
    removed, and the folder if nothing else was in it.

    The lock ends with the process, however it ends. Errors: TakenError while another run holds it;
    OSError if it is a link or cannot be made.
    """
    handle = _locked(folder)
    while not folder.exists() or not os.path.samestat(os.fstat(handle), folder.stat()):
        os.close(handle)  # its last holder removed it just before the lock was ours
        handle = _locked(folder)
    try:
        yield
    finally:
        for name in ours:
            shutil.rmtree(folder / name, ignore_errors=True)
        with suppress(OSError):  # somebody else's file keeps it, or it is gone
            folder.rmdir()
        os.close(handle)


def _locked(folder: Path) -> int:
    folder.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise TakenError from None
    return handle


def _put_back(old: Path, place: Path) -> None:
    """The old report, if it was moved away and nothing took its place."""
    if old.exists() and not place.exists():
        os.replace(old, place)


def _require_free(out: Path, place: Path) -> None:
    """``out`` must be new, empty, or an earlier report with nothing else in it."""
    if place == Path.cwd():
        raise ReportError(
            f"a report is a folder of its own: {str(out)!r} is the current folder; name a folder "
            "in it with --out"
        )
    if place.exists() and not place.is_dir():
        raise ReportError(f"a report is a folder: {out} is a file; name another place with --out")
    if not place.is_dir() or not any(place.iterdir()):
        return
    files = _files_of_report(place / MANIFEST)
    if files is None:
        raise ReportError(
            f"a report replaces nothing but a report: {out} holds other files and no {MANIFEST} "
            "of this kvlab; name an empty or a new folder with --out, or remove that one"
        )
    strangers = sorted(set(files_below(place)) - files)
    if strangers:
        raise ReportError(
            f"a report replaces nothing but a report: {out} holds {strangers[0]} and "
            f"{len(strangers) - 1} more files that no report wrote; move them, or name another "
            "folder with --out"
        )


def files_below(folder: Path) -> list[str]:
    """The files and links below ``folder``, as paths in it, in order."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(folder).as_posix() for path in found)
    return sorted(name for name in names if name.split("/")[-1] not in LEFT_BY_DESKTOPS)


def _files_of_report(manifest: Path) -> set[str] | None:
    """The files that a report came with, as its manifest tells; None for one that is not ours."""
    try:
        told = json.loads(manifest.read_text(encoding="utf-8"))
        return {MANIFEST, *map(str, told["files"])} if told["format"] == FORMAT else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None

"""The points of a study: made on all cores, and kept in a folder so that a killed study goes on.

    work = {point_key(c): partial(simulate_point, c) for c in (1, 2, 4)}
    rows = finished(work, keep=Keep(Path("build/rows")))     # {key: {"retractions": 8, ...}}

A point's file is a line with the SHA-256 of key and content, then an ``.npz`` (never pickled).
"""

import hashlib
import io
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

import kvlab
from kvlab.errors import StudyError
from kvlab.files import put, require_writable

#: Numbers, words and arrays by name: what a point gives.
Values = dict[str, Any]
Progress = Callable[[int, int], None]
Note = Callable[[str], None]
LIBRARIES = ("torch", "transformers", "numpy", "pandas")


@cache
def code_digest(package: Path = Path(kvlab.__file__).parent) -> str:
    """SHA-256 over all sources of a package, their places in it, and the versions of libraries."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(package).as_posix()} {content}\n".encode())
    for library in LIBRARIES:
        digest.update(f"{library} {metadata.version(library)}\n".encode())
    return digest.hexdigest()


def point_key(*facts: object) -> str:
    """The key of a point: 32 hex digits over all that decides its values, its facts (as JSON) and
    ``code_digest``."""
    text = json.dumps([code_digest(), *facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Keep:
    """Finished points in ``folder``, which is made; None keeps nothing. ``note`` is told of files
    that do not verify. Errors: StudyError for a folder that cannot be written."""

    folder: Path | None
    note: Note | None = None

    def __post_init__(self) -> None:
        if self.folder is not None:
            require_writable(self.folder)  # before the work, not after a point

    def read(self, key: str) -> Values | None:
        """The values of a point; None for one that is not there or does not verify."""
        path = None if self.folder is None else self.folder / f"{key}.kept"
        if path is None or not path.exists():
            return None
        head, _, content = path.read_bytes().partition(b"\n")
        if head != _checksum(key, content):
            if self.note is not None:
                self.note(f"{path.name} is damaged and is made again")
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as kept:
            return {name: x if x.ndim else x.item() for name, x in kept.items()}

    def write(self, key: str, values: Values) -> None:
        if self.folder is not None:
            content = io.BytesIO()
            np.savez(content, allow_pickle=False, **values)
            data = content.getvalue()
            put(self.folder / f"{key}.kept", _checksum(key, data) + b"\n" + data)


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).hexdigest().encode()


def finished(
    work: Mapping[str, Callable[[], Values]],
    *,
    keep: Keep,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Values]:
    """The values of each point, by key: read from ``keep``, or made and kept.

    Args:
        work: what makes each point; it can be pickled if it is to run in another process.
        jobs: processes; None takes the cores of this machine.
        progress: called with (points done, points), first with those that were kept.

    Errors: StudyError for jobs below 1, or a folder that cannot be written; what the work raises.
    """
    if jobs is not None and jobs < 1:
        raise StudyError(f"jobs counts processes, at least 1: got {jobs}; None takes all cores")
    read = {key: keep.read(key) for key in work}
    done = {key: values for key, values in read.items() if values is not None}
    told = progress or (lambda done, total: None)
    told(len(done), len(work))
    todo = [(key, make) for key, make in work.items() if key not in done]
    jobs = min(jobs or os.cpu_count() or 1, len(todo))
    made: Iterable[tuple[str, Values]] = (_one(key, make) for key, make in todo)
    with warnings.catch_warnings():
        if jobs > 1:
            # The first bfloat16 operation of a process takes 300 MB, for which joblib replaces it.
            warnings.filterwarnings("ignore", message="A worker stopped")
            # Arrays go through pipes (max_nbytes): files of them would outlive a killed study.
            pool = Parallel(jobs, return_as="generator_unordered", max_nbytes=None,
                            initializer=_end_with_parent, initargs=(os.getpid(),))  # fmt: skip
            made = pool(delayed(_one)(key, make) for key, make in todo)
        for key, values in made:
            keep.write(key, values)
            done[key] = values
            told(len(done), len(work))
    return done


def _one(key: str, make: Callable[[], Values]) -> tuple[str, Values]:
    return key, make()


def _end_with_parent(parent: int) -> None:
    """In a new worker: end within a second of the parent, however that ended, and hold no standard
    output. Linux's PR_SET_PDEATHSIG is not used: it follows the thread that started the worker, and
    joblib starts some from threads that end early."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

"""Finished runs in a folder: one file each, written whole or not at all, made again if damaged.

A file is an ``.npz`` of plain arrays (never pickled) under a hash of all that decides them: the
request, the model's files, the prompts, the code and the libraries.
"""

import hashlib
import zipfile
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import kvlab
from kvlab.lab.folders import cache_folder

Arrays = dict[str, NDArray[np.generic]]
Note = Callable[[str], None]
#: Below this size a model's file is hashed whole; of a larger one so many pieces, its two ends
#: among them: fine-tuned weights may keep both ends, the embeddings, as they were.
WHOLE, PIECES = 2**26, 64
_CODE = ("index", "attn", "memory", "engine")
_NAMES = ("cells", "conditions", "defects", "events", "metrics", "node", "prompts", "run")
_OWN = tuple(f"{name}.py" for name in _NAMES)


class RunCache:
    """Runs in ``folder``. Errors: StudyError for a folder that cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        cache_folder(folder).require_writable()  # before the work, not after the first run

    def path(self, key: str) -> Path:
        """Where a run is kept."""
        return self.folder / f"{key}.npz"

    def read(self, key: str, names: frozenset[str], note: Note | None = None) -> Arrays | None:
        """The arrays ``names`` of a run; None where it is missing or damaged (``note`` is told)."""
        path = self.path(key)
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
                if set(kept.files) != names:
                    raise ValueError(f"it holds {', '.join(kept.files) or 'nothing'}")
                return {name: kept[name] for name in kept.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            if note is not None:
                note(f"{path.name} is damaged ({type(error).__name__}: {error}) and is made again")
            return None

    def write(self, key: str, arrays: Arrays) -> None:
        """Keep a run. Errors: StudyError."""

        def fill(part: Path) -> None:
            with part.open("wb") as out:
                np.savez(out, **arrays)  # type: ignore[arg-type]  # the stub has a keyword of it

        cache_folder(self.folder).put(self.path(key).name, fill)


@lru_cache
def code_digest() -> str:
    """SHA-256 over the sources and the libraries that decide a run."""
    root = Path(kvlab.__file__).parent
    digest = hashlib.sha256()
    sources = sorted(p for name in _CODE for p in (root / name).rglob("*.py"))
    own = [Path(__file__).parent / name for name in _OWN]
    for path in [*sources, *own, root / "lab" / "before_fix.py"]:
        digest.update(path.read_bytes())
    for library in ("torch", "transformers"):
        digest.update(metadata.version(library).encode())
    return digest.hexdigest()


def model_digest(folder: Path) -> str:
    """SHA-256 over config, weights and their index, which decide what a model says; not over what
    else lies beside them. Of a file above 64 MiB its size and 64 MiB of it count."""
    digest = hashlib.sha256()
    named = [folder / "config.json", *sorted(folder.glob("*.safetensors*"))]
    for path in [path for path in named if path.is_file()]:
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        digest.update(_content(path))
    return digest.hexdigest()


def weights_digest(folder: Path) -> str:
    """What an origin names: the SHA-256 of ``model.safetensors``, as any tool prints it; where that
    file is missing or above 64 MiB, ``model_digest``."""
    path = folder / "model.safetensors"
    if not path.is_file() or path.stat().st_size > WHOLE:
        return model_digest(folder)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _content(path: Path) -> bytes:
    """A file's bytes, of a large one ``PIECES`` pieces evenly spread, first and last among them."""
    with path.open("rb") as file:
        if path.stat().st_size <= WHOLE:
            return file.read()
        length, found = WHOLE // PIECES, []
        for i in range(PIECES):
            file.seek((path.stat().st_size - length) * i // (PIECES - 1))
            found.append(file.read(length))
        return b"".join(found)

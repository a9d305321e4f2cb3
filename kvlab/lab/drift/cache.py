"""Digests of a checkpoint: what decides the runs of a model."""

import hashlib
from pathlib import Path

#: Below this size a model's file is hashed whole; of a larger one so many pieces, its two ends
#: among them: fine-tuned weights may keep both ends, the embeddings, as they were.
WHOLE, PIECES = 2**26, 64


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

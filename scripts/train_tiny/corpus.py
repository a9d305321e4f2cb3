"""What the tiny model is trained on: the standard library's text, mixed with lines to be recalled.

Every Python installation carries the text. Recall lines make the cache of the full-attention layers
matter; one sequence holds

    set qk=5f zt=0c bf=9e            pairs, in any order
    ... some text of the library ...
    get bf=9e qk=5f zt=0c            the same pairs, in another order

and each value after ``get`` can only be known from the row of its pair.
"""

import hashlib
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LETTERS, SYMBOLS = b"abcdefghijklmnopqrstuvwxyz", b"0123456789abcdef"
VALUE = 2  # symbols of one value
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """``train`` and ``held_out``: bytes of disjoint files, uint8; ``about`` names what they are."""

    train: Bytes
    held_out: Bytes
    about: dict[str, str | int]


def read_corpus(root: Path | None = None) -> Corpus:
    """The text below ``root``, the standard library of this Python when None; one file in 20 (by
    the hash of its name) is held out."""
    folder = root if root is not None else Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if not SKIPPED & set(name.parts):
            digest = hashlib.blake2b(name.as_posix().encode(), digest_size=4).digest()
            parts[int.from_bytes(digest, "little") % 20 == 0].append(path.read_bytes())
    train, held = (np.frombuffer(b"\n".join(part), dtype=np.uint8) for part in parts)
    about: dict[str, str | int] = {
        "text": f"standard library of Python {platform.python_version()}",
        "train_files": len(parts[0]),
        "held_out_files": len(parts[1]),
        "train_bytes": len(train),
        "held_out_bytes": len(held),
        "blake2b": hashlib.blake2b(train.tobytes() + held.tobytes(), digest_size=16).hexdigest(),
    }
    return Corpus(train, held, about)


def text(source: Bytes, length: int, rng: np.random.Generator) -> Bytes:
    """A window of ``length`` bytes at a random place; ``source`` is longer than that."""
    at = int(rng.integers(0, len(source) - length))
    return source[at : at + length]


@dataclass(frozen=True, slots=True, eq=False)
class Recall:
    """A sequence with recall lines: ``data`` uint8 ``(T,)``; ``asked``: positions of the bytes of
    values after ``get``, int64; ``first_get``: where the first ``get`` begins."""

    data: Bytes
    asked: NDArray[np.int64]
    first_get: int


def recall(
    source: Bytes, length: int, rng: np.random.Generator, pairs: int, filler: int = 160
) -> Recall:
    """A sequence of ``length`` bytes: the pairs, then up to ``filler`` bytes of text and a ``get``
    line in turn, cut off where the length ends."""
    entries = _entries(pairs, rng)
    out = bytearray(b"set " + b" ".join(entries) + b"\n")
    asked: list[int] = []
    first_get = 0
    while len(out) < length:
        out += bytes(text(source, int(rng.integers(0, filler + 1)), rng)) + b"\nget"
        first_get = first_get or len(out) - 3
        asked += _ask(out, entries, rng)
        out += b"\n"
    places = np.array([p for p in asked if p < length], dtype=np.int64)
    return Recall(np.frombuffer(bytes(out[:length]), dtype=np.uint8), places, first_get)


def question(source: Bytes, gap: int, rng: np.random.Generator, pairs: int) -> Recall:
    """The pairs, ``gap`` bytes of text, and one ``get`` line, which ends the sequence: questions of
    equally many pairs and an equal gap are equally long, and ask at the same positions."""
    entries = _entries(pairs, rng)
    out = bytearray(b"set " + b" ".join(entries) + b"\n" + bytes(text(source, gap, rng)) + b"\nget")
    first_get = len(out) - 3
    asked = _ask(out, entries, rng)
    return Recall(np.frombuffer(bytes(out), dtype=np.uint8), np.array(asked), first_get)


def _ask(out: bytearray, entries: list[bytes], rng: np.random.Generator) -> list[int]:
    """Append every pair in a random order; returns the positions of the bytes of their values."""
    asked: list[int] = []
    for i in rng.permutation(len(entries)).tolist():
        out += b" " + entries[i]
        asked += range(len(out) - VALUE, len(out))
    return asked


def _entries(pairs: int, rng: np.random.Generator) -> list[bytes]:
    """``key=value`` of each pair; no key comes twice."""
    keys = rng.choice(len(LETTERS) ** 2, size=pairs, replace=False)
    entries = []
    for key in keys.tolist():
        value = bytes(SYMBOLS[i] for i in rng.integers(0, len(SYMBOLS), VALUE).tolist())
        first, second = divmod(key, len(LETTERS))
        entries.append(bytes((LETTERS[first], LETTERS[second])) + b"=" + value)
    return entries


@dataclass(frozen=True, slots=True)
class Mix:
    """What a batch holds: ``rows`` sequences of ``length`` bytes, every ``plain``-th of them text
    alone, the others with ``fewest`` to ``most`` pairs and up to ``filler`` bytes between lines."""

    rows: int
    length: int
    fewest: int = 4
    most: int = 24
    filler: int = 160
    plain: int = 2


def batch(source: Bytes, mix: Mix, rng: np.random.Generator) -> tuple[Bytes, NDArray[np.bool_]]:
    """Training sequences ``(rows, length)``, uint8, and which of their bytes are asked values."""
    data = np.empty((mix.rows, mix.length), dtype=np.uint8)
    asked = np.zeros((mix.rows, mix.length), dtype=bool)
    for row in range(mix.rows):
        if row % mix.plain == 0:
            data[row] = text(source, mix.length, rng)
            continue
        pairs = int(rng.integers(mix.fewest, mix.most + 1))
        made = recall(source, mix.length, rng, pairs, mix.filler)
        data[row], asked[row, made.asked] = made.data, True
    return data, asked

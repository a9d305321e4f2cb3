"""Reading a trace line by line: opening, decoding, and the checks that every format shares.

A trace may be plain or gzip (told by its first two bytes, not by its name), may begin with a byte
order mark, and may end its lines with CR LF. Whatever is wrong is reported with the file, the line
(counted from 1, as editors do), the column, the value, the rule, and what to do.

    trace.csv, line 3, column GeneratedTokens: a token count is a whole number in digits: got
    '12.5'; correct or remove the line
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn, cast

from kvlab.engine.workload.base import MAX_TOKENS
from kvlab.errors import WorkloadError

FIX = "correct or remove the line"

# int() alone would also take "1_000", "+5" and digits of other scripts.
_DIGITS = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a trace: its text without the line end, and where it stands."""

    file: str
    number: int
    text: str

    def fail(self, column: str | None, rule: str, value: object, action: str) -> NoReturn:
        """Raise WorkloadError with the four facts and what to do."""
        where = f"{self.file}, line {self.number}" + (f", column {column}" if column else "")
        raise WorkloadError(f"{where}: {rule}: got {shorten(value)}; {action}")

    def digits(self, column: str, text: str, low: int) -> int:
        """Return the token count that ``text`` spells, in [low, MAX_TOKENS]."""
        if not text:
            self.fail(column, "a token count must not be missing", text, FIX)
        # 18 digits are far above the bound, and int() refuses text of more than 4300.
        if not _DIGITS.fullmatch(text) or len(text) > 18:
            rule = f"a token count is a whole number in digits, at most {MAX_TOKENS}"
            self.fail(column, rule, text, FIX)
        return self.count(column, int(text), low)

    def count(self, column: str, value: object, low: int) -> int:
        """Return ``value`` as a token count in [low, MAX_TOKENS]; only an int will do."""
        if type(value) is not int:
            self.fail(column, "a token count is a whole number", value, FIX)
        if not low <= value <= MAX_TOKENS:
            self.fail(column, f"a token count lies in [{low}, {MAX_TOKENS}]", value, FIX)
        return value


def shorten(value: object) -> str:
    """``repr(value)``, cut to 80 characters, so that an error stays readable."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:70]}... ({len(text)} characters)"


def read_lines(path: str | Path) -> Iterator[Line]:
    """Yield the lines of a text file that are not blank. Errors: WorkloadError."""
    path = Path(path)
    with _opened(path) as handle:
        for number, raw in enumerate(handle, 1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _not_text(path, number, raw[error.start], error.start) from error
            if "\0" in text:
                raise _not_text(path, number, 0, text.index("\0"))
            text = text.rstrip("\r\n")
            if text.strip():
                yield Line(path.name, number, text)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as plain:
            zipped = plain.peek(2)[:2] == b"\x1f\x8b"
            yield cast(IO[bytes], gzip.GzipFile(fileobj=plain)) if zipped else plain
    except IsADirectoryError as error:
        raise WorkloadError(
            f"a trace is one file: got the folder {str(path)!r}; name a file inside it"
        ) from error
    except FileNotFoundError as error:
        raise WorkloadError(
            f"a trace must exist: no file at {str(path)!r} (looked from {str(Path.cwd())!r}); "
            f"check the path"
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise WorkloadError(
            f"{path.name} begins like a gzip file but cannot be unpacked ({error}); fetch it again "
            f"or unpack it first"
        ) from error
    except OSError as error:
        raise WorkloadError(
            f"a trace must be readable: {str(path)!r} gives {error.strerror or error}; check its "
            f"permissions"
        ) from error


def _not_text(path: Path, line: int, byte: int, at: int) -> WorkloadError:
    return WorkloadError(
        f"{path.name}, line {line}: a trace is UTF-8 text: got byte 0x{byte:02x} at offset {at} of "
        f"the line; save it as UTF-8 CSV or JSONL (a binary or UTF-16 file is not read)"
    )

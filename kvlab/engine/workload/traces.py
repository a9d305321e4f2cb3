"""Trace files: ``load_trace`` reads one, ``save_csv`` writes one.

    azure     TIMESTAMP,ContextTokens,GeneratedTokens
              2023-11-16 18:15:46.6805900,374,44
    mooncake  {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}
    kvlab     arrival_s,prompt_tokens,output_tokens
              27.482,6955,52

The first line tells the format, other columns and keys are ignored. pandas opens the file: plain,
gzip, bz2, xz, zst or zip, told by its first bytes and not by its name, or Parquet with the columns
of a CSV. Text is UTF-8, with or without a byte order mark, and lines end with LF or CR LF.

Azure writes 100-nanosecond ticks of wall-clock time (an offset such as +00:00 may follow; without
one, UTC is assumed), Mooncake milliseconds. Both are counted from the earliest request of the file,
in whole nanoseconds, so no precision is lost before the one division into seconds. The kvlab format
holds seconds and is taken as it is. Mooncake's ``hash_ids`` (prefix blocks that requests share) are
not kept: the pool of a decode node holds every request's own KV.

Requests are sorted by arrival, stably; ``source`` says how many lines were out of order. A request
that generated 0 tokens held no decode memory: it is left out and counted in ``dropped``.

Whatever is wrong is reported with the file, the line (counted from 1, as editors do), the column,
the value, the rule, and what to do:

    trace.csv, line 3, column GeneratedTokens: a token count is a whole number in digits: got
    '12.5'; correct or remove the line

Cost: the Azure trace of 19,366 lines loads in about 0.15 s, the Mooncake trace of 12,031 in 0.3 s.
Sources: the 2023 and 2024 LLM inference traces of Azure/AzurePublicDataset, and the FAST'25 release
of kvcache-ai/Mooncake.
"""

import csv
import io
import json
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, NoReturn, cast

import pandas as pd
from pandas.io.common import get_handle  # type: ignore[import-not-found]  # has no stub

from kvlab.engine.workload.requests import MAX_TOKENS, Workload
from kvlab.errors import WorkloadError
from kvlab.files import whole_file
from kvlab.memory.published import data_path

FIX = "correct or remove the line"
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\3\4": "zip",
}
_PARQUET = b"PAR1"
_BROKEN = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
# int() alone would also take "1_000", "+5" and digits of other scripts.
_DIGITS = re.compile(r"-?[0-9]+")
_SECONDS = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a trace: its text without the line end, and where it stands."""

    file: str
    number: int
    text: str

    def fail(self, column: str | None, rule: str, value: object, action: str = FIX) -> NoReturn:
        """Raise WorkloadError with the four facts and what to do."""
        where = f"{self.file}, line {self.number}" + (f", column {column}" if column else "")
        raise WorkloadError(f"{where}: {rule}: got {_short(value)}; {action}")

    def count(self, column: str, value: object, low: int, digits: bool) -> int:
        """``value`` as a token count in [low, MAX_TOKENS]: an int, or the digits of one."""
        if digits:
            text = str(value)
            if not text:
                self.fail(column, "a token count must not be missing", text)
            # 18 digits are far above the bound, and int() refuses text of more than 4300.
            if not _DIGITS.fullmatch(text) or len(text) > 18:
                rule = f"a token count is a whole number in digits, at most {MAX_TOKENS}"
                self.fail(column, rule, text)
            value = int(text)
        if type(value) is not int:
            self.fail(column, "a token count is a whole number", value)
        if not low <= value <= MAX_TOKENS:
            self.fail(column, f"a token count lies in [{low}, {MAX_TOKENS}]", value)
        return value


def load_trace(path: str | Path, limit: int | None = None) -> Workload:
    """The workload in a file of any known format. ``limit`` reads only the first so many requests.

    Errors: WorkloadError for a file that cannot be read, or its first line that breaks a rule.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise WorkloadError(
            f"limit is the number of requests to read, at least 1: got {limit!r}; leave it out to "
            f"read all of them"
        )
    path = Path(path)
    lines = _lines(path)
    notes, first = _preamble(path, lines)
    known = next((form for form in FORMATS if form.begins(first)), None)
    if known is None:
        rule = "begins like no known trace format"
        first.fail(None, rule, first.text, f"load_trace understands\n{_NAMES}")
    rows, dropped = [], 0
    for line, (time, prompt, output) in islice(known.records(first, lines), limit):
        columns = known.columns
        row = (
            known.time(line, columns[0], time),
            line.count(columns[1], prompt, 1, not known.json),
            line.count(columns[2], output, 0, not known.json),
        )
        if row[2]:
            rows.append(row)
        else:
            dropped += 1
    if not rows:
        what = f"all {dropped} requests generated 0 tokens" if dropped else "no line"
        raise WorkloadError(
            f"{path.name}: a trace holds at least 1 request that generated a token: got {what} "
            f"after line {first.number}; check how the file was made"
        )
    late = sum(after[0] < before[0] for before, after in pairwise(rows))
    rows.sort(key=lambda row: row[0])
    own = notes if known is KVLAB else {}
    source = own.get("source") or f"{known.name} {_printable(path.name)}"
    if limit is not None:
        source += f"; at most {limit} requests read"
    if late:
        source += f"; {late} lines out of order, sorted by arrival"
    noted = own.get("dropped", "0") if limit is None else "0"
    begun = rows[0][0]
    workload = Workload.from_arrays(
        own.get("name") or _printable(_stem(path)),
        [float(row[0]) if known is KVLAB else (row[0] - begun) / 1e9 for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        source,
        dropped + (int(noted) if noted.isdecimal() and len(noted) < 19 else 0),
    )
    digest = own.get("digest")
    if digest is not None and limit is None and digest != workload.digest:
        raise WorkloadError(
            f"{path.name}: the digest in the header belongs to the numbers below it: got numbers "
            f"of {workload.fingerprint!r} under a header of {_short(digest[:12])}; the file was "
            f"edited after it was saved: restore it, or delete the '# digest' line"
        )
    return workload


def save_csv(workload: Workload, path: str | Path) -> None:
    """Write ``workload`` so that `load_trace` gives it back, equal in every field and digest.

    Arrivals are written with as many digits as their float needs. An existing file is replaced.
    """
    head = [
        "# kvlab workload",
        f"# name: {workload.name}",
        f"# source: {workload.source}",
        f"# dropped: {workload.dropped}",
        f"# digest: {workload.digest}",
        ",".join(KVLAB.columns),
    ]
    body = (f"{r.arrival_s!r},{r.prompt_tokens},{r.output_tokens}" for r in workload.requests)
    text = "\n".join(chain(head, body)) + "\n"
    try:
        with whole_file(Path(path)) as part:
            part.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise WorkloadError(
            f"a workload is saved to a file that can be written: {str(path)!r} gives "
            f"{error.strerror or error}; name a file in an existing folder"
        ) from error


def default_workload() -> Workload:
    """The generated workload that ships with the project: 2,000 requests, closed loop."""
    return load_trace(data_path("workloads", "default.csv"))


# Lines of a file --------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[Line]:
    """The lines that are not blank."""
    with _opened(path) as handle:
        for number, raw in enumerate(handle, 1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                at = text.find("\0")
            except UnicodeDecodeError as error:
                at = error.start
            if at >= 0:
                raise WorkloadError(
                    f"{path.name}, line {number}: a trace is UTF-8 text: got byte 0x{raw[at]:02x} "
                    f"at offset {at} of the line; save it as UTF-8 CSV or JSONL (a binary or "
                    f"UTF-16 file is not read)"
                )
            if text.strip():
                yield Line(path.name, number, text.rstrip("\r\n"))


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    kind = None
    try:
        with path.open("rb") as plain:
            head = plain.read(6)
        if head.startswith(_PARQUET):
            kind = "parquet"
            yield io.BytesIO(pd.read_parquet(path).to_csv(index=False).encode())
            return
        kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
        with get_handle(path, "rb", compression=kind, is_text=False) as opened:
            yield cast(IO[bytes], opened.handle)
    except WorkloadError:  # of whoever reads the lines
        raise
    except (ImportError, *_BROKEN) as error:
        if kind is not None:
            raise WorkloadError(
                f"{path.name} begins like a {kind} file but cannot be unpacked ({error}); fetch it "
                f"again, unpack it first, or install what is missing"
            ) from error
        if isinstance(error, IsADirectoryError):
            told = f"is one file: got the folder {str(path)!r}; name a file inside it"
        elif isinstance(error, FileNotFoundError):
            here = str(Path.cwd())
            told = f"must exist: no file at {str(path)!r} (looked from {here!r}); check the path"
        elif isinstance(error, OSError):
            why = error.strerror or error
            told = f"must be readable: {str(path)!r} gives {why}; check its permissions"
        else:
            raise
        raise WorkloadError(f"a trace {told}") from error


def _preamble(path: Path, lines: Iterator[Line]) -> tuple[dict[str, str], Line]:
    """The ``# key: value`` notes at the head of a file, and the first line after them."""
    notes: dict[str, str] = {}
    for line in lines:
        if not line.text.startswith("#"):
            return notes, line
        key, colon, value = line.text[1:].partition(":")
        if colon:
            notes[key.strip()] = value.strip()
    raise WorkloadError(
        f"{path.name}: a trace begins with a header or a request: got an empty file"
        f"{' (comments only)' if notes else ''}; load_trace understands\n{_NAMES}"
    )


def _short(value: object) -> str:
    """``repr(value)``, cut to 80 characters, so that an error stays readable."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:70]}... ({len(text)} characters)"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text).strip() or "trace"


def _stem(path: Path) -> str:
    packed = path.suffix in (".gz", ".bz2", ".xz", ".zst", ".zip")
    return Path(path.stem).stem if packed else path.stem


# Formats ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Format:
    """A name, the columns (time, prompt, output), whether a line is an object of JSON or a record
    of CSV, and what reads a time: nanoseconds (int) or seconds (float)."""

    name: str
    columns: tuple[str, str, str]
    json: bool
    time: Callable[[Line, str, object], int | float]

    @property
    def looks(self) -> str:
        """How its first line looks."""
        if self.json:
            return f"one JSON object a line with {', '.join(self.columns)}"
        return f"a header with {','.join(self.columns)}"

    def begins(self, first: Line) -> bool:
        """Whether a file with this first line is of this format."""
        if self.json:
            return first.text.lstrip().startswith("{")
        # The names are looked for first: a line of JSON has quotes too, and need not be good CSV.
        named = all(name in first.text for name in self.columns)
        return named and set(self.columns) <= set(_fields(first))

    def records(self, first: Line, lines: Iterator[Line]) -> Iterator[tuple[Line, list[object]]]:
        """Each line with its time, prompt and output as they stand there."""
        if self.json:
            for line in chain([first], lines):
                found = _object(line)
                for key in self.columns:
                    if key not in found:
                        rule = f"every line holds the keys {', '.join(self.columns)}"
                        line.fail(key, rule, sorted(found), f"add the key or {FIX}")
                yield line, [found[key] for key in self.columns]
            return
        names = _fields(first)
        for column in self.columns:
            if names.count(column) != 1:
                rule = f"the header names column {column} once"
                first.fail(None, rule, first.text, "name every column once")
        places = [names.index(column) for column in self.columns]
        for line in lines:
            fields = _fields(line)
            if len(fields) != len(names):
                rule = f"every line has the {len(names)} fields of the header"
                line.fail(None, rule, line.text, f"it has {len(fields)}: {FIX}")
            yield line, [fields[place] for place in places]


def _fields(line: Line) -> list[str]:
    # The csv module costs a reader a line; only quoted lines need it.
    if '"' not in line.text:
        return [field.strip() for field in line.text.split(",")]
    try:
        return [field.strip() for field in next(csv.reader([line.text]))]
    except csv.Error as error:
        rule = (
            f"a quoted line is CSV that ends with LF or CR LF, with fields of at most "
            f"{csv.field_size_limit()} characters ({error})"
        )
        line.fail(None, rule, line.text, f"save the file with such line ends, or {FIX}")


def _object(line: Line) -> dict[str, object]:
    try:
        record = json.loads(line.text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        # The decoder's own words end with a position in the line.
        line.fail(None, f"every line is one JSON object ({_short(str(error))})", line.text)
    if not isinstance(record, dict):
        line.fail(None, "every line is one JSON object", record)
    return record


def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """One JSON object. Of a repeated key Python would keep the last value, without a word."""
    record: dict[str, object] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"key {key!r} stands twice")
        record[key] = value
    return record


def _wall_clock(line: Line, column: str, stamp: object) -> int:
    """Nanoseconds since 1970 UTC, exactly."""
    rule = "a time is written YYYY-MM-DD hh:mm:ss with up to 9 decimals and perhaps an offset"
    match = _STAMP.fullmatch(str(stamp))
    if match is None:
        line.fail(column, rule, stamp)
    day, clock, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day} {clock}") - _EPOCH
    except ValueError:
        line.fail(column, f"{rule}, and names a real day and time", stamp)
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            line.fail(column, "an offset is less than a day, hh:mm", stamp)
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        moment -= offset if sign == "+" else -offset
    # Not timedelta.total_seconds(): a float of this size holds no 100-nanosecond ticks.
    whole = moment.days * 86_400 + moment.seconds
    return whole * 10**9 + int((fraction or "").ljust(9, "0"))


def _milliseconds(line: Line, column: str, stamp: object) -> int:
    # JSON's true is an int to Python; it is no time.
    if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not 0 <= stamp < 2**53:
        line.fail(column, "a timestamp is a finite number of milliseconds, at least 0", stamp)
    return round(stamp * 10**6)


def _seconds(line: Line, column: str, arrival: object) -> float:
    text = str(arrival)
    seconds = float(text) if _SECONDS.fullmatch(text) else math.nan
    if not 0 <= seconds < math.inf:
        line.fail(column, "an arrival is a finite number of seconds in digits, at least 0", text)
    return seconds


AZURE = Format("Azure CSV", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), False, _wall_clock)
MOONCAKE = Format(
    "Mooncake JSONL", ("timestamp", "input_length", "output_length"), True, _milliseconds
)
KVLAB = Format("kvlab CSV", ("arrival_s", "prompt_tokens", "output_tokens"), False, _seconds)
FORMATS = (AZURE, MOONCAKE, KVLAB)
_NAMES = "\n".join(f"  {known.name}: {known.looks}" for known in FORMATS)

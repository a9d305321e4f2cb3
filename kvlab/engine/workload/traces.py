"""Trace files: ``load_trace`` reads one, ``save_csv`` writes one.

    azure     TIMESTAMP,ContextTokens,GeneratedTokens
              2023-11-16 18:15:46.6805900,374,44
    mooncake  {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}
    kvlab     arrival_s,prompt_tokens,output_tokens
              27.482,6955,52

Sources: the LLM inference traces of Azure/AzurePublicDataset, and kvcache-ai/Mooncake, FAST'25.
"""

import csv
import io
import json
import lzma
import math
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.io.common import get_handle  # type: ignore[import-not-found]  # has no stub

from kvlab.engine.workload.requests import MAX_TOKENS, Workload
from kvlab.errors import WorkloadError
from kvlab.files import whole_file
from kvlab.memory.published import data_path

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\3\4": "zip",
    b"PAR1": "parquet",
}
_BROKEN = (ImportError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True)
class Column:
    """``pattern``: how a number is written (Python's own readers also take "1_000" and digits of
    other scripts); ``read`` makes it, and ``least`` and ``most`` bound it."""

    name: str
    rule: str
    pattern: str
    read: Callable[[str], float]
    least: float = 0
    most: float = math.inf


def _tokens(name: str, least: int) -> Column:
    rule = f"a token count is a whole number in [{least}, {MAX_TOKENS}], in digits"
    return Column(name, rule, r"\d{1,10}", int, least, MAX_TOKENS)


# The columns of each format: time, prompt, output. Times are whole nanoseconds, exactly, since a
# float of this size holds no 100-nanosecond ticks; those of kvlab are seconds as they are.
AZURE, MOONCAKE, KVLAB = "Azure CSV", "Mooncake JSONL", "kvlab CSV"
FORMATS = {
    AZURE: (
        Column(
            "TIMESTAMP",
            "a time is a real day and time of 1678 to 2261, YYYY-MM-DD hh:mm:ss with up to 9 "
            "decimals and perhaps an offset",
            r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?",
            lambda text: pd.Timestamp(text).value,
            least=-math.inf,
        ),
        _tokens("ContextTokens", 1),
        _tokens("GeneratedTokens", 0),
    ),
    MOONCAKE: (
        Column(
            "timestamp",
            "a timestamp is a finite number of milliseconds, at least 0",
            r"\d+(\.\d+)?(e[+-]?\d+)?",
            lambda text: round(Decimal(text) * 10**6),
            most=2**53 * 10**6,
        ),
        _tokens("input_length", 1),
        _tokens("output_length", 0),
    ),
    KVLAB: (
        Column(
            "arrival_s",
            "an arrival is a finite number of seconds in digits, at least 0",
            r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?",
            float,
            most=sys.float_info.max,
        ),
        _tokens("prompt_tokens", 1),
        _tokens("output_tokens", 0),
    ),
}
_KNOWN = "load_trace understands\n" + "\n".join(
    f"  {name}: {'one JSON object a line' if name == MOONCAKE else 'a header'} with "
    + ",".join(column.name for column in columns)
    for name, columns in FORMATS.items()
)

# Lines of a file --------------------------------------------------------------------------------


class _Text:
    """The lines of a file, decoded; ``number`` is that of the last one, as editors count."""

    def __init__(self, name: str, lines: Iterator[bytes]) -> None:
        self.name, self._lines, self.number, self.line = name, lines, 0, ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        raw = next(self._lines)
        self.number += 1
        try:
            self.line = raw.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError:
            self.line = "\0"
        if "\0" in self.line:
            cure = "save it as UTF-8 CSV or JSONL"
            raise self.refusal("a trace is UTF-8 text without NUL", raw, cure=cure)
        return self.line

    def refusal(
        self,
        rule: str,
        value: object,
        column: str | None = None,
        cure: str = "correct or remove the line",
    ) -> WorkloadError:
        """The four facts about the last line, and what to do."""
        where = f"{self.name}, line {self.number}" + (f", column {column}" if column else "")
        return WorkloadError(f"{where}: {rule}: got {_short(value)}; {cure}")

    def parsed(self, column: Column, value: str) -> float:
        """A number of the last line."""
        try:
            if re.fullmatch(column.pattern, value, re.ASCII):
                found = column.read(value)
                if column.least <= found <= column.most:
                    return found
        except (ValueError, ArithmeticError):
            pass
        raise self.refusal(column.rule, value, column.name)

    def fields(self, lines: Iterator[str]) -> Iterator[list[str]]:
        """The records of CSV that are not blank; each ends with the last line."""
        try:
            for found in csv.reader(lines, strict=True):
                record = [field.strip() for field in found]
                if any(record):
                    yield record
        except csv.Error as error:
            rule = f"a line is CSV that ends with LF or CR LF ({error})"
            raise self.refusal(rule, self.line.rstrip()) from None

    def of_csv(self, first: str, names: list[str]) -> Iterator[list[str]]:
        """The named fields of each record after the header."""
        records = self.fields(chain([first], self))
        header = next(records)
        for column in names:
            if header.count(column) != 1:
                rule = f"the header names column {column} once"
                raise self.refusal(rule, first.strip(), cure="name every column once")
        for record in records:
            if len(record) != len(header):
                rule = f"every line has the {len(header)} fields of the header"
                raise self.refusal(rule, self.line.rstrip())
            yield [record[header.index(column)] for column in names]

    def of_json(self, first: str, names: list[str]) -> Iterator[list[str]]:
        """The same of each object, as text: what is no number then looks like none."""
        for line in chain([first], self):
            if not line.strip():
                continue
            try:
                record = json.loads(line, object_pairs_hook=once)
            except (ValueError, RecursionError) as error:
                rule = f"every line is one JSON object ({_short(str(error))})"
                raise self.refusal(rule, line.rstrip()) from None
            if not isinstance(record, dict):
                raise self.refusal("every line is one JSON object", record)
            for column in names:
                if column not in record:
                    rule = f"every line holds the keys {', '.join(names)}"
                    raise self.refusal(rule, sorted(record), column, "add the key")
            yield [repr(record[column]) for column in names]


@contextmanager
def _opened(path: Path) -> Iterator[_Text]:
    """A file as text: plain, or of any packing that pandas knows, told by its first bytes."""
    kind = None
    try:
        with path.open("rb") as plain:
            head = plain.read(6)
        kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
        if kind == "parquet":
            table = pd.read_parquet(path).to_csv(index=False).encode()
            yield _Text(path.name, io.BytesIO(table))
            return
        with get_handle(path, "rb", compression=kind, is_text=False) as opened:
            yield _Text(path.name, iter(opened.handle))
    except WorkloadError:  # of whoever reads the lines
        raise
    except (OSError, *_BROKEN) as error:
        if kind is not None:
            raise WorkloadError(
                f"{path.name} begins like a {kind} file but cannot be unpacked ({error}); fetch it "
                f"again, unpack it first, or install what is missing"
            ) from error
        if not isinstance(error, OSError):
            raise
        raise WorkloadError(
            f"a trace is one file that can be read: {str(path)!r} gives {error.strerror or error} "
            f"(looked from {str(Path.cwd())!r}); check the path"
        ) from error


def _short(value: object) -> str:
    """``repr(value)``, cut to 80 characters, so that an error stays readable."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:70]}... ({len(text)} characters)"


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One JSON object. Of a repeated key Python would keep the last value, without a word."""
    if len(record := dict(pairs)) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"key {twice!r} stands twice")
    return record


# A file -----------------------------------------------------------------------------------------


def load_trace(path: str | Path, limit: int | None = None) -> Workload:
    """The workload in a file of any known format. ``limit`` reads only the first so many requests.

    Times of the public traces count from the earliest request, without loss of precision; kvlab's
    own are taken as they are. Requests are sorted by arrival, stably, and ``source`` says how many
    lines were out of order. One that generated 0 tokens held no decode memory: it is left out and
    counted in ``dropped``. Prefixes that requests share (``hash_ids``) are not kept.

    Errors: WorkloadError for a file that cannot be read, or its first line that breaks a rule, with
    file, line, column, value, rule and what to do.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise WorkloadError(f"limit is a number of requests to read, at least 1: got {limit!r}")
    path = Path(path)
    with _opened(path) as text:
        notes, first = _preamble(text)
        header = [] if first.lstrip().startswith("{") else next(text.fields(iter([first])))
        fits = {name: {c.name for c in columns} <= set(header) for name, columns in FORMATS.items()}
        known = next((name for name in FORMATS if fits[name]), None if header else MOONCAKE)
        if known is None:
            raise text.refusal("begins like no known trace format", first.strip(), cure=_KNOWN)
        columns, read = FORMATS[known], text.of_csv if header else text.of_json
        rows = [
            [text.parsed(*cell) for cell in zip(columns, record, strict=True)]
            for record in islice(read(first, [column.name for column in columns]), limit)
        ]
    table = pd.DataFrame(rows, columns=["time", "prompt", "output"])
    table, everything = table[table.output > 0], table
    dropped = len(everything) - len(table)
    if table.empty:
        what = f"all {dropped} requests generated 0 tokens" if dropped else "no request"
        raise WorkloadError(
            f"{path.name}: a trace holds at least 1 request that generated a token: got {what}; "
            f"check how the file was made"
        )
    own = notes if known == KVLAB else {}
    packed = path.suffix in (".gz", ".bz2", ".xz", ".zst", ".zip")
    name = Path(path.stem).stem if packed else path.stem
    source = own.get("source") or f"{known} {_printable(path.name)}"
    if limit is not None:
        source += f"; at most {limit} requests read"
    elif own.get("dropped", "").isdecimal():
        dropped += int(own["dropped"][:18])
    if late := int((table.time.diff() < 0).sum()):
        source += f"; {late} lines out of order, sorted by arrival"
        table = table.sort_values("time", kind="stable")
    times = table.time if known == KVLAB else (table.time - table.time.iloc[0]) / 1e9
    workload = Workload.from_arrays(
        own.get("name") or _printable(name), times, table.prompt, table.output, source, dropped
    )
    digest = own.get("digest", workload.digest)
    if limit is None and digest != workload.digest:
        raise WorkloadError(
            f"{path.name}: the digest in the header belongs to the numbers below it: got numbers "
            f"of {workload.fingerprint!r} under a header of {_short(digest[:12])}; the file was "
            f"edited after it was saved: restore it, or delete the '# digest' line"
        )
    return workload


def _preamble(text: _Text) -> tuple[dict[str, str], str]:
    """The ``# key: value`` notes at the head of a file, and the first line after them."""
    notes: dict[str, str] = {}
    for line in text:
        if line.strip() and not line.startswith("#"):
            return notes, line
        key, _, value = line[1:].partition(":")
        notes[key.strip()] = value.strip()
    raise WorkloadError(
        f"{text.name}: a trace begins with a header or a request: got an empty file"
        f"{' (comments only)' if any(notes.values()) else ''}; {_KNOWN}"
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text).strip() or "trace"


def save_csv(workload: Workload, path: str | Path) -> None:
    """Write ``workload`` so that `load_trace` gives it back, equal in every field and digest."""
    head = [
        "# kvlab workload",
        f"# name: {workload.name}",
        f"# source: {workload.source}",
        f"# dropped: {workload.dropped}",
        f"# digest: {workload.digest}",
        ",".join(column.name for column in FORMATS[KVLAB]),
    ]
    body = (f"{r.arrival_s!r},{r.prompt_tokens},{r.output_tokens}" for r in workload.requests)
    try:
        with whole_file(Path(path)) as part:
            part.write_text("\n".join([*head, *body, ""]), encoding="utf-8", newline="\n")
    except OSError as error:
        raise WorkloadError(
            f"a workload is saved to a file that can be written: {str(path)!r} gives "
            f"{error.strerror or error}; name a file in an existing folder"
        ) from error


def default_workload() -> Workload:
    """The generated workload that ships with the project: 2,000 requests, closed loop."""
    return load_trace(data_path("workloads", "default.csv"))

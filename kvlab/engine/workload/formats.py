"""The three trace formats: what a first line looks like, and how a line becomes a row.

    azure     TIMESTAMP,ContextTokens,GeneratedTokens
              2023-11-16 18:15:46.6805900,374,44
    mooncake  {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}
    kvlab     arrival_s,prompt_tokens,output_tokens
              27.482,6955,52

Azure writes 100-nanosecond ticks of wall-clock time (an offset such as +00:00 may follow; without
one, UTC is assumed), Mooncake writes milliseconds. Both are counted from the earliest request of
the file, in whole nanoseconds, so no precision is lost before the one division into seconds. The
kvlab format holds seconds and is taken as it is. Mooncake's ``hash_ids`` (prefix blocks that
requests share) are not kept: kvlab simulates a decode node, whose pool holds every request's own
KV. Columns and keys beyond the named ones are ignored.

Sources: the 2023 and 2024 LLM inference traces of Azure/AzurePublicDataset, and the FAST'25 release
of kvcache-ai/Mooncake.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from kvlab.engine.workload.lines import FIX, Line, shorten

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")
KVLAB_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")

_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))?", re.ASCII
)
_SECONDS = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1)
_Record = tuple[Line, list[str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One request as a file states it. ``time`` is in nanoseconds (int) or in seconds (float)."""

    time: int | float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Format:
    """A format's name, the test of its first line, and its parser: first line, rest -> rows."""

    name: str
    looks: str
    matches: Callable[[Line], bool]
    rows: Callable[[Line, Iterator[Line]], Iterator[Row]]


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


def _has(columns: tuple[str, ...]) -> Callable[[Line], bool]:
    # The names are looked for first: a line of JSON has quotes too, and need not be good CSV.
    def has(line: Line) -> bool:
        return all(name in line.text for name in columns) and set(columns) <= set(_fields(line))

    return has


def _table(header: Line, lines: Iterator[Line], columns: tuple[str, ...]) -> Iterator[_Record]:
    """Yield each line with the texts of ``columns``, in the order of ``columns``."""
    names = _fields(header)
    for column in columns:
        if names.count(column) != 1:
            rule = f"the header names column {column} once"
            header.fail(None, rule, header.text, "name every column once")
    places = [names.index(column) for column in columns]
    for line in lines:
        fields = _fields(line)
        if len(fields) != len(names):
            rule = f"every line has the {len(names)} fields of the header"
            line.fail(None, rule, line.text, f"it has {len(fields)}: {FIX}")
        yield line, [fields[place] for place in places]


def _azure_rows(header: Line, lines: Iterator[Line]) -> Iterator[Row]:
    for line, (stamp, prompt, output) in _table(header, lines, AZURE_COLUMNS):
        yield Row(
            _nanoseconds(line, stamp),
            line.digits("ContextTokens", prompt, 1),
            line.digits("GeneratedTokens", output, 0),
        )


def _nanoseconds(line: Line, stamp: str) -> int:
    """Return a wall-clock time as nanoseconds since 1970 UTC, exactly."""
    rule = "a time is written YYYY-MM-DD hh:mm:ss with up to 9 decimals and perhaps an offset"
    match = _STAMP.fullmatch(stamp)
    if match is None:
        line.fail("TIMESTAMP", rule, stamp, FIX)
    day, clock, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day} {clock}") - _EPOCH
    except ValueError:
        line.fail("TIMESTAMP", f"{rule}, and names a real day and time", stamp, FIX)
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            line.fail("TIMESTAMP", "an offset is less than a day, hh:mm", stamp, FIX)
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        moment -= offset if sign == "+" else -offset
    # Not timedelta.total_seconds(): a float of this size holds no 100-nanosecond ticks.
    whole = moment.days * 86_400 + moment.seconds
    return whole * 10**9 + int((fraction or "").ljust(9, "0"))


def _mooncake_rows(first: Line, lines: Iterator[Line]) -> Iterator[Row]:
    for line in _again(first, lines):
        record = _object(line)
        missing = [key for key in MOONCAKE_KEYS if key not in record]
        if missing:
            rule = f"every line holds the keys {', '.join(MOONCAKE_KEYS)}"
            line.fail(missing[0], rule, sorted(record), f"add the key or {FIX}")
        stamp = record["timestamp"]
        # JSON's true is an int to Python; it is no time.
        if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not 0 <= stamp < 2**53:
            rule = "a timestamp is a finite number of milliseconds, at least 0"
            line.fail("timestamp", rule, stamp, FIX)
        yield Row(
            round(stamp * 10**6),
            line.count("input_length", record["input_length"], 1),
            line.count("output_length", record["output_length"], 0),
        )


def _object(line: Line) -> dict[str, object]:
    try:
        record = json.loads(line.text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        # The decoder's own words end with a position in the line.
        rule = f"every line is one JSON object ({shorten(str(error))})"
        line.fail(None, rule, line.text, FIX)
    if not isinstance(record, dict):
        line.fail(None, "every line is one JSON object", record, FIX)
    return record


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """One JSON object. Of a repeated key Python would keep the last value, without a word."""
    record: dict[str, object] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"key {key!r} stands twice")
        record[key] = value
    return record


def _is_object(line: Line) -> bool:
    return line.text.lstrip().startswith("{")


def _again(first: Line, lines: Iterator[Line]) -> Iterator[Line]:
    yield first
    yield from lines


def _kvlab_rows(header: Line, lines: Iterator[Line]) -> Iterator[Row]:
    for line, (arrival, prompt, output) in _table(header, lines, KVLAB_COLUMNS):
        seconds = float(arrival) if _SECONDS.fullmatch(arrival) else math.nan
        if not 0 <= seconds < math.inf:
            rule = "an arrival is a finite number of seconds in digits, at least 0"
            line.fail("arrival_s", rule, arrival, FIX)
        yield Row(
            seconds,
            line.digits("prompt_tokens", prompt, 1),
            line.digits("output_tokens", output, 0),
        )


AZURE = Format(
    "Azure CSV", f"a header with {','.join(AZURE_COLUMNS)}", _has(AZURE_COLUMNS), _azure_rows
)
MOONCAKE = Format(
    "Mooncake JSONL",
    f"one JSON object a line with {', '.join(MOONCAKE_KEYS)}",
    _is_object,
    _mooncake_rows,
)
KVLAB = Format(
    "kvlab CSV", f"a header with {','.join(KVLAB_COLUMNS)}", _has(KVLAB_COLUMNS), _kvlab_rows
)
FORMATS = (AZURE, MOONCAKE, KVLAB)

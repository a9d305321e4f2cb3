"""What a command hands out: a table for people, one JSON document, or a CSV file.

A file appears whole or not at all, and no output is an input or another output. Worked example of
the table, numbers to the right and text to the left:

    outcome       pages
    silent          127
    out_of_range    896
"""

import argparse
import errno
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from kvlab.errors import KvlabError
from kvlab.files import whole_file
from kvlab.index import DcpLayout

STDOUT = "-"
PIECE = 2**15  # characters
#: Seconds between two lines of progress where there is no terminal.
LINE_EVERY_S = 10.0


#: Option -> the path that it names, None where it is not given.
Places = Mapping[str, Path | None]


class UsageError(KvlabError):
    """A command line that cannot be meant: exit code 2."""


def file_of(out: str | None) -> Path | None:
    """The file that ``--csv`` and its like name; None for standard output."""
    return None if out is None or out == STDOUT else Path(out)


def require_apart(inputs: Places, outputs: Places, replaced: Places | None = None) -> None:
    """Refuse an output that is an input or another output, by whatever name it is called.

    ``replaced``: folders that are replaced as a whole, so that nothing else may lie in them.
    Errors: UsageError, before any work.
    """
    folders = {option: path for option, path in (replaced or {}).items() if path}
    written = folders | {option: path for option, path in outputs.items() if path}
    named = written | {option: path for option, path in inputs.items() if path}
    for option, path in written.items():
        for other, there in named.items():
            if option != other and _same(path, there):
                raise UsageError(
                    f"an output is no input and no other output: {option} and {other} are both "
                    f"{str(path)!r}; name another place with {option}"
                )
            if option in folders and _real(path) in _real(there).parents:
                raise UsageError(
                    f"{option} replaces all of its folder: {other} {str(there)!r} lies in it; name "
                    f"another place with {option}"
                )


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file or folder, through links too. A pipe or a device may be shared."""
    if os.path.exists(one) and not (os.path.isfile(one) or os.path.isdir(one)):
        return False
    both = os.path.exists(one) and os.path.exists(other)
    return _real(one) == _real(other) or (both and os.path.samefile(one, other))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in three forms; only what is asked for is made."""

    text: Callable[[], str]
    document: Callable[[], Mapping[str, object]]
    table: Callable[[], pd.DataFrame]


def add_output_arguments(parser: argparse.ArgumentParser, rows: str) -> None:
    """Add ``--json`` and ``--csv OUT``; ``rows`` says what a row of the table is."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of the table"
    )
    add_csv_argument(parser, rows)


def add_csv_argument(parser: argparse.ArgumentParser, rows: str) -> None:
    """Add ``--csv OUT``."""
    parser.add_argument(
        "--csv", type=csv_place, metavar="OUT", help=f"write {rows} to OUT (-: standard output)"
    )


def csv_place(text: str) -> str:
    """``text`` if a file can be made there. Errors: ArgumentTypeError, before any work is done."""
    path = Path(text)
    if text == STDOUT:
        return text
    if not text or os.path.isdir(text):  # Path.is_dir raises for a name that is too long
        raise argparse.ArgumentTypeError(f"OUT is a file: {text!r} is a folder; name a file in it")
    if not os.path.isdir(path.parent):
        raise argparse.ArgumentTypeError(
            f"OUT lies in an existing folder: there is no folder {str(path.parent)!r}; make it "
            f"first"
        )
    try:
        _try_to_write(path.resolve())
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads back to itself
        reason = error.strerror if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(
            f"OUT is a file that can be written: {text!r} gives {reason}; name another file"
        ) from None
    return text


def _try_to_write(place: Path) -> None:
    """Make and remove the file beside ``place``. Errors: OSError. ``place`` is not changed."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(place.stat().st_mode):  # a pipe or a device takes what it is given
            if os.access(place, os.W_OK):
                return
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with tempfile.TemporaryFile(dir=place.parent):
        pass


def deliver(answer: Answer, given: argparse.Namespace) -> None:
    """Hand out what the options ask for.

    Errors: KvlabError when a file cannot be written, after the rest was printed: the work is done.
    """
    failed: KvlabError | None = None
    if given.csv is not None:
        table = answer.table()
        try:
            write_csv(table, given.csv)
        except KvlabError as error:
            failed = error
    if given.json:
        _put(json.dumps(answer.document(), indent=1, allow_nan=False) + "\n")
    elif given.csv != STDOUT:
        say(answer.text())
    if failed is not None:
        raise failed


def write_csv(table: pd.DataFrame, out: str) -> None:
    """Write ``table`` to the file ``out``, whole or not at all, or to standard output for "-"."""
    text = table.to_csv(index=False, lineterminator="\n")
    if out == STDOUT:
        _put(text)
        return
    write_file(text.encode(), out, "table", "--csv")
    print(f"wrote {out} ({len(table)} rows)", file=sys.stderr)


def write_file(content: bytes, out: str, what: str, option: str) -> None:
    """Write ``content`` to the file ``out``, whole or not at all.

    Errors: KvlabError, which says that ``what`` cannot be written and to change ``option``.
    """
    place = Path(out)
    try:
        if place.exists() and not place.is_file():  # a pipe or a device: nothing to put in place
            place.write_bytes(content)
            return
        with whole_file(place) as part:
            part.write_bytes(content)
    except OSError as error:
        raise KvlabError(
            f"a {what} is written to a file that can be made: {out!r} gives "
            f"{error.strerror or error}; name another file with {option}"
        ) from None


def say(text: str) -> None:
    """Print ``text``."""
    _put(text + "\n")


def _put(text: str) -> None:
    """Write to standard output piece by piece.

    With ``PYTHONUNBUFFERED`` set, Python drops what a closed pipe has not taken of *one* write and
    says nothing; the next write is told. Without a standard output (``>&-``) nothing is written.
    """
    if sys.stdout is None:
        return
    for at in range(0, len(text), PIECE):
        sys.stdout.write(text[at : at + PIECE])


def records(table: pd.DataFrame) -> list[dict[str, object]]:
    """The rows of a table as plain values for JSON; None where there is no value."""
    plain = table.astype(object)
    found: list[dict[str, object]] = plain.where(table.notna(), None).to_dict("records")  # type: ignore[assignment]
    return found


def layout_facts(layout: DcpLayout) -> dict[str, int]:
    """A layout as plain values for JSON: its four sizes, and what follows from them."""
    return {
        **asdict(layout),
        "widened_page_size": layout.widened_page_size,
        "slot_end": layout.slot_end,
        "rows_per_rank": layout.rows_per_rank,
        "capacity_tokens": layout.capacity_tokens,
    }


def aligned(table: pd.DataFrame, most: int | None = None, thousands: bool = False) -> str:
    """A table for people. ``most`` rows are shown at most, the first and the last of them."""
    cut = None if most is None or len(table) <= most else (most + 1) // 2
    shown = table if cut is None or most is None else pd.concat([table[:cut], table[cut - most :]])
    columns = []
    for name in shown.columns:
        cells = [str(name), *(_cell(value, thousands) for value in shown[name].tolist())]
        width = max(map(len, cells))
        right = pd.api.types.is_numeric_dtype(table[name]) and table[name].dtype != bool
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    if cut is not None and most is not None:
        lines.insert(cut + 1, f"... {len(table) - most:,} more rows; --csv writes all ...")
    return "\n".join(lines)


def _cell(value: object, thousands: bool) -> str:
    if value is None or value is pd.NA or value != value:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if thousands else str(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def progress(unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, or a line every ten seconds where that is no terminal: call it with
    (done, total)."""
    bars: list[tqdm] = []
    terminal = sys.stderr is not None and sys.stderr.isatty()
    said = time.monotonic()

    def told(done: int, total: int) -> None:
        nonlocal said
        if terminal:
            if not bars:
                bars.append(tqdm(total=total, unit=unit, file=sys.stderr, leave=False))
            bars[0].update(done - bars[0].n)
        elif sys.stderr is not None and time.monotonic() - said >= LINE_EVERY_S:
            said = time.monotonic()
            print(f"{unit} {done} of {total}", file=sys.stderr, flush=True)

    try:
        yield told
    finally:
        for bar in bars:
            bar.close()

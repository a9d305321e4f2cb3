"""What a command is asked before any work, and what it hands out: a table, a document, a file.

A file appears whole or not at all, and no output is an input or another output. Worked example of
the table, numbers to the right and text to the left:

    outcome       pages
    silent          127
    out_of_range    896
"""

import csv as csv_module
import errno
import io
import json
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvlab.errors import KvlabError, StudyError
from kvlab.files import whole_file

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable

    from kvlab.index import DcpLayout

STDOUT = Path("-")
PIECE = 2**15  # characters
MOST_RANKS = 4096
#: Seconds between two lines of progress where there is no terminal.
LINE_EVERY_S = 10.0

#: Name -> values, all of one length; None where there is no value.
Columns = Mapping[str, Sequence[object]]
#: Option -> the path that it names, None where it is not given.
Places = dict[str, Path | None]


def option(metavar: str | None, help: str, *names: str, **more: Any) -> Any:
    """An option of a command: what stands for its value, and what it does."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def csv_option(rows: str) -> Any:
    """``--csv OUT``; ``rows`` says what a row of the table is."""
    return option("OUT", f"Write {rows} to OUT (-: standard output).", parser=out_file)


Json = Annotated[bool, option(None, "Print one JSON document instead of the table.", "--json")]
DcpSize = Annotated[int, option("C", "Ranks that share one request's KV.")]
PageSize = Annotated[int, option("P", "Rows of one page in one rank's buffer.")]
Jobs = Annotated[int | None, option("N", "Processes (default: as many as cores).", min=1)]
Cache = Annotated[Path | None, option("DIR", "Keep finished rows in DIR and use those there.")]


class UsageError(KvlabError):
    """A command line that cannot be meant: exit code 2."""


def out_file(text: str) -> Path:
    """The path ``text`` if a file can be made there. Errors: BadParameter, before any work."""
    path = Path(text)
    if path == STDOUT:
        return path
    if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        raise typer.BadParameter(f"OUT is a file: {text!r} is a folder; name a file in it")
    if not os.path.isdir(path.parent):
        raise typer.BadParameter(f"OUT lies in a folder: there is none at {str(path.parent)!r}")
    try:
        place = path.resolve(strict=path.is_symlink())
        if not place.exists() or place.is_file():
            with tempfile.TemporaryFile(dir=place.parent):
                return path
        if not os.access(place, os.W_OK):  # a pipe or a device takes what it is given
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads back to itself
        reason = error.strerror if isinstance(error, OSError) else error
        raise typer.BadParameter(
            f"OUT is a file that can be written: {text!r} gives {reason}; name another file"
        ) from None
    return path


def sizes(text: str) -> tuple[int, ...]:
    """ "1,2,4" as (1, 2, 4). Errors: BadParameter for what is no size."""
    return _listed(text, int, "whole numbers of at least 1")


def amounts(text: str) -> tuple[float, ...]:
    """ "0.5,1" as (0.5, 1.0). Errors: BadParameter for what is not finite and above 0."""
    return _listed(text, float, "numbers above 0")


def _listed(text: str, kind: Callable[[str], Any], rule: str) -> tuple[Any, ...]:
    try:
        found = tuple(map(kind, str(text).split(",")))  # a default comes as it is
    except ValueError:
        found = ()
    if not found or not all(0 < value < math.inf for value in found):
        raise typer.BadParameter(f"the list must be {rule}, joined by commas: got {text!r}")
    return found


def require_ranks(dcp_size: int, instead: str) -> None:
    """Refuse more ranks than a command looks at one by one. Errors: StudyError."""
    if dcp_size > MOST_RANKS:
        raise StudyError(
            f"ranks are looked at one by one, at most {MOST_RANKS:,} of them: got --dcp-size "
            f"{dcp_size:,}; {instead}"
        )


def begin(ctx: typer.Context, inputs: Places, outputs: Places, replaced: Places) -> str:
    """Ask what every command asks before its work; return the command line as it is published:
    with files by their names, without their folders.

    ``outputs``: beside ``--csv``. Errors: UsageError.
    """
    given = ctx.params
    if given["as_json"] and given["csv"] == STDOUT:
        raise UsageError("--json and --csv - both want standard output; leave one out")
    csv = None if given["csv"] == STDOUT else given["csv"]
    require_apart(inputs, {"--csv": csv, **outputs}, replaced)
    values = [
        v for value in given.values() for v in (value if isinstance(value, list) else [value])
    ]
    files = {value for value in values if isinstance(value, Path)}

    def published(word: str) -> str:
        head, equals, tail = word.partition("=") if word.startswith("--") else ("", "", word)
        return f"{head}{equals}{Path(tail).name}" if tail and Path(tail) in files else word

    return shlex.join(["kvlab", *map(published, ctx.obj)])


def require_apart(inputs: Places, outputs: Places, replaced: Places) -> None:
    """Refuse an output that is an input or another output, by whatever name it is called.

    ``replaced``: outputs that are folders and are replaced as a whole. Errors: UsageError.
    """
    written = {option: path for option, path in (replaced | outputs).items() if path}
    named = written | {option: path for option, path in inputs.items() if path}
    for option, path in written.items():
        for other, there in named.items():
            inside = option in replaced and _real(path) in _real(there).parents
            if option != other and (inside or _same(path, there)):
                how = "lies in" if inside else "is"
                raise UsageError(
                    f"an output is no input and no other output: {other} {str(there)!r} {how} "
                    f"{option} {str(path)!r}; name another place with {option}"
                )


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file or folder, through links too. A pipe or a device may be shared."""
    if not (os.path.exists(one) and os.path.exists(other)):
        return _real(one) == _real(other)
    return os.path.samefile(one, other) and (os.path.isfile(one) or os.path.isdir(one))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people: ``most`` rows at most, the first and the last of them."""

    columns: Columns
    most: int | None = None
    thousands: bool = False

    def text(self) -> str:
        """Aligned lines."""
        rows, first, left_out = self._cells()
        columns = []
        for cells, right in zip(zip(*rows, strict=True), self._right(), strict=True):
            width = max(map(len, cells))
            columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
        lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
        return "\n".join([*lines[: first + 1], *left_out, *lines[first + 1 :]])

    def drawn(self) -> "tuple[RichTable | str, ...]":
        """The same for a terminal, and below it what is left out."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable

        (head, *rows), first, left_out = self._cells()
        made = RichTable(box=SIMPLE_HEAD)
        for name, right in zip(head, self._right(), strict=True):
            made.add_column(name, justify="right" if right else "left", no_wrap=True)
        for i, row in enumerate(rows, 1):
            made.add_row(*row, end_section=bool(left_out) and i == first)
        return made, *left_out

    def _cells(self) -> tuple[list[list[str]], int, list[str]]:
        """The rows that are shown, names first; how many before a gap; what the gap says."""
        rows = list(zip(*self.columns.values(), strict=True))
        most = len(rows) if self.most is None else min(self.most, len(rows))
        first = (most + 1) // 2
        shown = [list(self.columns)]
        shown += [
            list(map(self._cell, row)) for row in rows[:first] + rows[len(rows) - most + first :]
        ]
        gap = [f"... {len(rows) - most:,} more rows; --csv writes all ..."]
        return shown, first, gap if most < len(rows) else []

    def _right(self) -> list[bool]:
        """Which columns hold numbers."""
        return [{type(v) for v in c} <= {int, float, type(None)} for c in self.columns.values()]

    def _cell(self, value: object) -> str:
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int):
            return f"{value:,}" if self.thousands else str(value)
        return f"{value:.4g}" if isinstance(value, float) else str(value)


def columns_of(frame: "pd.DataFrame") -> Columns:
    """The columns of a frame as plain values; None where there is no value."""
    plain = frame.astype(object).where(frame.notna(), None)
    return {str(name): plain[name].tolist() for name in plain.columns}


def records(columns: Columns) -> list[dict[str, object]]:
    """Row by row, for JSON."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def layout_facts(layout: "DcpLayout") -> dict[str, int]:
    """A layout as plain values for JSON: its four sizes, and what follows from them."""
    return {
        **asdict(layout),
        "widened_page_size": layout.widened_page_size,
        "slot_end": layout.slot_end,
        "rows_per_rank": layout.rows_per_rank,
        "capacity_tokens": layout.capacity_tokens,
    }


def deliver(
    ctx: typer.Context,
    text: Callable[[], Sequence[str | Table]],
    document: Callable[[], Mapping[str, object]],
    table: Callable[[], Columns],
) -> None:
    """Hand out what the options ask for; only that is made.

    Errors: KvlabError when a file cannot be written, after the rest was printed: the work is done.
    """
    failed: KvlabError | None = None
    csv: Path | None = ctx.params["csv"]
    if csv is not None:
        try:
            write_csv(table(), csv)
        except KvlabError as error:
            failed = error
    if ctx.params["as_json"]:
        _put(json.dumps(document(), indent=1, allow_nan=False) + "\n")
    elif csv != STDOUT:
        say(text())
    if failed is not None:
        raise failed


def write_csv(columns: Columns, out: Path) -> None:
    """Write a table to the file ``out``, whole or not at all, or to standard output for "-"."""
    rows = list(zip(*columns.values(), strict=True))
    text = io.StringIO()
    csv_module.writer(text, lineterminator="\n").writerows([tuple(columns), *rows])
    if out == STDOUT:
        _put(text.getvalue())
        return
    write_file(text.getvalue().encode(), out, "table", "--csv")
    note(f"wrote {out} ({len(rows)} rows)")


def write_file(content: bytes, out: Path, what: str, option: str) -> None:
    """Write ``content`` to the file ``out``, whole or not at all.

    Errors: KvlabError, which says that ``what`` cannot be written and to change ``option``.
    """
    try:
        with whole_file(out) as part:
            part.write_bytes(content)
    except OSError as error:
        raise KvlabError(
            f"a {what} is written to a file that can be made: {str(out)!r} gives "
            f"{error.strerror or error}; name another file with {option}"
        ) from None


def say(parts: Sequence[str | Table]) -> None:
    """Print lines and tables: plain, or drawn where standard output is a terminal."""
    plain = [part if isinstance(part, str) else part.text() for part in parts]
    if sys.stdout is None or not sys.stdout.isatty():
        _put("\n".join(plain) + "\n")
        return
    from rich.console import Console

    console = Console()
    for part, text in zip(parts, plain, strict=True):
        if isinstance(part, Table) and 2 * len(part.columns) + text.index("\n") < console.width:
            console.print(*part.drawn(), sep="\n", highlight=False)
        else:
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def note(sentence: str) -> None:
    """Print on standard error, where what is no answer goes."""
    print(sentence, file=sys.stderr)


def _put(text: str) -> None:
    """Write to standard output piece by piece.

    With ``PYTHONUNBUFFERED`` set, Python drops what a closed pipe has not taken of *one* write and
    says nothing; the next write is told. Without a standard output (``>&-``) nothing is written.
    """
    if sys.stdout is None:
        return
    for at in range(0, len(text), PIECE):
        sys.stdout.write(text[at : at + PIECE])


@contextmanager
def progress(unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, or a line every ten seconds where that is no terminal: call it with
    (done, total)."""
    if sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(unit, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    said = time.monotonic()

    def told(done: int, total: int) -> None:
        nonlocal said
        if sys.stderr is not None and time.monotonic() - said >= LINE_EVERY_S:
            said = time.monotonic()
            print(f"{unit} {done} of {total}", file=sys.stderr, flush=True)

    yield told

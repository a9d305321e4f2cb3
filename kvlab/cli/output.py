"""What a command hands out: a table for people, a JSON document, a CSV, progress and notes.

A file appears whole or not at all, and no output is an input or another output. In the table
numbers stand to the right and text to the left:

    outcome       pages
    silent          127
"""

import csv as csv_module
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvlab.cli.options import STDOUT
from kvlab.errors import KvlabError, StudyError
from kvlab.files import whole_file

if TYPE_CHECKING:
    import pandas as pd

    from kvlab.index import DcpLayout

PIECE = 2**15  # characters
MOST_RANKS = 4096
LINE_EVERY_S = 10.0
INPUTS = {"--trace", "--geometry", "--prompts", "--model", "--notebooks"}

#: Name -> values, all of one length; None where there is no value.
Columns = Mapping[str, Sequence[object]]
#: Option -> the path that it names, None where it is not given.
Places = Mapping[str, Path | None]


class UsageError(KvlabError):
    """A command line that cannot be meant: exit code 2."""


def require_ranks(dcp_size: int, instead: str) -> None:
    """Refuse more ranks than a command looks at one by one. Errors: StudyError."""
    if dcp_size > MOST_RANKS:
        raise StudyError(
            f"ranks are looked at one by one, at most {MOST_RANKS:,} of them: got --dcp-size "
            f"{dcp_size:,}; {instead}"
        )


def begin(ctx: typer.Context, more: Places | None = None, whole: str | None = None) -> str:
    """Refuse an output that is an input or another output, by whatever name it is called; return
    the command line as it is published: with files by their names, without their folders.

    ``more``: files that no option names; ``whole``: a folder that is replaced as a whole.
    Errors: UsageError.
    """
    if ctx.params["as_json"] and ctx.params["csv"] == STDOUT:
        raise UsageError("--json and --csv - both want standard output; leave one out")
    given = {"--" + name.replace("_", "-"): value for name, value in ctx.params.items()}
    places = [
        (option, path)
        for option, value in [*given.items(), *(more or {}).items()]
        for path in (value if isinstance(value, list) else [value])
        if isinstance(path, Path) and path != STDOUT
    ]
    for (option, path), (other, there) in permutations(places, 2):
        inside = option == whole and _real(path) in _real(there).parents
        if option.split(" ")[0] not in INPUTS and (inside or _same(path, there)):
            raise UsageError(
                f"an output is no input and no other output: {other} {str(there)!r} "
                f"{'lies in' if inside else 'is'} {option} {str(path)!r}; name another place "
                f"with {option}"
            )
    files = {path for _, path in places}

    def published(word: str) -> str:
        head, equals, tail = word.partition("=") if word.startswith("--") else ("", "", word)
        return f"{head}{equals}{Path(tail).name}" if tail and Path(tail) in files else word

    return shlex.join(["kvlab", *map(published, ctx.obj)])


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

    def rows(self) -> list[list[str]]:
        """The names, then the rows; where rows are left out, a single cell that says so."""
        rows: list[Sequence[object]] = list(zip(*self.columns.values(), strict=True))
        most = self.most or len(rows)
        if len(rows) > most:
            gap = f"... {len(rows) - most:,} more rows; --csv writes all ..."
            rows = [*rows[: (most + 1) // 2], [gap], *rows[len(rows) - most // 2 :]]
        return [list(self.columns), *([self._cell(value) for value in row] for row in rows)]

    def to_the_right(self) -> list[bool]:
        """Which columns hold numbers."""
        return [{type(v) for v in c} <= {int, float, type(None)} for c in self.columns.values()]

    def __str__(self) -> str:
        rows, right = self.rows(), self.to_the_right()
        whole = [row for row in rows if len(row) == len(right)]
        widths = [max(map(len, cells)) for cells in zip(*whole, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, right, strict=False)
            ).rstrip()
            for row in rows
        )

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
    """A layout as plain values for JSON: its sizes, and what follows from them."""
    derived = ("widened_page_size", "slot_end", "rows_per_rank", "capacity_tokens")
    return asdict(layout) | {name: getattr(layout, name) for name in derived}


def deliver(
    ctx: typer.Context,
    text: Callable[[], Sequence[str | Table]],
    document: Callable[[], Mapping[str, object]],
    table: Callable[[], Columns],
) -> None:
    """Hand out what the options ask for; only that is made.

    Errors: KvlabError when a file cannot be written, after the rest was printed: the work is done.
    """
    csv: Path | None = ctx.params["csv"]
    try:
        if csv is not None:
            write_csv(table(), csv)
    finally:
        if ctx.params["as_json"]:
            _put(json.dumps(document(), indent=1, allow_nan=False) + "\n")
        elif csv != STDOUT:
            say(text())


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
    """Write ``content`` to the file ``out``, whole or not at all. Errors: KvlabError."""
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
    if sys.stdout is None or not sys.stdout.isatty():
        _put("\n".join(map(str, parts)) + "\n")
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    for part in parts:
        text = str(part)
        if isinstance(part, str) or 2 * len(part.columns) + text.index("\n") >= console.width:
            console.print(text, markup=False, highlight=False, soft_wrap=True)
            continue
        drawn, below = RichTable(box=SIMPLE_HEAD), list[str]()
        for name, right in zip(part.columns, part.to_the_right(), strict=True):
            drawn.add_column(name, justify="right" if right else "left", no_wrap=True)
        for row in part.rows()[1:]:
            if row[0].startswith("... "):  # rich has no cell over all columns
                drawn.add_section()
                below = row
            else:
                drawn.add_row(*row)
        console.print(drawn, *below, sep="\n", highlight=False)


def note(sentence: str) -> None:
    """Print on standard error, where what is no answer goes."""
    print(sentence, file=sys.stderr)


def _put(text: str) -> None:
    """Write to standard output piece by piece; without one (``>&-``) write nothing.

    With ``PYTHONUNBUFFERED`` set, Python drops what a closed pipe has not taken of *one* write and
    says nothing; the next write is told.
    """
    for at in range(0, 0 if sys.stdout is None else len(text), PIECE):
        sys.stdout.write(text[at : at + PIECE])


@contextmanager
def kept(cache: Path | None, what: str) -> Iterator[None]:
    """Say, when a long run is interrupted, where its finished ``what`` are."""
    try:
        yield
    except KeyboardInterrupt:
        if cache is not None:
            note(f"\nfinished {what} are kept in {cache}")
        raise


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

"""The options of the commands, and what their values must be: asked before any work."""

import errno
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

STDOUT = Path("-")


def option(metavar: str | None, help: str, *names: str, **more: Any) -> Any:
    """An option of a command: what stands for its value, and what it does."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def csv_option(rows: str) -> Any:
    """``--csv OUT``; ``rows`` says what a row of the table is."""
    return option("OUT", f"Write {rows} to OUT (-: standard output).", parser=out_file)


def out_file(text: str) -> Path:
    """The path ``text`` if a file can be made there. Errors: BadParameter."""
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
            tempfile.TemporaryFile(dir=place.parent).close()
        elif not os.access(place, os.W_OK):  # a pipe or a device takes what it is given
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads back to itself
        why = getattr(error, "strerror", error)
        raise typer.BadParameter(
            f"OUT is a file that can be written: {text!r} gives {why}; name another file"
        ) from None
    return path


def numbers(kind: type[int] | type[float]) -> Callable[[str], tuple[Any, ...]]:
    """A parser of "1,2,4": finite numbers above 0. Its errors: BadParameter."""

    def read(text: str) -> tuple[Any, ...]:
        try:
            found = tuple(map(kind, str(text).split(",")))  # a default comes as it is
        except ValueError:
            found = ()
        if not found or not all(0 < value < math.inf for value in found):
            rule = "whole numbers of at least 1" if kind is int else "numbers above 0"
            raise typer.BadParameter(f"the list must be {rule}, joined by commas: got {text!r}")
        return found

    return read


def names(known: Callable[[], Sequence[str]]) -> Callable[[str], tuple[str, ...]]:
    """A parser of names out of ``known()``, joined by commas. Its errors: BadParameter."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(","))
        wrong = [i for i, name in enumerate(found) if name not in known() or name in found[:i]]
        if wrong:
            raise typer.BadParameter(
                f"the list holds names of {', '.join(known())}, each once: got {found[wrong[0]]!r} "
                f"at place {wrong[0] + 1} of {len(found)}"
            )
        return found

    return read


Json = Annotated[bool, option(None, "Print one JSON document instead of the table.", "--json")]
DcpSize = Annotated[int, option("C", "Ranks that share one request's KV.")]
PageSize = Annotated[int, option("P", "Rows of one page in one rank's buffer.")]
Jobs = Annotated[int | None, option("N", "Processes (default: as many as cores).", min=1)]
Cache = Annotated[Path | None, option("DIR", "Keep finished rows in DIR and use those there.")]

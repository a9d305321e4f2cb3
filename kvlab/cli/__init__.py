"""The command line ``kvlab``: six commands, and how each way to end becomes an exit code.

0     what was asked for was done
1     it could not be done: one sentence on standard error says why and what to do
2     bad usage: an unknown option, a value that is no number, an OUT that is a folder
130   interrupted (Ctrl-C); 141: whoever read standard output has gone (``... | head -3``)
"""

import inspect
import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from typing import Annotated

import typer

from kvlab.cli import crash, doctor, drift, owners, report, retraction
from kvlab.cli.output import UsageError
from kvlab.errors import KvlabError

INTERRUPTED = 128 + 2  # what shells report for SIGINT
READER_GONE = 128 + 13  # ... and for SIGPIPE
EPILOG = """\b
example:
  kvlab crash --dcp-size 8 --page-size 64 --num-pages 1024

\b
exit codes:
  0 done; 1 it could not be done, and a sentence says why; 2 bad usage; 130 interrupted;
  141 the reader of standard output has gone
"""

#: The program, for whoever describes it: the pages of the documentation are made from it.
app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
for module in (report, crash, owners, retraction, drift, doctor):
    paragraphs = (inspect.getdoc(module.run) or "").split("\n\n")
    app.command(
        module.__name__.rpartition(".")[2],
        help="\n\n".join(" ".join(part.split()) for part in paragraphs),
        epilog=module.EPILOG,
    )(module.run)


def show_version(wanted: bool) -> None:
    """Print the versions that decide numbers, and stop."""
    if wanted:
        from kvlab.lab.origin import commit, versions

        found, at = versions(), commit()
        print(f"kvlab {found['kvlab']}{f' ({at})' if at else ''}")
        print(f"python {found['python']}\ntorch {found.get('torch', 'is missing')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=show_version,
        is_eager=True,
        help="Print the versions of kvlab, Python and torch, and stop.",
    ),
]


@app.callback(epilog=EPILOG)
def root(version: Version = False) -> None:
    """A workbench for one question: which memory does this KV-cache id name?

    Each command prints a table for people. --json prints one JSON document on standard output and
    nothing else there; --csv OUT writes the table to a file. Progress and errors go to standard
    error.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None: that of this process) and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what it cannot encode is shown as an escape
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _require_words(words)
        code = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be told
        return code
    except KvlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # Python writes what is left of standard output at its end: let that go nowhere.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return READER_GONE
        print(f"error: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1


def _run(words: list[str]) -> int:
    if not words:
        with redirect_stdout(sys.stderr):
            _run(["--help"])
        return 2
    # Panels are for a terminal; a pipe gets plain text.
    drawn = sys.stdout is not None and sys.stdout.isatty()
    app.rich_markup_mode = "rich" if drawn else None
    command = typer.main.get_command(app)
    try:
        said = crash.with_record_place(words)
        with command.make_context("kvlab", said, obj=tuple(words)) as ctx:
            return int(command.invoke(ctx) or 0)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.TyperException as error:
        raise UsageError(
            f"{error.format_message().rstrip('.')}; --help says what is taken"
        ) from None


def _require_words(words: list[str]) -> None:
    for i, word in enumerate(words):
        # An empty path is the current folder to Python, and no other value may be empty either.
        if not word or (word.startswith("--") and word.endswith("=")):
            option = word[:-1] or (words[i - 1] if i else "the command")
            raise UsageError(f"{option} takes a text that is not empty: got {word!r}")
        try:
            word.encode()
        except UnicodeEncodeError:  # origins and captions are text, and so are the names in them
            raise UsageError(
                f"a command line is text in UTF-8: got {os.fsencode(word)!r}; rename the file"
            ) from None

"""The program ``kvlab``: one parser, six commands, and how each way to end becomes an exit code.

    0     what was asked for was done
    1     it could not be done: one sentence on standard error says why and what to do
    2     bad usage: an unknown option, a value that is no number, an OUT that is a folder
    130   interrupted (Ctrl-C)
    141   whoever read standard output has gone (``kvlab owners | head -3``)

Worked example, a pool of 4 pages on 2 ranks; page 1 would fail without a sound:

    $ kvlab crash --dcp-size 2 --page-size 1 --num-pages 4 --json
    {"dcp_size": 2, ..., "silent": 1, "straddling": 1, "out_of_range": 2, ...}
"""

import argparse
import io
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from kvlab.cli import crash, doctor, drift, owners, report, retraction
from kvlab.cli.output import STDOUT, UsageError, require_apart
from kvlab.errors import KvlabError
from kvlab.lab.origin import versions

INTERRUPTED = 128 + 2  # what shells report for SIGINT
READER_GONE = 128 + 13  # ... and for SIGPIPE

COMMANDS: dict[str, ModuleType] = {
    "report": report,
    "crash": crash,
    "owners": owners,
    "retraction": retraction,
    "drift": drift,
    "doctor": doctor,
}
DESCRIPTION = """\
A workbench for one question: which memory does this KV-cache id name?

Each command prints a table for people. --json prints one JSON document on standard output and
nothing else there; --csv OUT writes the table to a file. Progress and errors go to standard error.
"""
EPILOG = """\
example:
  kvlab crash --dcp-size 8 --page-size 64 --num-pages 1024

exit codes:
  0 done; 1 it could not be done, and a sentence says why; 2 bad usage; 130 interrupted;
  141 the reader of standard output has gone
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None: that of this process) and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what it cannot encode is shown as an escape
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be told
        return code
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KvlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return READER_GONE
    except OSError as error:
        _drop_stdout()
        print(f"error: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1


def _run(words: list[str]) -> int:
    _require_words(words)
    parser, subparsers = _parsers(words)
    try:
        given = parser.parse_args(words)
        if given.command is None:
            parser.print_help(sys.stderr)
            return 2
        if given.json and given.csv == STDOUT:
            subparsers[given.command].error("--json and --csv - both want standard output")
    except SystemExit as stop:  # how argparse ends, after --help as well
        return stop.code if isinstance(stop.code, int) else 0
    given.line = line_of(words, given)
    require_apart(*COMMANDS[given.command].places(given))
    if given.command == "report":
        given.parser = full_parser()  # the site says what each command takes
    code: int = COMMANDS[given.command].run(given)
    return code


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


def line_of(words: Sequence[str], given: argparse.Namespace) -> str:
    """The command line to type, to be published: files by their names, without their folders."""
    files: set[Path] = {Path(given.csv)} if given.csv is not None else set()
    for value in vars(given).values():
        files.update(v for v in (value if isinstance(value, list) else [value]) if _is_path(v))

    def published(word: str) -> str:
        head, equals, tail = word.partition("=") if word.startswith("--") else ("", "", word)
        return f"{head}{equals}{Path(tail).name}" if tail and Path(tail) in files else word

    return shlex.join(["kvlab", *map(published, words)])


def _is_path(value: object) -> bool:
    return isinstance(value, Path)


def full_parser() -> argparse.ArgumentParser:
    """The parser with the options of every command, for whoever describes them all."""
    return _parsers([], every=True)[0]


def _parsers(
    words: list[str], every: bool = False
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    parser = argparse.ArgumentParser(
        prog="kvlab",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_Version, help="print the versions of kvlab, Python and torch, and stop"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    asked = next((word for word in words if not word.startswith("-")), None)
    made = {}
    for name, module in COMMANDS.items():
        made[name] = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if (
            every or name == asked
        ):  # the options of the report need the report, which takes seconds to load
            module.add_arguments(made[name])
    return parser, made


class _Version(argparse.Action):
    """Prints the versions when asked for, and so looks them up only then."""

    def __init__(self, option_strings: list[str], dest: str, **given: object) -> None:
        super().__init__(option_strings, dest, nargs=0, help=str(given.get("help")))

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        found = versions()
        print("\n".join(f"{name} {found[name]}" for name in ("kvlab", "python", "torch")))
        parser.exit(0)


def _drop_stdout() -> None:
    """Python writes what is left of standard output at its end: let that go nowhere."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

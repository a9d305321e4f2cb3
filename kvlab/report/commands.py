"""What each command takes, read from the parsers that read the command lines.

>>> parser = argparse.ArgumentParser(prog="add", description="Adds.", add_help=False)
>>> _ = parser.add_argument("--by", type=int, metavar="N", default=1, help="how much (%(default)s)")
>>> describe_parser(parser).options
(Option(usage='--by N', help='how much (1)'),)
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvlab.lab.bench import __main__ as bench
from kvlab.lab.drift import study
from kvlab.report.options import notebooks_parser, pictures_parser
from kvlab.viz import widgets as explorers

#: Name -> parser of what ``python -m`` runs beside the command kvlab.
MODULES = {
    "kvlab.report.notebooks": notebooks_parser,
    "kvlab.report.pictures": pictures_parser,
    "kvlab.lab.bench": bench.parser,
    "kvlab.lab.drift.study": study.parser,
    "kvlab.viz.widgets": explorers.parser,
}


@dataclass(frozen=True)
class Option:
    """One option or argument as it is typed, and what it does."""

    usage: str
    help: str


@dataclass(frozen=True)
class Command:
    """One command: what is typed before its options, and what it prints with --help."""

    name: str
    usage: str
    description: str
    options: tuple[Option, ...]
    epilog: str

    @property
    def anchor(self) -> str:
        """Where the page of the commands has it: "kvlab-crash"."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def describe_all(parser: argparse.ArgumentParser) -> tuple[Command, ...]:
    """``parser`` and, in order, all parsers of its sub-commands."""
    return tuple(map(describe_parser, _with_children(parser)))


def describe_parser(parser: argparse.ArgumentParser) -> Command:
    """One parser; sub-commands are an argument of it."""
    formatter = argparse.RawDescriptionHelpFormatter(parser.prog, width=88)
    # argparse publishes the text of --help and not its parts: the names below have been the same
    # since Python 2.7.
    options = [
        Option(formatter._format_action_invocation(action), formatter._expand_help(action))
        for action in parser._actions
        if action.help is not argparse.SUPPRESS and action.help is not None
    ]
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, "")
    return Command(
        parser.prog,
        formatter.format_help().strip(),
        (parser.description or "").strip(),
        tuple(options),
        (parser.epilog or "").rstrip(),
    )


def _with_children(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _with_children(child)

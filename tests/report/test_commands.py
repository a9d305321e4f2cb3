"""The page of the commands says what the parsers take, and the texts name commands that exist."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from kvlab.report.commands import MODULES, Option, describe_parser
from tests.cli.conftest import parse

ROOT = Path(__file__).parents[2]
# Runs in a child of the crash, with options that nobody types.
NOT_FOR_PEOPLE = {"kvlab.lab.crash_cuda"}


def test_an_option_is_shown_as_it_is_typed_with_its_default() -> None:
    parser = argparse.ArgumentParser(prog="add", description="Adds.", add_help=False, epilog="End.")
    parser.add_argument("--by", type=int, metavar="N", default=1, help="how much (%(default)s)")
    parser.add_argument("file", help="where")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    found = describe_parser(parser)
    assert found.options == (Option("--by N", "how much (1)"), Option("file", "where"))
    assert (found.name, found.anchor, found.description, found.epilog) == (
        "add",
        "add",
        "Adds.",
        "End.",
    )
    assert found.usage == "add [--by N] file"


def test_every_module_that_can_be_run_is_described() -> None:
    runnable = set()
    for path in (ROOT / "kvlab").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if 'if __name__ == "__main__"' in text and "parse_args" in text:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            runnable.add(name.removesuffix(".__main__"))
    assert runnable - NOT_FOR_PEOPLE == set(MODULES)
    for name, make in MODULES.items():
        assert describe_parser(make()).name == f"python -m {name}"


def typed(text: str) -> list[str]:
    """The lines of code blocks, and the code inside of lines, that are a command of kvlab."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    lines = [" ".join(line.split()).removeprefix(".venv/bin/") for line in lines]
    starts = ("kvlab ", "python -m kvlab")
    return [line for line in lines if line.startswith(starts) and "COMMAND" not in line]


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "notebooks/TROUBLESHOOTING.md",
        "notebooks/ENGINEERS.md",
        "notebooks/TEACHING.md",
    ],
)
def test_every_command_in_the_texts_is_one_that_the_parsers_take(name: str) -> None:
    lines = typed((ROOT / name).read_text(encoding="utf-8"))
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "kvlab":
            parse(words[1:])
        else:
            MODULES[words[2]]().parse_args(words[3:])

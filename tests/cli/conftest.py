"""Running ``kvlab``: in this process for most tests, in another where a process is the point."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from kvlab.cli import app, crash, main

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process."""

    def _run(*words: object) -> Ended:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return _run


def parse(words: Sequence[str]) -> None:
    """Read a command line and run nothing. Errors: typer.TyperException for one that is refused."""
    command, *rest = crash.with_record_place(words)
    group: Any = typer.main.get_command(app)
    group.commands[command].make_context(command, rest)


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Start:
    """Start ``python -m kvlab`` and return the process."""

    def _start(*words: object, **options: object) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "kvlab", *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(command, text=True, env=environment, **pipes)  # type: ignore[call-overload, no-any-return]

    return _start


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of 24 small requests in the format of kvlab."""
    path = tmp_path / "trace.csv"
    rows = [f"{i / 10},{3 + i % 5 * 7},{4 + i % 7 * 9}" for i in range(24)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return path

"""A folder that cannot become the report is told before notebooks run, and never lost."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.report import add_arguments, build_report, run
from kvlab.report import build as module

from .conftest import GOOD

Make = Callable[..., Path]


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds an earlier report; running a notebook fails the test."""
    monkeypatch.setattr(module, "execute_all", lambda *a, **k: pytest.fail("a notebook was run"))
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    return folder


def test_a_folder_that_cannot_be_replaced_is_told_before_anything_runs(
    make: Make, old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pinned(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.replace", pinned)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    path = make("01_sum", *GOOD)
    assert run(parser.parse_args(["--out", str(old), "--notebooks", str(path)])) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the report cannot be written to ")
    assert said.endswith(": Operation not permitted; name another place with --out, or make room\n")
    assert sorted(p.name for p in old.parent.iterdir()) == ["notebooks", "report"]
    assert (old / "manifest.json").exists()


def test_an_interrupt_while_folders_are_moved_leaves_the_old_report(
    make: Make, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make("01_sum", *GOOD)
    really, moves = os.replace, list[str]()

    def interrupted(source: Path, target: Path) -> None:
        moves.append(target.name)
        if len(moves) == 2:
            raise KeyboardInterrupt
        really(source, target)

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_report(old, notebooks=[path])
    assert moves == ["old", "report", "report"]
    assert (old / "manifest.json").exists()

"""Tiny notebooks to execute, and one report that many tests look at."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.report.place import MANIFEST

from .built import Built, build_once, write

Make = Callable[..., Path]

# Text that starts with % is a Markdown cell, all else a code cell.
GOOD = ("%# A small sum\n\nWhat is one plus one?", "print(1 + 1)")
FAILING = ("%# Fails\n\nWhere?", "a = 1", "raise ValueError('line one\\nthe last line')")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """``make(name, *cells)`` writes a notebook in this test's folder."""
    return lambda name, *cells: write(tmp_path / "notebooks", name, cells)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The report of ``built.py``."""
    made = build_once(tmp_path_factory)
    assert (made.folder / MANIFEST).is_file()
    return made

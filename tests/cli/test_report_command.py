"""``kvlab report``: it hands over to the report, and writes the table of its figures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kvlab.report
from kvlab.report import NotebookFailed, ReportError
from tests.cli.conftest import Run

FIGURES = [
    {"name": "page_map", "notebook": "01_spaces", "title": "Pages", "definition": "a page, drawn"},
    {"name": "counts", "notebook": None, "title": "Counts, by size", "definition": "simulated"},
]
CSV = (
    "name,notebook,title,definition\n"
    'page_map,01_spaces,Pages,"a page, drawn"\n'
    'counts,,"Counts, by size",simulated\n'
)


class Built(NamedTuple):
    """What the report was asked for, and what it hands out."""

    folder: Path
    trace: Path | None
    jobs: int | None
    notebooks: Sequence[Path] | None
    manifest: dict[str, object]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Built]:
    """Stand in for the report: note what was asked for."""
    seen: list[Built] = []

    def build(*asked: Any) -> Built:
        seen.append(Built._make((*asked, {"figures": FIGURES})))
        return seen[-1]

    monkeypatch.setattr(kvlab.report, "build_report", build)
    return seen


def test_the_options_reach_the_report(run: Run, built: list[Built], tmp_path: Path) -> None:
    words = ["report", "--out", tmp_path / "r", "--trace", "t.csv", "--jobs", 2]
    done = run(*words, "--notebooks", "a", "b", "--notebooks", "c")
    assert (done.code, done.out) == (0, f"report: {tmp_path / 'r' / 'index.html'}\n")
    assert built[0][:3] == (tmp_path / "r", Path("t.csv"), 2)
    assert sorted(built[0].notebooks or ()) == [Path("a"), Path("b"), Path("c")]
    assert json.loads(run("report", "--json").out) == {"figures": FIGURES}
    assert built[1][:4] == (Path("build/report"), None, None, None)


def test_csv_is_one_row_a_figure(run: Run, built: list[Built], tmp_path: Path) -> None:
    out = tmp_path / "figures.csv"
    assert run("report", "--out", tmp_path / "r", "--csv", out).code == 0
    assert out.read_text() == CSV
    done = run("report", "--out", tmp_path / "r", "--csv", "-")
    assert done.out == CSV
    assert "report: " in done.err


@pytest.mark.parametrize(
    ("error", "code"),
    [(NotebookFailed("01 failed"), 1), (ReportError("no room"), 2), (KeyboardInterrupt(), 130)],
)
def test_a_report_that_fails_has_an_exit_code_and_writes_no_table(
    error: BaseException, code: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(kvlab.report, "build_report", fails)
    out = tmp_path / "figures.csv"
    done = run("report", "--out", tmp_path / "r", "--csv", out)
    assert (done.code, done.out, out.exists()) == (code, "", False)
    assert (str(error) or "stopped") in done.err

"""``kvlab report``: it hands over to the report, and writes the table of its figures."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_the_options_reach_the_report_and_csv_is_one_row_a_figure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    def build(out: Path, *rest: Any) -> SimpleNamespace:
        seen.append((out, *rest))
        return SimpleNamespace(folder=out, manifest={"figures": FIGURES})

    monkeypatch.setattr(kvlab.report, "build_report", build)
    words = ["report", "--out", tmp_path / "r", "--trace", "t.csv", "--jobs", 2]
    done = run(*words, "--notebooks", "a", "b", "--notebooks", "c")
    assert (done.code, done.out) == (0, f"report: {tmp_path / 'r' / 'index.html'}\n")
    assert seen[0][:3] == (tmp_path / "r", Path("t.csv"), 2)
    assert sorted(seen[0][3]) == [Path("a"), Path("b"), Path("c")]
    assert json.loads(run("report", "--json").out) == {"figures": FIGURES}
    assert seen[1] == (Path("build/report"), None, None, None)
    assert run("report", "--csv", tmp_path / "figures.csv").code == 0
    assert (tmp_path / "figures.csv").read_text() == CSV
    done = run("report", "--csv", "-")
    assert done.out == CSV and "report: " in done.err


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

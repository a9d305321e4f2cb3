"""``kvlab report``: it hands over to the report, and writes the table of its figures."""

import argparse
import json
from pathlib import Path

import pytest

import kvlab.report
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


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """Stand in for the report: note what was asked for, leave a manifest."""
    seen: list[argparse.Namespace] = []

    def build(given: argparse.Namespace) -> int:
        seen.append(given)
        given.out.mkdir(exist_ok=True)
        (given.out / "manifest.json").write_text(json.dumps({"figures": FIGURES}))
        print("report: somewhere")
        return 0

    monkeypatch.setattr(kvlab.report, "run", build)
    return seen


def test_the_options_reach_the_report(
    run: Run, built: list[argparse.Namespace], tmp_path: Path
) -> None:
    done = run("report", "--out", tmp_path / "r", "--trace", "t.csv", "--jobs", 2, "--json")
    assert (done.code, done.out) == (0, "report: somewhere\n")
    (given,) = built
    assert (given.out, given.trace, given.jobs) == (tmp_path / "r", Path("t.csv"), 2)
    assert (given.json, given.csv) == (True, None)


def test_csv_is_one_row_a_figure(run: Run, built: list[argparse.Namespace], tmp_path: Path) -> None:
    out = tmp_path / "figures.csv"
    assert run("report", "--out", tmp_path / "r", "--csv", out).code == 0
    assert out.read_text() == CSV
    done = run("report", "--out", tmp_path / "r", "--csv", "-")
    assert done.out == CSV
    assert "report: somewhere" in done.err


def test_a_report_that_fails_keeps_its_exit_code_and_writes_no_table(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvlab.report, "run", lambda _: 1)
    out = tmp_path / "figures.csv"
    assert run("report", "--out", tmp_path / "r", "--csv", out).code == 1
    assert not out.exists()


def test_notebooks_that_are_not_there_end_with_2_and_a_sentence(run: Run, tmp_path: Path) -> None:
    done = run("report", "--out", tmp_path / "r", "--notebooks", tmp_path / "missing.ipynb")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert "missing.ipynb" in done.err

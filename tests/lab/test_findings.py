"""Findings are sentences whose numbers are computed; the report shows the last of each name."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvlab.errors import IndexSpaceError, StudyError
from kvlab.lab.findings import Number, output_folder, read_findings, record, refusal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output folder of this test."""
    monkeypatch.setenv("KVLAB_FIGURES", str(tmp_path / "out"))
    monkeypatch.delenv("KVLAB_NOTEBOOK", raising=False)
    return tmp_path / "out"


def test_a_finding_is_its_sentence_with_the_values_filled_in(folder: Path) -> None:
    values: dict[str, Number] = {"silent": 1, "pages": 4, "share": 0.25}
    text = record("crash", "{silent} of {pages} pages ({share:.0%})", values)
    assert text == "1 of 4 pages (25%)"
    (found,) = read_findings(folder)
    assert (found.name, found.text, found.notebook) == ("crash", text, None)
    assert found.values == values


def test_the_last_finding_of_a_name_wins_and_notebooks_come_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_findings(folder) == ()
    for notebook in ("02_b", "01_a"):
        monkeypatch.setenv("KVLAB_NOTEBOOK", notebook)
        for i, name in enumerate((f"a_{notebook}", "b", f"a_{notebook}")):
            record(name, "{n} times", {"n": i})
    found = [(finding.notebook, finding.name, finding.text) for finding in read_findings(folder)]
    first = [("01_a", "b", "1 times"), ("01_a", "a_01_a", "2 times")]
    assert found == [*first, ("02_b", "a_02_b", "2 times")]


def test_notebooks_that_record_at_the_same_time_lose_nothing(folder: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: record(f"f{n}", "{n}" + "x" * 2000, {"n": n}), range(40)))
    assert {finding.name for finding in read_findings(folder)} == {f"f{n}" for n in range(40)}


@pytest.mark.parametrize(
    ("name", "sentence", "values"),
    [
        ("Bad Name", "{n}", {"n": 1}),
        ("a" * 81, "{n}", {"n": 1}),
        ("a", "two\nlines {n}", {"n": 1}),
        ("a", " ", {}),
        ("a", "no gap", {"n": 1}),
        ("a", "{n} {m}", {"n": 1}),
        ("a", "{n} {}", {"n": 1}),
        ("a", "{n:.1f}", {"n": "x"}),
        ("a", "{n}", {"n": [{1}]}),
    ],
)
def test_a_finding_that_breaks_a_rule_is_refused_and_not_written(
    folder: Path, name: str, sentence: str, values: Any
) -> None:
    with pytest.raises((ValueError, TypeError)):
        record(name, sentence, values)
    assert read_findings(folder) == ()


def test_output_goes_to_the_project_around_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVLAB_FIGURES", raising=False)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert output_folder() == tmp_path / "notebooks" / "build" / "figures"
    (tmp_path / "pyproject.toml").touch()
    assert output_folder() == tmp_path / "build" / "figures"


def test_a_refusal_is_told_with_its_class_and_a_call_that_goes_through_has_none() -> None:
    def call() -> None:
        raise IndexSpaceError("a slot is not a row")

    assert refusal(call) == "IndexSpaceError: a slot is not a row"
    with pytest.raises(StudyError, match="was to be refused: it returned a int"):
        refusal(lambda: 3)

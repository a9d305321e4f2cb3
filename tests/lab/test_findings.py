"""Findings are sentences whose numbers are computed; the report shows the last of each name."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def test_the_last_finding_of_a_name_wins(folder: Path) -> None:
    record("a", "{n} once", {"n": 1})
    record("b", "{n} between", {"n": 2})
    record("a", "{n} twice", {"n": 3})
    assert [finding.text for finding in read_findings(folder)] == ["2 between", "3 twice"]


def test_findings_come_in_the_order_of_the_notebooks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for notebook in ("02_b", "01_a"):
        monkeypatch.setenv("KVLAB_NOTEBOOK", notebook)
        record(f"from_{notebook}", "{n}", {"n": 1})
    assert [finding.notebook for finding in read_findings(folder)] == ["01_a", "02_b"]


def test_notebooks_that_record_at_the_same_time_lose_nothing(folder: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: record(f"f{n}", "{n}" + "x" * 2000, {"n": n}), range(40)))
    assert {finding.name for finding in read_findings(folder)} == {f"f{n}" for n in range(40)}


def test_a_folder_without_findings_has_none(tmp_path: Path) -> None:
    assert read_findings(tmp_path) == ()


@pytest.mark.parametrize(
    ("name", "sentence", "values", "message"),
    [
        ("Bad Name", "{n}", {"n": 1}, "the name of a finding is made of a-z.*got 'Bad Name'"),
        ("a", "two\nlines {n}", {"n": 1}, "a finding is one line of text"),
        ("a", " ", {}, "a finding is one line of text"),
        ("a", "no gap", {"n": 1}, r"has no gap for n; write \{n\} in the sentence"),
        ("a", "{n} {m}", {"n": 1}, "every gap of a finding has a value.*'m'"),
        ("a", "{n:.1f}", {"n": "x"}, "every gap of a finding has a value that fits it"),
        ("a", "{n} {}", {"n": 1}, "every gap of a finding has a value"),
        ("a", "{n}", {"n": [1]}, "n of 'a' is a list; pass its .item"),
    ],
)
def test_a_finding_that_breaks_a_rule_is_refused_and_not_written(
    folder: Path, name: str, sentence: str, values: dict[str, Number], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
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
    with pytest.raises(StudyError, match="was to be refused and was not: it returned a int"):
        refusal(lambda: 3)

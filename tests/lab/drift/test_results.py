"""Tables that were cut off, changed or mixed are refused by file, line and value."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.errors import StudyError
from kvlab.lab.drift import read_study
from kvlab.memory.published import data_path

RECORDED = data_path("runs", "drift", "summary.csv").parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "study"))


def cut_inside(text: str) -> str:
    return text[:-4]


def cut_lines(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:-40])


def header(text: str) -> str:
    return text.splitlines(keepends=True)[0]


def second_line(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        first, second, *rest = text.splitlines(keepends=True)
        assert old in second
        return "".join([first, second.replace(old, new, 1), *rest])

    return change


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("summary", cut_inside, r"summary\.csv of 'study' ends inside line \d+"),
        ("positions", header, r"positions\.csv of 'study' has no rows"),
        ("summary", lambda _: "", r"summary\.csv of 'study' EmptyDataError"),
        ("requests", cut_lines, r"requests\.csv of 'study' has \d+ rows of \d+ runs, which are"),
        ("summary", cut_lines, r"requests\.csv of 'study' has .* not those of summary\.csv"),
        ("positions", cut_lines, r"positions\.csv of 'study' has \d+ rows of"),
        ("events", cut_lines, r"events\.csv of 'study' has \d+ requests that arrive"),
        ("summary", second_line("float32", "int8"), r"has 'int8' as dtype in line 2; write it"),
        ("summary", second_line("no_", "any_"), r"has 'any_retraction' as condition in line 2"),
        ("requests", second_line(",0,", ",x,"), r"has 'x' as .* in line 2"),
        ("summary", lambda text: text.replace("kl,", "k,", 1), r"lacks kl and has the columns"),
    ],
)
def test_a_damaged_table_is_refused(
    name: str, change: Callable[[str], str], sentence: str, folder: Path
) -> None:
    path = folder / f"{name}.csv"
    if name == "positions" and change is cut_lines:
        lines = path.read_text().splitlines(keepends=True)
        key = ",".join(lines[-1].split(",")[:4])
        path.write_text("".join(line for line in lines if not line.startswith(key)))
    else:
        path.write_text(change(path.read_text()))
    with pytest.raises(StudyError, match=sentence):
        read_study(folder)


def test_an_origin_without_its_facts_is_refused(folder: Path) -> None:
    (folder / "origin.json").write_text("{}")
    with pytest.raises(StudyError, match=r"origin\.json of 'study' .*: lacks command, seed, p"):
        read_study(folder)
    (folder / "origin.json").write_text("[" * 100_000)
    with pytest.raises(StudyError, match=r"origin\.json of 'study' RecursionError"):
        read_study(folder)


def test_a_file_that_is_missing_is_named_and_the_recorded_study_is_read(folder: Path) -> None:
    assert len(read_study(folder).summary)
    (folder / "tokens.csv").unlink()
    with pytest.raises(StudyError, match=r"tokens\.csv of 'study' FileNotFoundError"):
        read_study(folder)

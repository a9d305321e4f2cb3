"""Tables that were cut off, changed or mixed are refused by file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.errors import StudyError
from kvlab.lab.drift import read_study, read_token_drift
from kvlab.memory.published import data_path

RECORDED = data_path("runs", "drift", "summary.csv").parent


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("summary.csv", lambda text: text[:-4], r"summary\.csv of 'study' .* ends inside line \d+"),
        ("positions.csv", lambda text: text.split("\n")[0] + "\n", r"positions\.csv .* has 0 rows"),
        ("summary.csv", lambda _: "", r"summary\.csv of 'study' .* No columns"),
        ("requests.csv", lambda text: text[: text.rindex("\n", 0, -9) + 1], r"requests\.csv has"),
        ("summary.csv", lambda text: text.replace("kl,", "k,", 1), "and columns .*, k, "),
        ("origin.json", lambda _: "{}", "'study' is no whole study: 'parameters'; make it again"),
        ("origin.json", lambda _: "[" * 100_000, "no whole study: maximum recursion"),
        ("tokens.csv", None, "No such file or directory"),
    ],
)
def test_a_damaged_study_is_refused(
    name: str, change: Callable[[str], str] | None, sentence: str, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(RECORDED, folder)
    path = folder / name
    if change is None:
        path.unlink()
    else:
        path.write_text(change(path.read_text()))
    with pytest.raises(StudyError, match=sentence):
        read_study(folder)


def test_the_recorded_study_and_its_tokens_are_read() -> None:
    table, told = read_study(RECORDED).summary, read_token_drift()
    assert set(table["defect"]) > {"", "old_rows"}
    assert [*map(len, told["abs_dlogprob"])] == [*map(len, told["tokens"])]

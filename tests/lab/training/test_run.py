"""``python -m kvlab.lab.training``: from nothing to a measured checkpoint, or a sentence."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from kvlab.errors import StudyError
from kvlab.lab.training.__main__ import main
from kvlab.lab.training.loop import LOG, smoke
from kvlab.lab.training.run import MEASURED, MOST_BYTES, WEIGHTS, Sample, finish, make, read_log

ROOT = Path(__file__).resolve().parents[3]
FILES = {
    "config.json",
    "generation_config.json",
    "log.jsonl",
    "loss-curve.csv",
    "measured.json",
    "model.safetensors",
}


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What --smoke makes."""
    folder = tmp_path_factory.mktemp("trained") / "tiny"
    done = command("kvlab.lab.training", str(folder), "--smoke", "--threads", "1", "--seed", "7")
    assert done.returncode == 0, done.stderr
    return folder


def test_smoke_trains_saves_logs_and_measures_with_no_pickle_and_nothing_left_over(
    trained: Path,
) -> None:
    assert {file.name for file in trained.iterdir()} == FILES
    assert (trained / WEIGHTS).stat().st_size <= MOST_BYTES
    header, lines = read_log(trained)
    assert header["recipe"]["seed"] == 7
    assert [phase["steps"] for phase in header["recipe"]["phases"]] == [3, 3]
    assert [line["step"] for line in lines] == [3, 6]
    assert lines[1]["held_out_bits_per_byte"] < lines[0]["held_out_bits_per_byte"] < 8
    pd.testing.assert_frame_equal(pd.read_csv(trained / "loss-curve.csv"), pd.DataFrame(lines))


def test_what_was_measured_is_bounded_named_and_says_how_to_make_it_again(trained: Path) -> None:
    facts = json.loads((trained / MEASURED).read_text())
    assert (facts["status"], facts["parameters"], facts["steps"]) == ("measured", 895_504, 6)
    assert facts["same_text_as_training"] is True
    assert 0 < facts["held_out"]["bits_per_byte"] < 8
    assert facts["held_out"]["standard_error"] > 0
    assert list(facts["recall"]) == [
        "in_place",
        "rows_exchanged",
        "state_exchanged",
        "rows_and_state_exchanged",
        "rows_shuffled_within_request",
    ]
    for name, found in facts["recall"].items():
        assert len(found["right"]) == facts["recall_questions"] == 2
        assert 0 <= found["score"] <= 1, name
    moved = {name: found["max_abs_dlogprob"] for name, found in facts["recall"].items()}
    assert moved["in_place"] == 0
    assert moved["rows_shuffled_within_request"] < 1e-4 < 1e-3 < moved["rows_exchanged"]
    assert facts["origin"]["command"] == "python -m kvlab.lab.training OUT"
    assert facts["origin"]["seed"] == 7
    assert facts["origin"]["parameters"]["phases_of_at_most"] == [3, 3]


def test_no_file_of_a_checkpoint_names_the_folder_it_was_made_in(trained: Path) -> None:
    for file in trained.iterdir():
        content = file.read_bytes()
        assert str(trained).encode() not in content, file.name
        assert str(ROOT).encode() not in content, file.name


def test_the_figure_of_a_training_is_drawn_from_its_folder(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "copy")
    done = command("kvlab.viz.training", str(folder))
    assert done.returncode == 0, done.stderr
    made = {file.name for file in folder.iterdir()} - FILES
    assert made == {f"loss-curve.{ending}" for ending in ("svg", "pdf", "png", "json")}
    assert (folder / "loss-curve.csv").read_bytes() == (trained / "loss-curve.csv").read_bytes()


def test_a_folder_with_a_training_is_not_trained_over_and_the_error_says_how_to_go_on(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / WEIGHTS).read_bytes()
    assert main([str(trained), "--smoke"]) == 1
    said = capsys.readouterr().err
    assert (
        "holds 6 of at most 6 steps; measure that with --measure-only, or name another folder"
        in said
    )
    assert (trained / WEIGHTS).read_bytes() == before


def test_a_training_that_was_stopped_can_be_measured_but_not_trained_over(
    trained: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(trained, tmp_path / "stopped")
    lines = (folder / LOG).read_text().splitlines()
    (folder / LOG).write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(StudyError, match=r"'stopped' holds 3 of at most 6 steps; measure that"):
        make(folder, smoke(7), Sample())
    (folder / MEASURED).unlink()
    assert main([str(folder), "--measure-only", "--smoke", "--threads", "1"]) == 0
    facts, whole = (json.loads((f / MEASURED).read_text()) for f in (folder, trained))
    assert facts["steps"] == 3
    assert facts["recall"] == whole["recall"]
    (folder / LOG).write_text(lines[0] + "\n")
    with pytest.raises(StudyError, match="holds weights or a log, and no finished line of it"):
        make(folder, smoke(7), Sample())


def test_ctrl_c_says_what_is_there_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvlab.lab.training.__main__.make", stopped)
    assert main([str(tmp_path / "x")]) == 130
    assert "--measure-only measures them, and to train on, begin again" in capsys.readouterr().err


def test_a_folder_without_log_or_weights_cannot_be_measured(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"'none' has none that can be read \(FileNotFoundError\)"):
        finish(tmp_path / "none", Sample())
    shutil.copy(trained / LOG, tmp_path)
    with pytest.raises(StudyError, match=r"at most 6,000,000 bytes: .* has no such file; train it"):
        finish(tmp_path, Sample())
    (tmp_path / WEIGHTS).write_bytes(bytes(MOST_BYTES + 1))
    with pytest.raises(StudyError, match=r"has 6,000,001 bytes"):
        finish(tmp_path, Sample())


@pytest.mark.parametrize("text", ["", "{}\n[1]\n", "no json", '{"recipe": 1, "corpus": 2}\n1\n'])
def test_a_log_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / LOG).write_text(text)
    with pytest.raises(
        StudyError, match=r"keeps a header and a line every few steps in log\.jsonl"
    ):
        read_log(tmp_path)


@pytest.mark.parametrize("word", ["0", "-3", "1.5", "x"])
def test_a_number_of_steps_is_whole_and_above_zero(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["OUT", "--threads", word])
    assert f"must be a whole number of at least 1: got {word!r}" in capsys.readouterr().err

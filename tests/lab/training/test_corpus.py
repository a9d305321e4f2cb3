"""What the tiny model reads: a split without overlap, and questions that have one right answer."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvlab.errors import StudyError
from kvlab.lab.training.corpus import (
    SYMBOLS,
    Corpus,
    Mix,
    Recall,
    batch,
    question,
    read_corpus,
    recall,
    text,
)

SOURCE = np.frombuffer(bytes(range(97, 123)) * 40, dtype=np.uint8)
# Of the batch below, as the script that trained the shipped checkpoint drew it.
DRAWN = "de8eb8a3f0d2a71d369646e27da7a9c5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(80):
        (tmp_path / f"m{i}.py").write_text(f"module {i};")
    for name in ("test", "tests", "site-packages", "a/__pycache__"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.py").write_text("not to be read;")
    (tmp_path / "notes.txt").write_text("not to be read;")
    return tmp_path


def test_every_source_is_on_one_side_of_the_split_and_nothing_else_is(folder: Path) -> None:
    made = read_corpus(folder)
    sides = [side.tobytes().decode().split("\n") for side in (made.train, made.held_out)]
    assert sorted(sides[0] + sides[1]) == sorted(f"module {i};" for i in range(80))
    assert not set(sides[0]) & set(sides[1])
    assert [made.about["train_files"], made.about["held_out_files"]] == [len(s) for s in sides]
    assert 1 <= len(sides[1]) <= 12


def test_a_file_stays_on_its_side_when_others_come_and_go(folder: Path) -> None:
    before = set(read_corpus(folder).held_out.tobytes().split(b"\n"))
    for i in range(0, 80, 2):
        (folder / f"m{i}.py").unlink()
    after = set(read_corpus(folder).held_out.tobytes().split(b"\n"))
    assert after == {line for line in before if int(line[7:-1]) % 2}


def test_equal_folders_are_equal_text_and_another_byte_is_another_digest(folder: Path) -> None:
    first = read_corpus(folder)
    assert read_corpus(folder).about == first.about
    (folder / "m3.py").write_text("module 4;")
    assert read_corpus(folder).about["blake2b"] != first.about["blake2b"]


def test_a_folder_with_nothing_to_hold_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x")
    with pytest.raises(StudyError, match=r"found 1 files to train on and 0 to hold out; point"):
        read_corpus(tmp_path)


def test_the_standard_library_is_ten_million_bytes_of_text(library: Corpus) -> None:
    assert len(library.train) > 5_000_000
    assert 0.01 < len(library.held_out) / len(library.train) < 0.15
    assert "standard library of Python" in str(library.about["text"])


def pairs_of(made: Recall) -> dict[bytes, bytes]:
    """What the first line says."""
    head, _, line = made.data.tobytes().partition(b"\n")[0].partition(b" ")
    assert head == b"set"
    return dict(entry.split(b"=") for entry in line.split(b" "))


def said(made: Recall) -> list[tuple[bytes, bytes]]:
    """Key and value of each pair of asked bytes; a value that is cut off has one byte."""
    data, found = made.data.tobytes(), {}
    for place in made.asked.tolist():
        start = place - 3 if data[place - 1 : place] == b"=" else place - 4
        found[start] = (data[start : start + 2], data[start + 3 : place + 1])
    return list(found.values())


@given(st.integers(0, 2**32), st.integers(200, 700), st.integers(1, 24))
def test_every_asked_byte_is_what_the_pair_of_its_key_said(
    seed: int, length: int, pairs: int
) -> None:
    made = recall(SOURCE, length, np.random.default_rng(seed), pairs)
    told, answers = pairs_of(made), said(made)
    assert len(made.data) == length
    assert len(told) == pairs  # no key twice
    assert all(told[key].startswith(value) for key, value in answers)
    assert sum(value == told[key] for key, value in answers) >= len(answers) - 1
    data = made.data.tobytes()
    assert made.first_get == 0 or data[made.first_get - 1 : made.first_get + 3] in b"\nget"
    assert not len(made.asked) or int(made.asked.min()) > made.first_get
    # SOURCE has no "=", so each one behind the first line is a value that is asked for.
    assert data.count(b"=") == pairs + len(answers) + (data[-1:] == b"=")


@given(st.integers(0, 2**32), st.integers(0, 200), st.integers(1, 24))
def test_a_question_asks_each_pair_once_at_places_that_only_sizes_decide(
    seed: int, gap: int, pairs: int
) -> None:
    made = question(SOURCE, gap, np.random.default_rng(seed), pairs)
    assert dict(said(made)) == pairs_of(made)
    assert len(said(made)) == pairs
    other = question(SOURCE, gap, np.random.default_rng(seed + 1), pairs)
    assert made.first_get == other.first_get == 4 + 6 * pairs + gap + 1
    assert made.asked.tolist() == other.asked.tolist()
    assert made.data.tobytes()[made.first_get :].startswith(b"get ")


def test_a_batch_takes_text_and_recall_in_turn() -> None:
    made, asked = batch(SOURCE, Mix(rows=6, length=256), np.random.default_rng(1))
    assert made.shape == asked.shape == (6, 256)
    assert asked.any(axis=1).tolist() == [False, True] * 3
    assert set(made[asked].tobytes()) <= set(SYMBOLS)
    assert [row.tobytes().startswith(b"set ") for row in made] == [False, True] * 3
    assert all(row.tobytes() in SOURCE.tobytes() for row in made[::2])


def test_the_draws_are_those_that_the_shipped_checkpoint_was_trained_on() -> None:
    mix = Mix(rows=4, length=300)
    made, _ = batch(SOURCE, mix, np.random.default_rng(2026))
    assert hashlib.blake2b(made.tobytes(), digest_size=16).hexdigest() == DRAWN
    again, _ = batch(SOURCE, mix, np.random.default_rng(2026))
    assert np.array_equal(made, again)


def test_a_window_of_text_begins_anywhere_but_at_the_last_place(source: NDArray[np.uint8]) -> None:
    short = source[:6]
    seen = {text(short, 4, np.random.default_rng(i)).tobytes() for i in range(40)}
    assert seen == {b"abcd", b"bcde"}

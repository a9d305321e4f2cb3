"""``python -m kvlab.lab.bench``: what it prints, what it writes, and how it ends."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

import kvlab
from kvlab.lab.bench.__main__ import PARTS, main
from kvlab.lab.bench.clock import Place
from kvlab.lab.bench.rows import Row
from tests.lab.bench.support import tiny_rows

Measured = Iterator[list[Row] | str]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part is one tiny case."""

    def tiny(part: str) -> Callable[[bool, Place], Measured]:
        return lambda quick, place: iter([tiny_rows(part)])

    for part in list(PARTS):
        monkeypatch.setitem(PARTS, part, tiny(part))


@pytest.mark.usefixtures("small_parts")
def test_the_command_writes_a_csv_and_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.csv"
    arguments = ["--quick", "--only", "copy", "--only", "localize", "--json", "--csv", str(out)]
    threads = torch.get_num_threads()
    assert main([*arguments, "--repeat", "3", "--threads", "1"]) == 0
    assert torch.get_num_threads() == threads
    said = capsys.readouterr()
    document = json.loads(said.out)
    written = pd.read_csv(out)
    assert written.part.tolist() == [row["part"] for row in document["rows"]]
    assert written.part.unique().tolist() == ["copy", "localize"]
    assert set(written.threads) == {1}
    assert set(written.runs) == {3}
    assert "run 3 of 3: localize" in said.err
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures("small_parts")
def test_without_options_the_command_prints_the_table_of_all_parts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{part} " in text for part in PARTS)


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_cannot_be_written_is_a_sentence_and_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert main(["--only", "localize", "--csv", str(tmp_path / "bench.csv")]) == 1
    assert "gives No space left on device; name another file with --csv" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> list[Row]:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvlab.lab.bench.__main__.run_bench", interrupted)
    assert main([]) == 130
    assert "interrupted; nothing was written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--only", "speed"], ["--repeat", "0"], ["--repeat", "x"], ["--threads", "0"]),
        *(["--csv", "/"], ["--csv", ""], ["--csv", "no_such_folder/x.csv"]),
    ],
)
def test_bad_usage_exits_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    expected = {
        "--only": "invalid choice: 'speed'",
        "--csv": "OUT is a file in a folder that exists: got",
    }.get(arguments[0], "must be a whole number of at least 1: got")
    assert expected in capsys.readouterr().err


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own, so that a record of the real one is never touched."""
    folder = tmp_path / "data" / "runs"
    folder.mkdir(parents=True)
    monkeypatch.setattr(kvlab, "__file__", str(tmp_path / "kvlab" / "__init__.py"))
    return folder


@pytest.mark.usefixtures("small_parts")
def test_a_whole_run_is_recorded_under_the_name_of_its_device(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--record"]) == 0
    assert [file.name for file in checkout.iterdir()] == ["bench-cpu.csv"]
    assert pd.read_csv(checkout / "bench-cpu.csv").part.unique().tolist() == list(PARTS)
    said = capsys.readouterr()
    assert "\nlocalize " in said.out
    assert "written: bench-cpu.csv" in said.err


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("arguments", [["--quick"], ["--only", "merge"], ["--only", "localize"]])
def test_less_than_a_whole_run_is_printed_and_not_recorded(
    checkout: Path, arguments: list[str]
) -> None:
    assert main(["--record", *arguments]) == 0
    assert list(checkout.iterdir()) == []


@pytest.mark.usefixtures("small_parts")
def test_keep_joins_the_runs_of_two_numbers_of_threads_and_replaces_those_of_one(
    tmp_path: Path,
) -> None:
    out = tmp_path / "bench.csv"
    arguments = ["--only", "merge", "--csv", str(out)]
    for threads, keep in (("1", []), ("2", ["--keep"]), ("2", ["--keep"])):
        assert main([*arguments, "--threads", threads, *keep]) == 0
    assert sorted(pd.read_csv(out).threads) == [1, 2]
    assert main([*arguments, "--threads", "1"]) == 0
    assert pd.read_csv(out).threads.tolist() == [1]


@pytest.mark.usefixtures("small_parts")
def test_a_run_in_pieces_is_one_file_with_each_part_once(checkout: Path) -> None:
    out = checkout / "bench-cpu.csv"
    for part in ("merge", "localize", "merge"):
        assert main(["--record", "--join", "--threads", "1", "--only", part]) == 0
    joined = pd.read_csv(out, dtype=str, keep_default_na=False)
    assert joined.part.unique().tolist() == ["merge", "localize"]
    assert not joined.duplicated(["part", "case", "ours", "baseline"]).any()
    before = joined[joined.part == "localize"].values.tolist()
    # Other threads of the same part stay with --keep alone.
    for arguments, threads in ((["--keep", "--join"], {"1", "2"}), (["--join"], {"2"})):
        assert main(["--record", "--threads", "2", "--only", "merge", *arguments]) == 0
        joined = pd.read_csv(out, dtype=str, keep_default_na=False)
        assert set(joined[joined.part == "merge"].threads) == threads
        assert joined[joined.part == "localize"].values.tolist() == before


@pytest.mark.usefixtures("small_parts")
def test_lines_of_other_columns_are_not_kept_and_not_lost(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = checkout / "bench-cpu.csv"
    old.write_text("part,threads\ncopy,1\n")
    assert main(["--record", "--keep"]) == 1
    assert "'bench-cpu.csv' has 2 columns, a run has" in capsys.readouterr().err
    assert old.read_text() == "part,threads\ncopy,1\n"


@pytest.mark.usefixtures("small_parts")
def test_without_a_checkout_nothing_is_recorded_and_no_minute_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kvlab, "__file__", str(tmp_path / "kvlab" / "__init__.py"))
    measured = "kvlab.lab.bench.__main__.run_bench"
    monkeypatch.setattr(measured, lambda *_, **__: pytest.fail("measured"))
    assert main(["--record"]) == 1
    assert "a benchmark is recorded in data/runs of the checkout" in capsys.readouterr().err


def test_what_is_left_out_is_told_once_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = "left out: merge, huge: it takes 9 GiB"
    monkeypatch.setitem(PARTS, "merge", lambda quick, place: iter([case, tiny_rows("merge")]))
    assert main(["--only", "merge", "--repeat", "2"]) == 0
    said = capsys.readouterr()
    assert said.out.count("left out: merge, huge: it takes 9 GiB") == 1
    assert "run 1 of 2: merge, left out: merge, huge" in said.err


@pytest.mark.parametrize(
    "words",
    [["--join"], ["--keep"], ["--record", "--quick", "--join"], ["--only", "merge", "--keep"]],
)
def test_lines_are_kept_only_in_a_file_that_is_written(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert (
        "keep lines of a file that is written, and this run writes none" in capsys.readouterr().err
    )

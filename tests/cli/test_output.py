"""Tables, documents and files: aligned, plain, and whole or not at all."""

import argparse
import io
import json
import os
import stat
from pathlib import Path

import pandas as pd
import pytest

from kvlab.cli import main, output
from kvlab.cli.output import aligned, csv_place, progress, records, say, write_csv
from kvlab.errors import KvlabError

TABLE = pd.DataFrame({"name": ["a", "long"], "n": [1234, 5], "x": [0.5, None], "ok": [True, False]})


def test_numbers_stand_to_the_right_and_text_to_the_left() -> None:
    assert aligned(TABLE, thousands=True).splitlines() == [
        "name      n    x  ok",
        "a     1,234  0.5  yes",
        "long      5    -  no",
    ]
    assert "1234" in aligned(TABLE)


@pytest.mark.parametrize(("rows", "most", "first", "last"), [(10, 4, 2, 2), (10, 5, 3, 2)])
def test_a_long_table_shows_its_first_and_last_rows_and_says_so(
    rows: int, most: int, first: int, last: int
) -> None:
    lines = aligned(pd.DataFrame({"n": range(rows)}), most).splitlines()
    shown = [str(n).rjust(1) for n in [*range(first), *range(rows - last, rows)]]
    assert [x.strip() for x in lines[1:] if "more" not in x] == shown
    assert lines[first + 1] == f"... {rows - most} more rows; --csv writes all ..."
    assert len(aligned(pd.DataFrame({"n": range(most)}), most).splitlines()) == most + 1


def test_records_hold_plain_values_and_none_for_what_is_missing() -> None:
    text = json.dumps(records(TABLE), allow_nan=False)
    assert json.loads(text) == [
        {"name": "a", "n": 1234, "x": 0.5, "ok": True},
        {"name": "long", "n": 5, "x": None, "ok": False},
    ]


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    out.write_text("old")
    write_csv(TABLE, str(out))
    assert out.read_bytes() == b"name,n,x,ok\na,1234,0.5,True\nlong,5,,False\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    assert capsys.readouterr() == ("", f"wrote {out} (2 rows)\n")


def test_a_file_that_cannot_be_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.csv"
    out.write_text("old")

    def full(self: Path, content: bytes) -> int:
        self.write_text(content[:5].decode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(KvlabError, match=r"out\.csv' gives No space left on device; name another"):
        write_csv(TABLE, str(out))
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_asking_whether_a_place_can_be_written_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert csv_place(str(out)) == str(out)
    assert list(tmp_path.iterdir()) == []
    out.write_text("old")
    assert csv_place(str(out)) == str(out)
    assert (out.read_text(), [path.name for path in tmp_path.iterdir()]) == ("old", ["out.csv"])


def test_places_that_no_file_can_be_made_in_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "astray").symlink_to("nowhere/out.csv")
    for name in ("loop", "astray", "x" * 300):
        text = rf"OUT is a file that can be written: .*{name}' gives .+; name another file"
        with pytest.raises(argparse.ArgumentTypeError, match=text):
            csv_place(str(tmp_path / name))


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_text("old")
    link = tmp_path / "link.csv"
    link.symlink_to("real.csv")
    write_csv(TABLE, str(link))
    assert link.is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("name,n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs devices")
def test_a_device_is_written_to_and_not_replaced() -> None:
    write_csv(TABLE, "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(KvlabError, match=r"'/dev/full' gives No space left on device"):
        write_csv(TABLE, "/dev/full")


def test_without_a_standard_output_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    say("a table")
    assert main(["owners", "--json"]) == 0


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_only(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(output.sys, "stderr", stream)  # type: ignore[attr-defined]
    with progress("row") as told:
        told(0, 3)
        told(3, 3)
    assert ("0/3" in stream.getvalue()) == terminal
    assert terminal or stream.getvalue() == ""


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 3.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr("kvlab.cli.output.time.monotonic", lambda: next(clock))
    with progress("run") as told:
        for done in (1, 2, 3):
            told(done, 9)
    assert capsys.readouterr().err == "run 2 of 9\n"

"""Tables, documents and files: aligned, plain, whole or not at all, and apart from each other."""

import io
import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer

from kvlab.cli import main, output
from kvlab.cli.options import out_file
from kvlab.cli.output import Table, columns_of, progress, records, say, write_csv
from kvlab.errors import KvlabError
from kvlab.lab.drift import DriftStudy
from tests.cli.conftest import Run

FRAME = pd.DataFrame({"name": ["a", "long"], "n": [1234, 5], "x": [0.5, None], "ok": [True, False]})
COLUMNS = columns_of(FRAME)
ALIGNED = ["name      n    x  ok", "a     1,234  0.5  yes", "long      5    -  no"]


@pytest.mark.parametrize(("rows", "most", "first", "last"), [(10, 4, 2, 2), (10, 5, 3, 2)])
def test_a_long_table_shows_its_first_and_last_rows_and_says_so(
    rows: int, most: int, first: int, last: int
) -> None:
    lines = str(Table({"n": range(rows)}, most)).splitlines()
    shown = [str(n) for n in [*range(first), *range(rows - last, rows)]]
    assert [x.strip() for x in lines[1:] if "more" not in x] == shown
    assert lines[first + 1].strip() == f"... {rows - most} more rows; --csv writes all ..."
    assert len(str(Table({"n": range(most)}, most)).splitlines()) == most + 1


def test_a_table_is_drawn_where_it_fits_a_terminal_and_without_color_if_so_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown(width: str, **environment: str) -> str:
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdout", stream)
        for name, value in {"COLUMNS": width, "TERM": "xterm-256color", **environment}.items():
            monkeypatch.setenv(name, value)
        say(["a [b] c", Table({"n": range(10)}, 4), Table(COLUMNS, thousands=True)])
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    drawn = shown("80")
    assert "\x1b[" in drawn and "───" in drawn and "a [b] c" in drawn
    assert "... 6 more rows; --csv writes all ..." in drawn
    assert "\x1b[3" not in shown("80", NO_COLOR="1")
    assert "\n".join(ALIGNED) in shown("20")
    assert "1234" in str(Table(COLUMNS))


def test_records_and_csv_hold_plain_values_and_nothing_for_what_is_missing(tmp_path: Path) -> None:
    assert json.loads(json.dumps(records(COLUMNS), allow_nan=False)) == [
        {"name": "a", "n": 1234, "x": 0.5, "ok": True},
        {"name": "long", "n": 5, "x": None, "ok": False},
    ]
    hard = FRAME.assign(text=['a "b", c\n', "é"], small=[1e-300, 0.1], whole=[1.0, float("nan")])
    write_csv(columns_of(hard), tmp_path / "hard.csv")
    pandas_writes = hard.to_csv(index=False, lineterminator="\n").encode()
    assert (tmp_path / "hard.csv").read_bytes() == pandas_writes


def test_a_file_is_replaced_whole_and_a_link_stays_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, link = tmp_path / "out.csv", tmp_path / "link.csv"
    out.write_text("old")
    link.symlink_to("out.csv")
    write_csv(COLUMNS, link)
    assert out.read_bytes() == b"name,n,x,ok\na,1234,0.5,True\nlong,5,,False\n"
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "out.csv"]
    assert capsys.readouterr() == ("", f"wrote {link} (2 rows)\n")


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
        write_csv(COLUMNS, out)
    assert (out.read_text(), [path.name for path in tmp_path.iterdir()]) == ("old", ["out.csv"])


def test_a_place_is_tried_before_the_work_and_not_changed(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert out_file(str(out)) == out
    assert list(tmp_path.iterdir()) == []
    out.write_text("old")
    assert out_file(str(out)) == out
    assert (out.read_text(), [path.name for path in tmp_path.iterdir()]) == ("old", ["out.csv"])
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "astray").symlink_to("nowhere/out.csv")
    for name in ("loop", "astray", "x" * 300):
        text = rf"OUT is a file that can be written: .*{name}' gives .+; name another file"
        with pytest.raises(typer.BadParameter, match=text):
            out_file(str(tmp_path / name))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs devices")
def test_a_device_is_written_to_and_not_replaced() -> None:
    write_csv(COLUMNS, Path("/dev/null"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(KvlabError, match=r"'/dev/full' gives No space left on device"):
        write_csv(COLUMNS, Path("/dev/full"))


def test_without_a_standard_output_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    say(["a table"])
    assert main(["owners", "--json"]) == 0


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_only(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("row") as told:
        told(0, 3)
        told(3, 3)
    assert ("row" in stream.getvalue()) == terminal
    assert terminal or stream.getvalue() == ""


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 3.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(clock))  # type: ignore[attr-defined]
    with progress("run") as told:
        for done in (1, 2, 3):
            told(done, 9)
    assert capsys.readouterr().err == "run 2 of 9\n"


@pytest.fixture
def folder(trace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a trace under several names, a geometry, a checkpoint's files."""
    here = trace.parent
    monkeypatch.chdir(here)
    shutil.copy(trace, "a.txt")
    Path("link.csv").symlink_to(trace.name)
    os.link(trace, "hard.csv")
    Path("sub").mkdir()
    Path("round").symlink_to("sub")
    Path("model").mkdir()
    Path("model", "config.json").write_text("{}")
    Path("mine.json").write_text("{}")
    return here


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        ("retraction --trace trace.csv --csv sub/../trace.csv", "--csv", "--trace"),
        ("retraction --trace trace.csv --csv link.csv", "--csv", "--trace"),
        ("retraction --trace link.csv --csv hard.csv", "--csv", "--trace"),
        ("retraction --trace a.txt --figure a.pdf --caption beside", "--caption", "--trace"),
        ("retraction --geometry mine.json --csv mine.json", "--csv", "--geometry"),
        ("retraction --csv sub/x.svg --figure round/x.svg", "--csv", "--figure"),
        ("crash --device cuda --record x.json --csv x.json", "--csv", "--record"),
        ("drift --prompts trace.csv --csv trace.csv", "--csv", "--prompts"),
        ("drift --model model --csv model/config.json", "--csv", "--model (config.json)"),
        ("drift --out sub --csv round/summary.csv", "--csv", "--out (summary.csv)"),
        ("drift --out sub --cache sub", "--out", "--cache"),
        ("report --notebooks a.txt sub --out round", "--out", "--notebooks 'sub'"),
        ("report --trace trace.csv --out .", "--trace 'trace.csv' lies in", "--out"),
    ],
)
def test_an_output_that_is_an_input_or_another_output_is_refused_before_the_work(
    words: str, first: str, second: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DriftStudy, "run", lambda *_, **__: pytest.fail("it ran"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = run(*words.split())
    assert (done.code, done.out) == (2, "")
    assert "an output is no input and no other output: " in done.err
    assert first in done.err and second in done.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_outputs_that_differ_are_written_and_a_device_may_be_shared(run: Run, folder: Path) -> None:
    words = ["retraction", "--trace", "trace.csv", "--dcp-sizes", 1, "--budgets", 0.01]
    words += ["--page-size", 4, "--cache", "sub", "--csv", "sub/x.csv", "--figure", "sub/x.svg"]
    assert run(*words).code == 0
    assert Path("sub", "x.csv").is_file() and Path("sub", "x.svg").is_file()
    assert run("retraction", "--trace", "/dev/null", "--csv", "/dev/null").code == 1


def test_a_standard_output_in_ascii_gets_escapes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "tr\u00e9.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n")
    for more in ([], ["--csv", "-"], ["--json"]):
        narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", narrow)
        words = ["retraction", "--trace", str(path), "--dcp-sizes", "1", "--budgets", "1"]
        assert main([*words, *more]) == 0
        assert narrow.buffer.getvalue().isascii()

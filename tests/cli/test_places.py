"""No output is an input or another output, whatever it is called; no value is empty."""

import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from kvlab.cli import main
from kvlab.lab.drift import DriftStudy
from tests.cli.conftest import Run

MINE = {"mla_layers": 40, "kv_lora_rank": 384, "qk_rope_head_dim": 64}


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
    Path("mine.json").write_text(json.dumps(MINE))
    return here


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        ("retraction --trace trace.csv --csv trace.csv", "--csv", "--trace"),
        ("retraction --trace trace.csv --csv sub/../trace.csv", "--csv", "--trace"),
        ("retraction --trace trace.csv --csv link.csv", "--csv", "--trace"),
        ("retraction --trace link.csv --csv hard.csv", "--csv", "--trace"),
        ("retraction --trace a.txt --figure a.pdf --caption beside", "--caption", "--trace"),
        ("retraction --geometry mine.json --csv mine.json", "--csv", "--geometry"),
        ("retraction --csv x.svg --figure ./x.svg", "--csv", "--figure"),
        ("retraction --csv sub/x.svg --figure round/x.svg", "--csv", "--figure"),
        ("retraction --csv x.txt --figure x.svg --caption beside", "--csv", "--caption beside"),
        ("crash --device cuda --record x.json --csv x.json", "--csv", "--record"),
        ("drift --prompts trace.csv --csv trace.csv", "--csv", "--prompts"),
        ("drift --model model --csv model/config.json", "--csv", "--model (config.json)"),
        ("drift --model model --out model", "--out", "--model"),
        ("drift --out sub --csv round/summary.csv", "--csv", "--out (summary.csv)"),
        ("drift --out sub --cache sub", "--out", "--cache"),
        ("report --trace trace.csv --csv trace.csv", "--csv", "--trace"),
        ("report --notebooks sub --out round", "--out", "--notebooks sub"),
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


def test_nothing_lies_in_a_folder_that_is_replaced(run: Run, folder: Path) -> None:
    for words in ("--trace trace.csv --out .", "--out sub --csv round/x.csv"):
        done = run("report", *words.split())
        assert done.code == 2
        assert "--out replaces all of its folder: " in done.err


def test_outputs_that_differ_are_written_and_a_device_may_be_shared(run: Run, folder: Path) -> None:
    words = ["retraction", "--trace", "trace.csv", "--dcp-sizes", 1, "--budgets", 0.01]
    words += ["--page-size", 4, "--cache", "sub", "--csv", "sub/x.csv", "--figure", "sub/x.svg"]
    assert run(*words).code == 0
    assert Path("sub", "x.csv").is_file() and Path("sub", "x.svg").is_file()
    assert run("retraction", "--trace", "/dev/null", "--csv", "/dev/null").code == 1


@pytest.mark.parametrize("command", ["retraction", "drift", "crash", "report", "owners", "doctor"])
@pytest.mark.parametrize("words", [["--csv", ""], ["--csv="]])
def test_no_value_is_empty(command: str, words: list[str], run: Run) -> None:
    done = run(command, *words)
    assert (done.code, done.out) == (2, "")
    assert "--csv takes a text that is not empty: got" in done.err
    for option in ("--cache", "--out"):
        assert run(command, option, "").code == 2


def test_a_name_that_is_not_utf_8_is_a_sentence_before_the_work(run: Run, tmp_path: Path) -> None:
    for words in (["retraction", "--figure"], ["owners", "--csv"], ["report", "--out"]):
        done = run(*words, os.fsdecode(os.fsencode(tmp_path) + b"/\xff.svg"))
        assert done.code == 2
        assert r"a command line is text in UTF-8: got b'" in done.err
        assert "rename the file" in done.err
    assert list(tmp_path.iterdir()) == []


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

"""The program as a whole: its help, its exit codes, and what goes to which stream."""

import inspect
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import kvlab
from kvlab.cli import crash, doctor, drift, main, owners, report, retraction
from kvlab.errors import KvlabError
from kvlab.lab.crash import CrashStudy
from kvlab.lab.drift import NAMES, DriftStudy
from kvlab.lab.retraction import RetractionStudy
from tests.cli.conftest import ROOT, Run, Start, parse

MODULES = {"report": report, "crash": crash, "owners": owners}
MODULES |= {"retraction": retraction, "drift": drift, "doctor": doctor}


@pytest.mark.parametrize(("command", "module"), MODULES.items())
def test_help_ends_with_examples_that_the_program_takes(
    command: str, module: ModuleType, run: Run
) -> None:
    done = run(command, "--help")
    assert (done.code, done.err) == (0, "")
    for words in ("--json", "--csv OUT", "example", f"kvlab {command}"):
        assert words in done.out
    lines = re.findall(r"^  (kvlab .*?)(?:  .*)?$", module.EPILOG, re.MULTILINE)
    assert lines
    for line in lines:
        parse(shlex.split(line)[1:])


def test_the_help_of_the_program_names_every_command_and_exit_code(run: Run) -> None:
    done = run("--help")
    assert done.code == 0
    for words in [*MODULES, "exit codes", "130", "141"]:
        assert words in done.out
    bare = run()
    assert (bare.code, bare.out, bare.err) == (2, "", done.out)


def test_the_version_names_kvlab_with_its_commit_python_and_torch(run: Run) -> None:
    first, *rest = run("--version").out.splitlines()
    version = re.escape(kvlab.__version__)
    assert re.fullmatch(rf"kvlab {version}( \([0-9a-f]{{7}}(\+dirty)?\))?", first)
    assert ("(" in first) == (ROOT / ".git").exists()
    assert [line.split()[0] for line in rest] == ["python", "torch"]


def test_the_defaults_and_names_in_the_help_are_those_of_the_studies() -> None:
    study = {name: field.default for name, field in RetractionStudy.__dataclass_fields__.items()}
    for name, value in inspect.signature(retraction.run).parameters.items():
        if name in study and value.default is not None:
            assert value.default == study[name], name
    assert (study["concurrency"], study["model"]) == (retraction.CONCURRENCY, retraction.MODEL)
    assert study["dcp_sizes"] == retraction.SIZES
    told = set(re.findall(r"[a-z_:]+", drift.EPILOG.partition("examples")[0]))
    assert told - {"conditions:"} == set(NAMES)
    assert DriftStudy.__dataclass_fields__["dcp_sizes"].default == drift.SIZES


# Exit code 2: a command line that cannot be meant. 1: values that no study takes.
REFUSED = [
    (2, "crush", "No such command 'crush'"),
    (2, "crash --num 3", "No such option: --num"),  # no abbreviations
    (2, "crash --dcp-size eight", "Invalid value for '--dcp-size'"),
    (2, "crash --regime half", "'half' is not one of 'full', 'low'"),
    (2, "crash --tokens 1", "'--tokens': Input should be greater than or equal to 2"),
    (2, "crash --device tpu", "'--device': must be cpu, cuda or cuda:N: got 'tpu'"),
    (2, "crash --json --csv -", "--json and --csv - both want standard output"),
    (2, "crash --device cuda --record -", "OUT is a file: got '-'; name one, or leave OUT out"),
    (2, "owners --length 3.5", "'--length': Input should be a valid integer"),
    (2, "owners --pages 1,x", "whole numbers of at least 1, joined by commas: got '1,x'"),
    (2, "owners --pages 0", "whole numbers of at least 1, joined by commas: got '0'"),
    (2, "retraction --budgets 1,,2", "numbers above 0, joined by commas: got '1,,2'"),
    (2, "retraction --budgets nan", "numbers above 0, joined by commas: got 'nan'"),
    (2, "retraction --step-time 1,2", "must be one number of seconds: got '1,2'"),
    (2, "retraction --open-loop --concurrency 3", "--open-loop has no bound: got --concurrency"),
    (2, "retraction --model Kimi-K2 --geometry a=1", "a model of yours: got --model as well"),
    (2, "retraction --host-gib nan", "'--host-gib': Input should be"),
    (2, "retraction --figure counts", "'--figure': OUT ends in .pdf, .svg, .png, which says"),
    (2, "retraction --figure none/a.pdf", "OUT lies in a folder: there is none at 'none'"),
    (2, "retraction --csv .", "OUT is a file: '.' is a folder; name a file in it"),
    (2, "drift --conditions natural,fixed", "got 'fixed' at place 2 of 2"),
    (2, "drift --conditions natural,natural", "each once: got 'natural' at place 2 of 2"),
    (2, "drift --dtypes int8", "the list holds names of float32, bfloat16, fp8, each once: got"),
    (2, "report notebooks", "a report takes options alone: got 'notebooks'"),
    (2, "report --notebooks missing.ipynb", "missing.ipynb"),
    (1, "owners --dcp-size 0", "dcp_size must be at least 1"),
    (1, "owners --page-size 4 --interleave 3", "interleave must divide page_size"),
    (1, "owners --pages 1 --start 9", "need 2 different pages of 8 slots: got [1]"),
    (1, "owners --pages 9 --num-pages 8 --length 1", "a page must lie in [1, 8]: got 9"),
    (1, "owners --dcp-size 4097 --length 1", "at most 4,096 of them: got --dcp-size 4,097"),
    (1, "owners --start 10000000 --length 1", "ends at position 10,000,000 at most"),
    (1, "crash --num-pages 4611686018427387904", "the largest slot must fit int64"),
    (1, "crash --num-pages 5 --regime low", "the low regime needs 20 requests of 1281 positions"),
    (1, "crash --num-pages 10000001 --csv -", "one row a page, at most 10,000,000: got 10,000,001"),
    (1, "crash --dcp-size 4097 --regime low", "at most 4,096 of them: got --dcp-size 4,097"),
    (1, "crash --page-size 1 --num-pages 12 --dcp-size 4096 --regime full",
     "positions, 167,788,544 times; use fewer ranks, fewer pages or --census"),
    (1, "crash --num-pages 20000 --regime full", "of at most 8,388,608 slots: got 10,240,512"),
    (1, "crash --device cuda:1", "must be on this machine: got cuda:1, and there are 0 CUDA"),
    (1, "crash --record x.json", "more than one rank: got --device cpu; use `kvlab crash --device"),
    (1, "crash --device cuda --census --record x.json", "than one rank: got --census; use"),
    (1, "retraction --trace /nowhere/trace.csv", "'/nowhere/trace.csv'"),
    (1, "retraction --budgets 0.000001", "a pool needs 2 pages a rank"),
    (1, "retraction --dcp-sizes 2,2", "dcp_sizes must name at least one value, each once: got"),
    (1, "retraction --model GPT-2", "named as in data/models/geometry.csv: got 'GPT-2'"),
    (1, "retraction --geometry mla_layers=40", "a row of the KV cache needs mla_layers"),
    (1, "retraction --host-full recompute", "got --host-full recompute without --host-gib"),
    (1, "retraction --host-gib 1 --restore recompute", "host_gib=1.0 with restore='recompute'"),
    (1, "retraction --columns 1", "--columns is of a picture: got --columns 1 without --figure"),
    (1, "drift --model none", "a model is the folder of a checkpoint:"),
    (1, "drift --requests 49", "the study has 48 requests: got requests=49"),
    (1, "drift --prompts none", "prompts are JSON lines"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "words", "sentence"), REFUSED)
def test_what_cannot_be_done_is_one_sentence_before_the_work(
    code: int, words: str, sentence: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for study in (CrashStudy, RetractionStudy):
        monkeypatch.setattr(study, "run", lambda *_, **__: pytest.fail("a study was run"))
    done = run(*words.split())
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert sentence in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--csv", ""], ["--csv="], ["--out", ""]])
def test_no_value_is_empty(words: list[str], run: Run) -> None:
    done = run("report", *words)
    assert (done.code, done.out) == (2, "")
    assert f"{words[0].rstrip('=')} takes a text that is not empty: got" in done.err


def test_a_name_that_is_not_utf_8_is_a_sentence_before_the_work(run: Run, tmp_path: Path) -> None:
    done = run("retraction", "--figure", os.fsdecode(os.fsencode(tmp_path) + b"/\xff.svg"))
    assert done.code == 2
    assert r"a command line is text in UTF-8: got b'" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KvlabError("a rule must hold: got 3"), 1, "error: a rule must hold: got 3\n"),
        (KeyboardInterrupt(), 130, "\nstopped\n"),
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left"), 1, "error: the output cannot be written: No space left\n"),
    ],
)
def test_every_way_to_end_is_an_exit_code_and_at_most_a_sentence(
    raised: BaseException, code: int, said: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise raised

    monkeypatch.setattr("kvlab.cli.output.deliver", fails)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    done = run("owners")
    assert (done.code, done.out, done.err) == (code, "", said)


def test_a_reader_who_leaves_ends_the_program_with_141_and_no_noise(start: Start) -> None:
    with start("owners", "--length", "100000", "--csv", "-") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "position,slot,page,owner,row,raw,raw_slot\n"
        process.stdout.close()
        assert process.wait() == 128 + signal.SIGPIPE
        assert process.stderr.read() == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_under_standard_output_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["owners"]) == 1
    said = "error: the output cannot be written: No space left on device\n"
    assert capsys.readouterr().err == said


def test_help_loads_no_library_that_computes_and_owners_neither_pandas_nor_figures() -> None:
    script = (
        "import sys; from kvlab.cli import main; main(['crash', '--help']); "
        "print(sorted({'torch', 'numpy', 'pandas'} & sys.modules.keys())); main(['owners']); "
        "slow = {'pandas', 'matplotlib', 'transformers', 'nbclient', 'kvlab.report'}; "
        "print(sorted(slow & sys.modules.keys()))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert said.stdout.count("[]\n") == 2


def test_a_library_that_is_missing_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("kvlab.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match="kvlab needs typer, and this Python lacks it; install"):
        runpy.run_module("kvlab", run_name="__main__")

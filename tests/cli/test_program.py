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

import kvlab
from kvlab.cli import crash, doctor, drift, main, output, owners, report, retraction
from kvlab.errors import KvlabError
from kvlab.lab.drift import NAMES, DriftStudy
from kvlab.lab.retraction import RetractionStudy
from tests.cli.conftest import ROOT, Run, Start, parse

MODULES = {"report": report, "crash": crash, "owners": owners}
MODULES |= {"retraction": retraction, "drift": drift, "doctor": doctor}


@pytest.mark.parametrize(("command", "module"), MODULES.items())
def test_help_explains_in_sentences_and_ends_with_examples_that_the_program_takes(
    command: str, module: ModuleType, run: Run
) -> None:
    done = run(command, "--help")
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    assert re.search(r"[A-Z][^.]{20,}[.:] ", text)
    for words in ("--json", "--csv OUT", "example", f"kvlab {command}"):
        assert words in text
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
    done = run("--version")
    assert (done.code, done.err) == (0, "")
    first, *rest = done.out.splitlines()
    assert re.fullmatch(
        rf"kvlab {re.escape(kvlab.__version__)}( \([0-9a-f]{{7}}(\+dirty)?\))?", first
    )
    assert ("(" in first) == (ROOT / ".git").exists()
    assert [line.split()[0] for line in rest] == ["python", "torch"]


def test_the_defaults_and_names_in_the_help_are_those_of_the_studies() -> None:
    study = {name: field.default for name, field in RetractionStudy.__dataclass_fields__.items()}
    for name, value in inspect.signature(retraction.run).parameters.items():
        if name in study and value.default is not None:
            assert value.default == study[name], name
    assert (study["concurrency"], study["model"]) == (retraction.CONCURRENCY, retraction.MODEL)
    assert output.sizes(retraction.SIZES) == study["dcp_sizes"]
    told = set(re.findall(r"[a-z_:]+", drift.EPILOG.partition("examples")[0]))
    assert told - {"conditions:"} == set(NAMES)
    assert DriftStudy.__dataclass_fields__["dcp_sizes"].default == drift.SIZES


BOTH = "--json and --csv - both want standard output"
REFUSED = [
    ("crush", "No such command 'crush'"),
    ("crash --pages 3", "No such option: --pages"),
    ("crash --num 3", "No such option: --num"),  # no abbreviations
    ("crash --dcp-size eight", "Invalid value for '--dcp-size': Input should be a valid integer"),
    ("crash --regime half", "'half' is not one of 'full', 'low'"),
    ("crash --tokens 1", "'--tokens': Input should be greater than or equal to 2"),
    ("crash --device tpu", "'--device': must be cpu, cuda or cuda:N: got 'tpu'"),
    ("crash --json --csv -", BOTH),
    ("crash --device cuda --record -", "OUT is a file: got '-'; name one, or leave OUT out"),
    ("owners --start -1", "'--start': Input should be greater than or equal to 0"),
    ("owners --length 3.5", "'--length': Input should be a valid integer"),
    ("owners --pages 1,x", "whole numbers of at least 1, joined by commas: got '1,x'"),
    ("owners --pages 0", "whole numbers of at least 1, joined by commas: got '0'"),
    ("retraction --budgets 1,,2", "numbers above 0, joined by commas: got '1,,2'"),
    ("retraction --budgets nan", "numbers above 0, joined by commas: got 'nan'"),
    ("retraction --step-time 1,2", "must be one number of seconds: got '1,2'"),
    ("retraction --step-time 0", "numbers above 0, joined by commas: got '0'"),
    ("retraction --jobs 0", "'--jobs': Input should be greater than or equal to 1"),
    ("retraction --dtype int3", "'int3' is not one of 'fp32', 'bf16'"),
    ("retraction --open-loop --concurrency 3", "--open-loop has no bound: got --concurrency"),
    ("retraction --model Kimi-K2 --geometry a=1", "--geometry is a model of yours: got --model"),
    ("retraction --host-gib -1", "'--host-gib': Input should be greater than or equal to 0"),
    ("retraction --host-gib nan", "'--host-gib': Input should be"),
    ("retraction --host-gib much", "'--host-gib': Input should be a valid number"),
    ("retraction --host-full wait", "'wait' is not one of 'abort', 'recompute'"),
    ("retraction --figure counts", "'--figure': OUT ends in .pdf, .svg, .png, which says what is"),
    ("retraction --figure -", "OUT ends in .pdf, .svg, .png"),
    ("retraction --figure none/a.pdf", "OUT lies in a folder: there is none at 'none'"),
    ("retraction --csv .", "OUT is a file: '.' is a folder; name a file in it"),
    ("drift --dcp-sizes 1,0", "whole numbers of at least 1, joined by commas: got '1,0'"),
    ("drift --conditions natural,fixed", "got 'fixed' at place 2 of 2"),
    ("drift --conditions natural,natural", "each name stands once in the list"),
    ("drift --dtypes int8", "the list holds names of float32, bfloat16, fp8: got 'int8'"),
    ("drift --seed -1", "'--seed': Input should be greater than or equal to 0"),
    ("report notebooks", "a report takes options alone: got 'notebooks'"),
    ("report --notebooks missing.ipynb", "missing.ipynb"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_bad_usage_ends_with_2_and_one_sentence(
    words: str, sentence: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert sentence in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--csv", ""], ["--csv="], ["--cache", ""], ["--out", ""]])
@pytest.mark.parametrize("command", MODULES)
def test_no_value_is_empty(command: str, words: list[str], run: Run) -> None:
    done = run(command, *words)
    assert (done.code, done.out) == (2, "")
    assert f"{words[0].rstrip('=')} takes a text that is not empty: got" in done.err


def test_a_name_that_is_not_utf_8_is_a_sentence_before_the_work(run: Run, tmp_path: Path) -> None:
    for words in (["retraction", "--figure"], ["owners", "--csv"], ["report", "--out"]):
        done = run(*words, os.fsdecode(os.fsencode(tmp_path) + b"/\xff.svg"))
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
    monkeypatch.setattr("kvlab.cli._drop_stdout", lambda: None)
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
    assert capsys.readouterr().err == (
        "error: the output cannot be written: No space left on device\n"
    )


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

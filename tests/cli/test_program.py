"""The program as a whole: its help, its exit codes, and what goes to which stream."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kvlab
from kvlab.cli import crash, doctor, drift, owners, program, report, retraction
from kvlab.errors import KvlabError
from tests.cli.conftest import ROOT, Run, Start

COMMANDS = ["report", "crash", "owners", "retraction", "drift", "doctor"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_in_sentences_and_ends_with_examples(command: str, run: Run) -> None:
    done = run(command, "--help")
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    assert re.search(r"[A-Z][^.]{20,}[.:] ", text)
    for words in ("--json", "--csv OUT", "example", f"kvlab {command}"):
        assert words in text


@pytest.mark.parametrize("module", [report, crash, owners, retraction, drift, doctor])
def test_every_example_in_the_help_is_a_line_that_the_program_takes(module: object) -> None:
    lines = re.findall(r"^  (kvlab .*?)(?:  .*)?$", module.EPILOG, re.MULTILINE)  # type: ignore[attr-defined]
    assert lines
    for line in lines:
        _, *words = shlex.split(line)
        parser, _ = program._parsers(words)
        assert parser.parse_args(words).command == words[0]


def test_the_help_of_the_program_names_every_command_and_exit_code(run: Run) -> None:
    done = run("--help")
    assert done.code == 0
    for words in [*COMMANDS, "exit codes", "130", "141"]:
        assert words in done.out


def test_without_a_command_the_help_is_printed_as_an_error(run: Run) -> None:
    done = run()
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("usage: kvlab")
    assert "crash" in done.err


def test_the_version_names_kvlab_python_and_torch(run: Run) -> None:
    done = run("--version")
    assert (done.code, done.err) == (0, "")
    lines = [line.split() for line in done.out.splitlines()]
    assert [name for name, _ in lines] == ["kvlab", "python", "torch"]
    assert lines[0][1] == kvlab.__version__


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["crush"], "invalid choice: 'crush'"),
        (["crash", "--pages", "3"], "unrecognized arguments: --pages 3"),
        (["crash", "--num", "3"], "unrecognized arguments: --num 3"),  # no abbreviations
        (["crash", "--dcp-size", "eight"], "invalid int value: 'eight'"),
        (["crash", "--regime", "half"], "invalid choice: 'half'"),
        (["crash", "--tokens", "1"], "--tokens: must be at least 2: got '1'"),
        (["crash", "--device", "tpu"], "--device: must be cpu, cuda or cuda:N: got 'tpu'"),
        (["crash", "--json", "--csv", "-"], "--json and --csv - both want standard output"),
        (["owners", "--start", "-1"], "--start: must be at least 0: got '-1'"),
        (["owners", "--length", "0"], "--length: must be at least 1: got '0'"),
        (["owners", "--length", "3.5"], "--length: must be a whole number: got '3.5'"),
        (["owners", "--pages", "1,x"], "must be whole numbers joined by commas: got '1,x'"),
        (["owners", "--pages", "0"], "must be at least 1 each: got '0'"),
        (["retraction", "--dcp-sizes", "1,0"], "must be at least 1 each: got '1,0'"),
        (["retraction", "--budgets", "1,,2"], "numbers above 0 joined by commas: got '1,,2'"),
        (["retraction", "--budgets", "nan"], "numbers above 0 joined by commas: got 'nan'"),
        (["retraction", "--budgets", "-1"], "numbers above 0 joined by commas: got '-1'"),
        (["retraction", "--step-time", "1,2"], "must be one number of seconds: got '1,2'"),
        (["retraction", "--step-time", "0"], "numbers above 0 joined by commas: got '0'"),
        (["retraction", "--jobs", "0"], "--jobs: must be at least 1: got '0'"),
        (["retraction", "--limit", "0"], "--limit: must be at least 1: got '0'"),
        (["retraction", "--dtype", "int3"], "invalid choice: 'int3'"),
        (["retraction", "--open-loop", "--concurrency", "3"], "not allowed with argument"),
    ],
)
def test_bad_usage_ends_with_2_and_says_what_is_wrong(
    words: list[str], sentence: str, run: Run
) -> None:
    done = run(*words)
    assert (done.code, done.out) == (2, "")
    assert sentence in " ".join(done.err.split())
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["crash", "owners", "retraction"])
def test_a_table_is_not_written_where_no_file_can_be(
    command: str, tmp_path: Path, run: Run
) -> None:
    done = run(command, "--csv", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert f"OUT is a file: {str(tmp_path)!r} is a folder" in " ".join(done.err.split())
    done = run(command, "--csv", tmp_path / "missing" / "out.csv")
    assert done.code == 2
    assert "OUT lies in an existing folder: there is no folder" in " ".join(done.err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_one_sentence_without_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> int:
        raise KvlabError("a rule must hold: got 3")

    monkeypatch.setattr(owners, "run", fails)
    done = run("owners")
    assert (done.code, done.out, done.err) == (1, "", "error: a rule must hold: got 3\n")


def test_an_interrupt_ends_with_130_and_one_word(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(owners, "run", interrupted)
    done = run("owners")
    assert (done.code, done.out, done.err) == (130, "", "\nstopped\n")


def test_a_reader_who_leaves_ends_the_program_with_141_and_no_noise(start: Start) -> None:
    with start("owners", "--length", "100000", "--csv", "-") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "position,slot,page,owner,row,raw,raw_slot\n"
        process.stdout.close()
        assert process.wait() == 128 + signal.SIGPIPE
        assert process.stderr.read() == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_under_standard_output_is_told(start: Start) -> None:
    with open("/dev/full", "w") as full, start("owners", stdout=full) as process:
        _, err = process.communicate()
        assert process.returncode == 1
        assert err == "error: the output cannot be written: No space left on device\n"


def test_python_m_kvlab_is_the_program(start: Start) -> None:
    with start("crash", "--dcp-size", "0") as process:
        out, err = process.communicate()
        assert (process.returncode, out) == (1, "")
        assert err.startswith("error: dcp_size must be at least 1")
        assert err.count("\n") == 1


def test_the_program_starts_without_what_only_the_report_needs() -> None:
    script = (
        "import sys, kvlab.cli; sys.exit(kvlab.cli.main(['owners']) or "
        "bool({'matplotlib', 'nbconvert', 'nbclient', 'kvlab.report'} & sys.modules.keys()))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True)

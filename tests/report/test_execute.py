"""Notebooks run in kernels of their own; a failure names its cell, and a stall gets one rerun."""

import asyncio
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.report import execute as module
from kvlab.report.check import problems
from kvlab.report.execute import Failure, Outcome, Progress, execute_all, worker_count
from kvlab.report.kernel import kernel_environment
from kvlab.report.notebooks import main
from kvlab.report.notebook_files import ReportError, check_stamp, read_notebook

from .conftest import DYING, FAILING, GOOD, HANGING, PANEL

Make = Callable[..., Path]


def run(*paths: Path, timeout_s: int = 60, jobs: int | None = None) -> tuple[list[Outcome], str]:
    """Outcomes and what was printed on the way."""
    stream = io.StringIO()
    figures = paths[0].parent.parent / "figures"
    progress = Progress(len(paths), stream)
    outcomes = execute_all(paths, figures, jobs=jobs, timeout_s=timeout_s, progress=progress)
    return outcomes, stream.getvalue()


@pytest.mark.notebook
def test_a_good_notebook_comes_back_executed_and_the_file_is_untouched(make: Make) -> None:
    path = make("01_sum", *GOOD)
    before = path.read_bytes()
    (outcome,), told = run(path)
    assert outcome.failure is None
    assert outcome.notebook.cells[1].outputs[0].text == "2\n"
    assert check_stamp(outcome.notebook) is None
    assert path.read_bytes() == before
    assert re.fullmatch(r"\[1/1\] 01_sum: \d+\.\d s\n", told)


@pytest.mark.notebook
def test_a_failing_notebook_is_named_with_its_cell_and_the_others_go_on(make: Make) -> None:
    outcomes, told = run(make("01_bad", *FAILING), make("02_sum", *GOOD), jobs=1)
    assert outcomes[0].failure == Failure("01_bad", 3, "ValueError: line one | the last line")
    assert outcomes[0].failure.sentence == (
        "notebook 01_bad failed in cell 3: ValueError: line one | the last line"
    )
    assert outcomes[1].failure is None
    assert "[1/2] 01_bad: failed in cell 3\n[2/2] 02_sum: " in told


@pytest.mark.notebook
def test_a_notebook_that_hangs_is_run_once_more_and_then_named(make: Make) -> None:
    (outcome,), _ = run(make("01_hangs", *HANGING), timeout_s=2)
    assert outcome.failure == Failure("01_hangs", 2, "it took longer than 2 s, in 2 of 2 runs")
    assert outcome.attempts == 2


@pytest.mark.notebook
def test_a_notebook_that_stalls_once_passes(make: Make, tmp_path: Path) -> None:
    flag = tmp_path / "ran"
    stalls_once = (
        "import pathlib, time\n"
        f"first = not pathlib.Path({str(flag)!r}).exists()\n"
        f"pathlib.Path({str(flag)!r}).touch()\n"
        "time.sleep(600 if first else 0)\n"
        "print('passed')"
    )
    (outcome,), told = run(make("01_stalls", stalls_once), timeout_s=2)
    assert outcome.failure is None
    assert outcome.notebook.cells[0].outputs[0].text == "passed\n"
    assert told.endswith(" s (second run)\n")


@pytest.mark.notebook
def test_a_kernel_that_dies_is_told(make: Make) -> None:
    (outcome,), _ = run(make("01_dies", *DYING))
    assert outcome.failure is not None
    assert outcome.failure.cell == 2
    assert outcome.failure.reason.startswith("the kernel died")


@pytest.mark.notebook
def test_executing_twice_gives_the_same_file(make: Make, tmp_path: Path) -> None:
    path = make("02_panel", *PANEL)
    figures = ["--figures", str(tmp_path / "figures")]
    assert main(["execute", "--in-place", *figures, str(path)]) == 0
    first = path.read_bytes()
    assert problems(path) == []
    assert main(["execute", "--in-place", *figures, str(path)]) == 0
    assert path.read_bytes() == first
    outputs = read_notebook(path).cells[2].outputs
    assert outputs[0].data.keys() == {"image/png", "text/plain"}


@pytest.mark.notebook
def test_the_execute_command_fails_and_keeps_a_failing_file(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make("01_bad", *FAILING)
    before = path.read_bytes()
    assert main(["execute", "--in-place", "--figures", str(tmp_path / "f"), str(path)]) == 1
    assert "notebook 01_bad failed in cell 3: ValueError" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.notebook
def test_the_kernel_is_this_python_with_folders_of_its_own(make: Make, tmp_path: Path) -> None:
    look = (
        "import os, sys; import kvlab\n"
        "print(sys.executable, os.getcwd(), os.environ['KVLAB_FIGURES'], sep='\\n')\n"
        "print([os.environ[n] for n in ('JUPYTER_DATA_DIR', 'IPYTHONDIR')])"
    )
    (outcome,), _ = run(make("01_look", look))
    text = outcome.notebook.cells[0].outputs[0].text
    python, folder, figures, homes = text.splitlines()
    assert python == sys.executable
    assert Path(folder) == (tmp_path / "notebooks").resolve()
    assert Path(figures) == (tmp_path / "figures").resolve()
    assert homes.count("kvlab-run-") == 2


@pytest.mark.notebook
def test_notebooks_can_be_executed_from_a_running_loop(make: Make) -> None:
    path = make("01_sum", *GOOD)

    async def as_a_notebook_would() -> list[Outcome]:
        return run(path)[0]

    assert asyncio.run(as_a_notebook_would())[0].failure is None


def test_there_are_never_more_kernels_than_cores_or_notebooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    assert worker_count(None, 9) == 4
    assert worker_count(100, 9) == 4
    assert worker_count(3, 9) == 3
    assert worker_count(None, 2) == 2
    with pytest.raises(ReportError, match="at a time, at least 1: got 0"):
        worker_count(0, 9)


def test_a_trace_of_the_user_reaches_only_a_run_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVLAB_TRACE", "stale.csv")
    without = kernel_environment(Path("h"), Path("f"), "01_a", None, 1)
    assert "KVLAB_TRACE" not in without
    named = kernel_environment(Path("h"), Path("f"), "01_a", Path("mine.csv"), 1)
    assert named["KVLAB_TRACE"] == "mine.csv"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Always."""
        return True


def test_a_terminal_shows_what_runs_and_a_file_does_not() -> None:
    done = Outcome(Path("01_a.ipynb"), {}, 1.25, 1, None)  # type: ignore[arg-type]
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        progress = Progress(2, stream)
        progress.started("01_a")
        assert ("running 01_a" in stream.getvalue()) is shown
        progress.finished(done)
        assert "[1/2] 01_a: 1.2 s\n" in stream.getvalue()
        assert ("\x1b" in stream.getvalue()) is shown


def test_an_error_message_is_shortened_to_its_last_lines_without_colours() -> None:
    text = "\x1b[31mone\x1b[0m\n\ntwo\nthree\nfour\n"
    assert module._last_lines(text) == "two | three | four"

"""Notebooks run in kernels of their own; a failure names its cell, and a stall gets one rerun."""

import asyncio
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from kvlab.report.execute import (
    SLICE_S,
    Outcome,
    SlicedChannel,
    SlicedClient,
    execute_all,
    kernel_environment,
    last_lines,
    worker_count,
)
from kvlab.report.notebook_files import ReportError, check_stamp, read_notebook
from scripts.notebooks import main, problems

from .built import PANEL
from .conftest import FAILING, GOOD

Make = Callable[..., Path]
LOOK = (
    "import os, sys\n"
    "print(sys.executable, os.getcwd(), os.environ['KVLAB_FIGURES'], sep='\\n')\n"
    "print([os.environ[n] for n in ('JUPYTER_DATA_DIR', 'IPYTHONDIR')])"
)


def run(*paths: Path, timeout_s: int = 60, jobs: int | None = None) -> list[Outcome]:
    """The outcomes of some notebooks."""
    return execute_all(paths, paths[0].parent.parent / "figures", jobs, timeout_s=timeout_s)


@pytest.mark.notebook
def test_good_ones_come_back_executed_and_a_failing_one_is_named_with_its_cell(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [make("01_bad", *FAILING), make("02_sum", *GOOD), make("03_look", LOOK)]
    before = [path.read_bytes() for path in paths]

    async def as_a_notebook_would() -> list[Outcome]:  # while a loop is running
        return run(*paths, jobs=1)

    bad, good, look = asyncio.run(as_a_notebook_would())
    assert (bad.cell, bad.failure) == (3, "ValueError: line one | the last line")
    assert good.notebook.cells[1].outputs[0].text == "2\n"
    assert check_stamp(good.notebook) is None
    assert [path.read_bytes() for path in paths] == before
    python, folder, figures, homes = look.notebook.cells[0].outputs[0].text.splitlines()
    assert python == sys.executable
    assert Path(folder) == (tmp_path / "notebooks").resolve()
    assert Path(figures) == (tmp_path / "figures").resolve()
    assert homes.count("kvlab-run-") == 2
    failed, done, _ = capsys.readouterr().err.splitlines()
    assert failed == (
        "[1/3] notebook 01_bad failed in cell 3: ValueError: line one | the last line"
    )
    assert re.fullmatch(r"\[2/3\] 02_sum: \d+\.\d s", done)


@pytest.mark.notebook
def test_a_notebook_that_hangs_is_run_once_more_and_one_that_stalls_once_passes(
    make: Make, tmp_path: Path
) -> None:
    stalls_once = (
        "import pathlib, time\n"
        f"flag = pathlib.Path({str(tmp_path / 'ran')!r})\n"
        "first = not flag.exists()\n"
        "flag.touch()\n"
        "time.sleep(600 if first else 0)\n"
        "print('passed')"
    )
    hangs, stalls = run(
        make("01_hangs", "import time; time.sleep(600)"), make("02_s", stalls_once), timeout_s=3
    )
    assert (hangs.cell, hangs.attempts) == (1, 2)
    assert hangs.failure == "it took longer than 3 s, in 2 of 2 runs"
    assert stalls.failure is None
    assert stalls.notebook.cells[0].outputs[0].text == "passed\n"
    assert stalls.sentence.endswith(" s (second run)")


@pytest.mark.notebook
def test_a_kernel_that_dies_is_told(make: Make) -> None:
    (outcome,) = run(make("01_dies", "import os; os._exit(9)"))
    assert outcome.cell == 1
    assert (outcome.failure or "").startswith("the kernel died")


@pytest.mark.notebook
def test_executing_in_place_keeps_the_outputs_the_same_each_time_and_a_failing_file_as_it_was(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    panel, bad = make("01_panel", *PANEL), make("02_bad", *FAILING)
    before = bad.read_bytes()
    words = ["execute", "--in-place", "--figures", str(tmp_path / "figures")]
    assert main([*words, str(panel), str(bad)]) == 1
    assert "notebook 02_bad failed in cell 3: ValueError" in capsys.readouterr().err
    assert bad.read_bytes() == before
    first = panel.read_bytes()
    assert problems(panel) == []
    assert main([*words, str(panel)]) == 0
    assert panel.read_bytes() == first
    outputs = read_notebook(panel).cells[2].outputs
    assert outputs[0].data.keys() == {"image/png", "text/html", "text/plain"}


def test_there_are_never_more_kernels_than_cores_or_notebooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    counts = [worker_count(jobs, n) for jobs, n in ((None, 9), (100, 9), (3, 9), (None, 2))]
    assert counts == [4, 4, 3, 2]
    with pytest.raises(ReportError, match="at a time, at least 1: got 0"):
        worker_count(0, 9)


def test_a_trace_of_the_user_reaches_only_a_run_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVLAB_TRACE", "stale.csv")
    given = Path("h"), Path("f"), "01_a"
    assert "KVLAB_TRACE" not in kernel_environment(*given, None, 1)
    assert kernel_environment(*given, Path("mine.csv"), 1)["KVLAB_TRACE"] == "mine.csv"


def test_an_error_message_is_shortened_to_its_last_lines_without_colors() -> None:
    assert last_lines("\x1b[31mone\x1b[0m\n\ntwo\nthree\nfour\n") == "two | three | four"


class Sleepy:
    """A socket whose poll misses its wake-up ``misses`` times and notes how long it was to wait."""

    def __init__(self, misses: int) -> None:
        self.misses, self.waits = misses, list[float]()

    async def poll(self, timeout: float) -> int:
        """No message, until the misses are used up."""
        self.waits.append(timeout)
        self.misses -= 1
        return int(self.misses < 0)


def received(misses: int, timeout: float | None) -> list[float]:
    """How long each poll waited until a message came, in ms."""
    made, socket = SlicedChannel.__new__(SlicedChannel), Sleepy(misses)

    async def receive(**kwargs: Any) -> dict[str, Any]:
        return {"header": "here"}

    made.socket = socket  # type: ignore[assignment]
    made._recv = receive  # type: ignore[method-assign]
    assert asyncio.run(made.get_msg(timeout=timeout)) == {"header": "here"}
    return socket.waits


def test_a_missed_wake_up_costs_a_slice_and_the_time_out_of_the_caller_still_holds() -> None:
    assert received(3, None) == [SLICE_S * 1000] * 4
    assert max(received(0, 0.1)) <= 100
    with pytest.raises(Empty):
        received(10**9, 0)
    client = SlicedClient()
    for name in ("shell", "iopub", "stdin", "control"):
        assert getattr(client, f"{name}_channel_class") is SlicedChannel

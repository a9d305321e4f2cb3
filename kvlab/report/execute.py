"""Execute notebooks, several at a time, and say which cell of which one failed.

Each notebook runs in a kernel of its own with its own folder as working directory, and the file
on disk is not touched. A cell has a time-out; a notebook that runs into it is run once more from
the start, because a stall of the machinery is rare and does not come twice, while a cell that
is too slow stays too slow and is then reported.

    [1/3] 01_two_index_spaces: 4.2 s
    [2/3] 03_crash_reproduction: failed in cell 7
"""

import asyncio
import copy
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TextIO

from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from kvlab.report.kernel import QuietClient, kernel_environment
from kvlab.report.place import TakenError, held
from kvlab.report.stamps import ReportError, clean, read_notebook, stamp

CELL_TIMEOUT_S = 60
ATTEMPTS = 2
LAST_LINES = 3
KERNELS = "kvlab-run-"  # how the temporary folder of a run begins
_ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Failure:
    """Where a notebook failed and what it said. ``cell`` counts all cells from 1, or is None."""

    notebook: str
    cell: int | None
    reason: str

    @property
    def sentence(self) -> str:
        """For instance "notebook 03_crash failed in cell 7: ValueError: ..."."""
        where = "before its first cell" if self.cell is None else f"in cell {self.cell}"
        return f"notebook {self.notebook} failed {where}: {self.reason}"


@dataclass(frozen=True)
class Outcome:
    """One executed notebook: cleaned and stamped if ``failure`` is None."""

    path: Path
    notebook: NotebookNode
    duration_s: float
    attempts: int
    failure: Failure | None


class Progress:
    """One line a finished notebook; on a terminal also a last line with those that run."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total, self.done = total, 0
        self.stream = sys.stderr if stream is None else stream
        self.running: list[str] = []

    def started(self, name: str) -> None:
        """Show ``name`` among those that run, on a terminal."""
        self.running.append(name)
        self._status()

    def finished(self, outcome: Outcome) -> None:
        """Print the line of ``outcome``."""
        self.done += 1
        self.running.remove(outcome.path.stem)
        failure = outcome.failure
        told = f"{outcome.duration_s:.1f} s" + (" (second run)" if outcome.attempts > 1 else "")
        if failure is not None:
            told = "failed" if failure.cell is None else f"failed in cell {failure.cell}"
        clear = "\r\x1b[K" if self.stream.isatty() else ""
        print(
            f"{clear}[{self.done}/{self.total}] {outcome.path.stem}: {told}",
            file=self.stream,
            flush=True,
        )
        self._status()

    def _status(self) -> None:
        if self.stream.isatty():
            names = ", ".join(self.running)
            text = f"[{self.done}/{self.total}] running {names}"[:78] if names else ""
            print(f"\r\x1b[K{text}", end="", file=self.stream, flush=True)


def worker_count(jobs: int | None, notebooks: int) -> int:
    """Kernels at a time: ``jobs``, but never more than cores or notebooks.

    Errors: ReportError for ``jobs`` below 1.
    """
    if jobs is not None and jobs < 1:
        raise ReportError(f"jobs is the number of notebooks at a time, at least 1: got {jobs}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(jobs or cores or 1, cores or 1, notebooks))


def execute_all(
    paths: Sequence[Path],
    figures: Path,
    jobs: int | None = None,
    trace: Path | None = None,
    timeout_s: int = CELL_TIMEOUT_S,
    progress: Progress | None = None,
    on_done: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Execute the notebooks of ``paths``; outcomes in the same order, failed ones included.

    Args:
        figures: folder for what the notebooks save, as ``$KVLAB_FIGURES``.
        jobs: notebooks at a time, None for the number of cores.
        trace: the user's trace file, as ``$KVLAB_TRACE``; unset if None.
        timeout_s: seconds that one cell may take.
        on_done: called with each outcome as soon as it is there.

    Errors: ReportError for a file that is no notebook, and for ``jobs`` below 1.
    """
    notebooks = [read_notebook(path) for path in paths]
    workers = worker_count(jobs, len(paths))
    threads = max(1, (os.cpu_count() or 1) // workers)
    shown = progress or Progress(len(paths))
    figures.mkdir(parents=True, exist_ok=True)

    async def all_of_them(home: Path) -> list[Outcome]:
        free = asyncio.Semaphore(workers)

        async def one(path: Path, notebook: NotebookNode) -> Outcome:
            async with free:
                shown.started(path.stem)
                env = kernel_environment(home, figures.resolve(), path.stem, trace, threads)
                outcome = await _execute(path, notebook, home, dict(env), timeout_s)
                shown.finished(outcome)
                if on_done is not None:
                    on_done(outcome)
                return outcome

        return await asyncio.gather(*map(one, paths, notebooks))

    def run() -> list[Outcome]:
        _remove_left_overs()
        home = Path(tempfile.gettempdir()) / f"{KERNELS}{secrets.token_hex(8)}"
        with held(home):
            return asyncio.run(all_of_them(home))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1) as other:  # called from a notebook, whose loop is busy with us
        return other.submit(run).result()


def _remove_left_overs() -> None:
    """Remove the folders of kernels whose run was killed: those of ours that nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{KERNELS}*"):
        with suppress(TakenError, OSError):
            if folder.stat().st_uid == os.geteuid():
                with held(folder):
                    pass


async def _execute(
    path: Path, source: NotebookNode, home: Path, env: dict[str, str], timeout_s: int
) -> Outcome:
    """One notebook, once more if a cell ran out of time."""
    start = monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        notebook = copy.deepcopy(source)
        client = QuietClient(notebook, home, timeout_s)
        log = home / f"{path.stem}.log"
        reason: str | None = None
        try:
            with log.open("wb") as kernel_output:
                await client.async_execute(
                    cwd=str(path.resolve().parent),
                    env=env,
                    stdout=kernel_output,
                    stderr=kernel_output,
                )
        except CellTimeoutError:
            reason = f"it took longer than {timeout_s} s, in {attempt} of {ATTEMPTS} runs"
            if attempt < ATTEMPTS:
                continue
        except CellExecutionError as error:
            reason = _last_lines(f"{error.ename}: {error.evalue}")
        except (DeadKernelError, RuntimeError, OSError) as error:
            _pass_on_interrupt()
            said = _last_lines(log.read_text(encoding="utf-8", errors="replace"))
            reason = f"the kernel died ({error}); its last words: {said or 'none'}"
        break
    cell = None if client.cell_index is None else client.cell_index + 1
    failure = None if reason is None else Failure(path.stem, cell, reason)
    finished = notebook if failure else stamp(clean(notebook))
    return Outcome(path, finished, monotonic() - start, attempt, failure)


def _pass_on_interrupt() -> None:
    """Nbclient reports a cancelled task as a dead kernel; an interrupt must stay one."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _last_lines(text: str) -> str:
    """The last lines of an error message, as one line without colours."""
    lines = [line.strip() for line in _ANSI.sub("", text).splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:])

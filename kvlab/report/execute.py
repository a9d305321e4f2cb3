"""Execute notebooks, several at a time, and say which cell of which one failed.

Each notebook runs in a kernel of its own with its own folder as working directory, and the file
on disk is not touched. A cell has a time-out; a notebook that runs into it is run once more from
the start, because a stall of the machinery is rare and does not come twice.

    [1/3] 01_two_index_spaces: 4.2 s
    [2/3] 03_crash_reproduction: failed in cell 7

Three habits of the usual tools bite in automation, and each is replaced here:

- The kernel comes from an installed kernelspec, which may belong to another environment. Here
  it is ``sys.executable``, whatever is installed.
- Jupyter and IPython read and write the user's folders. Here they get a temporary one.
- With several kernels at once the asyncio poll of a socket now and then misses its wake-up, and
  a cell waits out its whole time-out. Here a socket is polled in slices of 0.25 s.
"""

import asyncio
import copy
import os
import re
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from kvlab.lab.findings import FOLDER_VARIABLE, NOTEBOOK_VARIABLE
from kvlab.report.notebook_files import PROJECT, ReportError, clean, read_notebook, stamp
from kvlab.report.place import TakenError, held

CELL_TIMEOUT_S = STARTUP_S = 60
SLICE_S = 0.25
ATTEMPTS = 2
LAST_LINES = 3
KERNELS = "kvlab-run-"  # how the temporary folder of a run begins
TRACE_VARIABLE = "KVLAB_TRACE"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Outcome:
    """One executed notebook, cleaned and stamped; or ``failure``, with the cell counted from 1."""

    path: Path
    notebook: NotebookNode
    duration_s: float
    attempts: int
    failure: str | None = None
    cell: int | None = None

    @property
    def sentence(self) -> str:
        """For instance "01_a: 4.2 s" or "notebook 03_crash failed in cell 7: ValueError: ..."."""
        if self.failure is None:
            again = " (second run)" if self.attempts > 1 else ""
            return f"{self.path.stem}: {self.duration_s:.1f} s{again}"
        where = "before its first cell" if self.cell is None else f"in cell {self.cell}"
        return f"notebook {self.path.stem} failed {where}: {self.failure}"


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
    on_done: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Execute the notebooks of ``paths``; outcomes in the same order, failed ones included.

    A line on standard error says what each came to.

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
    figures.mkdir(parents=True, exist_ok=True)
    done: list[Outcome] = []

    async def all_of_them(home: Path) -> list[Outcome]:
        free = asyncio.Semaphore(workers)

        async def one(path: Path, notebook: NotebookNode) -> Outcome:
            async with free:
                env = kernel_environment(home, figures.resolve(), path.stem, trace, threads)
                outcome = await _execute(path, notebook, home, env, timeout_s)
                done.append(outcome)
                told = f"[{len(done)}/{len(paths)}] {outcome.sentence}"
                print(told, file=sys.stderr, flush=True)
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
    path: Path, source: NotebookNode, home: Path, env: Mapping[str, str], timeout_s: int
) -> Outcome:
    """One notebook, once more if a cell ran out of time."""
    start = monotonic()
    log = home / f"{path.stem}.log"
    reason: str | None = None
    for attempt in range(1, ATTEMPTS + 1):
        notebook, reason = copy.deepcopy(source), None
        client = QuietClient(notebook, home, timeout_s)
        try:
            with log.open("wb") as said:
                where = str(path.resolve().parent)
                await client.async_execute(cwd=where, env=dict(env), stdout=said, stderr=said)
        except CellTimeoutError:
            reason = f"it took longer than {timeout_s} s, in {attempt} of {ATTEMPTS} runs"
            continue
        except CellExecutionError as error:
            reason = last_lines(f"{error.ename}: {error.evalue}")
        except (DeadKernelError, RuntimeError, OSError) as error:
            # nbclient reports a canceled task as a dead kernel; an interrupt must stay one.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from None
            words = last_lines(log.read_text(encoding="utf-8", errors="replace"))
            reason = f"the kernel died ({error}); its last words: {words or 'none'}"
        break
    taken = monotonic() - start
    if reason is None:
        return Outcome(path, stamp(clean(notebook)), taken, attempt)
    cell = None if client.cell_index is None else client.cell_index + 1
    return Outcome(path, notebook, taken, attempt, reason, cell)


def last_lines(text: str) -> str:
    """The last lines of an error message, as one line without colors."""
    lines = [line.strip() for line in _ANSI.sub("", text).splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:])


class SlicedChannel(AsyncZMQSocketChannel):
    """A channel that looks at its socket every ``SLICE_S`` seconds, whatever the poll says."""

    async def get_msg(  # type: ignore[override]  # as upstream: the base class blocks
        self, timeout: float | None = None
    ) -> dict[str, Any]:
        """The next message. Errors: ``queue.Empty`` after ``timeout`` seconds; None waits."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            left = SLICE_S if deadline is None else min(SLICE_S, deadline - monotonic())
            if await self.socket.poll(max(0, round(left * 1000))):
                return await self._recv()
            if deadline is not None and monotonic() >= deadline:
                raise Empty


class SlicedClient(AsyncKernelClient):
    """A kernel client whose channels are all sliced."""

    shell_channel_class = iopub_channel_class = SlicedChannel
    stdin_channel_class = control_channel_class = SlicedChannel


class ThisPython(KernelSpecManager):
    """Names one kernel for every name: the running interpreter."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The spec that starts ipykernel with ``sys.executable``."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3 (ipykernel)", language="python")


class QuietClient(NotebookClient):
    """Executes a notebook in a kernel of its own and always ends that kernel.

    ``home`` is the temporary folder for connection files; ``cell_index`` is the cell that runs.
    """

    def __init__(self, notebook: NotebookNode, home: Path, timeout_s: int) -> None:
        super().__init__(
            notebook,
            timeout=timeout_s,
            startup_timeout=STARTUP_S,
            record_timing=False,
            coalesce_streams=True,
            on_cell_execute=self._note_cell,
        )
        self.home = home
        self.cell_index: int | None = None

    def _note_cell(self, cell: NotebookNode, cell_index: int) -> None:
        self.cell_index = cell_index

    @asynccontextmanager
    async def async_setup_kernel(self, **kwargs: Any) -> AsyncIterator[None]:
        """Start the kernel, and end it at once when the block is left.

        The parent class also installs signal handlers, one notebook over the other, so that an
        interrupt would end one kernel of several.
        """
        manager = AsyncKernelManager(kernel_spec_manager=ThisPython(), kernel_name="python3")
        manager.client_factory = SlicedClient
        manager.connection_file = str(self.home / f"{id(self)}.json")
        # Files instead of ports: nobody else can connect, and none can clash.
        manager.transport, manager.ip = "ipc", str(self.home / f"{id(self)}")
        self.km = manager
        try:
            await self.async_start_new_kernel(**kwargs)
            await self.async_start_new_kernel_client()
            yield
        finally:
            if self.kc is not None:
                self.kc.stop_channels()
                self.kc = None
            if manager.has_kernel:
                await manager.shutdown_kernel(now=True)
            self.km = None


def unused_trace() -> str | None:
    """A sentence when ``$KVLAB_TRACE`` is set: notebooks executed here do not see it; else None."""
    if not os.environ.get(TRACE_VARIABLE):
        return None
    return (
        f"note: {TRACE_VARIABLE} is set and not used here: a run that is kept depends on no "
        f"variable; name the trace with kvlab report --trace FILE"
    )


def kernel_environment(
    home: Path, figures: Path, notebook: str, trace: Path | None, threads: int
) -> Mapping[str, str]:
    """The environment of one kernel: its own Jupyter folders, kvlab on the path, the outputs.

    Args:
        threads: what numeric libraries may use, so that all kernels together fill the cores;
            variables that the user has set win.
    """
    inherited = {k: v for k, v in os.environ.items() if k != TRACE_VARIABLE}
    path = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "OMP_NUM_THREADS": str(threads),
        **inherited,
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # a warning about frozen modules, of no use here
        "PYTHONHASHSEED": "0",  # sets print in the same order each time
        "PYTHONPATH": os.pathsep.join(path),
        FOLDER_VARIABLE: str(figures),
        NOTEBOOK_VARIABLE: notebook,
        **({} if trace is None else {TRACE_VARIABLE: str(trace)}),
    }

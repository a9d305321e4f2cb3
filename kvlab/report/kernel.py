"""A kernel for one notebook that runs everywhere and does not stall.

Three habits of the usual tools bite in automation, and each is replaced here:

- The kernel comes from an installed kernelspec, which may belong to another environment. Here
  it is ``sys.executable``, whatever is installed.
- Jupyter and IPython read and write the user's folders. Here they get a temporary one.
- With several kernels at once the asyncio poll of a socket now and then misses its wake-up, and
  a cell waits out its whole time-out. Here a socket is polled in slices of 0.25 s, so a missed
  wake-up costs a slice.
"""

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

import kvlab
from kvlab.lab.findings import FOLDER_VARIABLE, NOTEBOOK_VARIABLE

SLICE_S = 0.25
STARTUP_S = 60
TRACE_VARIABLE = "KVLAB_TRACE"


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
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="Python 3 (ipykernel)",
            language="python",
        )


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
        if os.name == "posix":  # files instead of ports: nobody else can connect, none can clash
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
    package_root = str(Path(kvlab.__file__).resolve().parents[1])
    path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {k: v for k, v in os.environ.items() if k != TRACE_VARIABLE}
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

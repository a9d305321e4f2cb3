"""The crash on CUDA: run where it cannot take this process with it, and kept for other machines.

On CUDA an index past the buffer is a device-side assert: every later CUDA call of the process
fails. So the study runs in a child, and its exit code and last lines are what is shown. A machine
that has a GPU stores the child's words once, and every other machine shows them as *recorded*:

    kvlab crash --device cuda --record            writes data/runs/crash-cuda.json
    recorded_crash()                              the record, or None: nobody has made one

CUDA prints a line for each thread that asserts, thousands of them. Kept are their number, the
first and the last lines of the output, and no path, host or user of the machine.
"""

import argparse
import getpass
import json
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from kvlab.errors import KvlabError, StudyError
from kvlab.index import DcpLayout
from kvlab.lab.crash import BeforeFix, CopyError, CrashNode
from kvlab.lab.folders import Folder
from kvlab.lab.gpu import driver
from kvlab.lab.origin import collect_origin, without_paths
from kvlab.memory.published import data_path

#: Where the project keeps its recording, below ``data/``.
PLACE = ("runs", "crash-cuda.json")
COMMAND = "kvlab crash --device cuda --record"
PAGES = 3  # of each request in the child's pool
_ASSERTS = "assertion"


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How the child ended: its exit code, the line that tells why, and all lines that it printed
    and that are not blank, standard output first."""

    device: str
    exit_code: int
    message: str
    output: tuple[str, ...]

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines."""
        return self.output[-6:]


def crash_in_child(layout: DcpLayout, device: str = "cpu", timeout_s: float = 300) -> ChildResult:
    """Retract from a full pool with the code before the fix, in a child process.

    Errors: StudyError when the device is not there, the pool holds no request of two and a bit
    pages, or the child outlives ``timeout_s``.
    """
    if layout.num_pages < PAGES:
        raise StudyError(
            f"the full pool of the child holds requests of {PAGES} pages: got num_pages="
            f"{layout.num_pages}; use more pages"
        )
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise StudyError(
            f"device {device} is not available on this machine; use device='cpu', or read the "
            f"recorded run where one is shown"
        )
    sizes = {"dcp-size": layout.dcp_size, "page-size": layout.page_size}
    sizes["num-pages"] = layout.num_pages
    arguments = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    command = [sys.executable, "-m", "kvlab.lab.crash_cuda", *arguments, "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise StudyError(
            f"the child did not end within {timeout_s} s; use a smaller pool"
        ) from None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    telling = [x for x in lines if "assert" in x.lower() or "out of bounds" in x]
    message = telling[0] if telling else lines[-1] if lines else ""
    return ChildResult(device, done.returncode, message.strip(), tuple(lines))


def main(argv: list[str] | None = None) -> int:
    """The child: exit 0 if the copy went through, 1 with torch's own words if it did not."""
    parser = argparse.ArgumentParser(prog="python -m kvlab.lab.crash_cuda")
    for name in ("--dcp-size", "--page-size", "--num-pages"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(argv)
    layout = DcpLayout(given.dcp_size, given.page_size, given.num_pages)
    tokens = (PAGES - 1) * layout.widened_page_size + 1
    node = CrashNode(layout, layout.num_pages // layout.pages_for(tokens), tokens, given.device)
    victim = node.victim()
    try:
        BeforeFix(node.cells, victim, node.slots(victim))
        if given.device.startswith("cuda"):
            torch.cuda.synchronize()
    except CopyError as failed:
        print(f"IndexError: {failed.text} (rank {failed.rank})", file=sys.stderr)
        return 1
    print(f"the copy of pages {list(node.pages(victim))} went through: no index was out of range")
    return 0


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """One crash of the child on a CUDA device, with no path, host or user of the machine.

    Args:
        device: name of the GPU.
        driver: version of its driver, or None if it could not be told.
        torch, cuda: versions of torch, and of the CUDA that it was built with.
        commit, created: of kvlab's checkout, or None outside of one; the day, ISO 8601.
        command: the line that makes the recording again.
        dcp_size, page_size, num_pages: the pool.
        exit_code: of the child, never 0; negative: the number of the signal that ended it.
        message: the line that tells why it ended.
        assert_lines: how many lines of the output are asserts, one a thread, of thousands.
        output: the lines printed, the middle of many left out with a line that says so.
    """

    device: str
    driver: str | None
    torch: str
    cuda: str | None
    commit: str | None
    created: str
    command: str
    dcp_size: int
    page_size: int
    num_pages: int
    exit_code: int
    message: str
    assert_lines: int
    output: tuple[str, ...]

    def where(self) -> str:
        """Device, driver, versions and date: what a recorded figure must carry."""
        told = f"driver {self.driver}" if self.driver else "driver not told"
        cuda = f" (CUDA {self.cuda})" if self.cuda else ""
        at = f", commit {self.commit}" if self.commit else ""
        return f"{self.device}, {told}, torch {self.torch}{cuda}{at}, {self.created}"


def make_record(layout: DcpLayout, child: ChildResult, command: str = COMMAND) -> CrashRecord:
    """What there is to keep of a child that crashed on CUDA just now, on this machine.

    Errors: StudyError for a child that ran elsewhere than on CUDA, or that did not crash.
    """
    if not child.device.startswith("cuda") or child.exit_code == 0:
        raise StudyError(
            f"a recording is of a crash on CUDA: this child ended on {child.device!r} with exit "
            f"code {child.exit_code} and {child.message!r}; record with --device cuda, and more "
            f"than one rank, so that slots lie past the rows"
        )
    index = int(child.device.partition(":")[2] or 0)
    origin = collect_origin(command, None, {}, "cpu")  # the GPU is named here, the driver below
    lines = tuple(scrubbed(line) for line in child.output)
    return CrashRecord(
        device=torch.cuda.get_device_name(index),
        driver=driver(),
        torch=origin.versions.get("torch", torch.__version__),
        cuda=torch.version.cuda,
        commit=origin.commit,
        created=origin.created,
        command=origin.command,
        dcp_size=layout.dcp_size,
        page_size=layout.page_size,
        num_pages=layout.num_pages,
        exit_code=child.exit_code,
        message=scrubbed(child.message),
        assert_lines=sum(_ASSERTS in line.lower() for line in lines),
        output=shortened(lines, 12, 24),
    )


def scrubbed(line: str) -> str:
    """``line`` with paths cut to their last part, and without the names of this host and user."""
    line, host = without_paths(line), socket.gethostname()
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name, as in containers
        user = ""
    names = {host: "HOST", host.split(".")[0]: "HOST", user: "USER"}
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 2 and name not in ("localhost", "root"):
            line = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", names[name], line)
    return line


def shortened(lines: Sequence[str], first: int, last: int) -> tuple[str, ...]:
    """The first and last of ``lines``, and between them how many were left out."""
    if len(lines) <= first + last + 1:
        return tuple(lines)
    left = f"... {len(lines) - first - last:,} lines left out ..."
    return (*lines[:first], left, *lines[-last:])


def write_record(record: CrashRecord, place: Path) -> None:
    """Write ``record`` as JSON, whole or not at all. Errors: StudyError."""
    text = json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n"
    folder = Folder(
        place.parent, "a recording is a file that can be written", "name another file with --record"
    )
    folder.put(place.name, text)


def read_record(place: Path) -> CrashRecord:
    """The recording at ``place``. Errors: StudyError if it cannot be read or holds no crash."""
    try:
        told: Any = json.loads(place.read_text(encoding="utf-8"))
        record = CrashRecord(**{**told, "output": tuple(told["output"])})
        wrong = [f.name for f in fields(CrashRecord) if not _is_of(getattr(record, f.name), f.type)]
        lines = told["output"] if isinstance(told["output"], list) else []
        if record.exit_code == 0 or not lines or wrong:
            raise ValueError(f"no crash, or a value of another type: {', '.join(wrong) or 'none'}")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise StudyError(
            f"{place.name} holds one recorded crash as JSON: {why}; make it again with `{COMMAND}`"
        ) from None
    return record


def _is_of(value: object, kind: object) -> bool:
    if kind == tuple[str, ...]:
        return isinstance(value, tuple) and all(isinstance(line, str) for line in value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str) or (value is None and kind is not str)


def recorded_crash() -> CrashRecord | None:
    """The recording that the project ships, or None if nobody has made one.

    Errors: StudyError for one that is there and cannot be read.
    """
    try:
        place = data_path(*PLACE)
    except KvlabError:
        return None
    return read_record(place)


def crash_words(child: ChildResult | None, record: CrashRecord | None) -> str:
    """What CUDA says to the crash: live, else recorded, else how to record it.

    ``child``: the live run; one that did not run on CUDA counts as none.
    """
    if child is not None and child.device.startswith("cuda"):
        lines = tuple(scrubbed(line) for line in child.output)
        return _story(f"measured here, on {child.device}", child.exit_code, lines)
    if record is not None:
        return _story(f"recorded on {record.where()}", record.exit_code, record.output)
    return (
        f"No run of this crash on CUDA is recorded yet, and none is claimed: `{COMMAND}` on a "
        f"machine with a GPU makes data/{'/'.join(PLACE)}, which is then shown here."
    )


def _story(label: str, exit_code: int, lines: Sequence[str]) -> str:
    telling = [line for line in lines if _ASSERTS in line.lower() or "cuda error" in line.lower()]
    return "\n".join([f"{label}: exit code {exit_code}", *shortened(telling or lines, 2, 2)])


if __name__ == "__main__":
    sys.exit(main())

"""The crash on CUDA: run where it cannot take this process with it, and kept for other machines.

On CUDA an index past the buffer is a device-side assert: every later CUDA call of the process
fails. So the study runs in a child, whose exit code and last lines are shown. A machine with a GPU
stores them once (``kvlab crash --device cuda --record``); the others show them as *recorded*.
"""

import getpass
import json
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kvlab.errors import StudyError
from kvlab.files import put, shipped
from kvlab.index import DcpLayout
from kvlab.lab.crash import CopyError, CrashNode
from kvlab.lab.origin import Origin, collect_origin, without_paths

#: Where the project keeps its recording, below ``data/``.
PLACE = ("runs", "crash-cuda.json")
COMMAND = "kvlab crash --device cuda --record"
PAGES = 3  # of each request in the child's pool


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
        return self.output[-6:]


def crash_in_child(layout: DcpLayout, device: str = "cpu", timeout_s: float = 300) -> ChildResult:
    """Retract from a full pool with the code before the fix, in a child process.

    Errors: StudyError when the device is not there, or the child outlives ``timeout_s``.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise StudyError(f"device {device} is not on this machine; use device='cpu'")
    told = (layout.dcp_size, layout.page_size, layout.num_pages, device)
    code = f"import sys; from kvlab.lab.crash_cuda import crash; sys.exit(crash(*{told!r}))"
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise StudyError(f"the child did not end within {timeout_s} s") from None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    telling = [x for x in lines if "assert" in x.lower() or "out of bounds" in x]
    message = next(iter(telling or lines[-1:]), "")
    return ChildResult(device, done.returncode, message.strip(), tuple(lines))


def crash(dcp_size: int, page_size: int, num_pages: int, device: str) -> int:
    """What the child does: 0 if the copy went through, 1 with torch's own words if it did not."""
    layout = DcpLayout(dcp_size, page_size, num_pages)
    tokens = (PAGES - 1) * layout.widened_page_size + 1
    node = CrashNode(layout, max(1, num_pages // PAGES), tokens, device, code="before")
    victim = node.victim()
    try:
        node.cells.back_up(victim, node.slots(victim))
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    except CopyError as failed:
        print(f"IndexError: {failed.text} (rank {failed.rank})", file=sys.stderr)
        return 1
    print(f"the copy of pages {list(node.pages(victim))} went through: no index was out of range")
    return 0


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """One crash of the child on a CUDA device, with no path, host or user of the machine, and of
    many lines the first and the last; ``origin`` names GPU, driver, versions and pool."""

    child: ChildResult
    origin: Origin

    def where(self) -> str:
        """Versions, device, driver and date: what a recorded figure must carry."""
        return self.origin.footer().splitlines()[1]


def make_record(layout: DcpLayout, child: ChildResult, command: str = COMMAND) -> CrashRecord:
    """What there is to keep of a child that crashed on CUDA just now, on this machine.

    Errors: StudyError for a child that ran elsewhere than on CUDA, or that did not crash.
    """
    if not child.device.startswith("cuda") or child.exit_code == 0:
        raise StudyError(
            f"a recording is of a crash on CUDA: this child ended on {child.device!r} with exit "
            f"code {child.exit_code}; record with --device cuda and more than one rank"
        )
    about = {**asdict(layout), "cuda": torch.version.cuda}
    lines = shortened([scrubbed(line) for line in child.output], 12, 24)
    kept = replace(child, message=scrubbed(child.message), output=lines)
    return CrashRecord(kept, collect_origin(command, None, about, child.device))


def scrubbed(line: str) -> str:
    """``line`` with paths cut to their last part, and without the names of this host and user."""
    line, host = without_paths(line), socket.gethostname()
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name, as in containers
        user = ""
    for name, role in ((host, "HOST"), (host.split(".")[0], "HOST"), (user, "USER")):
        if len(name) > 2 and name not in ("localhost", "root"):
            line = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", role, line)
    return line


def shortened(lines: Sequence[str], first: int, last: int) -> tuple[str, ...]:
    """The first and last of ``lines``, and between them how many were left out."""
    if len(lines) <= first + last + 1:
        return tuple(lines)
    left = f"... {len(lines) - first - last:,} lines left out ..."
    return (*lines[:first], left, *lines[-last:])


def write_record(record: CrashRecord, place: Path) -> None:
    """Write ``record`` as JSON, whole or not at all. Errors: StudyError."""
    put(place, json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n")


def read_record(place: Path) -> CrashRecord:
    """The recording at ``place``. Errors: StudyError if it cannot be read or holds no crash."""
    try:
        told: Any = json.loads(place.read_text(encoding="utf-8"))
        child = ChildResult(**{**told["child"], "output": tuple(told["child"]["output"])})
        if not child.exit_code or not child.output:
            raise ValueError("it holds no crash")
        return CrashRecord(child, Origin(**told["origin"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise StudyError(
            f"{place.name} holds one recorded crash: {error}; make it again with `{COMMAND}`"
        ) from None


def recorded_crash() -> CrashRecord | None:
    """The recording that the project ships, or None if nobody has made one. Errors: as above."""
    place = shipped("data").joinpath(*PLACE)
    return read_record(place) if place.is_file() else None


def crash_words(child: ChildResult | None, record: CrashRecord | None) -> str:
    """What CUDA says to the crash: live (of a child on CUDA), else recorded, else how to record."""
    if child is not None and child.device.startswith("cuda"):
        label, lines = f"measured here, on {child.device}", [scrubbed(x) for x in child.output]
    elif record is not None:
        child, label = record.child, f"recorded on {record.where()}"
        lines = list(child.output)
    else:
        return (
            f"No run of this crash on CUDA is recorded yet, and none is claimed: `{COMMAND}` on a "
            f"machine with a GPU makes data/{'/'.join(PLACE)}, which is then shown here."
        )
    telling = [x for x in lines if "assertion" in x.lower() or "cuda error" in x.lower()]
    return "\n".join([f"{label}: exit code {child.exit_code}", *shortened(telling or lines, 2, 2)])

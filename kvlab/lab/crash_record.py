"""The crash on CUDA, kept: what the child printed on a machine with a GPU, to be shown elsewhere.

A device-side assert cannot be had on a CPU. So a machine that has a GPU stores the child's words
once, with what they depend on, and every other machine shows them, labelled *recorded*:

    kvlab crash --device cuda --record            writes data/runs/crash-cuda.json
    recorded_crash()                              the record, or None: nobody has made one

CUDA prints a line for each thread that asserts, thousands of them. Kept are their number, the
first and the last lines of the output, and no path, host or user of the machine:

    /a/b/kvlab/lab/crash_child.py, line 96    ->    crash_child.py, line 96
"""

import getpass
import json
import re
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from kvlab.errors import KvlabError, StudyError
from kvlab.index import DcpLayout
from kvlab.lab.crash_child import ChildResult
from kvlab.lab.folders import Folder
from kvlab.lab.gpu import driver
from kvlab.lab.origin import collect_origin, without_paths
from kvlab.memory.published import data_path

#: Where the project keeps its recording, below ``data/``.
PLACE = ("runs", "crash-cuda.json")
COMMAND = "kvlab crash --device cuda --record"
FIRST, LAST = 12, 24
_ASSERTS = "assertion"


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """One crash of the child on a CUDA device.

    Args:
        device: name of the GPU.
        driver: version of its driver, or None if it could not be told.
        torch, cuda: versions of torch, and of the CUDA that it was built with.
        commit, created: of kvlab's checkout, or None outside of one; the day, ISO 8601.
        command: the line that makes the recording again.
        dcp_size, page_size, num_pages: the pool.
        exit_code: of the child, never 0; negative: the number of the signal that ended it.
        message: the line that tells why it ended.
        assert_lines: how many lines of the output are asserts, one a thread.
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
    if not child.device.startswith("cuda"):
        raise StudyError(
            f"a recording is of a crash on CUDA: this child ran on {child.device!r}; the CPU needs "
            f"none, it fails the same way everywhere; record with --device cuda"
        )
    if child.exit_code == 0:
        raise StudyError(
            f"a recording is of a crash: the child on {child.device} ended with exit code 0 and "
            f"{child.message!r}; use more ranks or more pages, so that slots lie past the rows"
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
        output=shortened(lines),
    )


def scrubbed(line: str) -> str:
    """``line`` with paths cut to their last part, and without the names of this host and user."""
    line, host = without_paths(line), socket.gethostname()
    names = {host: "HOST", host.split(".")[0]: "HOST", _user(): "USER"}
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 2 and name not in ("localhost", "root"):
            line = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", names[name], line)
    return line


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name, as in containers
        return ""


def shortened(lines: Sequence[str], first: int = FIRST, last: int = LAST) -> tuple[str, ...]:
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
    """The recording at ``place``.

    Errors: StudyError if it cannot be read, is no JSON object, lacks a field or has one too many,
    has a value of another type or one that no recording has, or holds no crash.
    """
    again = f"make it again with `{COMMAND}`"
    try:
        told: Any = json.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{place.name} cannot be read: {error.strerror}; {again}") from None
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{place.name} holds a recording as JSON: {error}; {again}") from None
    wanted = {field.name: field.type for field in fields(CrashRecord)}
    given = set(told) if isinstance(told, dict) else set()
    if given != set(wanted):
        lacks, extra = [name for name in wanted if name not in given], sorted(given - set(wanted))
        raise StudyError(
            f"{place.name} holds one JSON object with the fields {', '.join(wanted)}: it lacks "
            f"{', '.join(lacks) or 'none'} and has besides {', '.join(extra) or 'none'}; {again}"
        )
    for name, kind in wanted.items():
        if not _is_of(told[name], kind):
            raise StudyError(
                f"{place.name}: {name} is of type {_words(kind)}: got {told[name]!r}; {again}"
            )
    if told["exit_code"] == 0:
        raise StudyError(f"{place.name}: a recorded crash has an exit_code: got 0; {again}")
    for name, rule, holds in (
        ("device", "names a GPU", told["device"].strip()),
        ("created", "is a day, YYYY-MM-DD", re.fullmatch(r"\d{4}-\d\d-\d\d", told["created"])),
        ("dcp_size", "is at least 2: one rank cannot crash so", told["dcp_size"] >= 2),
        ("page_size", "is at least 1", told["page_size"] >= 1),
        ("num_pages", "is at least 1", told["num_pages"] >= 1),
        ("assert_lines", "counts lines, at least 0", told["assert_lines"] >= 0),
        ("output", "has the lines that were printed", told["output"]),
    ):
        if not holds:
            raise StudyError(f"{place.name}: {name} {rule}: got {told[name]!r}; {again}")
    return CrashRecord(**{**told, "output": tuple(told["output"])})


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

    Args:
        child: the live run; one that did not run on CUDA counts as none.
        record: the recording, or None.
    """
    if child is not None and child.device.startswith("cuda"):
        lines = tuple(scrubbed(line) for line in child.output or child.tail)
        return _story(f"measured here, on {child.device}", child.exit_code, lines)
    if record is not None:
        return _story(f"recorded on {record.where()}", record.exit_code, record.output)
    return (
        f"No run of this crash on CUDA is recorded yet, and none is claimed: `{COMMAND}` on a "
        f"machine with a GPU makes data/{'/'.join(PLACE)}, which is then shown here."
    )


def _story(label: str, exit_code: int, lines: Sequence[str]) -> str:
    telling = [line for line in lines if _ASSERTS in line.lower() or "cuda error" in line.lower()]
    shown = telling or list(lines)
    return "\n".join([f"{label}: exit code {exit_code}", *shortened(shown, 2, 2)])


def _is_of(value: object, kind: object) -> bool:
    if kind == tuple[str, ...]:
        return isinstance(value, list) and all(isinstance(line, str) for line in value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str) or (value is None and kind is not str)


def _words(kind: object) -> str:
    names = {str(str): "text", str(int): "whole number", str(tuple[str, ...]): "list of lines"}
    return names.get(str(kind), "text or null")

"""Where a number comes from: command, seed, parameters, device, versions, commit, date.

    kvlab owners · seed 0 · dcp_size=4
    kvlab 0.1.0 (1a2b3c4) · python 3.11.4 · cpu (2 cores) · 2026-03-01

An origin is published: no host or user name is collected, absolute paths lose their folders.
"""

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePath

import torch

import kvlab
from kvlab.errors import StudyError
from kvlab.lab.gpu import driver

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]

LIBRARIES = ("torch", "numpy", "matplotlib")
# What decides a number. Notebooks are left out: executing them in place changes them.
CODE = ("kvlab", "data", "pyproject.toml")

# A path that starts at a root: /a/b, ~/a, C:\a, file:///a. "tokens/s" and "1/2" start at no root.
_ROOT = r"(?:file://)?(?:~[\w.-]*[\\/]|/|[A-Za-z]:[\\/])(?=[^\s'\"])"
# Its folders: within quotes ('a b', '--trace=a b') they may hold blanks. An address is kept.
_QUOTED = rf"""(?<!\w)((['"])(?:[^'"/\\\s]*=)?){_ROOT}(?:(?:(?!\2).)*[\\/](?!\2))?"""
_BARE = (
    rf"""(\b(?!file:)[A-Za-z][\w+.-]+://[^\s'"]*)|"""
    rf"""(?<![\w./~)\]\\-]){_ROOT}(?:(?:\\\s|[^\s'"])*[\\/](?=[^\s'"]))?"""
)


@dataclass(frozen=True)
class Origin:
    """What is needed to make a number again.

    Args:
        command: the line that a reader types, e.g. ``kvlab retraction --dcp-size 4``.
        seed: the seed of the study, or None where nothing is drawn at random.
        parameters: name to plain value.
        device: processor and, where there is one, accelerator with its driver.
        versions: package to version.
        commit: short commit of the checkout, with "+dirty" when its code was changed, or None.
        created: the day, ISO 8601, UTC.
    """

    command: str
    seed: int | None
    parameters: Mapping[str, Value]
    device: str
    versions: Mapping[str, str]
    commit: str | None
    created: str

    def footer(self) -> str:
        """Two lines for the foot of a figure: how it was made, and with what."""
        made = [self.command, *([] if self.seed is None else [f"seed {self.seed}"])]
        if self.parameters:
            made.append(", ".join(f"{name}={_short(v)}" for name, v in self.parameters.items()))
        tools = [f"{name} {version}" for name, version in self.versions.items()]
        if self.commit is not None:
            tools[0] += f" ({self.commit})"  # kvlab's own version comes first
        return " · ".join(made) + "\n" + " · ".join([*tools, self.device, self.created])

    def as_dict(self) -> dict[str, Value]:
        return asdict(self)


def collect_origin(
    command: str,
    seed: int | None,
    parameters: Mapping[str, object],
    device: str | None = None,
) -> Origin:
    """The origin of a study that this process runs.

    Args:
        device: "cpu", "cuda" or "cuda:N" says which computed; None names all of this machine.

    Errors: StudyError for a parameter that is not a plain value (str, number, bool, None, or
    lists and dicts of these).
    """
    plain = json.dumps(dict(parameters), default=_plain, ensure_ascii=False)
    return Origin(
        command=without_paths(command.strip()),
        seed=seed,
        parameters=json.loads(without_paths(plain)),  # a value in quotes may hold blanks
        device=describe_device(device),
        versions=versions(),
        commit=commit(),
        created=today(),
    )


def without_paths(text: str) -> str:
    """``text`` with the folders of absolute paths cut: "see /a/b.csv" -> "see b.csv"."""
    return re.sub(_BARE, r"\1", re.sub(_QUOTED, r"\1", text))


def today() -> str:
    """The day in UTC as ISO 8601. ``SOURCE_DATE_EPOCH`` (seconds) overrides the clock."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return datetime.now(UTC).date().isoformat()
    try:
        return datetime.fromtimestamp(int(epoch), UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        raise StudyError(
            f"SOURCE_DATE_EPOCH counts whole seconds since 1970: got {epoch[:40]!r}; unset it"
        ) from None


def versions() -> dict[str, str]:
    """Versions of kvlab, Python, and the libraries that decide numbers and pictures."""
    found = {"kvlab": kvlab.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):  # a library put on the path by hand
            found[name] = metadata.version(name)
    return found


def commit() -> str | None:
    """Short commit of the checkout that holds kvlab, "+dirty" if its code differs; else None."""
    root = Path(kvlab.__file__).resolve().parents[1]

    def git(*words: str) -> str:
        asked = ["git", "-C", str(root), *words]
        return subprocess.run(
            asked, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        # A package installed inside another repository has that repository's commit, not ours.
        if Path(git("rev-parse", "--show-toplevel")).resolve() == root:
            changed = git("status", "--porcelain", "--", *CODE)
            return git("rev-parse", "--short=7", "HEAD") + ("+dirty" if changed else "")
    return None


def describe_device(device: str | None = None) -> str:
    """For instance "cpu (2 cores)", or "cpu (16 cores), NVIDIA H200 (driver 570.1)"."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = f"cpu ({cores} core{'' if cores == 1 else 's'})"
    if device == "cpu" or not torch.cuda.is_available():
        return cpu
    name = torch.cuda.get_device_name(torch.device(device or "cuda"))
    version = driver()
    gpu = f"{name} (driver {version})" if version else name
    return gpu if device else f"{cpu}, {gpu}"


def _plain(value: object) -> Value:
    """What JSON cannot hold, as what it can."""
    if isinstance(value, PurePath):
        return value.name if value.is_absolute() else value.as_posix()
    if isinstance(value, range):
        return list(value)
    raise StudyError(
        f"a parameter of an origin is a plain value: got a {type(value).__name__}; pass e.g. its "
        f".item(), .tolist() or str()"
    )


def _short(value: Value) -> str:
    """``value`` as a reader of a footer wants it: ``[1, 2]`` as "1/2"."""
    if isinstance(value, list):
        return "/".join(_short(v) for v in value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}={_short(v)}" for k, v in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)

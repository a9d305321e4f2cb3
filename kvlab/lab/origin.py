"""Where a number comes from: command, seed, parameters, device, versions, commit, date.

Every figure carries its origin in the footer and every data file carries it beside the data, so
that a picture found alone in a slide still says how to make it again. Worked example:

    >>> origin = Origin("kvlab owners", 0, {"dcp_size": 4}, "cpu (2 cores)",
    ...                 {"kvlab": "0.1.0", "python": "3.11.4"}, "1a2b3c4", "2026-03-01")
    >>> print(origin.footer())
    kvlab owners · seed 0 · dcp_size=4
    kvlab 0.1.0 (1a2b3c4) · python 3.11.4 · cpu (2 cores) · 2026-03-01

An origin is meant to be published: host and user names are never collected, and absolute paths
in the command and the parameters are cut to their last part. A path with blanks is known as one
where it is quoted, as the command line quotes it, or where a parameter is nothing else.
"""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePath

import torch

import kvlab
from kvlab.errors import StudyError

Scalar = str | int | float | bool | None
Value = Scalar | list["Value"] | dict[str, "Value"]

LIBRARIES = ("torch", "numpy", "matplotlib")
# What decides a number. Notebooks are left out: executing them in place changes them.
CODE = ("kvlab", "data", "pyproject.toml")

# A path that starts at a root: /a/b, ~/a, C:\a, file:///a. "tokens/s" and "1/2" start at no root.
_ROOT = r"(?:file://)?(?:~[\w.-]*[\\/]|/|[A-Za-z]:[\\/])(?=[^\s'\"])"
# 'a b' or "a b", with or without a name in front (--trace=); the shell writes ' as '"'"'.
_QUOTED = re.compile(rf"""(?<!\w)(['"])([^'"/\\\s]*=)?({_ROOT}(?:'"'"'|(?!\1).)*)\1""")
# Punctuation ends a path, unless more folders follow it: "see (/a/b), 5 tokens/s", "/a/k=v/b".
_MARK = rf"(?:[)\]]|[=,;:(\[](?!{_ROOT}))(?=[^\s'\"]*[\\/])"
_ROOTED = re.compile(
    rf"""(?P<address>\b(?!file:)[A-Za-z][\w+.-]+://[^\s'"]*)|(?<![\w./~)\]\\-]){_ROOT}"""
    rf"""(?:\\\s|[^\s'"=,;:()\[\]]|{_MARK})*"""
)
LAST_SECOND = 253_402_300_799  # of the year 9999, the last that a date can name


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
            at = next((i for i, tool in enumerate(tools) if tool.startswith("kvlab ")), None)
            if at is None:
                tools.insert(0, self.commit)
            else:
                tools[at] += f" ({self.commit})"
        return " · ".join(made) + "\n" + " · ".join([*tools, self.device, self.created])

    def as_dict(self) -> dict[str, Value]:
        """The same facts as plain values for JSON."""
        return asdict(self)


def collect_origin(
    command: str,
    seed: int | None,
    parameters: Mapping[str, object],
    device: str | None = None,
) -> Origin:
    """The origin of a study that this process runs.

    Args:
        device: "cpu" or "cuda" says which one computed; None names all that this machine has.

    Errors: StudyError for a parameter that is not a plain value (str, number, bool, None, or
    lists and dicts of these), and for an empty command.
    """
    if not command.strip():
        raise StudyError(
            f"an origin names the command that makes the figure again: got {command!r}; "
            "pass e.g. 'kvlab owners --dcp-size 4' or the name of the notebook"
        )
    return Origin(
        command=without_paths(command.strip()),
        seed=seed,
        parameters={str(k): _plain(v, str(k)) for k, v in parameters.items()},
        device=describe_device(device),
        versions=versions(),
        commit=commit(),
        created=today(),
    )


def without_paths(text: str) -> str:
    """``text`` with every absolute path cut to its last part: "see /a/b.csv" -> "see b.csv"."""
    text = _QUOTED.sub(lambda m: f"{m[1]}{m[2] or ''}{_last_part(m[3])}{m[1]}", text)
    return _ROOTED.sub(lambda m: m[0] if m["address"] else _last_part(m[0]), text)


def _last_part(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1] or path


def today() -> str:
    """The day in UTC as ISO 8601. ``SOURCE_DATE_EPOCH`` (seconds) overrides the clock.

    Errors: StudyError when that variable holds no seconds of the years 1970 to 9999.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return datetime.now(UTC).date().isoformat()
    # int() refuses text of more than 4300 digits, and takes "1_000".
    if not re.fullmatch(r"[0-9]{1,12}", epoch) or int(epoch) > LAST_SECOND:
        shown = repr(epoch if len(epoch) <= 40 else f"{epoch[:40]}...")
        raise StudyError(
            f"SOURCE_DATE_EPOCH in the environment counts whole seconds since 1970 in digits, "
            f"0 .. {LAST_SECOND}: got {shown}; correct it or unset it"
        )
    return datetime.fromtimestamp(int(epoch), UTC).date().isoformat()


def versions() -> dict[str, str]:
    """Versions of kvlab, Python, and the libraries that decide numbers and pictures."""
    found = {"kvlab": kvlab.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a library put on the path by hand
            continue
    return found


def commit() -> str | None:
    """Short commit of the checkout that holds kvlab, "+dirty" if its code differs; else None."""
    root = Path(kvlab.__file__).resolve().parents[1]
    top = _output("git", "-C", str(root), "rev-parse", "--show-toplevel")
    # A package installed inside somebody else's repository has that repository's commit, not ours.
    if top is None or Path(top).resolve() != root:
        return None
    short = _output("git", "-C", str(root), "rev-parse", "--short=7", "HEAD")
    if short is None:
        return None
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--", *CODE)
    return f"{short}+dirty" if changed else short


def describe_device(device: str | None = None) -> str:
    """For instance "cpu (2 cores)", or "cpu (16 cores), NVIDIA H200 (driver 570.1)"."""
    if device is not None and device.split(":")[0] not in ("cpu", "cuda"):
        raise StudyError(
            f"a device is 'cpu', 'cuda' or 'cuda:N': got {device!r}; pass None to name all"
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = f"cpu ({cores} core{'' if cores == 1 else 's'})"
    if device == "cpu" or not torch.cuda.is_available():
        return cpu
    index = int(device.partition(":")[2] or 0) if device else 0
    name = torch.cuda.get_device_name(index)
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0")
    gpu = f"{name} (driver {driver.splitlines()[0]})" if driver else name
    return gpu if device else f"{cpu}, {gpu}"


def _output(*command: str) -> str | None:
    """What ``command`` prints, stripped; None if it is missing, fails, or takes over 10 s."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _plain(value: object, name: str) -> Value:
    """``value`` made of JSON types only, without absolute paths."""
    if isinstance(value, PurePath):
        return value.name if value.is_absolute() else value.as_posix()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        # Nothing but a path: it may hold blanks, and runs to the end.
        return _last_part(value) if re.match(_ROOT, value) else without_paths(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{name}[{k!r}]") for k, v in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(v, f"{name}[{i}]") for i, v in enumerate(value)]
    raise StudyError(
        f"a parameter in an origin is a plain value (str, number, bool, None, list or dict of "
        f"these): {name} is a {type(value).__name__}; pass e.g. its .item(), .tolist() or str()"
    )


def _short(value: Value) -> str:
    """``value`` as a reader of a footer wants it: ``[1, 2]`` as "1/2"."""
    if isinstance(value, list):
        return "/".join(_short(v) for v in value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}={_short(v)}" for k, v in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)

"""``kvlab doctor``: what of kvlab works on this machine, and what to do about the rest.

It asks and changes nothing, runs nothing on a device, and takes about as long as starting kvlab.
Worked example, a machine with a GPU and a torch built without CUDA:

    cuda   will not work   an NVIDIA driver 570.1 is loaded, but torch is built for the CPU
           do: point KVLAB_PYTHON at a Python whose torch is built for CUDA
"""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli import output
from kvlab.cli.drift import TABLES
from kvlab.cli.output import Json
from kvlab.files import shipped

EPILOG = """\b
examples:
  kvlab doctor
  kvlab doctor --json

\b
exit codes:
  0 the core works, whatever else a line says; 1 something that the core needs is broken
"""
DATA = shipped("data")
LEAST_PYTHON = (3, 11)
#: The libraries that the project asks for, by what will not work without them.
LIBRARIES = {
    "core": ("torch", "numpy", "pandas", "joblib", "typer", "rich"),
    "models": ("transformers", "safetensors"),
    "report": ("nbclient", "nbformat", "jupyter_client", "sphinx", "myst-nb", "furo"),
    "figures": ("matplotlib", "pillow"),
    "jupyterlab": ("jupyterlab", "ipywidgets"),
}
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL = "install it: `make setup`, or `pip install -e .` in an environment of your own"
CHECKOUT = "run kvlab in its checkout, or restore the folder: `git checkout -- data`"
OTHER_TORCH = "point KVLAB_PYTHON at a Python whose torch is built for {}, as in `make gpu`"
NO_GPU = (
    "nothing, the CPU does; for a GPU figure run `make gpu` and `make bench` on a machine with one"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was found, and what to do about it, or None where nothing is to be done."""

    name: str
    found: str
    do: str | None = None


def run(
    ctx: typer.Context,
    as_json: Json = False,
    csv: Annotated[Path | None, output.csv_option("one row a check")] = None,
) -> int:
    """What works on this machine, and what to do about the rest.

    Looks at Python, torch, the devices, Triton, the libraries of figures and notebooks, the
    recorded data and the build folder. Each line says ok, or will not work and what to do. Nothing
    is changed and nothing is run on a device.
    """
    output.begin(ctx, {}, {}, {})
    from kvlab.lab.origin import commit, versions

    checks = examine()
    columns = {name: [check[name] for check in checks] for name in checks[0]}
    broken = [str(check["name"]) for check in checks if check["needed"] and not check["ok"]]

    def document() -> dict[str, object]:
        return {
            "core_works": not broken,
            "checks": output.records(columns),
            "backend": serves(),
            "versions": versions(),
            "commit": commit(),
        }

    output.deliver(ctx, lambda: _text(checks, not broken), document, lambda: columns)
    if broken:
        names = ", ".join(broken)
        output.note(f"error: the core of kvlab will not work here: {names}")
    return 1 if broken else 0


def examine() -> list[dict[str, object]]:
    """The answers to all questions, as rows. A question that fails is an answer too."""
    rows = []
    for name, needed, ask in QUESTIONS:
        checks: list[Check] = []
        try:
            checks.extend(ask())
        except Exception as error:  # whatever a machine can get wrong
            said = " ".join(str(error).split())[:300] or "no words"
            text = f"looking at it fails: {type(error).__name__}: {said}"
            checks.append(Check(name, text, "mend what the words name"))
        for check in checks:
            ok = check.do is None
            state = "ok" if ok else "will not work"
            rows.append(
                {"name": check.name, "ok": ok, "state": state, "needed": needed}
                | {"found": check.found, "do": check.do}
            )
    return rows


def _text(checks: Sequence[dict[str, object]], works: bool) -> list[str]:
    """The lines for people: what to do stands below what will not work."""
    name, state = (max(len(str(check[key])) for check in checks) for key in ("name", "state"))
    lines = []
    for check in checks:
        lines.append(f"{check['name']:{name}}  {check['state']:{state}}  {check['found']}")
        if check["do"] is not None:
            lines.append(f"{'':{name}}  {'':{state}}  do: {check['do']}")
    ok = sum(bool(check["ok"]) for check in checks)
    core = "the core works" if works else "THE CORE IS BROKEN"
    return [*lines, f"{ok} of {len(checks)} ok; {core}"]


def libraries(name: str) -> Iterator[Check]:
    """One check of several libraries: there, and no older than the project asks for."""
    least = least_versions()
    there, wrong = [], []
    for library in LIBRARIES[name]:
        try:
            version = metadata.version(library)
        except metadata.PackageNotFoundError:  # missing, or on the path by hand
            by_hand = find_spec({"pillow": "PIL"}.get(library, library))
            there += [f"{library} of unknown version"] if by_hand else []
            wrong += [] if by_hand else [f"{library} is missing"]
            continue
        old = _numbers(version) < _numbers(least.get(library, "0"))
        there.append(f"{library} {version}")
        wrong += [f"{library} {version} is older than {least[library]}"] if old else []
    yield Check(name, ", ".join(wrong or there), INSTALL if wrong else None)


def least_versions() -> dict[str, str]:
    """Library -> oldest version that the project takes; empty where kvlab is not installed."""
    try:
        lines = metadata.requires("kvlab") or []
    except metadata.PackageNotFoundError:
        lines = []
    found = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def _numbers(version: str) -> tuple[int, ...]:
    """ "2.13.0+cpu" as (2, 13, 0)."""
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])[:3]))


def python() -> Iterator[Check]:
    """Version, and which environment it is."""
    where = f"{Path(sys.prefix).name or 'the system'}, {platform.system()} {platform.machine()}"
    text = f"{platform.python_version()} of {where}"
    least = ".".join(map(str, LEAST_PYTHON))
    if sys.version_info[:2] >= LEAST_PYTHON:
        yield Check("python", text)
    else:
        do = f"use Python {least} or newer: make setup PYTHON=PATH"
        yield Check("python", f"{text}: older than {least}", do)


def cpu() -> Iterator[Check]:
    """Cores that this process may use, torch's threads, memory; served by torch."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = ""
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        memory = f", {pages * size / 2**30:.0f} GiB of memory"
    # Never Triton unless a caller names it; so a Triton that is broken does not break the core.
    threads = torch.get_num_threads()
    many = f"{threads} torch thread{'' if threads == 1 else 's'}"
    yield Check("cpu", f"{cores} cores, {many}{memory}; served by torch")


def cuda() -> Iterator[Check]:
    """One check a CUDA device, or one that says why there is none."""
    import torch

    from kvlab.lab import gpu
    from kvlab.ops import status

    devices, version = gpu.devices(), gpu.driver()
    if not devices:
        yield _no_cuda(version)
        return
    driven = f"driver {version}" if version else "driver does not tell its version"
    built, backend = torch.cuda.get_arch_list(), status().backend_for("cuda")
    for device in devices:
        major, minor = device.capability
        text = (
            f"{device.name}, compute capability {major}.{minor}, {device.memory_gib:.0f} GiB of "
            f"memory, {driven}, CUDA {torch.version.cuda}; served by {backend}"
        )
        do = None
        if not gpu.has_kernels(device, built):
            text += f"; this torch has no kernels for it, only for {', '.join(built) or 'none'}"
            do = OTHER_TORCH.format(device.architecture)
        yield Check(f"cuda:{device.index}", text, do)


def _no_cuda(driver: str | None) -> Check:
    import torch

    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    built = f"torch {torch.__version__} is built for the CPU"
    if torch.version.cuda is None and driver is None:
        return Check("cuda", f"no CUDA device, and {built}", NO_GPU)
    if torch.version.cuda is None:
        text = f"an NVIDIA driver {driver} is loaded, but {built}"
        return Check("cuda", text, OTHER_TORCH.format("CUDA"))
    loaded = f"driver {driver}" if driver else "no NVIDIA driver is loaded"
    text = f"torch is built for CUDA {torch.version.cuda} and sees no device ({loaded})"
    if driver and hidden is not None:
        do = "unset CUDA_VISIBLE_DEVICES, or name devices that `nvidia-smi -L` lists"
        return Check("cuda", f"{text}; CUDA_VISIBLE_DEVICES is {hidden!r}", do)
    do = "see with `nvidia-smi` whether the driver is new enough for this CUDA and has a device"
    return Check("cuda", text, do if driver else NO_GPU)


def triton() -> Iterator[Check]:
    """Version, compiled or interpreted, and why it serves CUDA tensors or does not."""
    from kvlab.ops import status

    told = status()
    do = None
    if told.triton is None:
        do = "nothing, torch serves; on a machine with a GPU: `pip install -e .[triton]`"
        yield Check("triton", told.why, do)
        return
    if told.interpreted and told.devices:
        do = "unset TRITON_INTERPRET, and the kernels are compiled for the GPU"
    way = "interpreted on the CPU" if told.interpreted else "compiled"
    yield Check("triton", f"{told.triton}, {way}; {told.why}", do)


def serves() -> dict[str, str | None]:
    """Device type -> the backend that its tensors get when none is named; None: cannot be told."""
    from kvlab.ops import status

    try:
        return {"cpu": "torch", "cuda": status().backend_for("cuda")}
    except Exception:  # the line of Triton says what is wrong with it
        return {"cpu": "torch", "cuda": None}


def chromium() -> Iterator[Check]:
    """A browser for tests of JupyterLab and of the report."""
    found = next((name for name in CHROMIUM if shutil.which(name)), None)
    if found is not None:
        yield Check("chromium", f"{found} is on the PATH")
    else:
        text = f"no browser for tests is on the PATH (looked for {', '.join(CHROMIUM)})"
        do = "nothing, only tests that drive a browser need it; or install Chromium"
        yield Check("chromium", text, do)


def recorded() -> Iterator[Check]:
    """The checkpoint, and the recorded runs that notebooks show."""
    from kvlab.lab.crash_cuda import COMMAND, PLACE, read_record

    name = "data/checkpoints/tiny-kimi-linear"
    yield _files("checkpoint", name, ("config.json", "model.safetensors"))
    benches = ", ".join(sorted(path.name for path in (DATA / "runs").glob("bench-*.csv")))
    lacks = None if benches else CHECKOUT
    yield Check("benchmark", benches or "no data/runs/bench-*.csv", lacks)
    yield _files("drift study", "data/runs/drift", TABLES)
    place = DATA.joinpath(*PLACE)
    if place.is_file():
        yield Check("cuda crash", f"recorded on {read_record(place).where()}")
    else:
        text = "not recorded yet: notebook 03 says so where no GPU is"
        yield Check("cuda crash", text, f"on a machine with a GPU: `{COMMAND}`")


def _files(name: str, folder: str, names: Sequence[str]) -> Check:
    """Whether all files are there and none is empty."""
    paths = {name: DATA / folder.removeprefix("data/") / name for name in names}
    lacks = [n for n, path in paths.items() if not path.is_file() or not path.stat().st_size]
    found = f"{folder} lacks {', '.join(lacks)}" if lacks else folder
    return Check(name, found, CHECKOUT if lacks else None)


def build() -> Iterator[Check]:
    """Whether figures and caches can be written; nothing is left behind."""
    from kvlab.lab.findings import FOLDER_VARIABLE, output_folder

    folder = output_folder()
    name = f"{folder.parent.name}/{folder.name}"
    near = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=near):
            yield Check("build", f"{name} can be written")
    except OSError as error:
        text = f"{name} cannot be written: {error.strerror or error}"
        do = f"give {FOLDER_VARIABLE} a folder that can be written, or mend the rights of this one"
        yield Check("build", text, do)


#: Name, whether the core breaks without it, and what answers with one check or more.
QUESTIONS: tuple[tuple[str, bool, Callable[[], Iterator[Check]]], ...] = (
    ("python", True, python),
    ("core", True, partial(libraries, "core")),
    ("models", False, partial(libraries, "models")),
    ("report", False, partial(libraries, "report")),
    ("cpu", True, cpu),
    ("cuda", False, cuda),
    ("triton", False, triton),
    ("figures", False, partial(libraries, "figures")),
    ("jupyterlab", False, partial(libraries, "jupyterlab")),
    ("chromium", False, chromium),
    ("recorded", False, recorded),
    ("build", False, build),
)

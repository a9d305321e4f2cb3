"""``kvlab doctor``: what of kvlab works on this machine, and what to do about the rest.

It asks and changes nothing, runs nothing on a device, and takes about as long as starting kvlab.
"""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli import output
from kvlab.cli.drift import TABLES
from kvlab.cli.options import Json, csv_option
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
    "jupyterlab": ("jupyterlab", "ipython", "ipywidgets"),
}
NEEDED = ("python", "libraries", "core", "cpu")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL = "install it: `make setup`, or `pip install -e .` in an environment of your own"
CHECKOUT = "run kvlab in its checkout, or restore the folder: `git checkout -- data`"
OTHER_TORCH = "point KVLAB_PYTHON at a Python whose torch is built for {}, as in `make gpu`"
NO_GPU = (
    "nothing, the CPU does; for a GPU figure run `make gpu` and `make bench` on a machine with one"
)
#: A name, what was found, and what to do about it, or None where nothing is to be done.
Line = tuple[str, str, str | None]


def run(
    ctx: typer.Context,
    as_json: Json = False,
    csv: Annotated[Path | None, csv_option("one row a check")] = None,
) -> int:
    """What works on this machine, and what to do about the rest.

    Looks at Python, torch, the devices, Triton, the libraries of figures and notebooks, the
    recorded data and the build folder. Each line says ok, or will not work and what to do. Nothing
    is changed and nothing is run on a device.
    """
    output.begin(ctx)
    from kvlab.lab.origin import commit, versions

    checks = examine()
    columns = {name: [check[name] for check in checks] for name in checks[0]}
    broken = [str(check["name"]) for check in checks if check["needed"] and not check["ok"]]

    def document() -> dict[str, object]:
        return {
            "core_works": not broken,
            "checks": checks,
            "backend": serves(),
            "versions": versions(),
            "commit": commit(),
        }

    def text() -> list[str]:
        wide = max(len(str(check["name"])) for check in checks)
        lines = []
        for check in checks:
            lines.append(f"{check['name']:{wide}}  {check['state']:13}  {check['found']}")
            if check["do"] is not None:
                lines.append(f"{'':{wide}}  {'':13}  do: {check['do']}")
        core = "THE CORE IS BROKEN" if broken else "the core works"
        return [*lines, f"{sum(map(bool, columns['ok']))} of {len(checks)} ok; {core}"]

    output.deliver(ctx, text, document, lambda: columns)
    if broken:
        output.note(f"error: the core of kvlab will not work here: {', '.join(broken)}")
    return 1 if broken else 0


def examine() -> list[dict[str, object]]:
    """The answers to all questions, as rows. A question that fails is an answer too."""
    rows: list[dict[str, object]] = []
    for ask in QUESTIONS:
        lines: list[Line] = []
        try:
            lines.extend(ask())
        except Exception as error:  # whatever a machine can get wrong
            said = " ".join(str(error).split())[:300] or "no words"
            text = f"looking at it fails: {type(error).__name__}: {said}"
            lines.append((ask.__name__, text, "mend what the words name"))
        for name, found, do in lines:
            state = "ok" if do is None else "will not work"
            rows.append({"name": name, "ok": do is None, "state": state, "needed": name in NEEDED})
            rows[-1] |= {"found": found, "do": do}
    return rows


def libraries() -> Iterator[Line]:
    """Whether they are there, and no older than the project asks for."""
    least = least_versions()
    for name, group in LIBRARIES.items():
        there, wrong = [], []
        for library in group:
            try:
                version = metadata.version(library)
            except metadata.PackageNotFoundError:  # missing, or on the path by hand
                by_hand = find_spec({"pillow": "PIL", "ipython": "IPython"}.get(library, library))
                there += [f"{library} of unknown version"]
                wrong += [] if by_hand else [f"{library} is missing"]
                continue
            there.append(f"{library} {version}")
            if _numbers(version) < _numbers(least.get(library, "0")):
                wrong.append(f"{library} {version} is older than {least[library]}")
        yield name, ", ".join(wrong or there), INSTALL if wrong else None


def least_versions() -> dict[str, str]:
    """Library -> oldest version that the project takes; empty where kvlab is not installed."""
    try:
        lines = metadata.requires("kvlab") or []
    except metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def _numbers(version: str) -> tuple[int, ...]:
    """ "2.13.0+cpu" as (2, 13, 0)."""
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])[:3]))


def python() -> Iterator[Line]:
    """Version, and which environment it is."""
    where = f"{Path(sys.prefix).name or 'the system'}, {platform.system()} {platform.machine()}"
    text = f"{platform.python_version()} of {where}"
    least = ".".join(map(str, LEAST_PYTHON))
    if sys.version_info[:2] >= LEAST_PYTHON:
        yield "python", text, None
    else:
        do = f"use Python {least} or newer: make setup PYTHON=PATH"
        yield "python", f"{text}: older than {least}", do


def cpu() -> Iterator[Line]:
    """Cores that this process may use, torch's threads, memory; served by torch."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = ""
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        memory = f", {size / 2**30:.0f} GiB of memory"
    # Never Triton unless a caller names it; so a Triton that is broken does not break the core.
    threads = f"torch uses {torch.get_num_threads()}"
    yield "cpu", f"{cores} cores, of which {threads}{memory}; served by torch", None


def cuda() -> Iterator[Line]:
    """One line a CUDA device, or one that says why there is none."""
    import torch

    from kvlab.lab import gpu
    from kvlab.ops import status

    version = gpu.driver()
    driver = f"driver {version}" if version else "no NVIDIA driver is loaded"
    devices = gpu.devices()
    for device in devices:
        text = (
            f"{device.name}, compute capability {'.'.join(map(str, device.capability))}, "
            f"{device.memory_gib:.0f} GiB of memory, {driver}, CUDA {torch.version.cuda}; "
            f"served by {status().backend_for('cuda')}"
        )
        do = None
        if not gpu.has_kernels(device, built := torch.cuda.get_arch_list()):
            text += f"; this torch has no kernels for it, only for {', '.join(built) or 'none'}"
            do = OTHER_TORCH.format(device.architecture)
        yield f"cuda:{device.index}", text, do
    if devices:
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    text = f"torch is built for CUDA {torch.version.cuda} and sees no device ({driver})"
    if torch.version.cuda is None:
        text = f"no CUDA device ({driver}), and torch {torch.__version__} is built for the CPU"
    do = NO_GPU
    if version and torch.version.cuda is None:
        do = OTHER_TORCH.format("CUDA")
    elif version and hidden is not None:
        text += f"; CUDA_VISIBLE_DEVICES is {hidden!r}"
        do = "unset CUDA_VISIBLE_DEVICES, or name devices that `nvidia-smi -L` lists"
    elif version:
        do = "see with `nvidia-smi` whether the driver is new enough and has a device"
    yield "cuda", text, do


def triton() -> Iterator[Line]:
    """Version, compiled or interpreted, and why it serves CUDA tensors or does not."""
    from kvlab.ops import status

    told = status()
    if told.triton is None:
        do = "nothing, torch serves; on a machine with a GPU: `pip install -e .[triton]`"
        yield "triton", told.why, do
        return
    way = "interpreted on the CPU" if told.interpreted else "compiled"
    wrong = told.interpreted and told.devices
    do_so = "unset TRITON_INTERPRET, and the kernels are compiled for the GPU" if wrong else None
    yield "triton", f"{told.triton}, {way}; {told.why}", do_so


def serves() -> dict[str, str | None]:
    """Device type -> the backend that its tensors get when none is named; None: cannot be told."""
    from kvlab.ops import status

    try:
        return {"cpu": "torch", "cuda": status().backend_for("cuda")}
    except Exception:  # the line of Triton says what is wrong with it
        return {"cpu": "torch", "cuda": None}


def chromium() -> Iterator[Line]:
    """A browser for tests of JupyterLab and of the report."""
    found = next((name for name in CHROMIUM if shutil.which(name)), None)
    do = "nothing, only tests that drive a browser need it; or install Chromium"
    text = f"{found} is on the PATH" if found else "no browser for tests is on the PATH"
    yield "chromium", text, None if found else do


def recorded() -> Iterator[Line]:
    """The checkpoint, and the recorded runs that notebooks show."""
    from kvlab.lab.crash_cuda import COMMAND, PLACE, read_record

    tiny, drift = DATA / "checkpoints" / "tiny-kimi-linear", DATA / "runs" / "drift"
    benches = sorted((DATA / "runs").glob("bench-*.csv"))
    for name, paths in (
        ("checkpoint", [tiny / "config.json", tiny / "model.safetensors"]),
        ("benchmark", benches or [DATA / "runs" / "bench-*.csv"]),
        ("drift study", [drift / table for table in TABLES]),
    ):
        lacks = [path.name for path in paths if not path.is_file() or not path.stat().st_size]
        folder = f"data/{paths[0].parent.relative_to(DATA)}"
        text = f"{folder} lacks {', '.join(lacks)}" if lacks else folder
        yield name, text, CHECKOUT if lacks else None
    place = DATA.joinpath(*PLACE)
    if place.is_file():
        yield "cuda crash", f"recorded on {read_record(place).where()}", None
    else:
        yield "cuda crash", "not recorded yet", f"on a machine with a GPU: `{COMMAND}`"


def build() -> Iterator[Line]:
    """Whether figures and caches can be written; nothing is left behind."""
    from kvlab.lab.findings import FOLDER_VARIABLE, output_folder

    folder = output_folder()
    name = f"{folder.parent.name}/{folder.name}"
    near = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        tempfile.TemporaryFile(dir=near).close()
        yield "build", f"{name} can be written", None
    except OSError as error:
        do = f"give {FOLDER_VARIABLE} a folder that can be written, or mend the rights of this one"
        yield "build", f"{name} cannot be written: {error.strerror or error}", do


QUESTIONS: tuple[Callable[[], Iterator[Line]], ...] = (
    *(python, libraries, cpu, cuda, triton, chromium, recorded, build),
)

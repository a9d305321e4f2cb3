"""What ``kvlab doctor`` asks of the machine: Python, libraries, devices, and what serves them.

Nothing is computed on a device, so a GPU that others use is not disturbed. Worked example, a
machine with a GPU and a torch built without CUDA:

    cuda   will not work   an NVIDIA driver 570.1 is loaded, but torch is built for the CPU
           do: point KVLAB_PYTHON at a Python whose torch is built for CUDA
"""

import os
import platform
import sys
from pathlib import Path

import torch

from kvlab.cli.doctor_checks import CORE, GROUPS, Check, Question, libraries
from kvlab.lab import gpu
from kvlab.ops import status

LEAST_PYTHON = (3, 11)
NO_GPU = (
    "nothing, the CPU does; for a GPU figure run `make gpu` and `make bench` on a machine with one"
)
UNHIDE = "unset CUDA_VISIBLE_DEVICES, or name devices that `nvidia-smi -L` lists"
OLD_DRIVER = "see with `nvidia-smi` whether the driver is new enough for this CUDA and has a device"
OTHER_TORCH = "point KVLAB_PYTHON at a Python whose torch is built for {}, as in `make gpu`"


def machine_questions() -> list[Question]:
    """Python and libraries, then devices and what serves them."""
    return [
        Question("python", True, python),
        Question("core", True, lambda: [libraries("core", CORE, True)]),
        Question("models", False, lambda: [libraries("models", GROUPS["models"], False)]),
        Question("report", False, lambda: [libraries("report", GROUPS["report"], False)]),
        Question("cpu", True, cpu),
        Question("cuda", False, cuda),
        Question("triton", False, triton),
    ]


def python() -> list[Check]:
    """Version, and which environment it is."""
    text = (
        f"{platform.python_version()} of {Path(sys.prefix).name or 'the system'}, "
        f"{platform.system()} {platform.machine()}"
    )
    if sys.version_info[:2] >= LEAST_PYTHON:
        return [Check("python", True, True, text)]
    least = ".".join(map(str, LEAST_PYTHON))
    instead = f"use Python {least} or newer: make setup PYTHON=PATH"
    return [Check("python", False, True, f"{text}: older than {least}", instead)]


def cpu() -> list[Check]:
    """Cores that this process may use, torch's threads, memory; served by torch."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = ""
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        memory = f", {pages * size / 2**30:.0f} GiB of memory"
    # Never Triton unless a caller names it; so a Triton that is broken does not break the core.
    threads = torch.get_num_threads()
    many = f"{threads} torch thread{'' if threads == 1 else 's'}"
    text = f"{cores} cores, {many}{memory}; served by torch"
    return [Check("cpu", True, True, text)]


def cuda() -> list[Check]:
    """One check a CUDA device, or one that says why there is none."""
    devices = gpu.devices()
    if not devices:
        return [_no_cuda()]
    built, version = torch.cuda.get_arch_list(), gpu.driver()
    driven = f"driver {version}" if version else "driver does not tell its version"
    backend = status().backend_for("cuda")
    checks = []
    for device in devices:
        name = f"cuda:{device.index}"
        major, minor = device.capability
        text = (
            f"{device.name}, compute capability {major}.{minor}, {device.memory_gib:.0f} GiB of "
            f"memory, {driven}, CUDA {torch.version.cuda}; served by {backend}"
        )
        if gpu.has_kernels(device, built):
            checks.append(Check(name, True, False, text))
        else:
            text += f"; this torch has no kernels for it, only for {', '.join(built) or 'none'}"
            checks.append(Check(name, False, False, text, OTHER_TORCH.format(device.architecture)))
    return checks


def _no_cuda() -> Check:
    version = gpu.driver()
    if version and torch.version.cuda is None:
        text = f"an NVIDIA driver {version} is loaded, but torch {torch.__version__} is built "
        return Check("cuda", False, False, f"{text}for the CPU", OTHER_TORCH.format("CUDA"))
    if torch.version.cuda is not None:
        loaded = f"driver {version}" if version else "no NVIDIA driver is loaded"
        text = f"torch is built for CUDA {torch.version.cuda} and sees no device ({loaded})"
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        if version and shown is not None:
            text += f"; CUDA_VISIBLE_DEVICES is {shown!r}"
            return Check("cuda", False, False, text, UNHIDE)
        return Check("cuda", False, False, text, OLD_DRIVER if version else NO_GPU)
    text = f"no CUDA device, and torch {torch.__version__} is built for the CPU"
    return Check("cuda", False, False, text, NO_GPU)


def triton() -> list[Check]:
    """Version, compiled or interpreted, and why it serves CUDA tensors or does not."""
    told = status()
    if told.triton is None:
        do = "nothing, torch serves; on a machine with a GPU: `pip install -e .[triton]`"
        return [Check("triton", False, False, told.why, do)]
    way = "interpreted on the CPU" if told.interpreted else "compiled"
    text = f"{told.triton}, {way}; {told.why}"
    if told.interpreted and told.devices:
        do = "unset TRITON_INTERPRET, and the kernels are compiled for the GPU"
        return [Check("triton", False, False, text, do)]
    return [Check("triton", True, False, text)]


def serves() -> dict[str, str | None]:
    """Device type -> the backend that its tensors get when none is named; None: cannot be told."""
    try:
        return {"cpu": "torch", "cuda": status().backend_for("cuda")}
    except Exception:  # the line of Triton says what is wrong with it
        return {"cpu": "torch", "cuda": None}

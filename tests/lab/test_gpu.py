"""What is told of CUDA devices, with devices, drivers and builds of torch that are made up."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvlab.lab import gpu
from kvlab.lab.gpu import Gpu, devices, driver, has_kernels

HOPPER = Gpu(0, "x", (9, 0), 80.0)
ADA = Gpu(0, "x", (8, 9), 24.0)


def test_every_device_is_told_with_capability_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = SimpleNamespace(name="A made-up GPU", major=9, minor=0, total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    assert devices() == tuple(Gpu(i, "A made-up GPU", (9, 0), 80.0) for i in range(2))
    assert devices()[0].architecture == "sm_90"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices() == ()


@pytest.mark.parametrize(
    ("device", "built", "runs"),
    [
        (HOPPER, ["sm_80", "sm_90"], True),
        (HOPPER, ["sm_80"], False),
        (HOPPER, ["sm_80", "compute_80"], True),
        (HOPPER, ["sm_100", "compute_120"], False),
        (HOPPER, ["sm_90a"], True),
        (ADA, ["sm_80"], True),
        (ADA, ["sm_90", "compute_90"], False),
        (ADA, ["gfx"], False),
    ],
)
def test_a_binary_runs_on_its_generation_and_portable_code_on_later_ones(
    device: Gpu, built: list[str], runs: bool
) -> None:
    assert has_kernels(device, built) is runs


def test_the_driver_is_told_by_its_own_file_else_by_the_tool_else_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "version"
    told.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 2025\n")
    monkeypatch.setattr(gpu, "DRIVER_FILE", told)
    assert driver() == "570.124.06"
    told.write_text("NVRM\n")
    said = subprocess.CompletedProcess([], 0, "570.1\n570.1\n", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: said)
    assert driver() == "570.1"
    said.stdout = "\n"
    assert driver() is None
    told.unlink()
    assert driver() is None

"""Who serves an op: torch everywhere, Triton on CUDA or when its interpreter is asked for."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kvlab.ops import choose, status
from tests.ops.support import needs_interpreter, twin_can_run

ROOT = Path(__file__).resolve().parents[2]


def said(program: str, **env: str) -> str:
    """What a Python of its own prints, in which TRITON_INTERPRET is only what ``env`` says."""
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # an import of it raises ImportError
import torch
from kvlab.errors import BackendError
from kvlab.index import Shard
from kvlab.ops import SPECS, localize_run, status
from tests.ops.sizes import SIZES
for spec in SPECS:
    spec.run(spec.make_inputs(SIZES[spec.name][3], 1, "cpu"), None)
found = status()
assert found.triton is None and not found.interpreted
assert found.backend_for("cuda") == found.backend_for("cpu") == "torch"
print(found.why)
try:
    localize_run(torch.arange(4), Shard(2, 0), backend="triton")
except BackendError as error:
    print(error)
"""


def test_without_triton_torch_serves_every_op_and_the_status_says_why() -> None:
    why, error = said(WITHOUT_TRITON).splitlines()
    assert why.startswith("torch serves every op: triton cannot be imported (")
    assert error.startswith("backend 'triton' needs triton, and triton cannot be imported (")
    assert error.endswith("use backend='torch', or None, which takes torch here")


@pytest.mark.skipif(status().triton is None, reason="triton is not installed")
def test_compiled_twins_refuse_cpu_tensors() -> None:
    program = (
        "import sys, torch, kvlab.ops\nassert 'triton' not in sys.modules\n"
        "from kvlab.index import Shard\nfrom kvlab.ops import localize_run, status\n"
        "print(status().why, status().backend_for('cuda'))\n"
        "try:\n    localize_run(torch.arange(4), Shard(2, 0), backend='triton')\n"
        "except ValueError as error:\n    print(error)"
    )
    why, error = said(program).splitlines()
    assert why.startswith("torch serves every op: no CUDA device is here; triton ")
    assert why.endswith(" would serve one triton")
    assert error == (
        "backend 'triton' takes CUDA tensors: got tensors on cpu; move them, use "
        "backend='torch', or set TRITON_INTERPRET=1 before the kernels are first used"
    )


@needs_interpreter
def test_the_interpreter_serves_only_those_who_ask_for_it() -> None:
    ids = torch.arange(4)
    assert choose(None, ids) == "torch"
    assert choose("triton", ids) == "triton"
    found = status()
    assert found.interpreted
    assert found.backend_for("cuda") == "torch"
    assert "run in its CPU interpreter, and only when they are asked for by name" in found.why


def test_torch_serves_cpu_tensors_and_whoever_asks_for_it() -> None:
    assert choose(None, torch.empty(1)) == choose("torch", torch.empty(1)) == "torch"


@pytest.mark.gpu
def test_a_gpu_is_served_by_triton_and_named_by_the_status() -> None:
    on_gpu = torch.empty(1, device="cuda")
    assert choose("torch", on_gpu) == "torch"
    found = status()
    assert found.devices
    if found.triton is not None and not twin_can_run():
        assert choose(None, on_gpu) == found.backend_for("cuda") == "triton"
        assert found.why == f"triton {found.triton} serves CUDA tensors, torch all others"


@pytest.mark.skipif(status().triton is None, reason="triton is not installed")
@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu_where_there_is_none(tmp_path: Path) -> None:
    program = Path(__file__).with_name("compile_child.py").read_text(encoding="utf-8")
    compiled = dict(
        line.split() for line in said(program, TRITON_CACHE_DIR=str(tmp_path)).splitlines()
    )
    assert set(compiled) == {
        "_run", "_fixed_shape", "_remap", "_copy", "_write", "_merge"
    }  # fmt: skip


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: no twin can run")
def test_where_triton_is_the_suite_runs_the_twins_on_a_gpu_or_in_the_interpreter() -> None:
    # Nothing that is collected before the ops may settle it otherwise: all their tests would skip.
    assert twin_can_run("cuda" if torch.cuda.is_available() else "cpu")

"""``kvlab doctor``: a line for everything, an answer on any machine, two exit codes."""

import io
import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
import pytest
import torch
from packaging.requirements import Requirement

import kvlab.ops
from kvlab.cli import doctor
from kvlab.lab import gpu
from kvlab.lab.gpu import Gpu
from kvlab.ops import OpsStatus
from tests.cli.conftest import ROOT, Run

NAMES = [
    *("python", "core", "models", "report", "figures", "jupyterlab", "cpu", "cuda", "triton"),
    *("chromium", "checkpoint", "benchmark", "drift study", "cuda crash", "build"),
]
CARD = Gpu(0, "A card", (9, 0), 80.0)
SERVED = "80 GiB of memory, driver 123.45, CUDA 12.8; served by triton"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that is made up: one GPU, its driver, Triton that compiles."""
    monkeypatch.setattr(gpu, "devices", lambda: (CARD,))
    monkeypatch.setattr(gpu, "driver", lambda: "123.45")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return with_triton(monkeypatch, "3.6.0", False)


def with_triton(
    patch: pytest.MonkeyPatch, version: str | None, interpreted: bool
) -> pytest.MonkeyPatch:
    backend = "torch" if version is None or interpreted else "triton"
    told = OpsStatus("2.11.0", version, ("A",), interpreted, backend, "because so")  # type: ignore[arg-type]
    patch.setattr(kvlab.ops, "status", lambda: told)
    return patch


def one(ask: Callable[[], Iterable[doctor.Line]]) -> doctor.Line:
    (line,) = ask()
    return line


def test_every_part_has_a_line_that_says_ok_or_what_to_do_and_the_forms_agree(
    run: Run, machine: pytest.MonkeyPatch
) -> None:
    machine.setattr(gpu, "devices", lambda: ())
    machine.setattr(gpu, "driver", lambda: None)
    done = run("doctor", "--csv", "-")
    table = pd.read_csv(io.StringIO(done.out))
    assert (done.code, table["name"].tolist()) == (0, NAMES)
    assert list(table.columns) == ["name", "ok", "state", "needed", "found", "do"]
    assert (table["ok"] == table["do"].isna()).all()
    assert set(table.loc[table["needed"], "name"]) == {"python", "core", "cpu"}
    lines = run("doctor").out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("cuda  "))
    assert "will not work  " in lines[at]
    assert lines[at + 1].strip().startswith("do: nothing, the CPU does; for a GPU figure run")
    assert lines[-1].endswith("ok; the core works")
    told = json.loads(run("doctor", "--json").out)
    assert (told["core_works"], told["backend"]["cuda"]) == (True, "triton")


def test_a_broken_core_is_exit_code_1_and_a_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LEAST_PYTHON", (99, 0))
    done = run("doctor")
    assert (done.code, done.err) == (1, "error: the core of kvlab will not work here: python\n")
    assert "older than 99.0" in done.out
    assert done.out.rstrip().endswith("THE CORE IS BROKEN")


def test_a_question_that_fails_is_a_line_and_the_others_are_asked(
    machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken() -> OpsStatus:
        raise OSError("libcuda.so.1:\n cannot open")

    machine.setattr(kvlab.ops, "status", broken)
    machine.setattr(doctor, "DATA", tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "crash-cuda.json").write_text("{")
    rows = {row["name"]: row for row in doctor.examine()}
    found = "looking at it fails: OSError: libcuda.so.1: cannot open"
    assert (rows["triton"]["found"], rows["triton"]["needed"]) == (found, False)
    assert str(rows["recorded"]["found"]).startswith("looking at it fails: StudyError: crash-cuda")
    assert set(rows) >= {"checkpoint", "build"}
    assert doctor.serves() == {"cpu": "torch", "cuda": None}


def test_every_dependency_of_the_project_is_asked_about_and_old_ones_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = {Requirement(line).name for line in tomllib.loads(text)["project"]["dependencies"]}
    assert {name for group in doctor.LIBRARIES.values() for name in group} == names
    monkeypatch.setattr(doctor, "least_versions", lambda: {"numpy": "99.1"})
    # The last has no version: it is on the path by hand.
    libraries = {"a": ("no-such-library", "numpy"), "b": ("this",)}
    monkeypatch.setattr(doctor, "LIBRARIES", libraries)
    (_, wrong, do), (_, by_hand, nothing) = doctor.libraries()
    assert re.fullmatch(r"no-such-library is missing, numpy [\d.]+ is older than 99.1", wrong)
    assert (do, by_hand, nothing) == (doctor.INSTALL, "this of unknown version", None)


def test_a_gpu_is_told_with_capability_memory_driver_and_what_serves_it(
    machine: pytest.MonkeyPatch,
) -> None:
    text = f"A card, compute capability 9.0, {SERVED}"
    assert one(doctor.cuda) == ("cuda:0", text, None)
    assert one(doctor.triton) == ("triton", "3.6.0, compiled; because so", None)
    machine.setattr(torch.cuda, "get_arch_list", lambda: ["sm_70"])
    _, found, do = one(doctor.cuda)
    assert found == f"{text}; this torch has no kernels for it, only for sm_70"
    assert do is not None
    assert do.startswith("point KVLAB_PYTHON at a Python whose torch is built for sm_90")
    with_triton(machine, "3.6.0", True)
    assert (one(doctor.triton)[2] or "").startswith("unset TRITON_INTERPRET, and the kernels are")
    with_triton(machine, None, False)
    assert (one(doctor.triton)[2] or "").startswith("nothing, torch serves; on a machine with")


@pytest.mark.parametrize(
    ("cuda", "driver", "hidden", "sentence", "do"),
    [
        (None, None, None, "no CUDA device .*, and torch .* is built for the CPU", "nothing, the"),
        (None, "5.1", None, r"\(driver 5.1\), and torch", "point KVLAB_PYTHON at"),
        ("12.8", None, None, r"12.8 and sees no device \(no NVIDIA driver", "nothing, the CPU"),
        ("12.8", "5.1", None, r"sees no device \(driver 5.1\)$", "see with `nvidia-smi` whether"),
        ("12.8", "5.1", "", r"\(driver 5.1\); CUDA_VISIBLE_DEVICES is ''$", "unset CUDA_VISIBLE_"),
    ],
)
def test_without_a_device_the_reason_is_told(
    cuda: str | None,
    driver: str | None,
    hidden: str | None,
    sentence: str,
    do: str,
    machine: pytest.MonkeyPatch,
) -> None:
    machine.setattr(gpu, "devices", lambda: ())
    machine.setattr(gpu, "driver", lambda: driver)
    machine.setattr(torch.version, "cuda", cuda)
    if hidden is not None:
        machine.setenv("CUDA_VISIBLE_DEVICES", hidden)
    _, found, told = one(doctor.cuda)
    assert re.search(sentence, found)
    assert told is not None and told.startswith(do)


def test_what_a_bare_machine_lacks_is_told_one_by_one(
    machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.setattr(shutil, "which", lambda _: None)
    machine.setattr(doctor, "DATA", tmp_path / "data")
    folder = tmp_path / "data" / "checkpoints" / "tiny-kimi-linear"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()  # a file that is empty is not there
    machine.setenv("KVLAB_FIGURES", str(tmp_path / "build" / "figures"))
    assert one(doctor.build)[2] is None
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    (tmp_path / "build").touch()  # a file where the folder should be
    rows = {str(row["name"]): row for row in doctor.examine()}
    for name, found, do in (
        ("chromium", "no browser for tests is on the PATH", "nothing, only tests"),
        ("checkpoint", "tiny-kimi-linear lacks model.safetensors", "run kvlab in its checkout"),
        ("benchmark", "data/runs lacks bench-*.csv", "run kvlab in its checkout"),
        ("drift study", "data/runs/drift lacks summary.csv, requests.csv", "run kvlab in its"),
        ("cuda crash", "not recorded yet", "on a machine with a GPU: `kvlab crash --device cuda"),
        ("build", "build/figures cannot be written: ", "give KVLAB_FIGURES a folder"),
    ):
        assert found in str(rows[name]["found"]), name
        assert str(rows[name]["do"]).startswith(do), name

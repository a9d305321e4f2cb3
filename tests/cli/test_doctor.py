"""``kvlab doctor``: a line for everything, an answer on any machine, two exit codes."""

import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from packaging.requirements import Requirement

from kvlab.cli import doctor, doctor_checks, doctor_machine, doctor_project
from kvlab.cli.doctor_checks import CORE, GROUPS, Check, Question, least_versions, libraries
from kvlab.lab import gpu
from kvlab.lab.gpu import Gpu
from kvlab.ops import OpsStatus
from tests.cli.conftest import ROOT, Run

NAMES = [
    *("python", "core", "models", "report", "cpu", "cuda", "triton", "figures", "jupyterlab"),
    *("chromium", "checkpoint", "benchmark", "drift study", "cuda crash", "build"),
]
HOPPER = Gpu(0, "A made-up GPU", (9, 0), 80.0)


def told(triton: str | None, interpreted: bool, devices: tuple[str, ...] = ()) -> OpsStatus:
    compiled = triton is not None and not interpreted
    backend = "triton" if compiled else "torch"
    return OpsStatus("2.11.0", triton, devices, interpreted, backend, "because so")  # type: ignore[arg-type]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, whatever this one has."""
    monkeypatch.setattr(gpu, "devices", lambda: ())
    monkeypatch.setattr(gpu, "driver", lambda: None)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU that is made up."""
    monkeypatch.setattr(gpu, "devices", lambda: (HOPPER,))
    monkeypatch.setattr(gpu, "driver", lambda: "123.45")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    monkeypatch.setattr(torch.version, "cuda", "12.8")


def document(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("doctor", "--json").out)
    return found


def lines(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in found["checks"]}


@pytest.mark.usefixtures("no_gpu")
def test_every_part_has_a_line_that_says_ok_or_what_to_do(run: Run) -> None:
    found = document(run)
    assert [check["name"] for check in found["checks"]] == NAMES
    for check in found["checks"]:
        assert check["state"] == ("ok" if check["ok"] else "will not work")
        assert check["found"]
        assert check["ok"] is (check["do"] is None)
    assert found["core_works"] is True
    assert set(found["versions"]) >= {"kvlab", "python", "torch"}


@pytest.mark.usefixtures("no_gpu")
def test_the_text_has_what_to_do_below_what_will_not_work(run: Run) -> None:
    done = run("doctor")
    assert (done.code, done.err) == (0, "")
    shown = done.out.splitlines()
    at = next(i for i, line in enumerate(shown) if line.startswith("cuda  "))
    assert "will not work  " in shown[at]
    assert shown[at + 1].strip().startswith("do: nothing, the CPU does; for a GPU figure run")
    assert shown[-1].endswith("ok; the core works")


def test_the_table_has_one_row_a_check(run: Run) -> None:
    done = run("doctor", "--csv", "-")
    table = pd.read_csv(io.StringIO(done.out))
    assert list(table.columns) == ["name", "ok", "state", "needed", "found", "do"]
    assert table["name"].tolist()[:2] == ["python", "core"]


def test_a_broken_core_is_exit_code_1_and_a_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine, "LEAST_PYTHON", (99, 0))
    done = run("doctor")
    assert done.code == 1
    assert done.err == "error: the core of kvlab will not work here: python\n"
    assert "older than 99.0" in done.out
    assert "do: use Python 99.0 or newer" in done.out
    assert done.out.rstrip().endswith("THE CORE IS BROKEN")
    assert document(run)["core_works"] is False


def test_a_question_that_fails_is_a_line_and_the_others_are_asked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> OpsStatus:
        raise OSError("libcuda.so.1:\n cannot open")

    monkeypatch.setattr(doctor_machine, "status", broken)
    found = document(run)
    assert set(lines(found)) >= {"triton", "build"}
    line = lines(found)["triton"]
    assert line["found"] == "looking at it fails: OSError: libcuda.so.1: cannot open"
    assert found["core_works"] is True
    assert found["backend"] == {"cpu": "torch", "cuda": None}


def test_a_needed_question_that_fails_breaks_the_core() -> None:
    def ask() -> list[Check]:
        raise RuntimeError

    (check,) = Question("x", True, ask).answers()
    assert (check.ok, check.needed) == (False, True)
    assert check.found == "looking at it fails: RuntimeError: no words"


def test_every_dependency_of_the_project_is_asked_about() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = {Requirement(line).name for line in tomllib.loads(text)["project"]["dependencies"]}
    asked = {*CORE, *(name for group in GROUPS.values() for name in group)}
    assert asked == names
    assert set(least_versions()) >= names


def test_a_library_that_is_missing_or_old_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = libraries("x", ("no-such-library", "numpy"), True)
    assert (check.ok, check.needed) == (False, True)
    assert check.found == "no-such-library is missing"
    assert check.do is not None
    assert check.do.startswith("install it: `make setup`")
    monkeypatch.setattr(doctor_checks, "least_versions", lambda: {"numpy": "99.1"})
    old = libraries("x", ("numpy",), False).found
    assert old.startswith("numpy ")
    assert old.endswith(" is older than 99.1")


def test_a_library_on_the_path_by_hand_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    assert libraries("x", ("numpy", "pillow"), True).ok
    monkeypatch.setattr(metadata, "requires", unknown)
    monkeypatch.setattr(doctor_checks, "ROOT", Path("nowhere"))
    assert least_versions() == {}


@pytest.mark.usefixtures("hopper")
def test_a_gpu_is_told_with_capability_memory_driver_and_what_serves_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine, "status", lambda: told("3.6.0", False, ("A",)))
    found = document(run)
    assert lines(found)["cuda:0"]["found"] == (
        "A made-up GPU, compute capability 9.0, 80 GiB of memory, driver 123.45, CUDA 12.8; served "
        "by triton"
    )
    assert lines(found)["triton"]["found"] == "3.6.0, compiled; because so"
    assert found["backend"] == {"cpu": "torch", "cuda": "triton"}


@pytest.mark.usefixtures("hopper")
def test_a_gpu_that_torch_has_no_kernels_for_will_not_work(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_70"])
    done = run("doctor")
    assert done.code == 0
    assert "this torch has no kernels for it, only for sm_70" in done.out
    assert "do: point KVLAB_PYTHON at a Python whose torch is built for sm_90" in done.out


@pytest.mark.usefixtures("hopper")
def test_kernels_that_are_interpreted_although_there_is_a_gpu_are_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine, "status", lambda: told("3.6.0", True, ("A",)))
    line = lines(document(run))["triton"]
    assert line["found"] == "3.6.0, interpreted on the CPU; because so"
    assert line["do"].startswith("unset TRITON_INTERPRET")


@pytest.mark.parametrize(
    ("cuda", "driver", "sentence", "do"),
    [
        (None, None, "no CUDA device, and torch .* is built for the CPU", "nothing, the CPU does"),
        (None, "5.1", "driver 5.1 is loaded, but torch", "point KVLAB_PYTHON at"),
        ("12.8", None, r"built for CUDA 12.8 and sees no device \(no NVIDIA driver", "nothing, th"),
        ("12.8", "5.1", r"sees no device \(driver 5.1\)$", "see with `nvidia-smi` whether"),
    ],
)
def test_without_a_device_the_reason_is_told(
    cuda: str | None, driver: str | None, sentence: str, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "devices", lambda: ())
    monkeypatch.setattr(gpu, "driver", lambda: driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (check,) = doctor_machine.cuda()
    assert pd.Series([check.found]).str.contains(sentence).all()
    assert check.do is not None
    assert check.do.startswith(do)


@pytest.mark.parametrize("shown", ["x", "", "7"])
def test_devices_that_the_environment_hides_are_told(
    shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "devices", lambda: ())
    monkeypatch.setattr(gpu, "driver", lambda: "5.1")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    (check,) = doctor_machine.cuda()
    assert check.found.endswith(f"(driver 5.1); CUDA_VISIBLE_DEVICES is {shown!r}")
    assert check.do == "unset CUDA_VISIBLE_DEVICES, or name devices that `nvidia-smi -L` lists"


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ('raise RuntimeError("boom")', "(RuntimeError: boom)"),
        ('raise OSError("libcuda.so.1: no such file")', "(OSError: libcuda.so.1: no such file)"),
        ('raise ImportError("undefined symbol")', "(undefined symbol)"),
        ("", "(AttributeError: module 'triton' has no attribute '__version__')"),
    ],
)
def test_a_triton_that_is_broken_in_any_way_leaves_torch_to_serve(
    tmp_path: Path, says: str, reason: str
) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text(says)
    ask = (
        "import torch; from kvlab.ops.backend import choose, status; "
        "from kvlab.cli.doctor_machine import triton; told = status(); "
        "print(told.triton, told.backend_for('cuda'), choose(None, torch.ones(1)));"
        "print(triton()[0].found)"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    served, found = done.stdout.splitlines()
    assert served == "None torch torch"
    assert found == f"torch serves every op: triton cannot be imported {reason}"


def test_without_triton_torch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine, "status", lambda: told(None, False))
    (check,) = doctor_machine.triton()
    assert (check.ok, check.needed, check.found) == (False, False, "because so")


def nothing_is_found(*_: object, **__: object) -> None:
    """Stands for ``shutil.which`` and ``find_spec`` on a bare machine."""
    return None


Ask = Callable[[], list[Check]]


@pytest.mark.parametrize(
    ("ask", "sentence", "do"),
    [
        (doctor_project.figures, "the font DejaVu Sans that ships with", "install matplotlib"),
        (doctor_project.jupyterlab, "sliders stay still pictures", "install jupyterlab_widgets"),
        (doctor_project.chromium, "no browser for tests is on the PATH", "nothing, only tests"),
    ],
)
def test_what_a_bare_machine_lacks_is_told_one_by_one(
    ask: Ask, sentence: str, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", nothing_is_found)
    monkeypatch.setattr(doctor_project, "find_spec", nothing_is_found)
    monkeypatch.setattr(doctor_project, "EXTENSION", ("no", "such", "folder"))
    (check,) = ask()
    assert not check.ok
    assert sentence in check.found
    assert check.do is not None
    assert check.do.startswith(do)


def test_data_that_are_not_there_are_told_and_nothing_fails(tmp_path: Path) -> None:
    (bare,) = doctor_project.checkpoint(tmp_path)
    assert bare.found == "data/checkpoints/tiny-kimi-linear lacks config.json, model.safetensors"
    bench, drift, crash = doctor_project.recorded(tmp_path)
    assert bench.found == "no data/runs/bench-*.csv"
    assert drift.found.startswith("data/runs/drift lacks summary.csv, requests.csv")
    assert (crash.ok, crash.do) == (
        False,
        "on a machine with a GPU: `kvlab crash --device cuda --record`",
    )


def test_a_file_that_is_empty_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "tiny-kimi-linear"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    (check,) = doctor_project.checkpoint(tmp_path)
    assert check.found == "data/checkpoints/tiny-kimi-linear lacks model.safetensors"


def test_a_recording_that_cannot_be_read_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "crash-cuda.json").write_text("{")
    asked = doctor_project.project_questions(tmp_path)
    (check,) = next(question for question in asked if question.name == "recorded").answers()
    assert check.found.startswith("looking at it fails: StudyError: crash-cuda.json holds")


def test_the_build_folder_is_tried_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_FIGURES", str(tmp_path / "build" / "figures"))
    assert [check.ok for check in doctor_project.build()] == [True]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "build").touch()  # a file where the folder should be
    (check,) = doctor_project.build()
    assert check.found.startswith("build/figures cannot be written: ")
    assert check.do is not None
    assert check.do.startswith("give KVLAB_FIGURES a folder")


def test_nothing_is_imported_that_takes_seconds() -> None:
    slow = ("matplotlib", "transformers", "nbconvert", "jupyterlab")
    code = (
        "import sys; from kvlab.cli import main; main(['doctor', '--json']); "
        f"print([name for name in {slow} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert said.stdout.splitlines()[-1] == "[]"


def test_asking_twice_gives_the_same_answers() -> None:
    assert doctor.examine() == doctor.examine()

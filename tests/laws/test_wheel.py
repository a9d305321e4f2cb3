"""A wheel has all that the commands read: installed outside of the checkout, they run anywhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "owners --csv -",
    "crash --dcp-size 4 --page-size 4 --num-pages 8",
    "retraction --dcp-sizes 2 --limit 100 --csv -",
    "drift --quick --requests 1 --dcp-sizes 2 --dtypes float32 --conditions forced_fixed --jobs 1",
    "--version",
)


def run(*command: str, folder: Path, **env: str) -> str:
    """What a command prints. Fails with what it says on standard error."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KVLAB_TRACE")}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=kept | env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
def test_the_commands_run_from_an_installed_wheel_in_any_folder(tmp_path: Path) -> None:
    source, wheels, installed = tmp_path / "source", tmp_path / "wheels", tmp_path / "installed"
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=left_out)  # a build leaves files beside its sources
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps")
    run(
        *("-m", "pip", "wheel", *quiet, "--no-build-isolation", "--wheel-dir", str(wheels), "."),
        folder=source,
    )
    shutil.rmtree(source)
    (wheel,) = wheels.iterdir()
    run("-m", "pip", "install", *quiet, "--target", str(installed), str(wheel), folder=tmp_path)
    assert (installed / "kvlab" / "_docs" / "conf.py").is_file()
    away = tmp_path / "away"
    away.mkdir()
    path = str(installed)
    where = run("-c", "import kvlab; print(kvlab.__file__)", folder=away, PYTHONPATH=path)
    assert Path(where.strip()) == installed / "kvlab" / "__init__.py"
    for words in COMMANDS:
        assert run("-m", "kvlab", *words.split(), folder=away, PYTHONPATH=path), words
    assert list(away.iterdir()) == []

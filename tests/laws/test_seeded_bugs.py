"""The laws bite: each small, named mutation of the package is caught by the law that names it.

A copy of the project is made once for each bug, one line of it is changed, and the law runs on the
copy in a process of its own. The same laws pass on an unchanged copy, so a law that fails always
would be seen too.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]


def copied(folder: Path) -> Path:
    """A copy of what the laws need: the package, the tests, the data, and the settings."""
    for name in ("kvlab", "tests", "data"):
        left_out = shutil.ignore_patterns("__pycache__", "notebooks", "test_seeded_bugs.py")
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_laws(folder: Path, laws: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0"]
    # The kernels' laws run in Triton's interpreter, also where there is a GPU.
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run(
        [*command, *laws],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def names(laws: list[str]) -> list[str]:
    return [law.split("::")[-1] for law in laws]


@pytest.mark.slow
def test_the_laws_hold_on_an_unchanged_copy(tmp_path: Path) -> None:
    done = run_laws(copied(tmp_path), sorted({bug.law for bug in BUGS}))
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d+ passed", done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "_"))
def test_the_law_catches(bug: Bug, tmp_path: Path) -> None:
    if bug.file.startswith("ops/kernels") and find_spec("triton") is None:
        pytest.skip("the kernels need triton, and it is not installed")
    folder = copied(tmp_path)
    path = folder / "kvlab" / bug.file
    source = path.read_text(encoding="utf-8")
    assert source.count(bug.old) == 1, f"{bug.old!r} stands {source.count(bug.old)} times"
    path.write_text(source.replace(bug.old, bug.new), encoding="utf-8")
    done = run_laws(folder, [bug.law])
    # 1: a test failed. Anything else (no test found, an error of collection) is not a catch.
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-1000:]
    assert f"FAILED {bug.law}" in done.stdout, done.stdout[-3000:]


def test_at_least_ten_bugs_are_seeded_in_every_layer_that_has_laws() -> None:
    assert len(BUGS) >= 10
    assert {bug.file.split("/")[0] for bug in BUGS} == {
        "index",
        "attn",
        "ops",
        "memory",
        "engine",
        "lab",
    }

"""The laws bite: each small, named mutation of the package is caught by the law that names it.

A worker makes one copy of the project. For each bug one line of the copy is changed, the law runs
on it in a process of its own, and the line is put back. The suite runs the same laws on the project
itself, and one law of each layer runs on the unchanged copy: a law that fails always is seen too.
The processes are forked from a server that has imported the libraries, as that takes longer than
most laws.
"""

import os
import re
import runpy
import shutil
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import pytest

from .bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    *("torch", "pandas", "pytest", "hypothesis", "triton.language"),
    *("transformers.models.kimi_linear.modeling_kimi_linear", "matplotlib.figure"),
)
SCRIPT = Path(__file__).with_name("run_laws.py")


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the laws need: the package, the tests, the data, and the settings."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("kvlab", "tests", "data"):
        left_out = shutil.ignore_patterns("__pycache__", "notebooks", "test_seeded_bugs.py")
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_laws(folder: Path, *words: str) -> tuple[int | None, str]:
    """The exit code of pytest and what it printed."""
    server = get_context("forkserver")
    server.set_forkserver_preload(list(LIBRARIES))
    out = folder / "printed.txt"
    # The kernels' laws run in Triton's interpreter, also where there is a GPU.
    os.environ["TRITON_INTERPRET"] = "1"
    given = {"FOLDER": str(folder), "LAWS": words, "OUT": str(out)}
    law = server.Process(target=runpy.run_path, args=(str(SCRIPT), given))
    law.start()
    law.join(timeout=600)
    law.kill()
    return law.exitcode, out.read_text(encoding="utf-8")


@pytest.mark.slow
def test_laws_hold_on_an_unchanged_copy(copied: Path) -> None:
    one_a_layer = {bug.file.split("/")[0]: bug.law for bug in reversed(BUGS)}
    code, printed = run_laws(copied, *one_a_layer.values())
    assert code == 0, printed[-3000:]
    assert re.search(r"\d+ passed", printed)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "_"))
def test_the_law_catches(bug: Bug, copied: Path) -> None:
    if bug.file.startswith("ops/kernels") and find_spec("triton") is None:
        pytest.skip("the kernels need triton, and it is not installed")
    path = copied / "kvlab" / bug.file
    source = path.read_text(encoding="utf-8")
    assert source.count(bug.old) == 1, f"{bug.old!r} stands {source.count(bug.old)} times"
    path.write_text(source.replace(bug.old, bug.new), encoding="utf-8")
    try:
        code, printed = run_laws(copied, bug.law, "-k", bug.cases)
    finally:
        path.write_text(source, encoding="utf-8")
    # 1: a test failed. Anything else (no test found, an error of collection) is not a catch.
    assert code == 1, printed[-3000:]
    assert f"FAILED {bug.law}" in printed, printed[-3000:]


def test_thirty_bugs_are_seeded_in_every_layer_that_has_laws() -> None:
    assert len(BUGS) >= 30
    layers = {bug.file.split("/")[0] for bug in BUGS}
    assert layers == {"index", "attn", "ops", "memory", "engine", "lab"}

"""The quick start of the README works line by line, and its pictures are those of a report."""

import doctest
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.pictures import NAMES, PICTURES, main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICK = README.split("\n## Quick start\n")[1].split("\n## ")[0]
COMMANDS = re.findall(r"^```\n(.*?)^```", QUICK, re.S | re.M)[0].splitlines()
(PYTHON,) = re.findall(r"^```pycon\n(.*?)^```", QUICK, re.S | re.M)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_quick_start_does_what_it_says(line: str) -> None:
    # `make` with KVLAB_PYTHON uses the Python of the tests and installs nothing.
    python = f'"{sys.executable}"'
    # In one go: the Python of the tests may itself lie in a .venv.
    program = {"kvlab": f"{python} -m kvlab", "python": python}
    command = re.sub(r"\.venv/bin/(kvlab|python)\b", lambda found: program[found[1]], line)
    environment = {**os.environ, "KVLAB_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if "--census" in line:
        counts = dict(re.findall(r"^(\w+) +(\d+)$", done.stdout, re.M))
        assert f"{counts['out_of_range']} would crash" in QUICK
        assert f"{counts['silent']} would be copied" in QUICK


def test_the_python_of_the_quick_start_gives_what_is_printed_below_each_line() -> None:
    test = doctest.DocTestParser().get_doctest(PYTHON, {}, "quick start", "README.md", 0)
    assert len(test.examples) >= 6
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert (result.failed, "".join(said)) == (0, "")


def test_every_local_picture_and_text_that_the_readme_links_is_there() -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", README)
    local = [t for t in targets if not t.startswith(("http", "build/report/", "#"))]
    assert [t for t in local if not (ROOT / t.partition("#")[0]).exists()] == []
    assert {f"data/figures/{name}.png" for name in PICTURES} <= set(local)


def test_the_pages_that_the_readme_links_are_pages_of_the_site() -> None:
    pages = set(re.findall(r"\(build/report/([^)]+)\)", README))
    names = ("index", "figures", "glossary", "troubleshooting", "commands", "api/index")
    assert pages == {f"{name}.html" for name in names}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_the_readme_is_the_one_that_its_origin_describes(name: str) -> None:
    about = json.loads((ROOT / "data" / "figures" / f"{name}.json").read_text(encoding="utf-8"))
    content = (ROOT / "data" / "figures" / f"{name}.png").read_bytes()
    assert hashlib.sha256(content).hexdigest() == about["sha256"]["png"]
    assert about["name"] == name
    assert re.search(rf"!\[[^\]]{{30,}}\]\(data/figures/{name}\.png\)", README)


def test_pictures_are_copied_all_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, out = tmp_path / "report", tmp_path / "out"
    (report / "figures").mkdir(parents=True)
    for name in NAMES[1:]:
        (report / "figures" / name).write_text(name)
    words = ["--report", str(report), "--out", str(out)]
    assert main(words) == 1
    assert f"lacks {NAMES[0]} and 0 more files of the README's" in capsys.readouterr().err
    assert not out.exists()
    (report / "figures" / NAMES[0]).write_text(NAMES[0])
    assert main(words) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(NAMES)

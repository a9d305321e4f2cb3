"""The examples that a reader copies run as they stand, and give what they say."""

import doctest
import re
from pathlib import Path

import pytest

from kvlab.engine.model import runner

README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_worked_example_of_the_sharded_model_runs_as_it_is() -> None:
    failed, tried = doctest.testmod(runner)
    assert failed == 0 and tried >= 12


def test_the_python_of_the_readme_runs_and_prints_what_its_comment_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # the project's own text
    last = capsys.readouterr().out.splitlines()[-1]
    assert blocks[-1].rstrip().endswith(f"# {last}")

"""A trace for the report: a bad one is named with its line, one in the environment is told."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.report import Report, add_arguments, run
from kvlab.report import build as module
from kvlab.report import notebooks as notebooks_module
from kvlab.report.notebooks import main

from .conftest import GOOD

Make = Callable[..., Path]
NOTE = (
    "note: KVLAB_TRACE is set and not used here: a run that is kept depends on no variable; name "
    "the trace with kvlab report --trace FILE\n"
)


def parsed(*argv: object) -> argparse.Namespace:
    """The arguments of ``kvlab report``."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([str(word) for word in argv])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,x,5\n",
            ", line 3, column prompt_tokens: ",
        ),
        ("hello\n", ", line 1: begins like no known trace format"),
    ],
)
def test_a_bad_trace_is_named_with_its_line_before_a_notebook_runs(
    text: str,
    told: str,
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "execute_all", lambda *a, **k: pytest.fail("a notebook was run"))
    bad = tmp_path / "bad.csv"
    bad.write_text(text)
    here = ["--out", tmp_path / "r", "--notebooks", make("01_sum", *GOOD)]
    assert run(parsed(*here, "--trace", bad)) == 2
    assert capsys.readouterr().err.startswith(f"error: bad.csv{told}")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("variable", "words", "said"),
    [("mine.csv", [], NOTE), ("", [], ""), (None, [], ""), ("mine.csv", ["--trace", "a.csv"], "")],
)
def test_a_trace_in_the_environment_that_is_not_used_is_told(
    variable: str | None,
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("KVLAB_TRACE", raising=False)
    if variable is not None:
        monkeypatch.setenv("KVLAB_TRACE", variable)
    monkeypatch.setattr(
        "kvlab.report.arguments.build_report", lambda *a, **k: Report(Path("build/report"), {})
    )
    assert run(parsed(*words)) == 0
    assert capsys.readouterr().err == said


def test_executing_notebooks_tells_it_too(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVLAB_TRACE", "mine.csv")
    monkeypatch.setattr(notebooks_module, "execute_all", lambda *args, **kwargs: [])
    assert main(["execute", str(make("01_sum", *GOOD))]) == 0
    assert capsys.readouterr().err == NOTE

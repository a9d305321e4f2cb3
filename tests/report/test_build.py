"""A report is whole or the old one: pages, figures, findings, manifest, and what stops it."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.errors import KvlabError
from kvlab.report import NotebookFailed, ReportError, build_report, unused_trace
from kvlab.report import build as module
from kvlab.report.place import FORMAT
from kvlab.viz.save import figure_registry

from .built import Built
from .conftest import FAILING, GOOD

Make = Callable[..., Path]
KINDS = ("svg", "pdf", "png", "csv", "json")


@pytest.mark.notebook
def test_the_manifest_has_what_is_needed_to_make_the_report_again(built: Built) -> None:
    manifest = built.manifest
    assert manifest["command"] == "kvlab report --trace requests.csv"
    assert manifest["trace"] == "requests.csv"
    assert manifest["seeds"] == {"the_points": 3}
    assert {"versions", "device", "commit", "created", "duration_s"} <= manifest.keys()
    names = [entry["name"] for entry in manifest["notebooks"]]
    assert names[:3] == ["01_sum", "02_panel", "00_start_here"]
    assert all(entry["duration_s"] > 0 for entry in manifest["notebooks"])
    assert manifest["notebooks"][0]["title"] == "A small sum"
    assert manifest["notebooks"][0]["question"] == "What is one plus one?"
    assert manifest["findings"][0]["text"] == "There are 2 <points>."
    (figure,) = manifest["figures"]
    assert len(figure["sha256"]) == 4
    for name, checksum in figure["sha256"].items():
        content = (built.folder / "figures" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == checksum


@pytest.mark.notebook
def test_the_manifest_names_every_file_and_no_place_on_this_machine(built: Built) -> None:
    there = {p.relative_to(built.folder).as_posix() for p in built.folder.rglob("*.*")}
    assert there - {"manifest.json"} <= set(built.manifest["files"])
    assert {f"figures/the_points.{kind}" for kind in KINDS} <= there
    assert {"index.html", "notebooks/01_sum.html", "notebooks/02_panel.ipynb"} <= there
    text = json.dumps(built.manifest)
    assert str(built.folder.parent) not in text
    assert os.path.expanduser("~") + "/" not in text
    assert not [path for path in built.folder.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.notebook
def test_the_figures_of_a_report_can_be_read_back(built: Built) -> None:
    (figure,) = figure_registry(built.folder / "figures")
    assert figure.data().to_dict("list") == {"points": [2]}
    assert figure.notebook == "02_panel"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An earlier report."""
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"format": FORMAT, "files": ["old.txt"]}))
    (folder / "old.txt").write_text("old")
    return folder


@pytest.mark.notebook
def test_a_failing_notebook_leaves_the_old_report(make: Make, old: Path) -> None:
    said = r"notebook 01_bad failed in cell 3: ValueError: line one \| the last line; .*not changed"
    with pytest.raises(NotebookFailed, match=said):
        build_report(old, notebooks=[make("01_bad", *FAILING)])
    assert sorted(path.name for path in old.iterdir()) == ["manifest.json", "old.txt"]
    assert sorted(path.name for path in old.parent.iterdir()) == ["notebooks", "report"]


def test_what_goes_wrong_before_a_notebook_runs_is_told_and_leaves_the_old_report(
    make: Make, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "execute_all", lambda *a: pytest.fail("a notebook was run"))
    path = make("01_sum", *GOOD)
    bad = tmp_path / "bad.csv"
    bad.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,x,5\n")
    with pytest.raises(KvlabError, match=r"^bad.csv, line 3, column prompt_tokens: "):
        build_report(old, bad, notebooks=[path])
    with pytest.raises(KvlabError, match=r"nowhere\.csv"):
        build_report(old, tmp_path / "nowhere.csv", notebooks=[path])
    assert (old / "old.txt").exists()


def test_a_site_that_cannot_be_made_is_told_and_leaves_the_old_report(
    make: Make, old: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "execute_all", lambda paths, figures, *_: figures.mkdir() or [])
    monkeypatch.setattr(module, "shipped", lambda folder: tmp_path / folder)
    with pytest.raises(ReportError, match=r"Sphinx could not .*doesn't contain a conf\.py file"):
        build_report(old, notebooks=[make("01_sum", *GOOD)])
    assert (old / "old.txt").exists()


def test_a_trace_in_the_environment_that_is_not_used_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVLAB_TRACE", "mine.csv")
    told = unused_trace() or ""
    assert told.startswith("note: KVLAB_TRACE is set and not used here: ")
    assert told.endswith("name the trace with kvlab report --trace FILE")
    monkeypatch.setenv("KVLAB_TRACE", "")
    assert unused_trace() is None

"""A report is whole or the old one: pages, figures, findings, manifest, and what stops it."""

import argparse
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.report import NotebookFailed, Report, ReportError, add_arguments, build_report, run, site
from kvlab.report import build as module
from kvlab.report.execute import Progress
from kvlab.report.offline import external_loads
from kvlab.report.place import FORMAT
from kvlab.viz.save import figure_registry

from .conftest import FAILING, GOOD
from .site_checks import faults

Make = Callable[..., Path]


def pages(report: Report) -> list[Path]:
    """Every HTML page of the report."""
    return sorted(report.folder.rglob("*.html"))


@pytest.mark.notebook
def test_a_report_has_an_index_each_notebook_each_figure_and_a_manifest(report: Report) -> None:
    names = {path.relative_to(report.folder).as_posix() for path in report.folder.rglob("*.*")}
    assert {
        "index.html",
        "manifest.json",
        "notebooks/01_sum.html",
        "notebooks/02_panel.ipynb",
    } <= names
    assert {f"figures/the_points.{e}" for e in ("svg", "pdf", "png", "csv", "json")} <= names
    assert [p.name for p in report.folder.parent.iterdir()] == ["report"]


@pytest.mark.notebook
def test_no_page_loads_anything_from_the_network_or_runs_a_script(report: Report) -> None:
    assert {"index.html", "03_trace.html", "figures.html"} <= {page.name for page in pages(report)}
    for page in pages(report):
        text = page.read_text(encoding="utf-8")
        assert external_loads(text) == [], page.name
        assert "<script" not in text, page.name


@pytest.mark.notebook
def test_no_link_is_dead_and_every_page_is_well_formed(report: Report) -> None:
    assert faults(report.folder) == []


@pytest.mark.notebook
def test_the_index_shows_findings_questions_and_figures(report: Report) -> None:
    text = (report.folder / "index.html").read_text(encoding="utf-8")
    assert "There are 2 points." in text
    assert "What is one plus one?" in text
    assert "requests.csv" in text


@pytest.mark.notebook
def test_the_gallery_shows_each_figure_with_definition_origin_numbers_and_files(
    report: Report,
) -> None:
    text = (report.folder / "figures.html").read_text(encoding="utf-8")
    assert 'alt="Points. Points: a count."' in text
    assert "<td>2</td>" in text
    assert "<dt>command</dt><dd>kvlab test</dd>" in text
    assert '<h2 id="02_panel"><a href="notebooks/02_panel.html">2. A panel</a></h2>' in text
    for ending in ("svg", "pdf", "png", "csv", "json"):
        assert f'href="figures/the_points.{ending}" download' in text


@pytest.mark.notebook
def test_a_notebook_page_leads_to_its_neighbours_its_figures_and_its_file(report: Report) -> None:
    text = (report.folder / "notebooks" / "02_panel.html").read_text(encoding="utf-8")
    assert 'href="01_sum.html" rel="prev">← 1. A small sum</a>' in text
    assert 'href="03_trace.html" rel="next">3. Trace →</a>' in text
    assert 'href="02_panel.ipynb" download>' in text
    assert 'href="../figures.html#the_points"' in text


@pytest.mark.notebook
def test_a_page_shows_the_still_picture_of_a_panel(report: Report) -> None:
    text = (report.folder / "notebooks" / "02_panel.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in text
    assert "widget" not in re.sub(r"base64,[^\"]*", "", text).lower()


@pytest.mark.notebook
def test_the_trace_reaches_the_notebooks(report: Report) -> None:
    text = (report.folder / "notebooks" / "03_trace.html").read_text(encoding="utf-8")
    assert re.search(r"<pre[^>]*>requests.csv", text)


@pytest.mark.notebook
def test_the_manifest_has_what_is_needed_to_make_the_report_again(report: Report) -> None:
    manifest = json.loads((report.folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest == report.manifest
    assert manifest["command"] == "kvlab report --trace requests.csv"
    assert manifest["trace"] == "requests.csv"
    assert manifest["seeds"] == {"the_points": 3}
    assert {"versions", "device", "commit", "created", "duration_s"} <= manifest.keys()
    assert [entry["name"] for entry in manifest["notebooks"]] == ["01_sum", "02_panel", "03_trace"]
    assert all(entry["duration_s"] > 0 for entry in manifest["notebooks"])
    assert manifest["findings"][0]["text"] == "There are 2 points."
    (figure,) = manifest["figures"]
    assert len(figure["sha256"]) == 4
    for name, checksum in figure["sha256"].items():
        content = (report.folder / "figures" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == checksum


@pytest.mark.notebook
def test_the_manifest_names_no_place_on_this_machine(report: Report) -> None:
    text = (report.folder / "manifest.json").read_text(encoding="utf-8")
    assert str(report.folder.parent) not in text
    assert os.path.expanduser("~") + "/" not in text


@pytest.mark.notebook
def test_the_figures_of_a_report_can_be_read_back(report: Report) -> None:
    (figure,) = figure_registry(report.folder / "figures")
    assert figure.data().to_dict("list") == {"points": [2]}
    assert figure.notebook == "02_panel"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder that holds an earlier report."""
    folder = tmp_path / "report"
    folder.mkdir()
    manifest = {"format": FORMAT, "files": ["old.txt"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "old.txt").write_text("old")
    return folder


@pytest.mark.notebook
def test_a_failing_notebook_leaves_the_old_report(make: Make, old: Path, quiet: Progress) -> None:
    path = make("01_bad", *FAILING)
    with pytest.raises(
        NotebookFailed, match=r"notebook 01_bad failed in cell 3: ValueError.*not ch"
    ):
        build_report(old, notebooks=[path], progress=quiet)
    assert (old / "old.txt").read_text() == "old"
    assert sorted(p.name for p in old.parent.iterdir()) == ["notebooks", "report"]


@pytest.mark.notebook
def test_a_new_report_replaces_the_old_one_as_a_whole(
    make: Make, old: Path, quiet: Progress
) -> None:
    build_report(old, notebooks=[make("01_sum", *GOOD)], progress=quiet)
    assert not (old / "old.txt").exists()
    assert (old / "index.html").exists()
    assert sorted(p.name for p in old.parent.iterdir()) == ["notebooks", "report"]


def test_a_page_that_would_load_from_the_network_stops_the_report(
    make: Make, old: Path, quiet: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "execute_all", lambda *args, **kwargs: [])
    remote = "https" + "://example.org/x.js"
    monkeypatch.setattr(site, "render", lambda *args: f'<script src="{remote}"></script>')
    text = r"troubleshooting\.html would load script src=.* and 0 more; embed"
    with pytest.raises(ReportError, match=text):
        build_report(old, notebooks=[make("01_sum", *GOOD)], progress=quiet)
    assert (old / "old.txt").exists()


def test_a_disk_that_fills_up_leaves_the_old_report(
    make: Make, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "execute_all", full)
    with pytest.raises(ReportError, match=r"cannot be written to .*: No space left.*or make room"):
        build_report(old, notebooks=[make("01_sum", *GOOD)])
    assert (old / "old.txt").exists()


@pytest.mark.parametrize(
    ("trace", "reason"), [("nowhere.csv", "No such file"), (".", "Is a directory")]
)
def test_a_trace_that_cannot_be_read_is_refused(
    make: Make, tmp_path: Path, trace: str, reason: str
) -> None:
    with pytest.raises(ReportError, match=rf"the trace .* cannot be read: {reason}.*; name a CSV"):
        build_report(tmp_path / "r", trace=tmp_path / trace, notebooks=[make("01_sum", *GOOD)])


def parsed(*argv: str) -> argparse.Namespace:
    """The arguments of ``kvlab report``."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(argv)


def test_the_options_have_the_documented_defaults() -> None:
    args = parsed()
    assert (args.out, args.trace, args.jobs, args.json) == (Path("build/report"), None, None, False)


@pytest.mark.notebook
def test_the_command_prints_the_manifest_and_ends_well(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["--out", str(tmp_path / "r"), "--notebooks", str(make("01_sum", *GOOD))]
    assert run(parsed(*here, "--json", "--jobs", "1")) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["format"] == FORMAT
    assert captured.err.startswith("[1/1] 01_sum: ")


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (NotebookFailed("notebook x failed in cell 3"), 1, "error: notebook x failed in cell 3\n"),
        (ReportError("no place"), 2, "error: no place\n"),
        (KeyboardInterrupt(), 130, "\nstopped; the report was not changed\n"),
    ],
)
def test_the_command_ends_with_a_sentence_and_a_code(
    raised: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: object, **given: object) -> Report:
        raise raised

    monkeypatch.setattr("kvlab.report.arguments.build_report", fail)
    assert run(parsed()) == code
    assert capsys.readouterr().err == said


def test_the_command_prints_where_the_report_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "kvlab.report.arguments.build_report", lambda *a, **k: Report(Path("build/report"), {})
    )
    assert run(parsed()) == 0
    assert capsys.readouterr().out == "report: build/report/index.html\n"

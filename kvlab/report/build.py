"""Build a report: every notebook executed, every figure saved, a site of pages, all in a folder.

    build/report/index.html             findings, where to begin, notebooks, origin; works offline
    build/report/notebooks/NAME.html    each notebook, and NAME.ipynb
    build/report/figures/NAME.svg ...   each figure: SVG, PDF, PNG, CSV, JSON
    build/report/manifest.json          seeds, versions, device, commit, durations, checksums, files

Sphinx makes the pages, with the settings in docs/. The HTML in a notebook's text and outputs is
shown as it is, so make reports of notebooks that you trust; a policy in each page keeps a browser
from fetching anything from elsewhere.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from kvlab.engine.workload import load_trace
from kvlab.files import shipped
from kvlab.lab.findings import read_findings
from kvlab.lab.origin import Origin, collect_origin
from kvlab.report.execute import CELL_TIMEOUT_S, Outcome, execute_all, last_lines
from kvlab.report.notebook_files import (
    FOLDER,
    PROJECT,
    ReportError,
    code_hash,
    describe,
    find_beside,
    find_notebooks,
    write_notebook,
)
from kvlab.report.place import FORMAT, MANIFEST, files_below, swapped_in
from kvlab.viz.save import figure_registry

DEFAULT_OUT = Path("build/report")
DOCUMENTS = ("TROUBLESHOOTING.md", "GLOSSARY.md", "TEACHING.md", "ENGINEERS.md")


class NotebookFailed(ReportError):
    """At least one notebook of a report failed; the text names each with its cell."""


@dataclass(frozen=True)
class Report:
    """A finished report: ``folder`` holds it, ``manifest`` is what its manifest.json says.

    ``warnings`` is what Sphinx complained of; "" if all is well.
    """

    folder: Path
    manifest: Mapping[str, object]
    warnings: str = ""


def build_report(
    out: Path | str = DEFAULT_OUT,
    trace: Path | str | None = None,
    jobs: int | None = None,
    notebooks: Sequence[Path | str] | None = None,
    timeout_s: int = CELL_TIMEOUT_S,
) -> Report:
    """Execute the notebooks and write the report to ``out``, which is replaced as a whole.

    Args:
        trace: a request trace that notebooks use in place of the shipped workload.
        jobs: notebooks at a time, None for the number of cores.
        notebooks: notebooks or folders of them, None for the project's.
        timeout_s: seconds that one cell may take.

    Errors: NotebookFailed if a notebook fails; ReportError if notebooks or ``out`` cannot be
    used, WorkloadError, with the line, for a trace that breaks a rule. The old report stays.
    """
    start = monotonic()
    paths = find_notebooks(notebooks)
    trace_file = None if trace is None else Path(trace).resolve()
    if trace_file is not None:
        load_trace(trace_file)  # here, where file and line can be told; notebooks read it again
    command = "kvlab report" + (f" --trace {trace_file.name}" if trace_file else "")
    origin = collect_origin(command, None, {})
    with swapped_in(Path(out)) as half:
        figures = half / "figures"
        outcomes = execute_all(paths, figures, jobs, trace_file, timeout_s)
        failures = [outcome.sentence for outcome in outcomes if outcome.failure is not None]
        if failures:
            raise NotebookFailed("; ".join(failures) + "; the report was not changed")
        source = half.with_name("source")
        for folder in (source / FOLDER, half / FOLDER):
            folder.mkdir(parents=True)
            for outcome in outcomes:
                write_notebook(outcome.notebook, folder / outcome.path.name)
        for name in DOCUMENTS:
            if (text := find_beside(paths, name)) is not None:
                shutil.copyfile(text, source / name.lower())
        manifest = _manifest(origin, outcomes, figures, trace_file)
        manifest["duration_s"] = round(monotonic() - start, 2)
        _write(manifest, source)
        warnings = _make_site(source, half)
        manifest["duration_s"] = round(monotonic() - start, 2)
        manifest["files"] = files_below(half)
        _write(manifest, half)
    return Report(Path(out), manifest, warnings)


def _make_site(source: Path, out: Path) -> str:
    """Run Sphinx; return its warnings. Errors: ReportError with the cause that it tells."""
    path = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-q", "-c", shipped("docs")),
            *("-d", source.with_name("trees"), source, out),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = last_lines(done.stderr.partition("\nThe full traceback")[0])
        raise ReportError(f"Sphinx could not make the site of the report: {said}")
    return done.stderr


def _write(manifest: Mapping[str, object], folder: Path) -> None:
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _manifest(
    origin: Origin, outcomes: Sequence[Outcome], folder: Path, trace: Path | None
) -> dict[str, object]:
    """What is needed to make the report again, and a checksum of each file of each figure."""
    figures = figure_registry(folder)
    return {
        "format": FORMAT,
        **origin.as_dict(),
        "trace": trace.name if trace else None,
        "seeds": {figure.name: figure.origin["seed"] for figure in figures},
        "notebooks": [
            {
                "name": outcome.path.stem,
                **describe(outcome.notebook, outcome.path.stem),
                "duration_s": round(outcome.duration_s, 2),
                "code_sha256": code_hash(outcome.notebook),
                "runs": outcome.attempts,
            }
            for outcome in outcomes
        ],
        "figures": [
            {
                "name": figure.name,
                "title": figure.title,
                "definition": figure.definition,
                "notebook": figure.notebook,
                "origin": dict(figure.origin),
                "sha256": {f"{figure.name}.{e}": h for e, h in figure.sha256.items()},
            }
            for figure in figures
        ],
        "findings": [asdict(f) | {"text": f.text} for f in read_findings(folder)],
    }

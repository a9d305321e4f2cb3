"""Build a report: every notebook executed, every figure saved, a site of pages, all in a folder.

    build/report/index.html             findings, where to begin, notebooks, origin; works offline
    build/report/notebooks/NAME.html    each notebook, and NAME.ipynb
    build/report/figures/NAME.svg ...   each figure: SVG, PDF, PNG, CSV, JSON
    build/report/manifest.json          seeds, versions, device, commit, durations, checksums

``kvlab.report.site`` has the other pages. The report is built in a folder beside the final one and
takes its place at the end, so a failed build leaves the old report as it was.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from kvlab.engine.workload import load_trace
from kvlab.lab.findings import read_findings
from kvlab.lab.origin import collect_origin
from kvlab.report.content import Chapter, Content, write_site
from kvlab.report.execute import CELL_TIMEOUT_S, Progress, execute_all
from kvlab.report.manifest import make_manifest
from kvlab.report.pages import describe
from kvlab.report.place import MANIFEST, swapped_in
from kvlab.report.site import DOCUMENTS
from kvlab.report.stamps import ReportError, find_beside, find_notebooks
from kvlab.viz.save import figure_registry

DEFAULT_OUT = Path("build/report")


class NotebookFailed(ReportError):
    """At least one notebook of a report failed; the text names each with its cell."""


@dataclass(frozen=True)
class Report:
    """A finished report: ``folder`` holds it, ``manifest`` is what its manifest.json says."""

    folder: Path
    manifest: Mapping[str, object]


def build_report(
    out: Path | str = DEFAULT_OUT,
    trace: Path | str | None = None,
    jobs: int | None = None,
    notebooks: Sequence[Path | str] | None = None,
    timeout_s: int = CELL_TIMEOUT_S,
    progress: Progress | None = None,
    commands: argparse.ArgumentParser | None = None,
) -> Report:
    """Execute the notebooks and write the report to ``out``, which is replaced as a whole.

    Args:
        trace: a request trace that notebooks use in place of the shipped workload.
        jobs: notebooks at a time, None for the number of cores.
        notebooks: notebooks or folders of them, None for the project's.
        timeout_s: seconds that one cell may take.
        commands: the parser of the command kvlab, for the page of the commands; None leaves it out.

    Errors: NotebookFailed if a notebook fails; ReportError if notebooks, trace or ``out`` cannot
    be used, WorkloadError, with the line, for a trace that breaks a rule. The old report stays.
    """
    start = monotonic()
    paths = find_notebooks(notebooks)
    trace_file = _require_trace(trace)
    command = "kvlab report" + (f" --trace {trace_file.name}" if trace_file else "")
    origin = collect_origin(command, None, {})
    with swapped_in(Path(out)) as half:
        found_in = half / "figures"
        outcomes = execute_all(paths, found_in, jobs, trace_file, timeout_s, progress=progress)
        failures = [o.failure.sentence for o in outcomes if o.failure is not None]
        if failures:
            raise NotebookFailed("; ".join(failures) + "; the report was not changed")
        chapters = tuple(
            Chapter(describe(o.notebook, o.path.stem, o.duration_s), o.notebook, o.path.parent)
            for o in outcomes
        )
        content = Content(
            chapters,
            {d: path for d in DOCUMENTS if (path := find_beside(paths, d.file)) is not None},
            figure_registry(found_in),
            tuple(read_findings(found_in)),
            origin,
            monotonic() - start,
            trace_file.name if trace_file else None,
            commands,
        )
        write_site(half, content)
        manifest = make_manifest(
            origin, outcomes, content.pages, content.figures, found_in, trace_file, start
        )
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (half / MANIFEST).write_text(text, encoding="utf-8")
    return Report(Path(out), manifest)


def _require_trace(trace: Path | str | None) -> Path | None:
    if trace is None:
        return None
    path = Path(trace)
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ReportError(
            f"the trace {trace} cannot be read: {error.strerror}; name a CSV or JSONL file"
        ) from None
    load_trace(path)  # here, where file and line can be told; notebooks read it again
    return path.resolve()

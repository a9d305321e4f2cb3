"""Build a report: every notebook executed, every figure saved, one page on top, all in a folder.

    build/report/index.html             findings, notebooks, gallery, origin; works offline
    build/report/glossary.html          what the words mean; links of notebooks lead there
    build/report/notebooks/NAME.html    each notebook, and NAME.ipynb
    build/report/figures/NAME.svg ...   each figure: SVG, PDF, PNG, CSV, JSON
    build/report/manifest.json          seeds, versions, device, commit, durations, checksums

The report is built in a folder beside the final one and takes its place at the end, so a failed
build leaves the old report as it was.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from kvlab.engine.workload import load_trace
from kvlab.lab.findings import read_findings
from kvlab.lab.origin import Origin, collect_origin
from kvlab.report.execute import CELL_TIMEOUT_S, Outcome, Progress, execute_all
from kvlab.report.pages import (
    GLOSSARY_PAGE,
    Page,
    describe,
    external_loads,
    markdown_body,
    notebook_body,
    render,
)
from kvlab.report.stamps import (
    ReportError,
    code_hash,
    find_glossary,
    find_notebooks,
    write_notebook,
)
from kvlab.viz.save import CSS_PX_PER_IN, EXPORT_DPI, SavedFigure, figure_registry

DEFAULT_OUT = Path("build/report")
MANIFEST = "manifest.json"
FORMAT = "kvlab-report-1"
MAX_SHOWN_SVG_BYTES = 400_000


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
) -> Report:
    """Execute the notebooks and write the report to ``out``, which is replaced as a whole.

    Args:
        trace: a request trace that notebooks use in place of the shipped workload.
        jobs: notebooks at a time, None for the number of cores.
        notebooks: notebooks or folders of them, None for the project's.
        timeout_s: seconds that one cell may take.

    Errors: NotebookFailed if a notebook fails; ReportError if notebooks, trace or ``out`` cannot
    be used, WorkloadError, with the line, for a trace that breaks a rule. The old report stays.
    """
    start = monotonic()
    paths = find_notebooks(notebooks)
    trace_file = _require_trace(trace)
    command = "kvlab report" + (f" --trace {trace_file.name}" if trace_file else "")
    origin = collect_origin(command, None, {})
    with _swapped_in(Path(out)) as half:
        outcomes = execute_all(
            paths, half / "figures", jobs, trace_file, timeout_s, progress=progress
        )
        failures = [o.failure.sentence for o in outcomes if o.failure is not None]
        if failures:
            raise NotebookFailed("; ".join(failures) + "; the report was not changed")
        pages = [describe(o.notebook, o.path.stem, o.duration_s) for o in outcomes]
        figures = figure_registry(half / "figures")
        glossary = find_glossary(paths)
        if glossary is not None:
            body = markdown_body(glossary.read_text(encoding="utf-8"), glossary.parent)
            _write_page(half / GLOSSARY_PAGE, render("glossary.html.j2", {"body": body}))
        _write_notebooks(half, outcomes, pages, glossary is not None)
        manifest = _manifest(half, origin, outcomes, pages, figures, trace_file, start)
        _write_index(half, origin, pages, figures, manifest, glossary is not None)
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (half / MANIFEST).write_text(text, encoding="utf-8")
    return Report(Path(out), manifest)


def _write_notebooks(
    half: Path, outcomes: Sequence[Outcome], pages: Sequence[Page], glossary: bool
) -> None:
    folder = half / "notebooks"
    folder.mkdir()
    stems = [page.stem for page in pages]
    for at, (outcome, page) in enumerate(zip(outcomes, pages, strict=True)):
        write_notebook(outcome.notebook, folder / f"{page.stem}.ipynb")
        text = render(
            "notebook.html.j2",
            {
                "notebook": page,
                "previous": pages[at - 1] if at else None,
                "next": pages[at + 1] if at + 1 < len(pages) else None,
                "body": notebook_body(outcome.notebook, outcome.path.parent, stems, glossary),
                "glossary": glossary,
            },
        )
        _write_page(folder / f"{page.stem}.html", text)


def _write_index(
    half: Path,
    origin: Origin,
    pages: Sequence[Page],
    figures: Sequence[SavedFigure],
    manifest: Mapping[str, object],
    glossary: bool,
) -> None:
    values = {
        "origin": origin,
        "notebooks": pages,
        "titles": {page.stem: page.label for page in pages},
        "glossary": glossary,
        "findings": read_findings(half / "figures"),
        "figures": [_shown(figure) for figure in figures],
        "seeds": sorted({str(f.origin["seed"]) for f in figures if f.origin["seed"] is not None}),
        "duration_s": manifest["duration_s"],
        "trace": manifest["trace"],
    }
    _write_page(half / "index.html", render("index.html.j2", values))


def _shown(figure: SavedFigure) -> dict[str, object]:
    """What the gallery needs of a figure. A heavy SVG is shown as its PNG."""
    with figure.path("png").open("rb") as png:
        head = png.read(24)  # signature, then the header chunk with width and height
    pixels = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    width, height = (round(n * CSS_PX_PER_IN / EXPORT_DPI) for n in pixels)
    light = figure.path("svg").stat().st_size <= MAX_SHOWN_SVG_BYTES
    return {
        "name": figure.name,
        "title": figure.title,
        "definition": figure.definition,
        "notebook": figure.notebook,
        "shown": "svg" if light else "png",
        "width": width,
        "height": height,
        "endings": ["svg", "pdf", "png", "csv", "json"],
    }


def _manifest(
    half: Path,
    origin: Origin,
    outcomes: Sequence[Outcome],
    pages: Sequence[Page],
    figures: Sequence[SavedFigure],
    trace: Path | None,
    start: float,
) -> dict[str, object]:
    return {
        "format": FORMAT,
        **origin.as_dict(),
        "trace": trace.name if trace else None,
        "seeds": {figure.name: figure.origin["seed"] for figure in figures},
        "notebooks": [
            {
                "name": page.stem,
                "title": page.label,
                "duration_s": round(page.duration_s, 2),
                "code_sha256": code_hash(outcome.notebook),
                "runs": outcome.attempts,
            }
            for page, outcome in zip(pages, outcomes, strict=True)
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
        "findings": [asdict(f) | {"text": f.text} for f in read_findings(half / "figures")],
        "duration_s": round(monotonic() - start, 2),
    }


def _write_page(path: Path, text: str) -> None:
    loads = external_loads(text)
    if loads:
        raise ReportError(
            f"a page of the report loads nothing from the network: {path.name} would load "
            f"{loads[0]} and {len(loads) - 1} more; embed it in the notebook"
        )
    path.write_text(text, encoding="utf-8")


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


def _require_free(out: Path) -> None:
    """``out`` must be new, empty, or an earlier report."""
    if out.exists() and not out.is_dir():
        raise ReportError(f"a report is a folder: {out} is a file; name another place with --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise ReportError(
            f"a report replaces its folder: {out} holds other files and no {MANIFEST}; name an "
            "empty or a new folder with --out"
        )


@contextmanager
def _swapped_in(out: Path) -> Iterator[Path]:
    """A new folder beside ``out`` that becomes ``out`` if the block ends well."""
    try:
        _require_free(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise _not_written(out, error) from None
    half, old = work / "new", work / "old"
    try:
        half.mkdir()
        if out.exists():  # try the move now: notebooks that took minutes must not run in vain
            os.replace(out, old)
            os.replace(old, out)
        yield half
        if out.exists():
            os.replace(out, old)
        os.replace(half, out)
    except OSError as error:
        raise _not_written(out, error) from error
    finally:
        if old.exists() and not out.exists():  # after an interrupt too
            os.replace(old, out)
        shutil.rmtree(work, ignore_errors=True)


def _not_written(out: Path, error: OSError) -> ReportError:
    return ReportError(
        f"the report cannot be written to {out}: {error.strerror or error}; name another place "
        "with --out, or make room"
    )

"""The manifest of a report: what is needed to make it again, and a checksum of each figure file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic

from kvlab.lab.findings import read_findings
from kvlab.lab.origin import Origin
from kvlab.report.execute import Outcome
from kvlab.report.pages import Page
from kvlab.report.place import FORMAT, files_below
from kvlab.report.stamps import code_hash
from kvlab.viz.save import SavedFigure


def make_manifest(
    origin: Origin,
    outcomes: Sequence[Outcome],
    pages: Sequence[Page],
    figures: Sequence[SavedFigure],
    found_in: Path,
    trace: Path | None,
    start: float,
) -> Mapping[str, object]:
    """The manifest as plain values; ``found_in`` has the findings, ``start`` is monotonic, s."""
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
        "findings": [asdict(f) | {"text": f.text} for f in read_findings(found_in)],
        "files": files_below(found_in.parent),
        "duration_s": round(monotonic() - start, 2),
    }

"""Key findings: sentences whose numbers are computed, collected for the front page of a report.

    record("crash-pages", "{silent} of {pages} pages stay silent", {"silent": 127, "pages": 1024})

Records are JSON lines in one file of the output folder, to which several notebooks may append at
the same time: a line goes out in one write, and the last line of a name wins.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Formatter

from kvlab.errors import KvlabError, StudyError

FILE = "findings.jsonl"
FOLDER_VARIABLE = "KVLAB_FIGURES"
NOTEBOOK_VARIABLE = "KVLAB_NOTEBOOK"
SLUG = re.compile(r"(?=.{1,80}$)[a-z0-9]+(?:[-_][a-z0-9]+)*")

Number = str | int | float | bool


@dataclass(frozen=True)
class Finding:
    """One sentence of a report: ``sentence`` has gaps like ``{silent}`` that ``values`` fill.

    ``notebook`` is the stem of the notebook that found it, or None outside of one.
    """

    name: str
    sentence: str
    values: Mapping[str, Number]
    notebook: str | None = None

    @property
    def text(self) -> str:
        return self.sentence.format(**self.values)


def output_folder() -> Path:
    """Where figures and findings go: ``$KVLAB_FIGURES``, else ``build/figures`` of the project (the
    nearest folder upwards with a pyproject.toml, or the working directory)."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    here = Path.cwd()
    root = next((p for p in (here, *here.parents) if (p / "pyproject.toml").is_file()), here)
    return root / "build" / "figures"


def notebook_name() -> str | None:
    """Stem of the notebook that a report is executing, or None."""
    return os.environ.get(NOTEBOOK_VARIABLE) or None


def require_slug(name: str, what: str) -> str:
    """``name`` if it can be a file name and an anchor on every system. Errors: StudyError."""
    if not isinstance(name, str) or not SLUG.fullmatch(name):
        raise StudyError(
            f"the name of a {what} becomes a file name, of a-z, 0-9 and single - or _ between "
            f"them, at most 80: got {name!r}; use e.g. 'retractions_by_dcp_size'"
        )
    return name


def record(name: str, sentence: str, values: Mapping[str, Number]) -> str:
    """Append one finding to the output folder and return its text, to be printed.

    Args:
        name: a slug; a later finding of the same name replaces this one.
        sentence: one line with a gap ``{key}`` for every number, e.g. ``{share:.0%} of requests``.
        values: the numbers, by key; plain Python values.

    Errors: StudyError for a bad name, a sentence of several lines, a gap without a value or a value
    without a gap; ValueError or TypeError for a value that does not fit its gap, or is not plain.
    """
    finding = Finding(require_slug(name, "finding"), sentence, dict(values), notebook_name())
    gaps = {gap for _, gap, _, _ in Formatter().parse(sentence) if gap is not None}
    if not sentence.strip() or "\n" in sentence or gaps != set(values):
        raise StudyError(
            f"a finding is one line, in which each value fills a gap and no number is typed by "
            f"hand: {name!r} has {sentence!r} with values for {', '.join(values) or 'nothing'}"
        )
    text, line = finding.text, json.dumps(asdict(finding), ensure_ascii=False)
    folder = output_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("ab", buffering=0) as out:
        out.write(line.encode() + b"\n")
    return text


def read_findings(folder: Path) -> tuple[Finding, ...]:
    """The findings of ``folder``, the last of each name, by notebook and then in order written."""
    path = folder / FILE
    latest: dict[str, Finding] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        finding = Finding(**json.loads(line))
        latest.pop(finding.name, None)
        latest[finding.name] = finding
    return tuple(sorted(latest.values(), key=lambda finding: finding.notebook or ""))


def refusal(call: Callable[[], object]) -> str:
    """The class and text of the error that ``call`` is refused with, for a reader to read.

    Errors: StudyError when the call goes through: then there was nothing to show.
    """
    try:
        result = call()
    except KvlabError as error:
        return f"{type(error).__name__}: {error}"
    raise StudyError(f"this call was to be refused: it returned a {type(result).__name__}")

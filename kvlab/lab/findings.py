"""Key findings: sentences whose numbers are computed, collected for the front page of a report.

A notebook records what it found as a sentence with gaps and the values that fill them, so that
a changed number changes the sentence. Worked example:

    >>> finding = Finding("crash-pages", "{silent} of {pages} pages stay silent",
    ...                   {"silent": 127, "pages": 1024})
    >>> finding.text
    '127 of 1024 pages stay silent'

Records are JSON lines in one file of the output folder, where several notebooks can append at
the same time: a line goes out in one write, and the last line of a name wins.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvlab.errors import KvlabError, StudyError

FILE = "findings.jsonl"
FOLDER_VARIABLE = "KVLAB_FIGURES"
NOTEBOOK_VARIABLE = "KVLAB_NOTEBOOK"
SLUG = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
LONGEST_SLUG = 80

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
        """The sentence with its values filled in."""
        return self.sentence.format(**self.values)


def output_folder() -> Path:
    """Where figures and findings go: ``$KVLAB_FIGURES``, else ``build/figures`` of the project.

    The project is the nearest folder upwards from the working directory that holds a
    pyproject.toml; without one it is the working directory itself.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    here = Path.cwd()
    root = next((p for p in (here, *here.parents) if (p / "pyproject.toml").is_file()), here)
    return root / "build" / "figures"


def notebook_name() -> str | None:
    """Stem of the notebook that a report is executing, or None."""
    return os.environ.get(NOTEBOOK_VARIABLE) or None


def require_slug(name: str, what: str) -> str:
    """``name`` if it can be a file name and an anchor on every system. Errors: StudyError."""
    if not isinstance(name, str) or not SLUG.fullmatch(name) or len(name) > LONGEST_SLUG:
        raise StudyError(
            f"the name of a {what} is made of a-z, 0-9 and single - or _ between them, at most "
            f"{LONGEST_SLUG} characters, because it becomes a file name: got {name!r}; "
            "use e.g. 'retractions_by_dcp_size'"
        )
    return name


def record(name: str, sentence: str, values: Mapping[str, Number]) -> str:
    """Append one finding to the output folder and return its text, to be printed.

    Args:
        name: a slug; a later finding of the same name replaces this one.
        sentence: one line with a gap ``{key}`` for every number, e.g. ``{share:.0%} of requests``.
        values: the numbers, by key; plain Python values.

    Errors: StudyError for a bad name, a sentence of several lines, a gap without a value, a
    value without a gap, or a value that is not plain.
    """
    require_slug(name, "finding")
    for key, value in values.items():
        if not isinstance(value, str | int | float | bool):
            raise StudyError(
                f"a value of a finding is a str, int, float or bool: {key} of {name!r} is a "
                f"{type(value).__name__}; pass its .item()"
            )
    if not sentence.strip() or "\n" in sentence:
        raise StudyError(f"a finding is one line of text: {name!r} has {sentence!r}")
    unused = [key for key in values if not re.search(rf"{{{re.escape(key)}[}}!:]", sentence)]
    if unused:
        raise StudyError(
            f"every value of a finding fills a gap, so that no number is typed by hand: {name!r} "
            f"has no gap for {', '.join(unused)}; write {{{unused[0]}}} in the sentence"
        )
    finding = Finding(name, sentence, dict(values), notebook_name())
    try:
        text = finding.text
    except (KeyError, IndexError, ValueError) as error:
        raise StudyError(
            f"every gap of a finding has a value that fits it: {name!r} with values for "
            f"{', '.join(values) or 'nothing'} fails on {error}; gaps are written {{key}} or "
            "{key:format}"
        ) from None
    line = json.dumps(
        {
            "name": name,
            "sentence": sentence,
            "values": dict(values),
            "notebook": finding.notebook,
        },
        ensure_ascii=False,
    )
    folder = output_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("ab", buffering=0) as out:
        out.write(line.encode() + b"\n")
    return text


def read_findings(folder: Path) -> tuple[Finding, ...]:
    """The findings of ``folder``, the last of each name, by notebook and then in order written."""
    path = folder / FILE
    if not path.is_file():
        return ()
    latest: dict[str, Finding] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
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
    raise StudyError(
        f"this call was to be refused and was not: it returned a {type(result).__name__}; show "
        f"its result instead"
    )

"""Notebook files: find, read, clean, stamp, write.

A committed notebook holds outputs, and outputs go stale when somebody edits a cell and runs
nothing. The stamp tells: the hash of the code cells at the time of execution is kept in the
notebook's metadata, and comparing it with the hash of the cells as they are needs no kernel.

    notebook.metadata["kvlab"]["code_sha256"]  ==  code_hash(notebook)      else stale

``clean`` removes what differs from run to run (widget ids, time stamps, memory addresses), so
that executing again changes a file only where a result changed.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

import kvlab
from kvlab.errors import KvlabError
from kvlab.files import whole_file

FOLDER = "notebooks"
PROJECT = Path(kvlab.__file__).resolve().parents[1]
MAX_NOTEBOOK_BYTES = 400_000
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
KEPT_CELL_METADATA = ("tags", "slideshow", "jupyter")

_QUESTION = re.compile(r"[^.?!\n#>*`]*(?:`[^`]*`[^.?!\n`]*)*\?")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")


class ReportError(KvlabError):
    """A report, or a notebook of it, cannot be made."""


def find_notebooks(where: Sequence[Path | str] | None = None) -> list[Path]:
    """The notebooks named by ``where``: files, or folders whose notebooks are taken in order.

    None is the folder notebooks/ of the working directory, else the one beside the package.

    Errors: ReportError for a path that is not there or a folder without notebooks.
    """
    if where is None:
        where = [Path(FOLDER) if Path(FOLDER).is_dir() else PROJECT / FOLDER]
    found: list[Path] = []
    for place in map(Path, where):
        if place.is_dir():
            inside = sorted(p for p in place.glob("*.ipynb") if not p.name.startswith("."))
            if not inside:
                raise ReportError(f"there is no notebook in {place}: name a folder that has some")
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise ReportError(
                f"there is no notebook at {place}: run this where the folder {FOLDER} is, or name "
                "a notebook or a folder"
            )
    stems = [path.stem for path in found]
    twice = sorted({stem for stem in stems if stems.count(stem) > 1})
    if twice:
        raise ReportError(
            f"notebooks are told apart by name: {', '.join(twice)} is named twice; rename one"
        )
    return found


def find_beside(notebooks: Sequence[Path], name: str) -> Path | None:
    """The file ``name`` beside the notebooks or one folder up, else that of the project, if any."""
    folders = [parent for path in notebooks for parent in path.resolve().parents[:2]]
    places = (folder / name for folder in [*folders, PROJECT / FOLDER, PROJECT])
    return next((place for place in places if place.is_file()), None)


def read_notebook(path: Path) -> NotebookNode:
    """The notebook of ``path``. Errors: ReportError if it is missing or is not a notebook."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ReportError(f"notebook {path} cannot be read: {reason}; check the path") from None
    try:
        notebook: NotebookNode = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
        nbformat.validate(notebook)
    except Exception as error:  # nbformat raises of its own, of json's and of jsonschema's classes
        first = str(error).strip().splitlines()[0][:200]
        raise ReportError(
            f"notebook {path} is not a notebook of format 4: {first}; open it in JupyterLab and "
            "save it again"
        ) from None
    return notebook


def describe(notebook: NotebookNode, stem: str) -> dict[str, str]:
    """ "title": the first heading; "question": the first sentence below it with a question mark."""
    text = next((c.source for c in notebook.cells if c.cell_type == "markdown"), "")
    heading = re.search(r"^#\s+(.+)$", text, re.M)
    title = heading[1].strip() if heading else stem.replace("_", " ")
    asked = _QUESTION.search(" ".join(text[heading.end() if heading else 0 :].split()))
    question = re.sub(r"[*`_]{1,2}(?=\S)|(?<=\S)[*`]{1,2}", "", asked[0].strip()) if asked else ""
    return {"title": title.replace("`", ""), "question": question}


def write_notebook(notebook: NotebookNode, path: Path) -> int:
    """Replace the file at ``path`` at once; return its size in bytes."""
    text: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    content = (text.rstrip("\n") + "\n").encode()
    with whole_file(path) as part:
        part.write_bytes(content)
    return len(content)


def code_hash(notebook: NotebookNode) -> str:
    """SHA-256 over the sources of the code cells, in order. White space at line ends is free."""
    sources = [
        "\n".join(line.rstrip() for line in cell.source.splitlines()).strip("\n")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    return hashlib.sha256(json.dumps([s for s in sources if s]).encode()).hexdigest()


def stamp(notebook: NotebookNode) -> NotebookNode:
    """Write the hash of the code cells into the metadata; return the same notebook."""
    notebook.metadata["kvlab"] = {"code_sha256": code_hash(notebook)}
    return notebook


def check_stamp(notebook: NotebookNode) -> str | None:
    """What is wrong with the stamp, as half a sentence; None if the outputs fit the code."""
    found = notebook.metadata.get("kvlab", {}).get("code_sha256")
    if found is None:
        return "has no stamp: it was not executed by kvlab"
    now = code_hash(notebook)
    if found != now:
        return f"is stale: executed with code {found[:12]}, now {now[:12]}"
    return None


def clean(notebook: NotebookNode) -> NotebookNode:
    """Remove what changes from run to run, and what static views trip over; return the same.

    Out go ``metadata.widgets`` (hides the still picture in exports), widget views (their model
    died with the kernel; the still picture beside them stays), execution times, and memory
    addresses in plain text.
    """
    kept = {key: notebook.metadata[key] for key in ("title", "kvlab") if key in notebook.metadata}
    notebook.metadata = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}, **kept}
    for cell in notebook.cells:
        cell.metadata = {k: cell.metadata[k] for k in KEPT_CELL_METADATA if k in cell.metadata}
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = _ADDRESS.sub("", output.text)
            data = output.get("data", {})
            data.pop(WIDGET_VIEW, None)
            if "text/plain" in data:
                data["text/plain"] = _ADDRESS.sub("", data["text/plain"])
    return notebook

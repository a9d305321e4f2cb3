"""The pages of the site that nobody writes by hand, and what is changed in those that somebody did.

    index.md            what ran, where to begin, findings, notebooks, origin
    figures.md          each figure with its definition, files, numbers and origin
    commands.md         every command and option, as the program tells them
    api/kvlab.NAME.rst  one page a package; Sphinx fills in names, signatures and docstrings

What others wrote (titles, definitions, findings) goes through ``plain`` or ``html.escape``.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

import kvlab
from kvlab.cli import app as program
from kvlab.viz.save import CSS_PX_PER_IN, EXPORT_DPI, SavedFigure, figure_registry

MAX_SHOWN_SVG_BYTES = 400_000
MAX_SHOWN = 12  # rows and columns of a table
#: Page of a text of the project -> its label, what it is good for.
DOCUMENTS = {
    "troubleshooting": ("Troubleshooting", "From a line in a log, or a wrong answer, to its cause"),
    "glossary": ("Glossary", "For the meaning of a word"),
    "teaching": ("Teaching", "To teach it: a lesson of an hour, with questions"),
    "engineers": ("For engineers", "To find the same thing in the source of an engine"),
}
PACKAGES = "*/**/__init__.py"  # that have a page of the API
NO_FACE = ("kvlab.cli", "kvlab.ops.kernels")
# Code comes first, so that nothing in it passes for a link.
_LINK = re.compile(r"```.*?```|`[^`\n]*`|(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)", re.S)


def all_pages(told: Mapping[str, Any], figures: Path, source: Path) -> Iterator[tuple[str, str]]:
    """(path, text) of each page, from the manifest of a report and the folder of its figures."""
    found = figure_registry(figures)
    yield (
        "index.md",
        front_page(told, [page for page in DOCUMENTS if (source / f"{page}.md").exists()]),
    )
    yield "figures.md", figures_page(found, told["notebooks"])
    yield "commands.md", commands_page()
    yield from api_pages()


def plain(text: object) -> str:
    """``text`` as Markdown that shows it as it is: "a_b" gives "a\\_b"."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~$&^])", r"\\\1", " ".join(str(text).split()))


def linked(text: str, page: str) -> str:
    """Markdown with its links as seen from ``page``; one to a file without a page becomes text."""

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if mark or target is None or re.match(r"[a-z][a-z0-9+.-]*:|#", target, re.I):
            return found[0]
        path, _, anchor = target.partition("#")
        name = PurePosixPath(path)
        if name.suffix == ".ipynb":
            place = f"notebooks/{name.name}"
        elif name.stem.lower() in DOCUMENTS:
            place = f"{name.stem.lower()}.md"
        else:
            return str(label)
        return f"[{label}]({'../' * page.count('/')}{place}{anchor and f'#{anchor}'})"

    return _LINK.sub(link, text)


def adapt(notebook: NotebookNode, page: str) -> None:
    """Change a notebook for its page: links, pictures as HTML, bookkeeping folded, its file."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = linked(cell.source, page)
        elif re.search(r"\brecord\(", cell.source):  # only collects values for the front page
            cell.metadata.setdefault("tags", []).append("hide-input")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data and "text/html" not in data:
                shown = {
                    "alt": data.get("text/plain", "picture"),
                    **output.metadata.get("image/png", {}),
                }
                told = "".join(
                    f' {key}="{html.escape(str(value))}"' for key, value in shown.items()
                )
                png = data.pop("image/png").strip()
                data["text/html"] = f'<img src="data:image/png;base64,{png}"{told}>'
    stem = page.split("/")[-1]
    end = f'The file of this page: <a href="{stem}.ipynb" download>{stem}.ipynb</a>.'
    end += f" Its figures are [in the gallery](../figures.md#{_anchor(stem)})."
    notebook.cells.append(new_markdown_cell(end))  # type: ignore[no-untyped-call]


def front_page(told: Mapping[str, Any], documents: Sequence[str]) -> str:
    """index.md; ``documents`` are the keys of DOCUMENTS that are there."""
    pages = {notebook["name"]: f"notebooks/{notebook['name']}" for notebook in told["notebooks"]}
    titles = {
        n["name"]: f"[{plain(n['title'])}]({pages[n['name']]}.ipynb)" for n in told["notebooks"]
    }
    first, *_ = titles.values()
    begin = [(first, "To learn the convention, in order from the start")]
    begin += [
        (f"[{name}]({page}.md)", why) for page in documents for name, why in [DOCUMENTS[page]]
    ]
    begin += [("[Figures](figures.md)", "For a figure or its numbers, ready for a paper")]
    begin += [("[Commands](commands.md)", "To run it on your own trace, pool or model")]
    facts = {
        "Command": f"`{told['command']}`",
        "Commit": f"`{told['commit']}`" if told["commit"] else "none",
        "When": told["created"],
        "Device": plain(told["device"]),
        "Versions": plain(", ".join(f"{name} {v}" for name, v in told["versions"].items())),
        "Seeds": ", ".join(sorted({str(s) for s in told["seeds"].values() if s is not None}))
        or "none",
    }
    ran = f"{_counted(told['notebooks'], 'notebook')} ran on {told['created']} in "
    ran += f"{told['duration_s']:.0f} s on {facts['Device']} and saved "
    ran += f"[{_counted(told['figures'], 'figure')}](figures.md)"
    ran += f", with the trace {plain(told['trace'])}" if told["trace"] else ""
    lines = [
        "# kvlab report",
        "Which memory does this KV-cache id name, when several ranks share one request's cache?",
        f"{ran}. [Where all this comes from](#where-this-comes-from) stands at the end.",
        "## Where to begin",
        *(f"- {link}<br>{why}." for link, why in begin),
        "## Key findings",
        "Each number is computed by the notebook named behind it."
        if told["findings"]
        else "The notebooks recorded no findings.",
    ]
    for finding in told["findings"]:
        where = finding["notebook"]
        link = f" [{plain(where)}]({pages[where]}.ipynb)" if where in pages else ""
        lines.append(f"- {plain(finding['text'])}{link}")
    lines.append("## Notebooks")
    for notebook in told["notebooks"]:
        file = f'<a href="{pages[notebook["name"]]}.ipynb" download>{notebook["name"]}.ipynb</a>'
        asked = f"<br>{plain(notebook['question'])}" if notebook["question"] else ""
        lines.append(
            f"- {titles[notebook['name']]}{asked}<br>{notebook['duration_s']:.1f} s, {file}"
        )
    lines += [
        "## Where this comes from",
        "| fact | value |\n|---|---|" + "".join(f"\n| {k} | {v} |" for k, v in facts.items()),
        '<a href="manifest.json">manifest.json</a> has seeds, versions, durations and a checksum '
        "of every file of every figure.",
        _tree("Notebooks", list(pages.values())),
        _tree("Look up", ["figures", *documents, "commands"]),
        _tree("API", ["All packages <api/index>"]),
    ]
    return "\n\n".join(lines)


def figures_page(figures: Sequence[SavedFigure], notebooks: Sequence[Mapping[str, Any]]) -> str:
    """figures.md: the figures below their notebooks, in the order of these; the rest comes last."""
    titles = {n["name"]: n["title"] for n in notebooks}
    lines = [
        "# Figures",
        f"{_counted(figures, 'figure')} under stable names. The SVG and the PDF are for a paper "
        "(fonts embedded), the CSV holds the numbers that the picture shows, the JSON says how it "
        "was made.",
    ]
    for stem in [*titles, None]:
        own = [f for f in figures if (f.notebook if f.notebook in titles else None) == stem]
        if stem is not None:
            lines.append(f"({_anchor(stem)})=\n## [{plain(titles[stem])}](notebooks/{stem}.ipynb)")
            lines += [] if own else ["It saves no figure."]
        elif own:
            lines.append("## Made elsewhere")
        for figure in own:
            lines.append(f"({figure.name})=\n### {plain(figure.title)}")
            lines += [_picture(figure), plain(figure.definition), _numbers(figure)]
    return "\n\n".join(lines)


def _picture(figure: SavedFigure) -> str:
    """The picture and its files. A heavy SVG is shown as its PNG."""
    with figure.path("png").open("rb") as png:
        head = png.read(24)  # signature, then the header chunk with width and height
    pixels = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    width, height = (round(n * CSS_PX_PER_IN / EXPORT_DPI) for n in pixels)
    light = figure.path("svg").stat().st_size <= MAX_SHOWN_SVG_BYTES
    alt = html.escape(f"{figure.title}. {figure.definition}")
    files = (
        f'<a href="figures/{figure.name}.{ending}" download '
        f'aria-label="{figure.name} as {ending.upper()}">{ending.upper()}</a>'
        for ending in ("svg", "pdf", "png", "csv", "json")
    )
    return (
        f'<div class="scroll"><img src="figures/{figure.name}.{"svg" if light else "png"}" '
        f'width="{width}" height="{height}" loading="lazy" alt="{alt}"></div>\n'
        f"<p><code>{figure.name}</code> {' '.join(files)}</p>"
    )


def _numbers(figure: SavedFigure) -> str:
    """The first rows of the numbers, and the origin, both folded."""
    data = figure.data()
    shown = data.iloc[:MAX_SHOWN, :MAX_SHOWN]
    table = shown.to_html(index=False, border=0, na_rep="", float_format="{:.4g}".format)
    rest = "" if shown.shape == data.shape else f"<p>The first {len(shown)}; the CSV has all.</p>"
    names = ("command", "seed", "device", "commit", "created")
    facts = {name: figure.origin[name] for name in names if figure.origin.get(name) is not None}
    if isinstance(given := figure.origin.get("parameters"), Mapping) and given:
        facts["parameters"] = ", ".join(f"{key} {value}" for key, value in given.items())
    origin = "".join(f"<dt>{n}</dt><dd>{html.escape(str(v))}</dd>" for n, v in facts.items())
    return (
        f"<details><summary>Table: {_counted(data.index, 'row')}</summary>"
        f'<div class="scroll">{table}</div>{rest}</details>\n'
        f"<details><summary>Origin</summary><dl>{origin}</dl></details>"
    )


def commands_page() -> str:
    """commands.md: what each command is for, what it takes, how it is used."""
    group = typer.main.get_command(program)
    lines = ["# Commands"]
    for name, command in [("", group), *getattr(group, "commands", {}).items()]:
        context = typer.Context(command, info_name=f"kvlab {name}".strip())
        records = [p.get_help_record(context) for p in command.get_params(context)]
        rows = (f"\n| `{record[0]}` | {plain(record[1])} |" for record in records if record)
        lines += [f"## {context.info_name}", *_typed(command.help)]
        lines += ["| option | what it does |\n|---|---|" + "".join(rows), *_typed(command.epilog)]
    return "\n\n".join(lines)


def _typed(text: str | None) -> Iterator[str]:
    """The paragraphs of a help text; one that begins with a backspace is shown as it is typed."""
    for part in re.split(r"\n\s*\n", (text or "").strip()):
        if part.startswith("\b"):
            yield f"```text\n{part.strip(chr(8)).strip(chr(10))}\n```"
        elif part:
            yield plain(part)


def api_pages() -> Iterator[tuple[str, str]]:
    """One page a package, with what it offers, or with its modules where it offers nothing."""
    root = Path(kvlab.__file__).parent
    pages = {"kvlab.errors": ["kvlab.errors"]}
    for init in sorted(root.glob(PACKAGES)):
        package = ".".join(init.parent.relative_to(root.parent).parts)
        if package not in NO_FACE:
            face = "__all__" in init.read_text(encoding="utf-8")
            files = [] if face else sorted(init.parent.glob("[!_]*.py"))
            pages[package] = [package, *(f"{package}.{path.stem}" for path in files)]
    for package, modules in pages.items():
        lines = zip(modules, "=" + "-" * len(modules), strict=False)
        parts = (f"{m}\n{c * len(m)}\n\n.. automodule:: {m}\n   :members:\n" for m, c in lines)
        yield f"api/{package}.rst", "\n".join(parts)
    told = "Every public name, by package.\n\n.. toctree::\n   :maxdepth: 1\n\n"
    yield "api/index.rst", "API\n===\n\n" + told + "".join(f"   {p}\n" for p in sorted(pages))


def _anchor(stem: str) -> str:
    """Of the figures of a notebook; docutils drops a digit at the begin."""
    return f"figures-{stem.replace('_', '-')}"


def _tree(caption: str, entries: Sequence[str]) -> str:
    head = f"```{{toctree}}\n:hidden:\n:caption: {caption}\n"
    return "\n".join([head, *entries, "```"])


def _counted(things: Any, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"

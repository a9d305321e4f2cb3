"""The settings of Sphinx for the site of a report. ``make report`` runs it, on what ran before.

``kvlab.report.build`` copies executed notebooks, the project's texts and a manifest to a folder,
which is the source here; the pages of ``pages.py`` come on top. Nothing is executed. And nothing
leaves the machine, whatever a notebook holds: a browser keeps to ``POLICY``, which is in each page.
"""

import json
import re
import sys
from pathlib import Path

import nbformat
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

sys.path.insert(0, str(Path(__file__).parent))

import pages  # type: ignore[import-not-found]

POLICY = "default-src 'self' file: data: 'unsafe-inline'; base-uri 'none'; form-action 'self' file:"

project = html_title = "kvlab"
language = "en"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
nb_execution_mode = "off"
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # the anchors of the glossary are HTML
autodoc_mock_imports = ["triton"]  # absent on most machines
autodoc_member_order = "bysource"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = html_show_sourcelink = html_use_index = html_domain_indices = False
html_show_copyright = False
html_last_updated_fmt = "%Y-%m-%d"


def write_pages(app: Sphinx) -> None:
    """Write what ``pages.py`` makes to the source; figures lie where the site will be."""
    told = json.loads((app.srcdir / "manifest.json").read_text(encoding="utf-8"))
    for page, text in pages.all_pages(told, Path(app.outdir) / "figures", Path(app.srcdir)):
        place = app.srcdir / page
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")


def read_source(app: Sphinx, page: str, content: list[str]) -> None:
    """Change the text of a page: links lead to pages, pictures of cells keep their words."""
    path = Path(app.env.doc2path(page))
    if path.suffix == ".ipynb":
        notebook = nbformat.reads(content[0], as_version=4)  # type: ignore[no-untyped-call]
        pages.adapt(notebook, page)
        content[0] = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    elif path.stem in pages.DOCUMENTS:
        content[0] = pages.linked(content[0], page)


def read_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Change ``lines``: "Args:" becomes a list, and an indented block stays as it is typed."""
    # A bar would begin a substitution; in code it is one.
    bars = re.compile(r"(``.+?``|^(?:  |>>>).*$)|\|", re.M)
    text = bars.sub(lambda found: found[1] or r"\|", "\n".join(lines))
    text = re.sub(r"(?m)^(\S.*\n)\n+(?=  +\S)", r"\1\n::\n\n", text)
    lines[:] = GoogleDocstring(text, Config(), app, what).lines()  # type: ignore[arg-type]


def add_policy(
    app: Sphinx, page: str, template: str, context: dict[str, str], tree: object
) -> None:
    """Put the policy into the head of a page."""
    tag = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    context["metatags"] = tag + context.get("metatags", "")


def setup(app: Sphinx) -> None:
    """Register the functions above."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", read_source)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("html-page-context", add_policy)

"""The site over the committed notebooks: links, form, words and colours, with no kernel started."""

import re
from pathlib import Path

import pytest
from pygments.styles import get_style_by_name  # type: ignore[import-untyped]

from kvlab.lab.origin import collect_origin
from kvlab.report.content import Chapter, Content, write_site
from kvlab.report.pages import describe
from kvlab.report.reference import read_layers
from kvlab.report.site import DARK, DOCUMENTS, LIGHT, navigation, root_of, style_sheet
from kvlab.report.notebook_files import find_beside, find_notebooks, read_notebook
from kvlab.viz.save import figure_registry

from .site_checks import faults

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the committed notebooks and texts, without figures."""
    return write_committed(tmp_path_factory.mktemp("site"))


def write_committed(folder: Path) -> Path:
    """Write the site of what is committed to ``folder``, with the figures that it has already."""
    paths = find_notebooks([ROOT / "notebooks"])
    chapters = []
    for path in paths:
        notebook = read_notebook(path)
        chapters.append(Chapter(describe(notebook, path.stem, 1.0), notebook, path.parent))
    documents = {d: p for d in DOCUMENTS if (p := find_beside(paths, d.file)) is not None}
    origin = collect_origin("kvlab report", None, {})
    figures = figure_registry(folder / "figures")
    content = Content(tuple(chapters), documents, figures, (), origin, 1.0, None, None)
    write_site(folder, content)
    (folder / "manifest.json").write_text("{}")
    return folder


def test_no_link_is_dead_and_every_page_is_well_formed(site: Path) -> None:
    # Figures are saved by the notebooks when they run, and none ran here.
    assert [fault for fault in faults(site) if "figures.html#" not in fault] == []


def test_every_page_has_the_same_navigation(site: Path) -> None:
    seen = set()
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        (nav,) = re.findall(r'<nav class="site".*?</nav>', text, re.S)
        nav = re.sub(r' aria-current="\w+"', "", nav)
        seen.add(nav.replace('href="../', 'href="'))
        assert 'aria-current="' in text, path.name
    assert len(seen) == 1
    assert {"troubleshooting.html", "glossary.html", "api/index.html"} <= set(
        re.findall(r'href="([^"]+)"', seen.pop())
    )


def test_a_page_of_a_notebook_has_its_table_of_contents(site: Path) -> None:
    text = (site / "notebooks" / "03_crash_reproduction.html").read_text(encoding="utf-8")
    (toc,) = re.findall(r'<nav class="beside".*?</nav>', text, re.S)
    assert '<a href="#which-pages-crash">Which pages crash?</a>' in toc


def test_the_reference_has_one_page_a_layer_and_one_that_leads_to_all(site: Path) -> None:
    overview = (site / "api" / "index.html").read_text(encoding="utf-8")
    pages = {layer.name: f"kvlab.{layer.name}.html" for layer in read_layers()}
    assert {path.name for path in (site / "api").iterdir()} == {"index.html", *pages.values()}
    for name, page in pages.items():
        assert f'<a href="../api/{page}">kvlab.{name}</a>' in overview
        assert f"<h1>kvlab.{name}</h1>" in (site / "api" / page).read_text(encoding="utf-8")
    page_text = (site / "api" / "kvlab.index.html").read_text(encoding="utf-8")
    assert 'id="kvlab.index.layout.DcpLayout"' in page_text
    assert "<code>from kvlab.index import DcpLayout</code>" in page_text
    assert "capacity_tokens: int" in page_text


def test_troubleshooting_leads_from_symptoms_to_notebooks(site: Path) -> None:
    text = (site / "troubleshooting.html").read_text(encoding="utf-8")
    for word in ("device-side assert", "get_cpu_copy", "Decode out of memory", "No such kernel"):
        assert word in text
    for number in ("00_start_here", "01_two", "03_crash", "04_backup", "05_retr", "06_logprob"):
        assert f'href="notebooks/{number}' in text


def test_every_symptom_has_a_cause_and_those_of_a_node_name_a_notebook() -> None:
    text = (ROOT / "notebooks" / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
    node, own = text.split("\n## kvlab itself\n")
    symptoms = re.split(r"^### ", node, flags=re.M)[1:]
    assert len(symptoms) >= 10
    for symptom in symptoms:
        title = symptom.splitlines()[0]
        assert "**Cause.**" in symptom, title
        assert re.search(r"\*\*Explained in\*\*[^*]*\]\(\d\d_\w+\.ipynb", symptom, re.S), title
    assert len(re.split(r"^### ", own, flags=re.M)[1:]) >= 6


def test_the_navigation_leaves_out_what_is_not_there() -> None:
    labels = [entry.label for entry in navigation([], commands=False)]
    assert labels == ["Overview", "Notebooks", "Figures", "API"]
    assert (root_of("index.html"), root_of("notebooks/a.html")) == ("", "../")


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb" by WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    """Contrast of two colours by WCAG 2, 1 to 21."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def palettes() -> list[dict[str, str]]:
    """The named colours of the light and of the dark theme."""
    found = re.findall(r":root \{(.*?)\}", style_sheet(), re.S)
    return [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in found]


def test_text_and_links_have_the_contrast_of_aa_in_both_themes() -> None:
    light, dark = palettes()
    for theme in (light, dark):
        for text in ("ink", "soft", "link"):
            for ground in ("paper", "panel"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
        assert contrast(theme["ink"], theme["warn"]) >= 4.5
        assert contrast(theme["mark"], theme["paper"]) >= 3


@pytest.mark.parametrize(("style", "theme"), [(LIGHT, 0), (DARK, 1)])
def test_coloured_code_has_the_contrast_of_aa(style: str, theme: int) -> None:
    ground = palettes()[theme]["panel"]
    rules = [(str(kind), rule["color"]) for kind, rule in get_style_by_name(style)]
    colours = {f"#{c}" for kind, c in rules if c and not kind.endswith(".Whitespace")}
    assert {c: round(contrast(c, ground), 2) for c in colours if contrast(c, ground) < 4.5} == {}

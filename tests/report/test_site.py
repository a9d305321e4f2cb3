"""The site: no dead link, nothing complained of, every page there, and what each one shows."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from .built import ELSEWHERE, ROOT, Built

pytestmark = pytest.mark.notebook
PAGES = (
    *("index", "search", "figures", "commands", "api/index", "api/kvlab.index"),
    *("glossary", "troubleshooting", "teaching", "engineers"),
)


class Seen(HTMLParser):
    """Links and anchors of a page, pictures without a description, and the number of its h1."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets, self.ids, self.unnamed = list[str](), list[str](), list[str]()
        self.tags = Counter[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag is and says."""
        found = dict(attrs)
        self.tags[tag] += 1
        self.targets += [value for key in ("href", "src") if (value := found.get(key))]
        self.ids += filter(None, [found.get("id")])
        if tag == "img" and not found.get("alt"):
            self.unnamed.append(str(found))


def dead_links(path: Path, pages: dict[Path, Seen]) -> list[str]:
    """The links of a page that lead to no file, or to no anchor of a page."""
    dead = []
    for target in pages[path].targets:
        if re.match(r"data:|https?:", target):
            continue
        place, _, anchor = unquote(target.partition("?")[0]).partition("#")
        end = (path.parent / place).resolve() if place else path
        if not end.is_file() or (anchor and end in pages and anchor not in pages[end].ids):
            dead.append(f"{path.name} leads to {target}")
    return dead


def test_sphinx_has_no_complaint(built: Built) -> None:
    assert built.warnings == ""


def test_no_link_is_dead_and_every_page_has_one_title_and_pictures_with_words(
    built: Built,
) -> None:
    pages = {path.resolve(): Seen(path.read_text("utf-8")) for path in built.folder.rglob("*.html")}
    assert {f"{name}.html" for name in PAGES} <= {
        path.relative_to(built.folder.resolve()).as_posix() for path in pages
    }
    assert [dead for path in pages for dead in dead_links(path, pages)] == []
    titles = {path.stem: seen.tags["h1"] for path, seen in pages.items()}
    assert {name: n for name, n in titles.items() if n != 1 and name != "search"} == {}
    assert [seen.unnamed[:2] for seen in pages.values() if seen.unnamed] == []


def test_every_page_forbids_a_browser_to_load_anything_from_elsewhere(built: Built) -> None:
    policy = (
        """<meta http-equiv="Content-Security-Policy" content="default-src 'self' file: data:"""
    )
    for path in built.folder.rglob("*.html"):
        head = path.read_text("utf-8").partition("</head>")[0]
        assert policy in head, path.name
    assert ELSEWHERE in built.page("notebooks/03_trace.html")


def test_the_front_page_says_what_ran_what_was_found_and_where_to_begin(built: Built) -> None:
    text = built.page("index.html")
    for told in (
        "11 notebooks ran on",
        "with the trace requests.csv",
        "There are 2 &lt;points&gt;.",
        "What is one plus one?",
        '<a class="reference internal" href="glossary.html">',
        '<a href="notebooks/01_sum.ipynb" download>01_sum.ipynb</a>',
        '<a href="manifest.json">manifest.json</a>',
        "To learn the convention, in order from the start",
    ):
        assert told in text, told


def test_the_gallery_shows_each_figure_with_definition_origin_numbers_and_files(
    built: Built,
) -> None:
    text = built.page("figures.html")
    assert 'alt="Points. Points: a *count*."' in text
    assert "<p>Points: a *count*.</p>" in text
    assert "<td>2</td>" in text
    assert "<dt>command</dt><dd>kvlab test</dd>" in text
    assert 'id="the-points"' in text
    assert 'href="notebooks/02_panel.html"' in text
    for ending in ("svg", "pdf", "png", "csv", "json"):
        assert f'href="figures/the_points.{ending}" download' in text


def test_a_notebook_leads_to_its_neighbors_its_words_its_figures_and_its_file(
    built: Built,
) -> None:
    text = built.page("notebooks/02_panel.html")
    assert '<link rel="next" title="Trace" href="03_trace.html">' in text
    assert '<link rel="prev" title="A small sum" href="01_sum.html">' in text
    assert '<a href="02_panel.ipynb" download>' in text
    assert 'href="../figures.html#figures-02-panel"' in text
    first = built.page("notebooks/01_sum.html")
    assert 'href="02_panel.html"' in first
    assert 'href="../glossary.html#dcp"' in first
    assert "or notes." in first  # the report has no such page


def test_a_notebook_shows_its_still_pictures_and_what_the_trace_gave_it(built: Built) -> None:
    text = built.page("notebooks/02_panel.html")
    assert re.search(r'<img [^>]*src="data:image/png;base64,', text)
    assert "widget-view" not in text
    assert "requests.csv" in built.page("notebooks/03_trace.html")


def test_a_cell_that_collects_findings_is_folded(built: Built) -> None:
    text = built.page("notebooks/02_panel.html")
    folded = re.findall(r"<details[^>]*>.*?</details>", text, re.S)
    assert ["record" in re.sub("<[^>]+>", "", part) for part in folded] == [True]


def test_the_reference_has_what_the_packages_offer(built: Built) -> None:
    overview = built.page("api/index.html")
    text = built.page("api/kvlab.index.html")
    for init in (ROOT / "kvlab").glob("[!c_]*/__init__.py"):
        assert f'href="kvlab.{init.parent.name}.html"' in overview
    assert 'id="kvlab.index.DcpLayout"' in text
    assert "ranks that share one request’s KV" in text
    assert "Args:" not in text


def test_the_commands_are_those_of_the_program_with_their_options(built: Built) -> None:
    text = built.page("commands.html")
    for name in ("report", "crash", "owners", "retraction", "drift", "doctor"):
        assert f'id="kvlab-{name}"' in text
    assert "--dcp-size" in text
    assert "kvlab report --trace requests.csv --jobs 2" in text


def test_troubleshooting_leads_from_symptoms_to_notebooks(built: Built) -> None:
    text = built.page("troubleshooting.html")
    words = re.sub("<[^>]+>", "", text)
    for word in ("device-side assert", "get_cpu_copy", "Decode out of memory", "No such kernel"):
        assert word in words
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


def test_every_word_that_the_notebooks_link_is_in_the_glossary() -> None:
    anchors = set(re.findall(r'<a id="([^"]+)">', (ROOT / "GLOSSARY.md").read_text("utf-8")))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        linked = set(re.findall(r"GLOSSARY\.md#([\w-]+)", path.read_text("utf-8")))
        assert linked <= anchors, path.name

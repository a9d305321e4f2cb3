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
    assert ELSEWHERE in built.page("notebooks/01_sum.html")


def test_the_front_page_says_what_ran_what_was_found_and_where_to_begin(built: Built) -> None:
    text = built.page("index.html")
    for told in (
        f"{2 + len(list((ROOT / 'notebooks').glob('*.ipynb')))} notebooks ran on",
        "with the trace requests.csv",
        "There are 2 &lt;points&gt;.",
        "What is one plus one?",
        '<a class="reference internal" href="glossary.html">',
        '<a href="notebooks/01_sum.ipynb" download>01_sum.ipynb</a>',
        '<a href="manifest.json">manifest.json</a>',
        "To learn the convention, in order from the start",
    ):
        assert told in text, told


def test_each_page_shows_what_it_is_for(built: Built) -> None:
    figures = ("svg", "pdf", "png", "csv", "json")
    for page, words in {
        "figures.html": (
            'alt="Points. Points: a *count*."',
            "<p>Points: a *count*.</p>",
            "<td>2</td>",
            "<dt>command</dt><dd>kvlab test</dd>",
            'id="the-points"',
            'href="notebooks/02_panel.html"',
            *(f'href="figures/the_points.{ending}" download' for ending in figures),
        ),
        "notebooks/01_sum.html": (
            'href="02_panel.html"',
            'href="../glossary.html#dcp"',
            "or notes.",  # the report has no such page
            "2 requests.csv",
            '<link rel="next" title="A panel" href="02_panel.html">',
        ),
        "notebooks/02_panel.html": (
            '<link rel="prev" title="A small sum" href="01_sum.html">',
            '<a href="02_panel.ipynb" download>',
            'href="../figures.html#figures-02-panel"',
            'src="data:image/png;base64,',
        ),
        "api/index.html": ('href="kvlab.index.html"', 'href="kvlab.attn.html"'),
        "api/kvlab.index.html": ('id="kvlab.index.DcpLayout"', "ranks that share one request’s KV"),
        "commands.html": (
            *(f'id="kvlab-{name}"' for name in ("report", "crash", "owners", "drift", "doctor")),
            "--dcp-size",
            "kvlab report --trace requests.csv --jobs 2",
        ),
        "troubleshooting.html": ("Decode out of memory", 'href="notebooks/03_crash'),
    }.items():
        text = built.page(page)
        assert [told for told in words if told not in text] == [], page
    assert "Args:" not in built.page("api/kvlab.index.html")
    panel = built.page("notebooks/02_panel.html")
    assert "widget-view" not in panel
    folded = re.findall(r"<details[^>]*>.*?</details>", panel, re.S)
    table, cell = (re.sub("<[^>]+>", "", part) for part in folded)
    assert table.split() == ["Table", "points", "2"]
    assert "record" in cell  # it only records


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

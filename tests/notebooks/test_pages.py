"""The pages for teachers and for engineers say what is there: links, files, names, answers."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

from kvlab.teach import EXERCISES

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
PAGES = ("TEACHING.md", "ENGINEERS.md")

every_page = pytest.mark.parametrize("name", PAGES)


def page(name: str) -> str:
    """The text of a page."""
    return (NOTEBOOKS / name).read_text(encoding="utf-8")


@every_page
def test_links_to_files_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page(name))
    local = [link for link in links if not link.startswith("https://")]
    assert len(local) > 5
    assert [link for link in local if not (NOTEBOOKS / link).is_file()] == []


@every_page
def test_every_file_of_the_project_that_it_names_exists(name: str) -> None:
    named = set(re.findall(r"`((?:kvlab|tests)/[\w/.]+)`", page(name)))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_engineers_are_led_to_many_modules_and_tests() -> None:
    named = set(re.findall(r"`((?:kvlab|tests)/[\w/.]+)`", page("ENGINEERS.md")))
    assert sum(path.startswith("kvlab/") for path in named) >= 20
    assert sum(path.startswith("tests/") for path in named) >= 20


def test_functions_that_engineers_are_led_to_are_in_their_modules() -> None:
    pairs = re.findall(r"`(\w+)`(?: in|,) `(kvlab/[\w/]+)\.py`", page("ENGINEERS.md"))
    assert len(pairs) >= 4
    for function, module in pairs:
        assert hasattr(importlib.import_module(module.replace("/", ".")), function), function


@every_page
def test_exercises_are_named_as_they_are(name: str) -> None:
    named = set(re.findall(r'exercise\("([\w-]+)"\)', page(name))) - {"name"}
    assert named and named <= set(EXERCISES)


def test_the_answers_of_the_three_questions_are_what_the_package_says() -> None:
    blocks = re.findall(r"```pycon\n(.*?)```", page("TEACHING.md"), flags=re.S)
    assert len(blocks) == len(re.findall(r"^\*\*\d\. ", page("TEACHING.md"), flags=re.M)) == 3
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "TEACHING.md", None, None)
    told: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=told.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


def test_the_lesson_has_sixty_minutes_without_a_gap() -> None:
    slots = re.findall(r"^\| (\d+) - (\d+) \|", page("TEACHING.md"), flags=re.M)
    begins, ends = [int(b) for b, _ in slots], [int(e) for _, e in slots]
    assert begins == [0, *ends[:-1]]
    assert ends[-1] == 60


def test_the_lesson_names_headings_that_the_notebooks_have() -> None:
    text = page("TEACHING.md")
    lines = [line for line in text.splitlines() if re.match(r"\| \d+ - \d+ \|", line)]
    for line in lines:
        for stem in re.findall(r"\((\d\d_\w+)\.ipynb\)", line):
            live = line.split("|")[3]
            notebook = (NOTEBOOKS / f"{stem}.ipynb").read_text(encoding="utf-8")
            for heading in re.findall(r"\*([^*]+)\*", live):
                assert re.search(rf'"#+ {re.escape(heading)}', notebook), (stem, heading)

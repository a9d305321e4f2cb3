"""The notebooks are one path: a question, abilities, three sentences, exercises, the next step.

Nothing is run here; what a cell shows is read from its kept outputs.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbformat import NotebookNode

from kvlab.report.notebook_files import read_notebook
from kvlab.teach import EXERCISES, Exercise, exercises_of

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
EXPLORERS = {
    "02_owner_slots": ("owner_explorer", "merge_explorer"),
    "04_backup_and_restore": ("backup_stepper",),
    "05_retraction_counts": ("retraction_timeline",),
    "06_logprob_drift": ("drift_explorer",),
}

every_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def sources(path: Path, kind: str) -> list[str]:
    """The sources of the cells of a kind."""
    return [cell.source for cell in read_notebook(path).cells if cell.cell_type == kind]


def shown(cell: NotebookNode) -> str:
    """What a reader sees below a cell, as text."""
    outputs = cell.get("outputs", [])
    return "\n".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs)


def section(path: Path, heading: str) -> str:
    """The text below a heading, up to the next one or the end of the cell."""
    (cell,) = (text for text in sources(path, "markdown") if f"## {heading}\n" in text)
    below = cell.split(f"## {heading}\n", 1)[1]
    return re.split(r"^#+ ", below, maxsplit=1, flags=re.M)[0].strip()


def sentences(text: str) -> list[str]:
    """The sentences of plain prose; a stop within code or a number ends none."""
    plain = re.sub(r"`[^`]*`", "code", " ".join(text.split()))
    return [part for part in re.split(r"(?<=[.?!])\s+", plain) if part]


def test_a_sentence_ends_at_its_stop_and_not_in_code_or_in_a_number() -> None:
    assert sentences("At `a. b` it is 0.20 nats. Then\nnot! Why?") == [
        "At code it is 0.20 nats.",
        "Then not!",
        "Why?",
    ]


@every_notebook
def test_it_opens_with_its_number_one_question_and_what_you_will_be_able_to_do(path: Path) -> None:
    first = read_notebook(path).cells[0]
    assert first.cell_type == "markdown"
    title, question, rest = first.source.split("\n\n", 2)
    assert re.fullmatch(rf"# {int(path.stem[:2])}\. .+", title)
    assert re.fullmatch(r"\*\*[^*]+\?\*\*", question) and question.count("?") == 1
    lead, abilities = rest.split("\n\n", 2)[:2]
    assert lead.endswith("you will be able to")
    assert 3 <= len(re.findall(r"^- ", abilities, flags=re.M)) <= 5


@every_notebook
def test_it_ends_with_three_sentences_then_exercises_then_the_next_step(path: Path) -> None:
    assert len(sentences(section(path, "In three sentences"))) == 3
    cells = [cell.source for cell in read_notebook(path).cells]
    (end,) = (at for at, text in enumerate(cells) if text.startswith("## In three sentences\n"))
    assert cells[end + 1].startswith("## Exercises\n")
    assert len(cells) == end + 3 + 2 * len(exercises_of(path.stem))
    assert cells[-1].startswith("**Next:** ")
    numbers = [int(n) for n in re.findall(r"\]\((\d\d)_\w+\.ipynb\)", cells[-1])]
    assert numbers == [(int(path.stem[:2]) + 1) % len(PATHS)]


def cells_of(path: Path) -> Iterator[tuple[Exercise, NotebookNode, NotebookNode]]:
    """Of each exercise that a notebook ends with: the cell that shows it, and that to fill in."""
    cells = read_notebook(path).cells
    (begin,) = (i for i, c in enumerate(cells) if c.source.startswith("## Exercises\n"))
    exercises = exercises_of(path.stem)
    for at, ex in enumerate(exercises):
        yield ex, cells[begin + 1 + 2 * at], cells[begin + 2 + 2 * at]


@every_notebook
def test_it_has_two_or_three_exercises_of_its_own_each_shown_and_then_a_stub(path: Path) -> None:
    found = list(cells_of(path))
    assert 2 <= len(found) <= 3
    for ex, task, stub in found:
        assert task.source == f'exercise("{ex.name}")'
        function, check = ast.parse(stub.source).body
        assert isinstance(function, ast.FunctionDef)
        assert stub.source.startswith(f"{ex.signature}\n")
        assert [ast.unparse(line) for line in function.body] == ["..."]
        assert ast.unparse(check) == f"exercise('{ex.name}').check({function.name})"
        assert EXERCISES[ex.name].notebook == path.stem


@every_notebook
def test_a_stub_says_that_it_is_not_filled_in_yet(path: Path) -> None:
    for ex, task, stub in cells_of(path):
        assert ex.title in shown(task)
        assert "not filled in yet" in shown(stub)


def test_every_exercise_is_named_in_its_notebook() -> None:
    for ex in EXERCISES.values():
        text = "\n".join(sources(NOTEBOOKS / f"{ex.notebook}.ipynb", "markdown"))
        cells = "\n".join(sources(NOTEBOOKS / f"{ex.notebook}.ipynb", "code"))
        assert f'exercise("{ex.name}")' in (cells if ex.core else text), ex.name


@pytest.mark.parametrize("ex", EXERCISES.values(), ids=lambda ex: ex.name)
def test_no_notebook_gives_a_solution_or_a_hint_away(ex: Exercise) -> None:
    source = textwrap.dedent(inspect.getsource(ex.answer))
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.FunctionDef)
    told = ast.get_docstring(body) or ""
    answers = [ast.unparse(line) for line in body.body if isinstance(line, ast.Return)]
    for path in PATHS:
        for cell in read_notebook(path).cells:
            text = " ".join((cell.source + shown(cell)).split())
            assert not told or " ".join(told.split()) not in text, path.name
            assert ex.hint not in text, path.name
            if cell.cell_type == "code":
                assert all(line not in text for line in answers), path.name


@pytest.mark.parametrize("stem", EXPLORERS)
def test_an_explorer_is_one_line_and_has_its_picture_without_a_kernel(stem: str) -> None:
    cells = read_notebook(NOTEBOOKS / f"{stem}.ipynb").cells
    for name in EXPLORERS[stem]:
        (at,) = (i for i, cell in enumerate(cells) if cell.source == f"{name}()")
        (output,) = cells[at].outputs
        assert {"image/png", "text/html", "text/plain"} <= set(output.data)
        after = [cell for cell in cells[at + 1 : at + 5] if cell.cell_type == "code"]
        assert after and after[0].outputs, f"{stem}: nothing follows {name}() for static readers"


@every_notebook
def test_its_links_to_the_glossary_name_a_word(path: Path) -> None:
    text = "\n".join(sources(path, "markdown"))
    assert text.count("../GLOSSARY.md#") >= 3
    without = re.findall(r"\[([^]]+)\]\(\.\./GLOSSARY\.md\)", text)
    assert set(without) <= {"glossary"}
    linked = re.findall(r"\.\./GLOSSARY\.md#([\w-]+)", text)
    assert len(linked) == len(set(linked)), "a word is linked at its first use"

"""The notebooks are one path: a question, abilities, three sentences, exercises, the next step.

Nothing is run here; what a cell shows is read from its kept outputs.
"""

import ast
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path

import pytest
from nbformat import NotebookNode

from kvlab.report.notebook_files import read_notebook
from kvlab.teach import EXERCISES, Exercise

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
STEMS = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
EXPLORERS = {
    "02_owner_slots": ("owner_explorer", "merge_explorer"),
    "04_backup_and_restore": ("backup_stepper",),
    "05_retraction_counts": ("retraction_timeline",),
    "06_logprob_drift": ("drift_explorer",),
}

every_notebook = pytest.mark.parametrize("stem", STEMS)


@cache
def cells(stem: str) -> list[NotebookNode]:
    """The cells of a notebook."""
    found: list[NotebookNode] = read_notebook(NOTEBOOKS / f"{stem}.ipynb").cells
    return found


def sources(stem: str, kind: str) -> str:
    """The text of the cells of a kind."""
    return "\n".join(cell.source for cell in cells(stem) if cell.cell_type == kind)


def shown(cell: NotebookNode) -> str:
    """What a reader sees below a cell, as text."""
    outputs = cell.get("outputs", [])
    return "\n".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs)


def sentences(text: str) -> list[str]:
    """The sentences of plain prose; a stop within code or a number ends none."""
    plain = re.sub(r"`[^`]*`", "code", " ".join(text.split()))
    return [part for part in re.split(r"(?<=[.?!])\s+", plain) if part]


@every_notebook
def test_it_opens_with_its_number_one_question_and_what_you_will_be_able_to_do(stem: str) -> None:
    title, question, rest = cells(stem)[0].source.split("\n\n", 2)
    assert re.fullmatch(rf"# {int(stem[:2])}\. .+", title)
    assert re.fullmatch(r"\*\*[^*]+\?\*\*", question) and question.count("?") == 1
    lead, abilities = rest.split("\n\n", 2)[:2]
    assert lead.endswith("you will be able to")
    assert 3 <= len(re.findall(r"^- ", abilities, flags=re.M)) <= 5


@every_notebook
def test_it_ends_with_three_sentences_then_its_exercises_then_the_next_step(stem: str) -> None:
    core = [ex for ex in EXERCISES.values() if ex.notebook == stem and ex.core]
    assert 2 <= len(core) <= 3
    end, exercises, *pairs, last = cells(stem)[-3 - 2 * len(core) :]
    heading, told = end.source.split("\n", 1)
    assert heading == "## In three sentences"
    assert len(sentences(re.split(r"^#+ ", told, maxsplit=1, flags=re.M)[0])) == 3
    assert exercises.source.startswith("## Exercises\n")
    for ex, task, stub in zip(core, pairs[::2], pairs[1::2], strict=True):
        assert task.source == f'exercise("{ex.name}")'
        assert ex.told[0] in shown(task)
        function, check = ast.parse(stub.source).body
        assert isinstance(function, ast.FunctionDef)
        assert stub.source.startswith(f"{ex.signature}\n")
        assert [ast.unparse(line) for line in function.body] == ["..."]
        assert ast.unparse(check) == f"exercise('{ex.name}').check({function.name})"
        assert "not filled in yet" in shown(stub)
    assert last.source.startswith("**Next:** ")
    numbers = [int(n) for n in re.findall(r"\]\((\d\d)_\w+\.ipynb\)", last.source)]
    assert numbers == [(int(stem[:2]) + 1) % len(STEMS)]


@pytest.mark.parametrize("ex", EXERCISES.values(), ids=lambda ex: ex.name)
def test_an_exercise_is_named_in_its_notebook_and_no_notebook_gives_its_solution_away(
    ex: Exercise,
) -> None:
    assert f'exercise("{ex.name}")' in sources(ex.notebook, "code" if ex.core else "markdown")
    body = ast.parse(textwrap.dedent(inspect.getsource(ex.answer))).body[0]
    assert isinstance(body, ast.FunctionDef)
    told = " ".join((ast.get_docstring(body) or ex.hint).split())
    answers = [ast.unparse(line) for line in body.body if isinstance(line, ast.Return)]
    for cell in (cell for stem in STEMS for cell in cells(stem)):
        text = " ".join((cell.source + shown(cell)).split())
        assert told not in text and ex.hint.removeprefix("Hint: ") not in text
        assert cell.cell_type != "code" or not any(line in text for line in answers)


@pytest.mark.parametrize(
    ("stem", "name"), [(stem, name) for stem, names in EXPLORERS.items() for name in names]
)
def test_an_explorer_is_one_line_and_has_its_picture_without_a_kernel(stem: str, name: str) -> None:
    (at,) = (i for i, cell in enumerate(cells(stem)) if cell.source == f"{name}()")
    (output,) = cells(stem)[at].outputs
    assert {"image/png", "text/html", "text/plain"} <= set(output.data)
    after = [cell for cell in cells(stem)[at + 1 : at + 5] if cell.cell_type == "code"]
    assert after and after[0].outputs, f"{stem}: nothing follows {name}() for static readers"


@every_notebook
def test_its_links_to_the_glossary_name_a_word_once(stem: str) -> None:
    text = sources(stem, "markdown")
    assert set(re.findall(r"\[([^]]+)\]\(\.\./GLOSSARY\.md\)", text)) <= {"glossary"}
    linked = re.findall(r"\.\./GLOSSARY\.md#([\w-]+)", text)
    assert len(linked) >= 3 and len(linked) == len(set(linked))

"""What cells show: text for terminals, HTML without colors of its own, and examples that run."""

import doctest
import pkgutil
from importlib import import_module

import pytest
import torch

from kvlab import teach
from kvlab.teach.answers import short
from kvlab.teach.exercise import Block, Code, table


def test_html_escapes_what_a_reader_wrote_and_keeps_to_the_colors_of_the_theme() -> None:
    inside = table("<u>", ("<i>", "n"), (("<script>", 1),))
    html = Block("<b>", ("a `x < y` b", inside, Code("<pre>")))._repr_html_()
    for bad in ("<b>", "<i>", "<u>", "<script>", "<pre>"):
        assert bad not in html
    assert "<code>x &lt; y</code>" in html
    assert "currentColor" in html and "color:inherit" in html


def test_text_lines_columns_up_and_indents_what_is_below_the_title() -> None:
    inside = table("below", ("v", "rank"), ((5, 1), (1001, 0)))
    lines = ["T", "  words", "  below", "    v     rank", "    5     1", "    1001  0"]
    assert repr(Block("T", ("words", inside))) == "\n".join(lines)
    assert repr(Block("T")) == "T"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor([1, 2]), "[1, 2]"),
        ([(3, "retract", 0)], "[(3, 'retract', 0)]"),
        ("silent", "silent"),
        (0.5, "0.5"),
        (float("nan"), "nan"),
        (None, "None"),
    ],
)
def test_values_are_short_and_words_in_lists_are_quoted(value: object, text: str) -> None:
    assert short(value) == text


def test_a_long_list_is_cut_in_the_middle_and_says_its_length() -> None:
    text = short(list(range(1000)))
    assert text.startswith("[0, 1, 2, ") and text.endswith("998, 999, (1000 in all)]")
    assert len(text) < 150


def test_the_examples_in_the_docstrings_run_as_they_are() -> None:
    names = [f"kvlab.teach.{m.name}" for m in pkgutil.iter_modules(teach.__path__)]
    results = [doctest.testmod(import_module(name)) for name in names]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 5

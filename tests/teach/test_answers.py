"""Answers made plain and compared, and what cells show of them."""

import doctest
import pkgutil
import re
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from kvlab import teach
from kvlab.teach.answers import cut, difference, plain, short, spelled
from kvlab.teach.exercise import Block, Code, table


@pytest.mark.parametrize(
    ("yours", "spec", "words"),
    [
        (4, 5, "4, the spec says 5"),
        ([3, 4], [3, 5], "element 1 is 4, the spec says 5"),
        ([3], [3, 5], "1 values, the spec has 2"),
        ([3, 5, 7], [3, 5], "3 values, the spec has 2"),
        (3, [3, 5], "3 where 2 values in a sequence are meant"),
        ([3, 5], 3, "a sequence of 2 where one value (3) is meant"),
        ([[1], [2, 4]], [[1], [2, 3]], "in element 1: element 1 is 4, the spec says 3"),
        (2.0, 2, "2.0, a float where a whole number is meant: use // and not /"),
        (True, 1, "True, the spec says 1"),
        (None, 1, "None, the spec says 1"),
        ("silent", "crash", "'silent', the spec says 'crash'"),
        (float("nan"), 1.0, "nan, the spec says 1.0"),
    ],
)
def test_a_difference_is_told_in_words(yours: Any, spec: Any, words: str) -> None:
    assert difference(plain(yours), plain(spec)) == words


@pytest.mark.parametrize(
    "cast", [torch.tensor, np.array, list, tuple, iter, lambda x: [np.int64(n) for n in x]]
)
def test_whatever_holds_the_values_is_an_answer(cast: Any) -> None:
    assert plain(cast([3, 5])) == [3, 5]


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf"), -float("inf"), 1e-12])
def test_floats_agree_within_rounding_and_with_themselves(value: float) -> None:
    assert difference(plain(value), plain(value)) is None
    assert difference(plain(1 / 3), plain(1 / 3 + 1e-7)) is None
    assert difference(plain(1 / 3), plain(1 / 3 + 1e-3)) is not None


@pytest.mark.parametrize(
    ("yours", "spec"), [(Fraction(1, 4), 0.25), (Decimal("0.25"), 0.25), (Fraction(8, 2), 4)]
)
def test_a_fraction_is_a_number(yours: object, spec: Any) -> None:
    assert difference(plain(yours), spec) is None
    assert difference(plain(yours), spec + 1) is not None


def test_values_are_short_words_in_lists_are_quoted_and_long_ones_are_cut() -> None:
    assert short([(3, "retract", 0.5), "silent"]) == "[(3, 'retract', 0.5), 'silent']"
    assert short("silent") == "silent"
    assert short(list(range(1000))).endswith("998, 999, (1000 in all)]")
    assert short([10**5000]) == "[a number of 16610 bits]"
    assert cut("x" * 600) == "x" * 600
    assert cut("x" * 700).endswith("x ... (700 letters in all)")
    assert spelled("ab") == "'ab'"


def test_html_escapes_what_a_reader_wrote_and_keeps_to_the_colors_of_the_theme() -> None:
    inside = table("<u>", ("<i>", "n"), (("<script>", 1),))
    html = Block("<b>", ("a `x < y` b", inside, Code("<pre>")))._repr_html_()
    assert not re.search("<(b|i|u|script|pre)>", html)
    assert "<code>x &lt; y</code>" in html
    assert "currentColor" in html and "color:inherit" in html


def test_text_lines_columns_up_and_indents_what_is_below_the_title() -> None:
    inside = table("below", ("v", "rank"), ((5, 1), (1001, 0)))
    lines = ["T", "  words", "  below", "    v     rank", "    5     1", "    1001  0"]
    assert repr(Block("T", ("words", inside))) == "\n".join(lines)


def test_the_examples_in_the_docstrings_run_as_they_are() -> None:
    names = [f"kvlab.teach.{m.name}" for m in pkgutil.iter_modules(teach.__path__)]
    results = [doctest.testmod(import_module(name)) for name in names]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 5

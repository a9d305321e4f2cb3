"""Every line of ``data/cases/index_cases.jsonl`` against the function of kvlab that answers it.

One line is one case: ``input`` goes in, ``right`` is what must come out, and where the case knows
them, also what the wrong ways give. A case that states a fact which no test reads fails: ``Facts``
remembers what was looked at.

Worked example, c05: slots [5, 6, 7] on two ranks are row [3] of rank 0 and rows [2, 3] of rank 1;
the stride ``[0::2]`` would take slots 5 and 7 and give rows [2, 3] of rank 0.
"""

from collections.abc import Callable
from typing import Any

import pytest

from . import check_counts, check_rows
from .facts import CASES, Facts

CHECKS: dict[str, Callable[[Facts, Facts], None]] = {
    name.removeprefix("check_"): check
    for module in (check_rows, check_counts)
    for name, check in vars(module).items()
    if name.startswith("check_")
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    given, right = Facts(case["input"]), Facts(case["right"])
    CHECKS[case["kind"]](given, right)
    assert given.unread() == set(), "an input of the case that no assertion used"
    assert right.unread() == set(), "a fact of the case that no assertion used"


def test_every_kind_has_a_check_and_every_check_a_case() -> None:
    assert {case["kind"] for case in CASES} == set(CHECKS)


def test_every_id_is_there_once_and_none_is_left_out() -> None:
    assert [case["id"] for case in CASES] == [f"c{n:02}" for n in range(1, 34)]


def test_every_case_says_where_it_is_from_and_what_it_is_about() -> None:
    for case in CASES:
        assert case.keys() == {"id", "kind", "source", "note", "input", "right"}
        assert case["source"]
        assert case["note"]


def test_a_fact_that_nobody_reads_is_noticed() -> None:
    facts = Facts({"rows": 1, "owner": 2})
    assert facts["rows"] == 1
    assert facts.get("absent", 7) == 7
    assert facts.unread() == {"owner"}

"""Exercises of the notebooks: a spec, a cell to fill, ``show()``, ``check()``, ``solution()``.

    from kvlab.teach import exercise

    ex = exercise("owner-by-hand")     # at the end of a cell: shows what is asked for

    def rank_and_row(v, c):
        ...                            # fill this in

    ex.check(rank_and_row)             # fresh inputs each time; the first difference

``EXERCISES`` has all of them by name, in the order of the path; ``progress()`` says which were
passed in this kernel; ``quiz()`` asks ten questions.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kvlab.errors import KvlabError
from kvlab.teach.book import BOOK, Progress, Record, forget
from kvlab.teach.exercise import Check, Exercise
from kvlab.teach.path import ALL
from kvlab.teach.quiz import quiz

__all__ = [
    "EXERCISES",
    "Check",
    "Exercise",
    "exercise",
    "exercises_of",
    "forget",
    "progress",
    "quiz",
]

EXERCISES: Mapping[str, Exercise] = MappingProxyType({ex.name: ex for ex in ALL})


def exercise(name: str) -> Exercise:
    """The exercise of that name. Errors: KvlabError for a name that there is not."""
    if name not in EXERCISES:
        raise KvlabError(
            f"an exercise is named as in kvlab.teach.EXERCISES: got {name!r}, which is none of "
            f"{', '.join(EXERCISES)}"
        )
    return EXERCISES[name]


def exercises_of(notebook: str, *, core: bool = True) -> tuple[Exercise, ...]:
    """The exercises that a notebook (its stem) ends with; ``core=False``: the others too.

    Errors: KvlabError for a notebook without exercises.
    """
    found = [ex for ex in ALL if ex.notebook == notebook]
    if not found:
        known = sorted({ex.notebook for ex in ALL})
        raise KvlabError(f"a notebook is one of {', '.join(known)}: got {notebook!r}")
    return tuple(ex for ex in found if ex.core or not core)


def progress() -> Progress:
    """Which exercises were tried and passed in this process."""
    records = [(ex, BOOK.records.get(ex.name, Record())) for ex in ALL]
    return Progress(tuple((e.name, e.notebook, e.grade, r.checks, r.passed) for e, r in records))

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
from dataclasses import dataclass
from types import MappingProxyType

from kvlab.errors import KvlabError
from kvlab.teach.exercise import BOOK, Block, Check, Exercise, Record, Shown, table
from kvlab.teach.path import (
    n00_start,
    n01_spaces,
    n02_owners,
    n03_crash,
    n04_backup,
    n05_retraction,
    n06_drift,
    n07_cost,
)
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

_NOTEBOOKS = (
    *(n00_start, n01_spaces, n02_owners, n03_crash),
    *(n04_backup, n05_retraction, n06_drift, n07_cost),
)
#: By name; notebook by notebook, rising grades within each.
EXERCISES: Mapping[str, Exercise] = MappingProxyType(
    {ex.name: ex for notebook in _NOTEBOOKS for ex in notebook.ALL}
)


@dataclass(frozen=True, slots=True, repr=False)
class Progress(Shown):
    """Each line is an exercise (name, notebook, grade, checks, passed)."""

    lines: tuple[tuple[str, str, int, int, bool], ...]

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of the exercises that were passed in this process, in path order."""
        return tuple(line[0] for line in self.lines if line[4])

    def block(self) -> Block:
        """What is shown."""
        rows = [
            (notebook, name, grade, checks, "passed" if passed else "tried" if checks else "")
            for name, notebook, grade, checks, passed in self.lines
        ]
        title = f"{len(self.passed)} of {len(self.lines)} exercises passed in this kernel"
        return Block(
            title, (table("by notebook", ("notebook", "exercise", "grade", "checks", ""), rows),)
        )


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
    found = [ex for ex in EXERCISES.values() if ex.notebook == notebook]
    if not found:
        known = sorted({ex.notebook for ex in EXERCISES.values()})
        raise KvlabError(f"a notebook is one of {', '.join(known)}: got {notebook!r}")
    return tuple(ex for ex in found if ex.core or not core)


def progress() -> Progress:
    """Which exercises were tried and passed in this process."""
    tries = [(ex, BOOK.get(ex.name, Record())) for ex in EXERCISES.values()]
    return Progress(tuple((e.name, e.notebook, e.grade, r.checks, r.passed) for e, r in tries))


def forget() -> None:
    """Forget all tries, so that hints wait for a second failure again."""
    BOOK.clear()

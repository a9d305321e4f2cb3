"""Exercises of the notebooks: a task, a cell to fill, ``show()``, ``check()``, ``solution()``.

    from kvlab.teach import exercise

    exercise("owner-by-hand")                     # at the end of a cell: shows what is asked for
    exercise("owner-by-hand").check(rank_and_row) # fresh inputs each time; the first difference

``EXERCISES`` has all of them by name, in the order of the path; ``progress()`` says which were
passed in this kernel; ``quiz()`` asks ten questions.
"""

from kvlab.errors import KvlabError
from kvlab.teach.exercise import TRIES, Block, Check, Exercise, table
from kvlab.teach.path import EXERCISES
from kvlab.teach.quiz import quiz

__all__ = ["EXERCISES", "Check", "Exercise", "exercise", "progress", "quiz"]


def exercise(name: str) -> Exercise:
    """The exercise of that name. Errors: KvlabError for a name that there is not."""
    if name not in EXERCISES:
        raise KvlabError(
            f"an exercise is named as in kvlab.teach.EXERCISES: got {name!r}, which is none of "
            f"{', '.join(EXERCISES)}"
        )
    return EXERCISES[name]


def progress() -> Block:
    """Which exercises were tried and passed in this process."""
    rows, passed = [], 0
    for name, ex in EXERCISES.items():
        tries = TRIES.get(name, [])
        passed += any(tries)
        state = "passed" if any(tries) else "tried" if tries else ""
        rows.append((ex.notebook, name, ex.grade, len(tries), state))
    title = f"{passed} of {len(rows)} exercises passed in this kernel"
    heads = ("notebook", "exercise", "grade", "checks", "")
    return Block(title, (table("by notebook", heads, rows),))

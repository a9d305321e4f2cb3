"""What a reader has tried and passed in this process: the only state of ``kvlab.teach``.

``progress()`` shows it; ``forget()`` starts afresh.
"""

from dataclasses import dataclass, field

from kvlab.teach.display import Block, Table


@dataclass(slots=True)
class Record:
    """Tries of one exercise: how many were checked, how many of them failed, and if one passed."""

    checks: int = 0
    failures: int = 0
    passed: bool = False

    def note(self, passed: bool) -> None:
        """Count one check of a filled-in answer."""
        self.checks += 1
        self.failures += not passed
        self.passed = self.passed or passed


@dataclass(slots=True)
class Book:
    """The records by the name of the exercise."""

    records: dict[str, Record] = field(default_factory=dict)

    def of(self, name: str) -> Record:
        """The record of an exercise, made at its first use."""
        return self.records.setdefault(name, Record())


BOOK = Book()


@dataclass(frozen=True, slots=True)
class Progress:
    """A look at the book: each line is an exercise (name, notebook, grade, checks, passed)."""

    lines: tuple[tuple[str, str, int, int, bool], ...]

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of the exercises that were passed in this process, in path order."""
        return tuple(line[0] for line in self.lines if line[4])

    def block(self) -> Block:
        """What is shown."""
        rows = tuple(
            (notebook, name, grade, checks, "passed" if passed else "tried" if checks else "")
            for name, notebook, grade, checks, passed in self.lines
        )
        title = f"{len(self.passed)} of {len(self.lines)} exercises passed in this kernel"
        return Block(title, (Table(("notebook", "exercise", "grade", "checks", ""), rows),))

    def __repr__(self) -> str:
        return repr(self.block())

    def _repr_html_(self) -> str:
        return self.block()._repr_html_()


def forget() -> None:
    """Forget all tries, so that hints wait for a second failure again."""
    BOOK.records.clear()

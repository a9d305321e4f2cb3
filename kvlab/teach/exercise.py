"""An exercise: a spec in a cell, a small fresh example, a check on fresh inputs, a solution.

>>> from kvlab.teach import exercise
>>> exercise("owner-by-hand").check(lambda v, c: (v % c, v // c)).passed
True
"""

import inspect
import secrets
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvlab.teach.answers import plain as _plain
from kvlab.teach.book import BOOK
from kvlab.teach.checking import (
    TRIALS,
    Difference,
    Inputs,
    Make,
    Task,
    Verdict,
    first_difference,
    is_unfilled,
)
from kvlab.teach.display import Block, Code, Table, short

HINT_AT = 2
GRADES = {
    1: "by hand",
    2: "a rule",
    3: "a rule with a trap",
    4: "needs a plan",
    5: "find the bug",
}


@dataclass(frozen=True, slots=True)
class Check:
    """What came of one check: ``status`` is "passed", "wrong" or "unfilled".

    ``difference`` of a wrong answer, ``hint`` from the second failure on, ``seed`` to repeat it.
    """

    exercise: str
    status: str
    seed: int
    difference: Difference | None = None
    hint: str | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the answer was right on every input."""
        return self.status == "passed"

    def block(self) -> Block:
        """What is shown."""
        if self.status == "unfilled":
            return Block(f"{self.exercise}: not filled in yet", (self.note,))
        if self.status == "passed":
            return Block(
                f"{self.exercise}: passed, right on {TRIALS} fresh inputs", (f"seed {self.seed}",)
            )
        parts: list[str | Table | Code] = []
        if self.difference is not None:
            parts += _told(self.difference)
        if self.note:
            parts.append(self.note)
        if self.hint is not None:
            parts.append(f"Hint: {self.hint}")
            parts.append(f'The solution: exercise("{self.exercise}").solution()')
        parts.append(f"seed {self.seed}: check(yours, seed={self.seed}) repeats this check")
        return Block(f"{self.exercise}: not yet", tuple(parts))

    def __repr__(self) -> str:
        return repr(self.block())

    def _repr_html_(self) -> str:
        return self.block()._repr_html_()


def _told(found: Difference) -> list[str | Table | Code]:
    rows: list[tuple[object, ...]] = [*found.inputs.items(), ("yours", found.yours)]
    if found.spec is not None:
        rows.append(("spec", found.spec))
    parts: list[str | Table | Code] = [
        "The smallest input found for which it is wrong:",
        Table(("", "value"), tuple(rows)),
        f"{found.words[:1].upper()}{found.words[1:]}.",
    ]
    if found.printed:
        parts.append(Code(f"your code printed:\n{found.printed}"))
    return parts


@dataclass(frozen=True, slots=True, eq=False)
class Exercise:
    """One exercise of a notebook.

    Args:
        name: a slug, unique over the path.
        notebook: the stem of its notebook, for instance "01_two_index_spaces".
        grade: 1 (by hand) to 5 (find the bug).
        title, text: what is asked for; paragraphs are separated by an empty line.
        answer: the solution, in the form that the reader fills in; its signature is the spec's.
        example: the inputs of the worked example.
        make: draws an input of a size from 0 to 9.
        spec: the right answer, computed by the package where it can; for a *find* exercise None.
        judge: for a *find* exercise: what happens with an answer, and whether that was asked for.
        run: how an answer is brought to act when it is more than a call (a repaired method).
        hint: shown at the second failure.
        source: where the failure was reported, or the rule is stated; empty where nobody did.
        code: the class or function to look into, shown with the text.
        core: one of the two or three that the notebook ends with; others are for those who want
            more.
    """

    name: str
    notebook: str
    grade: int
    title: str
    text: str
    answer: Callable[..., object]
    example: Inputs
    make: Make
    hint: str
    spec: Callable[..., object] | None = None
    judge: Callable[..., Verdict] | None = None
    run: Callable[..., object] | None = None
    source: str = ""
    code: tuple[type, ...] = ()
    core: bool = True

    @property
    def task(self) -> Task:
        """What is checked."""
        return Task(self.make, self.spec or self.answer, self.judge, self.run)

    @property
    def signature(self) -> str:
        """The first line of the function to fill in."""
        names = ", ".join(inspect.signature(self.answer).parameters)
        return f"def {self.answer.__name__}({names}):"

    def block(self) -> Block:
        """The spec as it is shown in a cell."""
        told = textwrap.dedent(self.text).strip().split("\n\n")
        parts: list[str | Table | Code] = [" ".join(part.split()) for part in told]
        if self.source:
            parts.append(f"Source: {self.source}.")
        parts += [Code(_source(thing)) for thing in self.code]
        parts.append(self._example())
        parts.append(f'A few small fresh examples: exercise("{self.name}").show()')
        check = f'exercise("{self.name}").check({self.answer.__name__})'
        parts.append(Code(f"{self.signature}\n    ...\n\n\n{check}"))
        title = f"{self.title} (grade {self.grade} of 5: {GRADES[self.grade]}; {self.notebook})"
        return Block(title, tuple(parts))

    def __repr__(self) -> str:
        return repr(self.block())

    def _repr_html_(self) -> str:
        return self.block()._repr_html_()

    def show(self, yours: Callable[..., object] | None = None, *, seed: int | None = None) -> Block:
        """A few small fresh inputs with the spec's answers, and yours beside them.

        Never raises for a wrong or crashing answer; ``seed`` repeats the same inputs.
        """
        seed = secrets.randbits(32) if seed is None else int(seed)
        task = replace(self.task, seconds=min(self.task.seconds, 2.0))  # inputs are small
        given = yours if callable(yours) and not is_unfilled(task, yours, seed) else None
        rows: list[tuple[object, ...]] = []
        heads: tuple[str, ...] = ()
        for number in range(4):
            inputs = task.inputs(f"{seed} shown", number, min(number, 2))
            heads = tuple(inputs)
            right = _plain(task.answer(self.answer, inputs))
            if self.judge is None:
                cells: tuple[object, ...] = (task.expected(inputs),)
            else:
                cells = (right, task.verdict(right, inputs).words) if given is None else ()
            if given is not None:
                found = task.compare(given, inputs)
                cells += self._beside(given, inputs, found)
            rows.append((*inputs.values(), *cells))
        answers: tuple[str, ...] = ("spec",)
        if self.judge is not None:
            answers = ("one answer", "what happens")
        if given is not None:
            answers = ("spec", "yours", "") if self.judge is None else ("yours", "what happens")
        title = f"{self.title}: a fresh example, seed {seed}"
        return Block(title, (Table((*heads, *answers), tuple(rows)),))

    def check(self, yours: object = None, *, seed: int | None = None) -> Check:
        """Try ``yours`` on fresh inputs, from small to large; ``seed`` repeats a check.

        Never raises for a wrong answer: an exception of its code is shown as the difference.
        """
        seed = secrets.randbits(32) if seed is None else int(seed)
        if is_unfilled(self.task, yours, seed):
            note = f"Replace the ... in {self.signature}"
            return Check(self.name, "unfilled", seed, note=note)
        record = BOOK.of(self.name)
        found, note = None, ""
        if callable(yours):
            found = first_difference(self.task, yours, seed)
        else:
            note = (
                f"An answer is a function, {self.signature} ..., so that it can be tried on fresh "
                f"inputs; this is {short(yours)[:60]} ({type(yours).__name__}). Pass the function "
                f"by its name, without parentheses."
            )
        passed = found is None and not note
        record.note(passed)
        if passed:
            return Check(self.name, "passed", seed)
        hint = self.hint if record.failures >= HINT_AT else None
        return Check(self.name, "wrong", seed, found, hint, note)

    def solution(self) -> Code:
        """The source of the solution."""
        return Code(_source(self.answer))

    def example_answer(self) -> object:
        """The answer of the worked example, computed."""
        if self.judge is None:
            return self.task.expected(self.example)
        return self.task.answer(self.answer, self.example)

    def _example(self) -> str:
        given = ", ".join(f"{name}={short(value)}" for name, value in self.example.items())
        right = self.example_answer()
        told = f"Example: {given} -> {short(right)}"
        if self.judge is not None:
            told += f", for one. {self.task.verdict(_plain(right), self.example).words}"
        return told

    def _beside(
        self, yours: Callable[..., object], inputs: Inputs, found: Difference | None
    ) -> tuple[object, ...]:
        if self.judge is None:
            if found is None:
                return self.task.expected(inputs), "same"
            return found.yours, "differs"
        if found is not None:
            return found.yours, found.words
        answer = _plain(self.task.answer(yours, inputs))
        return answer, self.task.verdict(answer, inputs).words


def _source(thing: Callable[..., object]) -> str:
    return textwrap.dedent(inspect.getsource(thing)).rstrip()

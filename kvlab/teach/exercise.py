"""An exercise: a spec in a cell, a small fresh example, a check on fresh inputs, a solution.

Inputs are drawn by ``make(rng, size)`` for sizes 0 (redone by hand) to 9 (too many to remember).
When one fails, more small ones are tried, and the failing one with the smallest numbers is shown.
The reader's code gets copies, is called by position, runs quietly and for a bounded time, and
whatever it raises is a difference.

>>> from kvlab.teach import exercise
>>> exercise("owner-by-hand").check(lambda v, c: (v % c, v // c)).passed
True
"""

import contextlib
import copy
import dis
import inspect
import io
import re
import secrets
import signal
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from random import Random

import torch

from kvlab.show import Table
from kvlab.teach.answers import NotPlain, Plain, cut, difference, plain, short

TRIALS, SIZES, SMALLER = 100, 10, 150
HINT_AT = 2
SECONDS, WHOLE = 10.0, 60.0  # of one call, of one check
AGAIN, KEPT = 0.2, 2000
GRADES = {
    1: "by hand",
    2: "a rule",
    3: "a rule with a trap",
    4: "needs a plan",
    5: "find the bug",
}
_BOX = "border-left:3px solid currentColor;padding:0.1em 0 0.1em 0.8em;margin:0.4em 0"
_CODE = (
    "white-space:pre-wrap;font-family:monospace;margin:0.8em 0;background:transparent;color:inherit"
)

Inputs = dict[str, object]
Make = Callable[[Random, int], Inputs]


@dataclass(frozen=True, slots=True, repr=False)
class Code:
    """Python source, as it is."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<pre style="{_CODE}">{escape(self.text)}</pre>'


Part = str | Table | Code


@dataclass(frozen=True, slots=True, repr=False)
class Block:
    """What a cell shows: a title above words, tables and code, as text and as HTML."""

    title: str
    parts: Sequence[Part] = ()

    def __repr__(self) -> str:
        inside = "\n".join(map(str, self.parts))
        indented = "\n".join(f"  {line}".rstrip() for line in inside.splitlines())
        return f"{self.title}\n{indented}" if indented else self.title

    def _repr_html_(self) -> str:
        inside = "".join(map(_html, self.parts))
        return f'<div style="{_BOX}"><p><strong>{escape(self.title)}</strong></p>{inside}</div>'


def _html(part: Part) -> str:
    if isinstance(part, str):  # what stands between backticks is code
        return "<p>" + re.sub("`([^`]+)`", r"<code>\1</code>", escape(part)) + "</p>"
    return part.html() if isinstance(part, Table) else part._repr_html_()


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Rows of values below their heads, each value on one line."""
    lines = [tuple(heads), *(tuple(map(short, row)) for row in rows)]
    return Table(caption, tuple(lines), headed=True)


class Shown:
    """A value that a cell shows as its block."""

    __slots__ = ()

    def block(self) -> Block:
        """What is shown."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(self.block())

    def _repr_html_(self) -> str:
        return self.block()._repr_html_()


@dataclass(slots=True)
class Record:
    """Tries of one exercise: how many were checked, how many of them failed, and if one passed."""

    checks: int = 0
    failures: int = 0
    passed: bool = False


#: What a reader has tried in this process, by the name of the exercise: the only state here.
BOOK: dict[str, Record] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens with an answer to a *find* exercise, and if that is what was asked for."""

    right: bool
    words: str


@dataclass(frozen=True, slots=True)
class Difference:
    """An input for which an answer is wrong: the input, both answers, the difference in words.

    ``yours`` is plain, or the error as text when ``crashed``. ``printed``: what the call printed.
    """

    inputs: Mapping[str, object]
    yours: Plain
    spec: Plain
    words: str
    crashed: bool = False
    printed: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class Check(Shown):
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
        if self.passed:
            title = f"{self.exercise}: passed, right on {TRIALS} fresh inputs"
            return Block(title, (f"seed {self.seed}",))
        parts: list[Part] = []
        if self.difference is not None:
            found = self.difference
            rows = [*found.inputs.items(), ("yours", found.yours)]
            rows += [("spec", found.spec)] if found.spec is not None else []
            caption = "The smallest input found for which it is wrong:"
            parts.append(table(caption, ("", "value"), rows))
            parts.append(f"{found.words[:1].upper()}{found.words[1:]}.")
            parts += [Code(f"your code printed:\n{found.printed}")] if found.printed else []
        parts += [self.note] if self.note else []
        if self.hint is not None:
            parts.append(f"Hint: {self.hint}")
            parts.append(f'The solution: exercise("{self.exercise}").solution()')
        parts.append(f"seed {self.seed}: check(yours, seed={self.seed}) repeats this check")
        return Block(f"{self.exercise}: not yet", parts)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Exercise(Shown):
    """One exercise of a notebook.

    Args:
        name: a slug, unique over the path.
        notebook: the stem of its notebook, for instance "01_two_index_spaces".
        grade: 1 (by hand) to 5 (find the bug).
        title, text: what is asked for; paragraphs are separated by an empty line.
        answer: the solution, in the form that the reader fills in; its signature is the spec's.
        example: the inputs of the worked example.
        make: draws an input of a size from 0 to 9.
        hint: shown at the second failure.
        spec: the right answer, computed by the package where it can; None takes ``answer``.
        judge: for a *find* exercise: what happens with an answer, and whether that was asked for.
        run: how an answer is brought to act when it is more than a call (a repaired method).
        source: where the failure was reported, or the rule is stated; empty where nobody did.
        code: the classes to look into, shown with the text.
        core: one of the two or three that the notebook ends with.
        seconds, whole: how long one call and one check may take.
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
    seconds: float = SECONDS
    whole: float = WHOLE

    @property
    def signature(self) -> str:
        """The first line of the function to fill in."""
        names = ", ".join(inspect.signature(self.answer).parameters)
        return f"def {self.answer.__name__}({names}):"

    def block(self) -> Block:
        """The spec as it is shown in a cell."""
        told = textwrap.dedent(self.text).strip().split("\n\n")
        parts: list[Part] = [" ".join(part.split()) for part in told]
        parts += [f"Source: {self.source}."] if self.source else []
        parts += [Code(_source(thing)) for thing in self.code]
        given = ", ".join(f"{name}={short(value)}" for name, value in self.example.items())
        right = self.example_answer()
        example = f"Example: {given} -> {short(right)}"
        if self.judge is not None:
            example += f", for one. {self.verdict(plain(right), self.example).words}"
        parts.append(example)
        parts.append(f'A few small fresh examples: exercise("{self.name}").show()')
        check = f'exercise("{self.name}").check({self.answer.__name__})'
        parts.append(Code(f"{self.signature}\n    ...\n\n\n{check}"))
        title = f"{self.title} (grade {self.grade} of 5: {GRADES[self.grade]}; {self.notebook})"
        return Block(title, parts)

    def show(self, yours: Callable[..., object] | None = None, *, seed: int | None = None) -> Block:
        """A few small fresh inputs with the spec's answers, and yours beside them.

        Never raises for a wrong or crashing answer; ``seed`` repeats the same inputs.
        """
        seed = secrets.randbits(32) if seed is None else int(seed)
        quick = replace(self, seconds=min(self.seconds, 2.0))  # inputs are small
        given = yours if callable(yours) and not is_unfilled(quick, yours, seed) else None
        heads: tuple[str, ...] = ("spec",) if self.judge is None else ("one answer", "what happens")
        if given is not None:
            heads = ("spec", "yours", "") if self.judge is None else ("yours", "what happens")
        rows = []
        for number in range(4):
            inputs = quick.inputs(f"{seed} shown", number, min(number, 2))
            found = None if given is None else quick.compare(given, inputs)
            cells: list[object] = [quick.expected(inputs)] if self.judge is None else []
            if found is not None:
                cells += [found.yours, "differs" if self.judge is None else found.words]
            elif self.judge is None:
                cells += [] if given is None else [cells[0], "same"]
            else:
                answer = plain(quick.answered(given or self.answer, inputs))
                cells += [answer, quick.verdict(answer, inputs).words]
            rows.append((*inputs.values(), *cells))
        title = f"{self.title}: a fresh example, seed {seed}"
        return Block(title, (table("small inputs", (*inputs, *heads), rows),))

    def check(self, yours: object = None, *, seed: int | None = None) -> Check:
        """Try ``yours`` on fresh inputs, from small to large; ``seed`` repeats a check.

        Never raises for a wrong answer: an exception of its code is shown as the difference.
        """
        seed = secrets.randbits(32) if seed is None else int(seed)
        if is_unfilled(self, yours, seed):
            note = f"Replace the ... in {self.signature}"
            return Check(self.name, "unfilled", seed, note=note)
        found, note = None, ""
        if callable(yours):
            found = first_difference(self, yours, seed)
        else:
            note = (
                f"An answer is a function, {self.signature} ..., so that it can be tried on fresh "
                f"inputs; this is {short(yours)[:60]} ({type(yours).__name__}). Pass the function "
                f"by its name, without parentheses."
            )
        record = BOOK.setdefault(self.name, Record())
        passed = found is None and not note
        record.checks += 1
        record.failures += not passed
        record.passed |= passed
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
            return self.expected(self.example)
        return self.answered(self.answer, self.example)

    def inputs(self, seed: int | str, number: int, size: int) -> Inputs:
        """The input of that number and size, always the same for one seed."""
        return self.make(Random(f"{seed}/{number}/{size}"), size)

    def answered(self, yours: Callable[..., object], inputs: Inputs) -> object:
        """What ``yours`` answers to copies of the inputs."""
        given = copy.deepcopy(list(inputs.values()))
        return yours(*given) if self.run is None else self.run(yours, *given)

    def expected(self, inputs: Inputs) -> Plain:
        """What the spec says."""
        return plain((self.spec or self.answer)(*copy.deepcopy(list(inputs.values()))))

    def verdict(self, answer: Plain, inputs: Inputs) -> Verdict:
        """What happens with an answer, and if it is right."""
        if self.judge is None:
            words = difference(answer, self.expected(inputs))
            return Verdict(words is None, words or "as the spec says")
        try:
            return self.judge(answer, *copy.deepcopy(list(inputs.values())))
        except Exception as error:
            # An answer that no judge foresaw, for instance a list where a number is meant.
            return Verdict(False, f"this answer cannot be tried: {type(error).__name__}: {error}")

    def compare(self, yours: Callable[..., object], inputs: Inputs) -> Difference | None:
        """The difference for one input, None when the answer is right."""
        said, answer, crashed = Tail(), None, True
        try:
            with bounded(self.seconds) as said:
                answer = plain(self.answered(yours, inputs))
                # Within the bound: some answers would keep a judge busy for hours.
                verdict = self.verdict(answer, inputs)
            if verdict.right:
                return None
            words, crashed = verdict.words, False
        except NotPlain as error:
            answer, words, crashed = str(error), str(error), False
        except OutOfTime:
            answer = f"not ended after {self.seconds:g} s"
            words = f"your code had {answer}"
        except KeyboardInterrupt:
            raise  # the reader stops the check
        except BaseException as error:
            answer = _told(error)
            words = f"your code raised {answer}"
        spec = self.expected(inputs) if self.judge is None else None
        return Difference(inputs, answer, spec, words, crashed, said.text)


def first_difference(ex: Exercise, yours: Callable[..., object], seed: int) -> Difference | None:
    """The smallest failing input found, or None when all ``TRIALS`` inputs are right.

    Code that needs longer than ``ex.whole`` for all of them has not passed either.
    """
    end = time.monotonic() + ex.whole
    for number in range(TRIALS):
        size = number * SIZES // TRIALS
        inputs = ex.inputs(seed, number, size)
        found = ex.compare(yours, inputs)
        if found is not None:
            break
        if time.monotonic() > end:
            text = f"{number + 1} of {TRIALS} inputs took {ex.whole:g} s"
            return Difference(inputs, text, None, f"your code is right, and too slow: {text}", True)
    if found is None or found.yours == f"not ended after {ex.seconds:g} s":
        return found  # others would not end either
    for number in range(SMALLER):
        inputs = ex.inputs(f"{seed} smaller", number, number % (size + 1) // 2)
        if weight(inputs) < weight(found.inputs) and time.monotonic() < end:
            found = ex.compare(yours, inputs) or found
    return found


def weight(inputs: Mapping[str, object]) -> float:
    """How hard an input is to redo by hand: the sum of its numbers, and ten for each value."""

    def of(value: object) -> float:
        if isinstance(value, torch.Tensor):
            value = value.tolist()
        if isinstance(value, list | tuple):
            return sum(10 + of(item) for item in value)
        return min(abs(value), 1e12) if isinstance(value, int | float) and value == value else 1.0

    return sum(map(of, inputs.values()))


def is_unfilled(ex: Exercise, yours: object, seed: int) -> bool:
    """Whether there is no answer yet: ``...``, None, a body of ``...``, or always None."""
    if yours is None or yours is ...:
        return True
    if not callable(yours) or isinstance(yours, type):
        return False
    if _is_stub(yours) or ex.run is not None:
        return _is_stub(yours)
    for number in range(3):
        try:
            with bounded(min(ex.seconds, 2.0)):
                answer = ex.answered(yours, ex.inputs(seed, number, 0))
        except KeyboardInterrupt:
            raise
        except BaseException:
            return False
        if answer is not None and answer is not ...:
            return False
    return True


def _is_stub(yours: object) -> bool:
    code = getattr(yours, "__code__", None)
    quiet = ("RESUME", "NOP", "POP_TOP", "RETURN_VALUE", "CACHE")
    return code is not None and all(
        step.opname in quiet
        or (step.opname in ("LOAD_CONST", "RETURN_CONST") and step.argval in (None, ...))
        for step in dis.get_instructions(code)
    )


def _told(error: BaseException) -> str:
    """The error and the line of the reader's code that raised it."""
    try:
        text = cut(f"{type(error).__name__}: {error}".rstrip(": "))
    except Exception:  # the error's own __str__ fails
        text = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    others = (str(Path(__file__).parent), "site-packages")
    mine = [f for f in frames if not any(other in f.filename for other in others)]
    if mine and mine[-1].line:
        text += f" (line {mine[-1].lineno}: {mine[-1].line.strip()})"
    return text


def _source(thing: Callable[..., object]) -> str:
    return textwrap.dedent(inspect.getsource(thing)).rstrip()


class Tail(io.TextIOBase):
    """Keeps the last ``KEPT`` letters of what is written: an endless loop may print, too."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        """Take ``text`` in."""
        self.text = (self.text + text[-KEPT:])[-KEPT:]
        return len(text)


class OutOfTime(BaseException):
    """The reader's code ran longer than it may. No Exception, so that no ``except`` keeps it."""


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[Tail]:
    """Collect the end of what is printed, and raise OutOfTime after ``seconds``.

    It is raised again until the code ends, since a bare ``except`` in a loop swallows the first.
    Without interval timers, and outside of the main thread, there is no bound.
    """
    said = Tail()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        main = threading.current_thread() is threading.main_thread()
        if not main or not hasattr(signal, "setitimer"):
            yield said
            return
        before = signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        try:
            yield said
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _stop(*_: object) -> None:
    raise OutOfTime

"""An exercise: a task in a cell, small examples, a check on fresh inputs, a solution.

Its rule is a function of the package's own, whose docstring is the task. The reader's code gets
copies, is called by position, runs quietly and for a bounded time; what it raises is a difference.

>>> from kvlab.teach import exercise
>>> exercise("owner-by-hand").check(lambda v, c: (v % c, v // c)).passed
True
"""

import contextlib
import copy
import inspect
import io
import re
import secrets
import signal
import textwrap
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from kvlab.show import Table
from kvlab.teach.answers import NotPlain, Plain, cut, difference, plain, short
from kvlab.teach.draw import Draw, Inputs

TRIALS, SIZES, SMALLER = 100, 10, 150
HINT_AT = 2
SECONDS, WHOLE = 10.0, 60.0  # of one call, of one check
AGAIN, KEPT = 0.2, 2000
GRADES = ("by hand", "a rule", "a rule with a trap", "needs a plan", "find the bug")
_BOX = "border-left:3px solid currentColor;padding:0.1em 0 0.1em 0.8em;margin:0.4em 0"
_CODE = (
    "white-space:pre-wrap;font-family:monospace;margin:0.8em 0;background:transparent;color:inherit"
)

#: What a reader has tried in this process: by exercise, whether each check passed.
TRIES: dict[str, list[bool]] = defaultdict(list)


class Code(str):
    """Python source, shown as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f'<pre style="{_CODE}">{escape(self)}</pre>'


Part = str | Code | Table


class Shown:
    """What a cell shows: a title above words, tables and code, as text and as HTML."""

    __slots__ = ()

    def block(self) -> tuple[str, Sequence[Part]]:
        """The title and the parts below it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, parts = self.block()
        inside = "\n".join(map(str, parts)).splitlines()
        return "\n".join([title, *(f"  {line}".rstrip() for line in inside)])

    def _repr_html_(self) -> str:
        title, parts = self.block()
        inside = "".join(map(_html, parts))
        return f'<div style="{_BOX}"><p><strong>{escape(title)}</strong></p>{inside}</div>'


@dataclass(frozen=True, slots=True, repr=False)
class Block(Shown):
    """A title and the parts below it."""

    title: str
    parts: Sequence[Part] = ()

    def block(self) -> tuple[str, Sequence[Part]]:
        """Both."""
        return self.title, self.parts


def _html(part: Part) -> str:
    if isinstance(part, Table):
        return part.html()
    if isinstance(part, Code):
        return part._repr_html_()
    # What stands between backticks is code.
    return "<p>" + re.sub("`([^`]+)`", r"<code>\1</code>", escape(part)) + "</p>"


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Rows of values below their heads, each value on one line."""
    return Table(caption, (tuple(heads), *(tuple(map(short, row)) for row in rows)), headed=True)


@dataclass(frozen=True, slots=True)
class Trial:
    """One input: ``yours`` (plain, or as text what went wrong), what came of it, the spec's."""

    inputs: dict[str, object]
    yours: Plain
    words: str
    right: bool = False
    spec: Plain = None
    printed: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Check(Shown):
    """What came of one check: ``status`` is "passed", "wrong" or "unfilled".

    ``difference`` of a wrong answer, ``hint`` from the second failure on, ``seed`` to repeat it.
    """

    exercise: str
    status: str
    seed: int
    difference: Trial | None = None
    hint: str | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the answer was right on every input."""
        return self.status == "passed"

    def block(self) -> tuple[str, Sequence[Part]]:
        """What is shown."""
        if self.status == "unfilled":
            return f"{self.exercise}: not filled in yet", [self.note]
        if self.passed:
            title = f"{self.exercise}: passed, right on {TRIALS} fresh inputs"
            return title, [f"seed {self.seed}"]
        parts: list[Part] = [self.note] if self.note else []
        found = self.difference
        if found is not None:
            rows = [*found.inputs.items(), ("yours", found.yours)]
            rows += [] if found.spec is None else [("spec", found.spec)]
            caption = "The smallest input found for which it is wrong:"
            parts.append(table(caption, ("", "value"), rows))
            parts.append(f"{found.words[:1].upper()}{found.words[1:]}.")
            parts += [Code(f"your code printed:\n{found.printed}")] if found.printed else []
        if self.hint is not None:
            parts.append(self.hint)
            parts.append(f'The solution: exercise("{self.exercise}").solution()')
        parts.append(f"seed {self.seed}: check(yours, seed={self.seed}) repeats this check")
        return f"{self.exercise}: not yet", parts


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Exercise(Shown):
    """One exercise of a notebook."""

    #: What is right; for ``find``, what happens with an answer (else Miss). Its name is that of the
    #: exercise, its parameters the inputs, its docstring the title, the task, the hint, the source.
    rule: Callable[..., object]
    grade: int  #: 1 (by hand) to 5 (find the bug)
    answer: Callable[..., object]  #: the solution, in the form that the reader fills in
    example: Inputs
    make: Callable[[Draw], Inputs]  #: draws inputs of a size from 0 to 9
    code: tuple[type, ...] = ()  #: classes to look into, shown with the text
    core: bool = True  #: one of the two or three that the notebook ends with
    find: bool = False  #: many answers are right; the rule takes one as its first parameter
    run: Callable[..., object] | None = None  #: brings a repaired method to act
    seconds: float = SECONDS  #: of one call

    @property
    def name(self) -> str:
        """A slug, unique over the path."""
        return self.rule.__name__.replace("_", "-")

    @property
    def notebook(self) -> str:
        """The stem of its notebook, for instance "01_two_index_spaces"."""
        return self.rule.__module__.rpartition(".n")[2]

    @property
    def told(self) -> list[str]:
        """The title, the paragraphs of the task, the hint, each on one line."""
        text = inspect.getdoc(self.rule) or ""
        title, *paragraphs = re.split(r"\n\n|\n(?=Hint: |Source: )", text)
        return [title.rstrip("."), *(" ".join(text.split()) for text in paragraphs)]

    @property
    def hint(self) -> str:
        """What is shown at the second failure."""
        return next(text for text in self.told if text.startswith("Hint: "))

    @property
    def signature(self) -> str:
        """The first line of the function to fill in."""
        names = ", ".join(inspect.signature(self.answer).parameters)
        return f"def {self.answer.__name__}({names}):"

    def block(self) -> tuple[str, Sequence[Part]]:
        """The task as it is shown in a cell."""
        title, *told = self.told
        example = self.named(self.example)
        given = ", ".join(f"{name}={short(value)}" for name, value in example.items())
        right = self.tried(self.answer, example)
        happens = f", for one. {right.words}" if self.find else ""
        check = f'exercise("{self.name}").check({self.answer.__name__})'
        parts: list[Part] = [text for text in told if text != self.hint]
        parts += map(_source, self.code)
        parts.append(f"Example: {given} -> {short(right.yours)}{happens}")
        parts.append(f'A few small fresh examples: exercise("{self.name}").show()')
        parts.append(Code(f"{self.signature}\n    ...\n\n\n{check}"))
        grade = f"grade {self.grade} of 5: {GRADES[self.grade - 1]}"
        return f"{title} ({grade}; {self.notebook})", parts

    def show(self, yours: object = None, *, seed: int | None = None) -> Block:
        """A few small fresh inputs with the spec's answers, and yours beside them.

        Never raises for a wrong or crashing answer; ``seed`` repeats the same inputs.
        """
        seed = secrets.randbits(32) if seed is None else int(seed)
        quick = replace(self, seconds=min(self.seconds, 2.0))  # inputs are small
        given = yours if callable(yours) and not quick.is_unfilled(yours, seed) else None
        heads = [] if self.find else ["spec"]
        if given is not None or self.find:
            heads += ["one answer" if given is None else "yours", "what happens"]
        rows, inputs = [], self.named(self.example)
        for number in range(4):
            inputs = self.inputs(f"{seed} shown", number, min(number, 2))
            tried = quick.tried(given or self.answer, inputs)
            cells = [] if self.find else [self.expected(inputs)]
            rows.append((*inputs.values(), *[*cells, tried.yours, tried.words][: len(heads)]))
        title = f"{self.told[0]}: a fresh example, seed {seed}"
        return Block(title, (table("small inputs", (*inputs, *heads), rows),))

    def check(self, yours: object = None, *, seed: int | None = None) -> Check:
        """Try ``yours`` on fresh inputs, from small to large; ``seed`` repeats a check.

        Never raises for a wrong answer: an exception of its code is shown as the difference.
        """
        seed = secrets.randbits(32) if seed is None else int(seed)
        if self.is_unfilled(yours, seed):
            note = f"Replace the ... in {self.signature}"
            return Check(self.name, "unfilled", seed, note=note)
        found, note = None, ""
        if callable(yours):
            found = self.first_difference(yours, seed)
        else:
            note = (
                f"An answer is a function, {self.signature} ..., so that it can be tried on fresh "
                f"inputs; this is {short(yours)[:60]} ({type(yours).__name__}). Pass the function "
                f"by its name, without parentheses."
            )
        tries = TRIES[self.name]
        tries.append(found is None and not note)
        if tries[-1]:
            return Check(self.name, "passed", seed)
        hint = self.hint if tries.count(False) >= HINT_AT else None
        return Check(self.name, "wrong", seed, found, hint, note)

    def solution(self) -> Code:
        """The source of the solution."""
        return _source(self.answer)

    def named(self, values: tuple[object, ...]) -> dict[str, object]:
        """Inputs by the names that the task gives them."""
        names = [
            n for n, p in inspect.signature(self.rule).parameters.items() if p.default is p.empty
        ]
        return dict(zip(names[self.find :], values, strict=True))

    def inputs(self, seed: int | str, number: int, size: int) -> dict[str, object]:
        """The input of that number and size, always the same for one seed."""
        return self.named(self.make(Draw(f"{seed}/{number}/{size}", size)))

    def expected(self, inputs: dict[str, object]) -> Plain:
        """What the spec says."""
        return plain(self.rule(*copy.deepcopy(list(inputs.values()))))

    def tried(self, yours: Callable[..., object], inputs: dict[str, object]) -> Trial:
        """What ``yours`` answers to copies of the inputs, and what comes of it."""
        said, right, spec = Tail(), False, None
        given = copy.deepcopy(list(inputs.values()))
        try:
            with bounded(self.seconds) as said:
                answer = plain(yours(*given) if self.run is None else self.run(yours, *given))
                # Within the bound: some answers would keep a rule busy for hours.
                right, words = self.judged(answer, inputs)
        except NotPlain as error:
            answer = words = str(error)
        except OutOfTime:
            answer = f"not ended after {self.seconds:g} s"
            words = f"your code had {answer}"
        except KeyboardInterrupt:
            raise  # the reader stops the check
        except BaseException as error:
            answer = _told(error)
            words = f"your code raised {answer}"
        if not right and not self.find:
            spec = self.expected(inputs)
        return Trial(inputs, answer, words, right, spec, said.text)

    def judged(self, answer: Plain, inputs: dict[str, object]) -> tuple[bool, str]:
        """Whether an answer is right, and what happens with it."""
        if not self.find:
            words = difference(answer, self.expected(inputs))
            return words is None, words or "same"
        try:
            return True, str(self.rule(answer, *copy.deepcopy(list(inputs.values()))))
        except Miss as miss:
            return False, str(miss)
        except Exception as error:
            # An answer that no rule foresaw, for instance a list where a number is meant.
            return False, f"this answer cannot be tried: {type(error).__name__}: {error}"

    def first_difference(self, yours: Callable[..., object], seed: int) -> Trial | None:
        """The smallest failing input found, or None when all ``TRIALS`` inputs are right."""
        end = time.monotonic() + WHOLE
        for number in range(TRIALS):
            size = number * SIZES // TRIALS
            found = self.tried(yours, self.inputs(seed, number, size))
            if not found.right:
                break
            if time.monotonic() > end:
                text = f"{number + 1} of {TRIALS} inputs took {WHOLE:g} s"
                return Trial(found.inputs, text, f"your code is right, and too slow: {text}")
        else:
            return None
        if found.yours == f"not ended after {self.seconds:g} s":
            return found  # others would not end either
        for number in range(SMALLER):
            inputs = self.inputs(f"{seed} smaller", number, number % (size + 1) // 2)
            if weight(inputs) < weight(found.inputs) and time.monotonic() < end:
                smaller = self.tried(yours, inputs)
                found = found if smaller.right else smaller
        return found

    def is_unfilled(self, yours: object, seed: int) -> bool:
        """Whether there is no answer yet: ``...``, None, or a function that gives nothing."""
        if yours is None or yours is ...:
            return True
        if not callable(yours):
            return False
        if self.run is not None:  # a method gives nothing, and its body must name something
            code = getattr(yours, "__code__", None)
            return code is not None and not code.co_names + code.co_freevars
        quick = replace(self, seconds=min(self.seconds, 2.0))
        return all(quick.tried(yours, self.inputs(seed, n, 0)).yours is None for n in range(3))


def task(**given: Any) -> Callable[[Callable[..., object]], Exercise]:
    """Make the rule below it an exercise; the arguments are those of ``Exercise``."""
    return lambda rule: Exercise(rule, **given)


class Miss(Exception):
    """What happens with an answer that is not what a *find* exercise asks for, in words."""


def need(holds: bool, words: str) -> None:
    """Refuse an answer, in words, unless ``holds``."""
    if not holds:
        raise Miss(words)


def whole(values: Any, words: str) -> list[int]:
    """``values`` if it is a list of whole numbers; else it is refused."""
    need(isinstance(values, list) and all(type(x) is int for x in values), words)
    return list(values)


def whole_number(value: object, noun: str) -> int:
    """``value`` if it is a whole number; else it is refused."""
    need(type(value) is int, f"{value!r} is no {noun}: one whole number is meant")
    return value  # type: ignore[return-value]


def weight(inputs: dict[str, object]) -> tuple[int, str]:
    """How hard an input is to redo by hand: the length of its text, then its digits."""
    text = repr(list(inputs.values()))
    return len(text), text


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


def _source(thing: Callable[..., object]) -> Code:
    return Code(textwrap.dedent(inspect.getsource(thing)).rstrip())


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

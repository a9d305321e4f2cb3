"""One check of an answer: fresh inputs from small to large, the smallest failing one kept.

Inputs are drawn by ``make(rng, size)`` for sizes 0 (redone by hand) to 9 (too many to remember).
When one fails, more small ones are tried, and the failing one with the smallest numbers is shown.
The reader's code gets copies, is called by position, and whatever it raises is a difference.
"""

import copy
import dis
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch

from kvlab.teach.answers import NotPlain, Plain, difference, plain
from kvlab.teach.display import cut
from kvlab.teach.limits import SECONDS, OutOfTime, Tail, bounded

TRIALS, SIZES, SMALLER = 100, 10, 150
WHOLE = 60.0  # seconds of one check

Inputs = dict[str, object]
Make = Callable[[Random, int], Inputs]


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


@dataclass(frozen=True, slots=True)
class Task:
    """What is checked. ``run(yours, *inputs)`` gives the answer, which ``judge`` (a *find*
    exercise) or equality with ``spec(*inputs)`` decides; a call may take ``seconds``, a check
    ``whole``."""

    make: Make
    spec: Callable[..., object]
    judge: Callable[..., Verdict] | None = None
    run: Callable[..., object] | None = None
    seconds: float = SECONDS
    whole: float = WHOLE

    def inputs(self, seed: int | str, number: int, size: int) -> Inputs:
        """The input of that number and size, always the same for one seed."""
        return self.make(Random(f"{seed}/{number}/{size}"), size)

    def answer(self, yours: Callable[..., object], inputs: Inputs) -> object:
        """What ``yours`` answers to copies of the inputs."""
        given = [copy.deepcopy(value) for value in inputs.values()]
        return yours(*given) if self.run is None else self.run(yours, *given)

    def expected(self, inputs: Inputs) -> Plain:
        """What the spec says."""
        return plain(self.spec(*(copy.deepcopy(value) for value in inputs.values())))

    def verdict(self, answer: Plain, inputs: Inputs) -> Verdict:
        """What happens with an answer, and if it is right."""
        given = [copy.deepcopy(value) for value in inputs.values()]
        if self.judge is None:
            words = difference(answer, self.expected(inputs))
            return Verdict(words is None, words or "as the spec says")
        try:
            return self.judge(answer, *given)
        except Exception as error:
            # An answer that no judge foresaw, for instance a list where a number is meant.
            return Verdict(False, f"this answer cannot be tried: {type(error).__name__}: {error}")

    def compare(self, yours: Callable[..., object], inputs: Inputs) -> Difference | None:
        """The difference for one input, None when the answer is right."""
        said = Tail()
        try:
            with bounded(self.seconds) as said:
                answer = plain(self.answer(yours, inputs))
                # Within the bound: some answers would keep a judge busy for hours.
                verdict = self.verdict(answer, inputs)
        except NotPlain as error:
            return self._differs(inputs, str(error), str(error), said)
        except OutOfTime:
            text = f"not ended after {self.seconds:g} s"
            return self._differs(inputs, text, f"your code had {text}", said, crashed=True)
        except KeyboardInterrupt:
            raise  # the reader stops the check
        except BaseException as error:
            text = _told(error)
            return self._differs(inputs, text, f"your code raised {text}", said, crashed=True)
        return None if verdict.right else self._differs(inputs, answer, verdict.words, said)

    def _differs(
        self,
        inputs: Inputs,
        yours: Plain,
        words: str,
        said: Tail,
        crashed: bool = False,
    ) -> Difference:
        spec = self.expected(inputs) if self.judge is None else None
        return Difference(inputs, yours, spec, words, crashed, said.text)


def first_difference(task: Task, yours: Callable[..., object], seed: int) -> Difference | None:
    """The smallest failing input found, or None when all ``TRIALS`` inputs are right.

    Code that needs longer than ``task.whole`` for all of them has not passed either.
    """
    end = time.monotonic() + task.whole
    for number in range(TRIALS):
        size = number * SIZES // TRIALS
        inputs = task.inputs(seed, number, size)
        found = task.compare(yours, inputs)
        if found is not None:
            return _smallest(task, yours, seed, size, found, end)
        if time.monotonic() > end:
            text = f"{number + 1} of {TRIALS} inputs took {task.whole:g} s"
            return Difference(inputs, text, None, f"your code is right, and too slow: {text}", True)
    return None


def _smallest(
    task: Task,
    yours: Callable[..., object],
    seed: int,
    size: int,
    found: Difference,
    end: float,
) -> Difference:
    if found.yours == f"not ended after {task.seconds:g} s":
        return found  # others would not end either
    for number in range(SMALLER):
        if time.monotonic() > end:
            break
        inputs = task.inputs(f"{seed} smaller", number, number % (size + 1) // 2)
        if weight(inputs) < weight(found.inputs):
            found = task.compare(yours, inputs) or found
    return found


def weight(inputs: Mapping[str, object]) -> float:
    """How hard an input is to redo by hand: the sum of its numbers, and ten for each value."""

    def of(value: object) -> float:
        if isinstance(value, torch.Tensor):
            return of(value.tolist())
        if isinstance(value, list | tuple):
            return sum(10 + of(item) for item in value)
        return min(abs(value), 1e12) if isinstance(value, int | float) and value == value else 1.0

    return sum(of(value) for value in inputs.values())


def is_unfilled(task: Task, yours: object, seed: int) -> bool:
    """Whether there is no answer yet: ``...``, None, a body of ``...``, or always None."""
    if yours is None or yours is ...:
        return True
    if not callable(yours) or isinstance(yours, type):
        return False
    if _is_stub(yours):
        return True
    if task.run is not None:
        return False
    for number in range(3):
        try:
            with bounded(min(task.seconds, 2.0)):
                answer = task.answer(yours, task.inputs(seed, number, 0))
        except KeyboardInterrupt:
            raise
        except BaseException:
            return False
        if answer is not None and answer is not ...:
            return False
    return True


def _is_stub(yours: object) -> bool:
    code = getattr(yours, "__code__", None)
    if code is None:
        return False
    for step in dis.get_instructions(code):
        if step.opname in ("RESUME", "NOP", "POP_TOP", "RETURN_VALUE", "CACHE"):
            continue
        if step.opname in ("LOAD_CONST", "RETURN_CONST") and step.argval in (None, ...):
            continue
        return False
    return True


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

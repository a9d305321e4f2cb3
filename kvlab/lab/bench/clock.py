"""Time contenders in turns: one call of each a repetition, the first one another each time.

Worked example, contenders a, b, c and three repetitions: a b c, then b c a, then c a b. A burst of
other work on the machine, or a cache that one leaves warm for the next, then meets each of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvlab.errors import StudyError


def _forget(result: object) -> None:
    """Let a result go."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time.

    Args:
        name: what a row calls it.
        prepare: given the repetition, makes the call that is timed; its own time does not count.
        finish: takes the result of the call, before it is let go; its own time does not count.
        calls: how many pieces of work one call does; times are of one piece.
    """

    name: str
    prepare: Callable[[int], Callable[[], object]]
    finish: Callable[[object], None] = _forget
    calls: int = 1


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each contender, by name, one number a repetition in the same order for all."""

    seconds: dict[str, tuple[float, ...]]
    repetitions: int
    warmup: int


def take_turns(contenders: Sequence[Contender], repetitions: int, warmup: int) -> Timing:
    """Time the contenders ``repetitions`` times each, after ``warmup`` untimed rounds.

    Errors: StudyError for no repetition, or for two contenders of one name.
    """
    names = [contender.name for contender in contenders]
    if repetitions < 1 or warmup < 0 or len(set(names)) != len(names):
        raise StudyError(
            f"a timing has at least 1 repetition, 0 or more rounds of warm-up, and one name for "
            f"each contender: got {repetitions}, {warmup} and {names}; correct the case"
        )
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(-warmup, repetitions):
        first = i % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            call = contender.prepare(i)
            begun = time.perf_counter()
            result = call()
            spent = time.perf_counter() - begun
            contender.finish(result)
            del call, result  # not alive while the next one is timed
            if i >= 0:
                seconds[contender.name].append(spent / contender.calls)
    return Timing({name: tuple(spent) for name, spent in seconds.items()}, repetitions, warmup)

"""Time contenders in turns: one call of each a repetition, the first one another each time.

Worked example, contenders a, b, c and three repetitions: a b c, then b c a, then c a b. A burst of
other work on the machine, or a cache that one leaves warm for the next, then meets each of them.

How often follows from a budget of seconds: a last round of warm-up of 0.5 s and a budget of 2 s
give four repetitions, within the bounds of ``Effort``. Rows say how many there were.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvlab.errors import StudyError


def _at_once() -> None:
    """A call on a CPU has done its work when it returns."""


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
class Effort:
    """At most ``most`` repetitions and at least ``least``, as ``seconds`` allow, after ``warmup``
    untimed rounds, of which the last one tells how long a round takes."""

    seconds: float
    least: int = 3
    most: int = 15
    warmup: int = 2

    def repetitions(self, round_s: float) -> int:
        """How many rounds of ``round_s`` seconds are timed."""
        return max(self.least, min(self.most, int(self.seconds / max(round_s, 1e-9))))


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each contender, by name, one number a repetition in the same order for all."""

    seconds: dict[str, tuple[float, ...]]
    repetitions: int
    warmup: int


def take_turns(
    contenders: Sequence[Contender],
    repetitions: int,
    warmup: int,
    wait: Callable[[], None] = _at_once,
) -> Timing:
    """Time the contenders ``repetitions`` times each, after ``warmup`` untimed rounds.

    ``wait`` returns when the device has done what was queued: called before the clock starts, so
    that nobody pays for what was prepared, and before it stops.
    Errors: StudyError for no repetition, or for two contenders of one name.
    """
    names = [contender.name for contender in contenders]
    if repetitions < 1 or warmup < 0 or len(set(names)) != len(names):
        raise StudyError(
            f"a timing has at least 1 repetition, 0 or more rounds of warm-up, and one name for "
            f"each contender: got {repetitions}, {warmup} and {names}; correct the case"
        )
    for i in range(-warmup, 0):
        _one_round(contenders, i, wait)
    rounds = [_one_round(contenders, i, wait) for i in range(repetitions)]
    seconds = {name: tuple(spent[name] for spent in rounds) for name in names}
    return Timing(seconds, repetitions, warmup)


def take_turns_within(
    contenders: Sequence[Contender], effort: Effort, wait: Callable[[], None] = _at_once
) -> Timing:
    """As ``take_turns``, as often as the effort's seconds allow.

    Errors: StudyError as there, and for an effort without warm-up, which cannot be foreseen.
    """
    if effort.warmup < 1 or not 1 <= effort.least <= effort.most:
        raise StudyError(
            f"an effort has at least 1 round of warm-up, to see how long one takes, and 1 <= least "
            f"<= most repetitions: got warmup={effort.warmup}, least={effort.least}, "
            f"most={effort.most}; correct the case"
        )
    for i in range(-effort.warmup, -1):
        _one_round(contenders, i, wait)
    begun = time.perf_counter()
    _one_round(contenders, -1, wait)
    count = effort.repetitions(time.perf_counter() - begun)
    timing = take_turns(contenders, count, 0, wait)
    return Timing(timing.seconds, timing.repetitions, effort.warmup)


def _one_round(
    contenders: Sequence[Contender], i: int, wait: Callable[[], None]
) -> dict[str, float]:
    """Seconds of one piece of each, by name; the contender that begins is another each time."""
    seconds = {}
    first = i % len(contenders)
    for contender in (*contenders[first:], *contenders[:first]):
        call = contender.prepare(i)
        wait()
        begun = time.perf_counter()
        result = call()
        wait()
        seconds[contender.name] = (time.perf_counter() - begun) / contender.calls
        contender.finish(result)
        del call, result  # not alive while the next one is timed
    return seconds

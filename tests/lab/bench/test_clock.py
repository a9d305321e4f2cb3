"""Contenders take turns, nobody pays for what another queued, and a budget decides how often."""

import itertools
import time
from collections.abc import Callable

import pytest

from kvlab.errors import StudyError
from kvlab.lab.bench import localize, scheduler
from kvlab.lab.bench.clock import Contender, Effort, take_turns, take_turns_within
from tests.lab.bench.support import FEW_IDS, FEW_REQUESTS, HERE


def test_contenders_take_turns_and_each_begins_once() -> None:
    order: list[str] = []

    def called(name: str) -> Contender:
        return Contender(name, lambda i: lambda: order.append(f"{name}{i}"))

    timing = take_turns([called("a"), called("b"), called("c")], repetitions=3, warmup=0)
    assert order == ["a0", "b0", "c0", "b1", "c1", "a1", "c2", "a2", "b2"]
    assert {name: len(times) for name, times in timing.seconds.items()} == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize(
    ("repetitions", "warmup", "names"), [(0, 0, "ab"), (1, -1, "a"), (1, 0, "aa")]
)
def test_a_timing_that_says_nothing_is_refused(repetitions: int, warmup: int, names: str) -> None:
    contenders = [Contender(name, lambda i: lambda: None) for name in names]
    with pytest.raises(StudyError, match="one name for each contender"):
        take_turns(contenders, repetitions, warmup)


def test_times_are_of_one_piece_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))  # a call takes 1 s
    assert {row.seconds.median for row in localize.rows_of(FEW_IDS, HERE)} == {
        1 / 2
    }  # two runs a call
    growth = scheduler.growth_rows(FEW_REQUESTS)
    assert [row.seconds.median for row in growth] == [1 / n for n in FEW_REQUESTS.sizes[1:]]
    assert [row.baseline_seconds.median for row in growth] == [1 / n for n in (5, 10)]


def test_the_clock_starts_after_what_was_prepared_and_stops_after_what_was_queued() -> None:
    order: list[str] = []

    def prepare(i: int) -> Callable[[], object]:
        order.append("prepare")
        return lambda: order.append("call")

    contender = Contender("a", prepare, lambda _: order.append("finish"))
    take_turns([contender], 1, 0, wait=lambda: order.append("wait"))
    assert order == ["prepare", "wait", "call", "wait", "finish"]


@pytest.mark.parametrize(("seconds", "repetitions"), [(0.0, 3), (7.4, 3), (12.6, 5), (1000.0, 7)])
def test_a_budget_buys_whole_rounds_within_its_bounds(
    monkeypatch: pytest.MonkeyPatch, seconds: float, repetitions: int
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)) / 2)  # a round takes 2.5 s
    calls: list[int] = []
    contender = Contender("a", lambda i: lambda: calls.append(i))
    other = Contender("b", lambda i: lambda: None)
    effort = Effort(seconds, least=3, most=7, warmup=2)
    timing = take_turns_within([contender, other], effort)
    assert (timing.repetitions, timing.warmup) == (repetitions, 2)
    assert calls == list(range(-2, repetitions))
    assert len(timing.seconds["a"]) == repetitions


@pytest.mark.parametrize("effort", [Effort(1.0, warmup=0), Effort(1.0, 5, 4), Effort(1.0, 0, 4)])
def test_an_effort_that_foresees_nothing_is_refused(effort: Effort) -> None:
    with pytest.raises(StudyError, match="an effort has at least 1 round of warm-up"):
        take_turns_within([Contender("a", lambda i: lambda: None)], effort)

"""Contenders take turns at cold inputs, nobody pays for another's queue."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvlab.errors import StudyError
from kvlab.lab.bench.clock import Contender, Effort, open_place, rotate_inputs, take_turns
from tests.lab.bench.support import HERE


def test_contenders_take_turns_and_each_begins_once() -> None:
    order: list[str] = []

    def called(name: str) -> Contender:
        return Contender(name, lambda i: lambda: order.append(f"{name}{i}"), calls=2)

    timing = take_turns([called("a"), called("b"), called("c")], Effort.exactly(3, warmup=0))
    assert order == ["a0", "b0", "c0", "b1", "c1", "a1", "c2", "a2", "b2"]
    assert {name: len(times) for name, times in timing.seconds.items()} == {"a": 3, "b": 3, "c": 3}


def test_the_clock_starts_after_what_was_prepared_and_stops_after_what_was_queued() -> None:
    order: list[str] = []

    def prepare(i: int) -> Callable[[], object]:
        order.append("prepare")
        return lambda: order.append("call")

    contender = Contender("a", prepare, lambda _: order.append("finish"))
    take_turns([contender], Effort.exactly(1, warmup=0), wait=lambda: order.append("wait"))
    assert order == ["prepare", "wait", "call", "wait", "finish"]


@pytest.mark.parametrize(("seconds", "repetitions"), [(0.0, 3), (7.4, 3), (12.6, 5), (1000.0, 7)])
def test_a_budget_buys_whole_rounds_within_its_bounds(
    monkeypatch: pytest.MonkeyPatch, seconds: float, repetitions: int
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)) / 2)  # a round takes 2.5 s
    calls: list[int] = []
    contender = Contender("a", lambda i: lambda: calls.append(i), calls=2)
    other = Contender("b", lambda i: lambda: None)
    timing = take_turns([contender, other], Effort(seconds, least=3, most=7, warmup=2))
    assert (timing.repetitions, timing.warmup) == (repetitions, 2)
    assert calls == list(range(-2, repetitions))
    assert timing.seconds["a"] == (0.25,) * repetitions  # of one piece of two


def met(inputs: int, contenders: int, rounds: int) -> list[list[tuple[int, ...]]]:
    """Of each round, the inputs that each contender went through."""
    seen: list[int] = []
    made = rotate_inputs(range(inputs), {str(i): seen.append for i in range(contenders)})
    found = []
    for i in range(-1, rounds):
        of_round = []
        for contender in made:
            seen.clear()
            contender.prepare(i)()
            assert len(seen) == contender.calls
            of_round.append(tuple(seen))
        found.append(of_round)
    return found


@pytest.mark.parametrize("contenders", [1, 3, 4, 8, 11])
@pytest.mark.parametrize("inputs", [17, 32, 160])
def test_windows_of_a_round_share_no_input_and_each_contender_meets_all(
    inputs: int, contenders: int
) -> None:
    rounds = met(inputs, contenders, 15)
    for of_round in rounds:
        joined = [x for window in of_round for x in window]
        assert len(set(joined)) == len(joined)
    for of_one in zip(*rounds, strict=True):
        assert sorted(x for window in of_one for x in window) == list(range(inputs // 16 * 16))


def test_few_inputs_are_gone_through_in_every_call() -> None:
    assert met(16, 2, 1) == [[tuple(range(16))] * 2] * 2


def test_inputs_are_gone_through_that_exceed_the_cache_twice() -> None:
    place = replace(HERE, cache_bytes=1000)
    assert [place.sets(n) for n in (100, 300, 5000)] == [32, 7, 2]
    assert place.sets(5000, least=1) == 1
    assert (place.slug, place.backend) == ("cpu", "torch")


def test_on_a_cpu_both_needs_are_of_one_memory_and_elsewhere_of_two() -> None:
    place = replace(HERE, host_bytes=8 * 2**30)
    assert place.lacks(3 * 2**30, 3 * 2**30) is None
    assert place.lacks(3 * 2**30, 4 * 2**30) == (
        "a timing must not swap: it takes 7.00 GiB of memory, at most 6.00 may be taken, three "
        "quarters of 8.00"
    )
    there = replace(place, device=torch.device("cuda", 0), device_bytes=4 * 2**30)
    assert there.lacks(6 * 2**30, 3 * 2**30) is None
    assert "4.00 GiB of device memory, at most 3.00" in str(there.lacks(0, 4 * 2**30))


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "cpu:0", "", "cuda:99"])
def test_a_device_that_is_none_or_not_there_is_refused(device: str) -> None:
    with pytest.raises(StudyError, match=r"a benchmark (runs on 'cpu'|needs the device)"):
        open_place(device)

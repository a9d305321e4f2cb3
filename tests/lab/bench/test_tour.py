"""A tour has every contender of a round at another window, and meets every window in the end."""

import pytest

from kvlab.lab.bench.tour import WINDOWS, Tour


def met(inputs: int, contenders: int, rounds: int) -> list[list[tuple[int, ...]]]:
    """Of each round, the inputs that each contender went through."""
    tour = Tour(range(inputs), contenders)
    seen: list[int] = []
    made = [tour.add(str(i), seen.append) for i in range(contenders)]
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


@pytest.mark.parametrize("contenders", [1, 3, 4, 8, 11, 16])
@pytest.mark.parametrize("inputs", [17, 32, 160])
def test_the_windows_of_a_round_share_no_input(inputs: int, contenders: int) -> None:
    for of_round in met(inputs, contenders, 5):
        joined = [x for window in of_round for x in window]
        assert len(set(joined)) == len(joined)


@pytest.mark.parametrize("contenders", [1, 3, 4, 8, 11])
def test_each_contender_meets_every_window_in_sixteen_rounds(contenders: int) -> None:
    for of_one in zip(*met(32, contenders, WINDOWS - 1), strict=True):
        assert sorted(x for window in of_one for x in window) == list(range(32))


def test_few_inputs_are_gone_through_in_every_call() -> None:
    assert met(16, 2, 1) == [[tuple(range(16))] * 2] * 2
    assert met(3, 2, 1) == [[(0, 1, 2)] * 2] * 2


def test_inputs_that_fill_no_window_are_left_out() -> None:
    assert sum(len(window) for window in Tour(range(37), 1).windows) == 32

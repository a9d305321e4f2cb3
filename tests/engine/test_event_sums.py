"""The sums of the event-driven node are what a walk over the requests would count."""

from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine.event_sums import Largest, PageClock, Ramps

WIDTHS = st.integers(1, 9)
CLOCKS = st.integers(0, 40)


def clock_of(width: int, phases: list[int]) -> PageClock:
    pages = PageClock(width)
    for phase in phases:
        pages.add(phase % width)
    return pages


def walked(width: int, phases: list[int], clock: int, forwards: int) -> int:
    return sum(
        phase % width == at % width for at in range(clock, clock + forwards) for phase in phases
    )


def test_the_worked_example_opens_nine_pages() -> None:
    assert clock_of(4, [0, 0, 3]).opened(3, 10) == 9


@given(WIDTHS, st.lists(st.integers(0, 8)), CLOCKS, st.integers(0, 40))
def test_opened_pages_are_those_of_each_forward(
    width: int, phases: list[int], clock: int, forwards: int
) -> None:
    pages = clock_of(width, phases)
    assert pages.opened(clock, forwards) == walked(width, phases, clock, forwards)
    assert pages.due(clock) == walked(width, phases, clock, 1)


@given(WIDTHS, st.lists(st.integers(0, 8)), CLOCKS, st.integers(1, 40), st.integers(0, 60))
def test_forwards_that_fit_are_the_most_that_find_their_pages(
    width: int, phases: list[int], clock: int, forwards: int, free: int
) -> None:
    fit = clock_of(width, phases).fitting(clock, forwards, free)
    assert 0 <= fit <= forwards
    assert walked(width, phases, clock, fit) <= free
    assert fit == forwards or walked(width, phases, clock, fit + 1) > free


@given(WIDTHS, st.lists(st.integers(0, 8), min_size=1), CLOCKS)
def test_a_phase_that_is_taken_back_opens_nothing(
    width: int, phases: list[int], clock: int
) -> None:
    pages = clock_of(width, phases)
    pages.remove(phases[-1] % width)
    assert pages.opened(clock, 11) == walked(width, phases[:-1], clock, 11)
    assert pages.fitting(clock, 11, 3) == clock_of(width, phases[:-1]).fitting(clock, 11, 3)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-5, 30), st.booleans()), max_size=30))
def test_ramps_add_up_however_ends_come_and_go_while_the_clock_grows(
    moves: list[tuple[int, int, bool]],
) -> None:
    ramps, ends, clock = Ramps(), list[int](), 0
    for ticks, end, takes_back in moves:
        clock += ticks
        if takes_back and ends:
            ramps.remove(ends.pop())
        else:
            ramps.add(end)
            ends.append(end)
        ramps.settle(clock)
        bend = ramps.next_end()
        for at in range(clock, 1 + (clock + 9 if bend is None else bend)):
            assert ramps.value(at) == sum(max(0, end - at) for end in ends)


@given(st.lists(st.integers(0, 6)), st.integers(0, 30))
def test_the_largest_is_the_largest_of_those_not_taken_back(values: list[int], gone: int) -> None:
    largest = Largest()
    for value in values:
        largest.add(value)
    for value in values[:gone]:
        largest.remove(value)
    assert largest.value() == max(values[gone:], default=None)
    largest.add(3)
    assert largest.value() == max([3, *values[gone:]])

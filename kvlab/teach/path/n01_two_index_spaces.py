"""Exercises of 01_two_index_spaces: bounds, the phase of a chunk, a second translation."""

import torch

from kvlab.index import DcpLayout, Shard, owned_elements
from kvlab.teach.exercise import need, task, whole_number


def bounds(c: int, P: int, N: int) -> tuple[int, int, int, int]:
    """Page 0 is the padding page of both spaces; page N is the last one."""
    return P * c, (N + 1) * P * c, P, (N + 1) * P


@task(
    grade=1,
    answer=bounds,
    example=(4, 64, 128),
    make=lambda d: (d.c, d.P, d.pick(range(1, 5), range(2, 50 * d.size + 1))),
)
def bounds_of_two_spaces(c: int, P: int, N: int) -> tuple[int, int, int, int]:
    """Four bounds by hand.

    A pool has c ranks, pages of P rows on each, and N pages that can be handed out; page 0 is the
    padding page. Return (first slot, end of slots, first row, end of rows): the lowest id that can
    hold a token and one past the highest, in both spaces.
    Hint: both spaces have N + 1 pages, numbered from 0; a page has P * c slots, and P rows
    Source: SGLang pull request 33432.
    """
    layout = DcpLayout(c, P, N)
    return layout.first_slot, layout.slot_end, layout.first_row, layout.row_end


def phase(start: int, c: int, rank: int) -> int:
    """Count on from the owner of the first position to this rank, round the ranks."""
    return (rank - start) % c


@task(grade=2, answer=phase, example=(5, 4, 0), make=lambda d: (d.number(), d.c, d.rank))
def phase_of_a_chunk(start: int, c: int, rank: int) -> int:
    """The phase of a chunk.

    A chunk of a request begins at position `start`. Pages begin on multiples of c, so position and
    slot have the same owner. The stride takes every c-th slot of the chunk. At which element of
    the chunk (from 0) must it begin on rank `rank`?
    Hint: element 0 belongs to rank start % c; how many steps from there to `rank`?
    Source: SGLang's test of a second chunk (starts 2730, c = 8).
    """
    return int(owned_elements(torch.arange(start + c, start + 2 * c), Shard(c, rank))[0])


def survivor(c: int, P: int, rank: int) -> int:
    """A row survives if it has remainder `rank` too; divided once more it must reach P."""
    row = P * c + rank
    return row * c + rank


@task(grade=3, answer=survivor, example=(2, 2, 1), make=lambda d: (d.c, d.P, d.rank), find=True)
def localized_twice(answer: object, c: int, P: int, rank: int) -> str:
    """A second translation that nobody sees.

    Two functions on the way to the buffer both localize: what has remainder `rank` is kept and
    divided by c, and then once more. Most rows are dropped, and a count would notice. Find a slot
    of rank `rank` (not of the padding page, whose slots are below P * c) that survives: localized
    twice it still gives one row, and not one of the padding page (below P). Return the slot.
    Hint: begin at the end: choose the last row, then a row that localizes to it, then a slot
    Source: SGLang issue 34889.
    """
    slot = whole_number(answer, "slot")
    need(slot >= P * c, f"slot {slot} is of the padding page: slots begin at {P * c}")
    need(slot % c == rank, f"slot {slot} is on rank {slot % c}, not on rank {rank}")
    row = slot // c
    told = f"slot {slot} is row {row} of rank {rank}; localized again, {row} "
    need(row % c == rank, f"{told}looks owned by rank {row % c}, is dropped: a count sees it")
    need(row // c >= P, f"{told}gives row {row // c}, in the padding page: an audit sees it")
    return f"{told}gives row {row // c}: one row as before, but the wrong one"

"""Exercises of 02_owner_slots: the order of pages, the ragged tail, longer turns."""

import torch

from kvlab.index import DcpLayout, Shard, get_dcp_lens
from kvlab.teach.draw import Draw, Inputs, slots_of
from kvlab.teach.exercise import task


def slot_at(p: int, pages: list[int], c: int, P: int) -> int:
    """The pages are filled one after the other, in the order of the list, W slots each."""
    W = P * c
    return pages[p // W] * W + p % W


def _paged(d: Draw) -> Inputs:
    c, P, count = d.c, d.P, d.randint(2, 3 + d.size)
    return d.randrange(count * P * c), d.pages(count, count + 2 + 3 * d.size), c, P


@task(grade=1, answer=slot_at, example=(16, [3, 1, 5], 4, 4), make=_paged)
def page_table_order(p: int, pages: list[int], c: int, P: int) -> int:
    """Which slot has position p?

    A request owns the widened pages in `pages`, in position order: its first positions are in
    pages[0]. c ranks, P rows of a page on each. Return the slot of position p.
    Hint: a page of the allocator has W = P * c slots, and the list is not sorted
    """
    return slots_of(pages, p + 1, P * c)[-1]


def held(length: int, start: int, c: int, rank: int) -> int:
    """How many of start, start+1, ... have this remainder: full turns, and the broken one."""
    first = (rank - start) % c
    return max(0, -(-(length - first) // c))


def _ragged(d: Draw) -> Inputs:
    c = d.c
    length = d.randrange(2 * c) if d.random() < 0.4 else d.number()
    return length, d.choice([0, d.number()]), c, d.randrange(c)


@task(grade=2, answer=held, example=(7, 0, 4, 3), make=_ragged)
def ragged_tail(length: int, start: int, c: int, rank: int) -> int:
    """How many does a rank hold?

    Of the positions start, start + 1, ..., start + length - 1 of a request, how many does rank
    `rank` of c ranks hold? Neither start nor length need be a multiple of anything, and a rank may
    hold none.
    Hint: find the first position of the rank (its phase); from there it holds every c-th
    Source: vLLM issue 50391.
    """
    return int(get_dcp_lens(torch.tensor(length), Shard(c, rank), torch.tensor(start)))


def rank_and_row(v: int, c: int, turn: int) -> tuple[int, int]:
    """A full round over the ranks has c * turn slots and fills `turn` rows on each."""
    return v // turn % c, v // (c * turn) * turn + v % turn


def _turns(d: Draw) -> Inputs:
    c, turn = d.c, d.pick((2, 3), (2, 3, 4, 8, 16, 32, 64))
    return d.number(c * turn), c, turn


@task(grade=3, answer=rank_and_row, example=(46, 2, 2), make=_turns)
def longer_turns(v: int, c: int, turn: int) -> tuple[int, int]:
    """Another engine's rule.

    Other engines deal `turn` slots to a rank before the next rank has its turn (the interleave).
    turn = 1 is the rule that you know. On which rank is slot v, in which row? Return (rank, row).
    Hint: number the turns: slot v is in turn v // turn, at v % turn within it
    Source: vLLM issue 51031.
    """
    layout = DcpLayout(c, turn, v // (c * turn) + 1, interleave=turn)
    return layout.owner(v), layout.row(v)

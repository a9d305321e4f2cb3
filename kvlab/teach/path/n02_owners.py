"""Exercises of 02_owner_slots: the order of pages, the ragged tail, longer turns."""

from random import Random

import torch

from kvlab.index import DcpLayout, Shard, get_dcp_lens
from kvlab.teach import path
from kvlab.teach.exercise import Exercise, Inputs

NOTEBOOK = "02_owner_slots"


def slot_at(p: int, pages: list[int], c: int, P: int) -> int:
    """The pages are filled one after the other, in the order of the list, W slots each."""
    W = P * c
    return pages[p // W] * W + p % W


def _slot_at(p: int, pages: list[int], c: int, P: int) -> int:
    return path.slots_of(pages, p + 1, P * c)[-1]


def _paged(rng: Random, size: int) -> Inputs:
    c, P = path.ranks(rng, size), path.page(rng, size)
    count = rng.randint(2, 3 + size)
    pages = path.pages(rng, count, count + 2 + 3 * size)
    return {"p": rng.randrange(count * P * c), "pages": pages, "c": c, "P": P}


def held(length: int, start: int, c: int, rank: int) -> int:
    """How many of start, start+1, ... have this remainder: full turns, and the broken one."""
    first = (rank - start) % c
    return max(0, -(-(length - first) // c))


def _held(length: int, start: int, c: int, rank: int) -> int:
    return int(get_dcp_lens(torch.tensor(length), Shard(c, rank), torch.tensor(start)))


def _ragged(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, size)
    length = rng.randrange(2 * c) if rng.random() < 0.4 else path.number(rng, size)
    start = rng.choice([0, path.number(rng, size)])
    return {"length": length, "start": start, "c": c, "rank": rng.randrange(c)}


def rank_and_row(v: int, c: int, turn: int) -> tuple[int, int]:
    """A full round over the ranks has c * turn slots and fills `turn` rows on each."""
    return v // turn % c, v // (c * turn) * turn + v % turn


def _rank_and_row(v: int, c: int, turn: int) -> tuple[int, int]:
    layout = DcpLayout(c, turn, v // (c * turn) + 1, interleave=turn)
    return layout.owner(v), layout.row(v)


def _turns(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, size)
    turn = rng.randint(2, 3) if size < 3 else rng.choice([2, 3, 4, 8, 16, 32, 64])
    return {"v": path.number(rng, size, low=c * turn), "c": c, "turn": turn}


ALL = (
    Exercise(
        "page-table-order",
        NOTEBOOK,
        1,
        "Which slot has position p?",
        """A request owns the widened pages in `pages`, in position order: its first positions are
        in pages[0]. c ranks, P rows of a page on each. Return the slot of position p.""",
        answer=slot_at,
        spec=_slot_at,
        example={"p": 16, "pages": [3, 1, 5], "c": 4, "P": 4},
        make=_paged,
        hint="a page of the allocator has W = P * c slots, and the list is not sorted",
    ),
    Exercise(
        "ragged-tail",
        NOTEBOOK,
        2,
        "How many does a rank hold?",
        """Of the positions start, start + 1, ..., start + length - 1 of a request, how many does
        rank `rank` of c ranks hold? Neither start nor length need be a multiple of anything, and a
        rank may hold none.""",
        answer=held,
        spec=_held,
        example={"length": 7, "start": 0, "c": 4, "rank": 3},
        make=_ragged,
        hint="find the first position of the rank (its phase); from there it holds every c-th",
        source="vLLM issue 50391",
    ),
    Exercise(
        "longer-turns",
        NOTEBOOK,
        3,
        "Another engine's rule",
        """Other engines deal `turn` slots to a rank before the next rank has its turn (the
        interleave). turn = 1 is the rule that you know. On which rank is slot v, in which row?
        Return (rank, row).""",
        answer=rank_and_row,
        spec=_rank_and_row,
        example={"v": 46, "c": 2, "turn": 2},
        make=_turns,
        hint="number the turns: slot v is in turn v // turn, at v % turn within it",
        source="vLLM issue 51031",
    ),
)

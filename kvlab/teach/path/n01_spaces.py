"""Exercises of 01_two_index_spaces: bounds, the phase of a chunk, a second translation."""

from random import Random

import torch

from kvlab.index import DcpLayout, Shard, owned_elements
from kvlab.teach import path
from kvlab.teach.exercise import Exercise, Inputs, Verdict

NOTEBOOK = "01_two_index_spaces"


def bounds(c: int, P: int, N: int) -> tuple[int, int, int, int]:
    """Page 0 is the padding page of both spaces; page N is the last one."""
    return P * c, (N + 1) * P * c, P, (N + 1) * P


def _bounds(c: int, P: int, N: int) -> tuple[int, int, int, int]:
    layout = DcpLayout(c, P, N)
    return layout.first_slot, layout.slot_end, layout.first_row, layout.row_end


def _layout(rng: Random, size: int) -> Inputs:
    N = rng.randint(1, 4) if size < 3 else rng.randint(2, 50 * size)
    return {"c": path.ranks(rng, size), "P": path.page(rng, size), "N": N}


def phase(start: int, c: int, rank: int) -> int:
    """Count on from the owner of the first position to this rank, round the ranks."""
    return (rank - start) % c


def _phase(start: int, c: int, rank: int) -> int:
    slots = torch.arange(start + c, start + 2 * c)
    return int(owned_elements(slots, Shard(c, rank))[0])


def _chunk(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, size)
    return {"start": path.number(rng, size), "c": c, "rank": rng.randrange(c)}


def survivor(c: int, P: int, rank: int) -> int:
    """A row survives if it has remainder `rank` too; divided once more it must reach P."""
    row = P * c + rank
    return row * c + rank


def _survives(answer: object, c: int, P: int, rank: int) -> Verdict:
    if type(answer) is not int:
        return Verdict(False, f"{answer!r} is no slot: one whole number is meant")
    if answer < P * c:
        return Verdict(False, f"slot {answer} is of the padding page: slots begin at {P * c}")
    if answer % c != rank:
        return Verdict(False, f"slot {answer} is on rank {answer % c}, not on rank {rank}")
    row = answer // c
    told = f"slot {answer} is row {row} of rank {rank}; localized again, {row} "
    if row % c != rank:
        return Verdict(False, f"{told}looks owned by rank {row % c}, is dropped: a count sees it")
    if row // c < P:
        return Verdict(False, f"{told}gives row {row // c}, in the padding page: an audit sees it")
    return Verdict(True, f"{told}gives row {row // c}: one row as before, but the wrong one")


def _ranked(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, size)
    return {"c": c, "P": path.page(rng, size), "rank": rng.randrange(c)}


ALL = (
    Exercise(
        "bounds-of-two-spaces",
        NOTEBOOK,
        1,
        "Four bounds by hand",
        """A pool has c ranks, pages of P rows on each, and N pages that can be handed out; page 0
        is the padding page. Return (first slot, end of slots, first row, end of rows): the lowest
        id that can hold a token and one past the highest, in both spaces.""",
        answer=bounds,
        spec=_bounds,
        example={"c": 4, "P": 64, "N": 128},
        make=_layout,
        hint="both spaces have N + 1 pages, numbered from 0; a page has P * c slots, and P rows",
        source="SGLang pull request 33432",
    ),
    Exercise(
        "phase-of-a-chunk",
        NOTEBOOK,
        2,
        "The phase of a chunk",
        """A chunk of a request begins at position `start`. Pages begin on multiples of c, so
        position and slot have the same owner. The stride takes every c-th slot of the chunk. At
        which element of the chunk (from 0) must it begin on rank `rank`?""",
        answer=phase,
        spec=_phase,
        example={"start": 5, "c": 4, "rank": 0},
        make=_chunk,
        hint="element 0 belongs to rank start % c; how many steps from there to `rank`?",
        source="SGLang's test of a second chunk (starts 2730, c = 8)",
    ),
    Exercise(
        "localized-twice",
        NOTEBOOK,
        3,
        "A second translation that nobody sees",
        """Two functions on the way to the buffer both localize: what has remainder `rank` is kept
        and divided by c, and then once more. Most rows are dropped, and a count would notice. Find
        a slot of rank `rank` (not of the padding page, whose slots are below P * c) that survives:
        localized twice it still gives one row, and not one of the padding page (below P). Return
        the slot.""",
        answer=survivor,
        judge=_survives,
        example={"c": 2, "P": 2, "rank": 1},
        make=_ranked,
        hint="begin at the end: choose the last row, then a row that localizes to it, then a slot",
        source="SGLang issue 34889",
    ),
)

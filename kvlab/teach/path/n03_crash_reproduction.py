"""Exercises of 03_crash_reproduction: when it is silent, whom it hurts, what a test must do.

A suspect is a small class that looks right and has one bug, most from public reports. Tokens are
numbers and a buffer is a list of rows, so that every step can be redone by hand. The rule of its
exercise runs it with an answer, refuses what no allocator, node or host would do, and takes the
class as its last argument: the repaired class is exposed by nothing.
"""

from typing import Any

import torch

from kvlab.index import DcpLayout
from kvlab.index.pages import raw_use_of_page
from kvlab.teach.draw import Draw, Inputs, slots_of
from kvlab.teach.exercise import Miss, need, task, whole


def pages_needed(q: int, c: int, P: int) -> int:
    """Page q ends at slot (q + 1) * P * c; the buffer has (N + 1) * P rows, at least as many."""
    return (q + 1) * c - 1


@task(
    grade=2,
    answer=pages_needed,
    example=(1, 2, 1),
    make=lambda d: (d.pick((1, 2), range(1, 7 * d.size + 1)), d.c, d.P),
)
def smallest_silent_pool(q: int, c: int, P: int) -> int:
    """The smallest pool in which it is silent.

    c ranks, pages of P rows. The slots of page q are used as rows. How many pages N (that can be
    handed out; the padding page comes on top) must the pool have at least, so that the mistake is
    silent for every slot of page q? Find it for q = 1 by hand first.
    Hint: write down the last slot of page q and the number of rows of a rank; compare
    Source: SGLang issue 38645.
    """
    N = q
    while raw_use_of_page(DcpLayout(c, P, N), q) != "silent":
        N += 1
    return N


def overwritten(victim: list[int], other: list[int], c: int) -> list[int]:
    """Each slot of the victim is written as a row, on every rank; position p lies in slot // c."""
    rows = set(victim)
    return [p for p, slot in enumerate(other) if slot // c in rows]


def _two_requests(d: Draw) -> Inputs:
    c, P = d.c, d.pick((1, 2), range(1, 4 + d.size))
    q = d.randint(1, 2)  # the victim's page; as rows its slots are the pages q*c .. q*c+c-1
    near = [page for page in range(q * c - 1, q * c + c + 1) if page not in (0, q)]
    hit = d.sample(near, min(len(near), d.randint(1, 2 + d.size // 3)))
    other = slots_of(hit, d.randint((len(hit) - 1) * P * c + 1, len(hit) * P * c), P * c)
    return slots_of([q], d.randint(1, P * c), P * c), other, c


@task(grade=3, answer=overwritten, example=([4, 5, 6, 7], [12, 13, 14, 15], 2), make=_two_requests)
def overwritten_positions(victim: list[int], other: list[int], c: int) -> list[int]:
    """Whom does the restore hurt?

    A restore with the bug takes the victim's new slots, `victim`, as row numbers, on every rank,
    and writes there; nothing crashes. Another request owns the slots `other`, slot i for its
    position i. Return the positions of the other request that are overwritten, ascending.
    Hint: in which row does slot s of the other request lie? Is it among the victim's?
    Source: SGLang issue 38645.
    """
    rows, slots = torch.full((c, max(victim + other) + 1), -1), torch.tensor(other)
    rows[slots % c, slots // c] = torch.arange(len(other))
    rows[:, victim] = -1
    left = set(rows.flatten().tolist())
    return [p for p in range(len(other)) if p not in left]


class Ranks:
    """The rows of c ranks; page 0 is the padding page."""

    def __init__(self, c: int, P: int, N: int) -> None:
        self.c = c
        self.ranks = [[0] * ((N + 1) * P) for _ in range(c)]

    def write(self, slots: list[int], tokens: list[int]) -> None:
        """Store one token a slot, on the rank that owns the slot."""
        for v, token in zip(slots, tokens, strict=True):
            self.ranks[v % self.c][v // self.c] = token

    def read(self, slots: list[int]) -> list[int]:
        """The tokens of these slots."""
        return [self.ranks[v % self.c][v // self.c] for v in slots]


class RetractionPool(Ranks):
    """A request's rows go to the host and come back into new slots."""

    def back_up(self, slots: list[int]) -> list[list[int]]:
        """A host copy for each rank."""
        return [[rows[v] for v in slots] for rows in self.ranks]

    def restore(self, saved: list[list[int]], slots: list[int]) -> None:
        """Write the host copies into new slots."""
        for rows, copy in zip(self.ranks, saved, strict=True):
            for v, token in zip(slots, copy, strict=True):
                rows[v] = token


def expose(c: int, P: int, N: int) -> tuple[list[int], list[int]]:
    """Low pages, so that nothing crashes, and two different ones, so that something shows."""
    W = P * c
    return list(range(W, 2 * W)), list(range(2 * W, 3 * W))


def _room(d: Draw) -> Inputs:
    c, P = d.c, d.pick(range(1, 4), range(1, 3 + d.size))
    return c, P, d.randint(3 * c - 1, 5 * c)


@task(
    grade=4, answer=expose, example=(2, 1, 5), make=_room, code=(Ranks, RetractionPool), find=True
)
def a_test_that_sees_it(
    answer: Any, c: int, P: int, N: int, suspect: type[RetractionPool] = RetractionPool
) -> str:
    """Find a test that goes red.

    The pool below has the bug. A test writes a request into the slots `old`, backs it up, restores
    it into the slots `new`, and reads `new`. Return (old, new), as lists of slots, for which no
    error is raised and yet a token comes back wrong. Slots as an allocator gives them: whole pages
    of P * c slots from the first slot of each, page 0 left out, the last page perhaps in part. N is
    at least 3 * c - 1.
    Hint: high pages crash, and the same slots get back what was taken: use two low ones
    Source: SGLang issue 38645.
    """
    pair = isinstance(answer, list) and len(answer) == 2
    need(pair, "two lists are meant: the slots before and the slots after")
    old, new = (whole(slots, "a slot is a whole number, one of a list") for slots in answer)
    layout = DcpLayout(c, P, N)
    _allocated("old", old, layout)
    _allocated("new", new, layout)
    need(len(old) == len(new), f"{len(old)} old and {len(new)} new slots: a request has one length")
    tokens = [101 + i for i in range(len(old))]
    pool = suspect(c, P, N)
    pool.write(old, tokens)
    try:
        pool.restore(pool.back_up(old), new)
    except IndexError:
        high = max([*old, *new])
        raise Miss(f"it crashes, {high} is past the {layout.row_end} rows: not silent") from None
    found = pool.read(new)
    need(found != tokens, f"the pool gives back {len(found)} right tokens: this test passes")
    at = next(i for i, token in enumerate(tokens) if found[i] != token)
    return f"no error, and position {at} comes back as {found[at]} instead of {tokens[at]}"


def _allocated(name: str, slots: list[int], layout: DcpLayout) -> None:
    """Refuse slots that no allocator gives to one request."""
    W, told = layout.widened_page_size, f"the {name} slots are not what an allocator gives: "
    need(bool(slots), f"{told}there are none")
    span = f"{layout.first_slot} .. {layout.slot_end - 1}"
    for i, v in enumerate(slots):
        need(
            layout.first_slot <= v < layout.slot_end, f"{told}element {i} is {v}, slots are {span}"
        )
        need(v % W == i % W, f"{told}element {i} is slot {v}, {v % W} in its page, not {i % W}")
        before = slots[i - i % W] // W
        need(v // W == before, f"{told}element {i} is in page {v // W}, page {before} is not full")
    pages = [v // W for v in slots[::W]]
    need(len(set(pages)) == len(pages), f"{told}a page is named twice")

"""Exercises of 03_crash_reproduction: when it is silent, whom it hurts, what a test must do."""

from random import Random

import torch

from kvlab.index import DcpLayout
from kvlab.index.pages import raw_use_of_page
from kvlab.teach import path
from kvlab.teach.exercise import Exercise, Inputs
from kvlab.teach.suspects import Ranks, RetractionPool, restore_exposes

NOTEBOOK = "03_crash_reproduction"


def pages_needed(q: int, c: int, P: int) -> int:
    """Page q ends at slot (q + 1) * P * c; the buffer has (N + 1) * P rows, at least as many."""
    return (q + 1) * c - 1


def _pages_needed(q: int, c: int, P: int) -> int:
    N = q
    while raw_use_of_page(DcpLayout(c, P, N), q) != "silent":
        N += 1
    return N


def _page_of(rng: Random, size: int) -> Inputs:
    q = rng.randint(1, 2) if size < 3 else rng.randint(1, 7 * size)
    return {"q": q, "c": path.ranks(rng, size), "P": path.page(rng, size)}


def overwritten(victim: list[int], other: list[int], c: int) -> list[int]:
    """Each slot of the victim is written as a row, on every rank; position p lies in slot // c."""
    rows = set(victim)
    return [p for p, slot in enumerate(other) if slot // c in rows]


def _overwritten(victim: list[int], other: list[int], c: int) -> list[int]:
    rows, slots = torch.full((c, max(victim + other) + 1), -1), torch.tensor(other)
    rows[slots % c, slots // c] = torch.arange(len(other))
    rows[:, victim] = -1
    left = set(rows.flatten().tolist())
    return [p for p in range(len(other)) if p not in left]


def _two_requests(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, min(size, 6))
    P = rng.randint(1, 2) if size < 3 else rng.randint(1, 3 + size)
    q = rng.randint(1, 2)  # the victim's page; as rows its slots are the pages q*c .. q*c+c-1
    near = [page for page in range(q * c - 1, q * c + c + 1) if page not in (0, q)]
    hit = rng.sample(near, min(len(near), rng.randint(1, 2 + size // 3)))
    length = rng.randint((len(hit) - 1) * P * c + 1, len(hit) * P * c)
    return {
        "victim": path.slots_of([q], rng.randint(1, P * c), P * c),
        "other": path.slots_of(hit, length, P * c),
        "c": c,
    }


def expose(c: int, P: int, N: int) -> tuple[list[int], list[int]]:
    """Low pages, so that nothing crashes, and two different ones, so that something shows."""
    W = P * c
    return list(range(W, 2 * W)), list(range(2 * W, 3 * W))


def _room(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, min(size, 6))
    P = rng.randint(1, 3) if size < 3 else rng.randint(1, 2 + size)
    return {"c": c, "P": P, "N": rng.randint(3 * c - 1, 5 * c)}


ALL = (
    Exercise(
        "smallest-silent-pool",
        NOTEBOOK,
        2,
        "The smallest pool in which it is silent",
        """c ranks, pages of P rows. The slots of page q are used as rows. How many pages N (that
        can be handed out; the padding page comes on top) must the pool have at least, so that the
        mistake is silent for every slot of page q? Find it for q = 1 by hand first.""",
        answer=pages_needed,
        spec=_pages_needed,
        example={"q": 1, "c": 2, "P": 1},
        make=_page_of,
        hint="write down the last slot of page q and the number of rows of a rank; compare",
        source="SGLang issue 38645",
    ),
    Exercise(
        "overwritten-positions",
        NOTEBOOK,
        3,
        "Whom does the restore hurt?",
        """A restore with the bug takes the victim's new slots, `victim`, as row numbers, on every
        rank, and writes there; nothing crashes. Another request owns the slots `other`, slot i for
        its position i. Return the positions of the other request that are overwritten,
        ascending.""",
        answer=overwritten,
        spec=_overwritten,
        example={"victim": [4, 5, 6, 7], "other": [12, 13, 14, 15], "c": 2},
        make=_two_requests,
        hint="in which row does slot s of the other request lie? Is it among the victim's?",
        source="SGLang issue 38645",
    ),
    Exercise(
        "a-test-that-sees-it",
        NOTEBOOK,
        4,
        "Find a test that goes red",
        """The pool below has the bug. A test writes a request into the slots `old`, backs it up,
        restores it into the slots `new`, and reads `new`. Return (old, new), as lists of slots,
        for which no error is raised and yet a token comes back wrong. Slots as an allocator gives
        them: whole pages of P * c slots from the first slot of each, page 0 left out, the last
        page perhaps in part. N is at least 3 * c - 1.""",
        answer=expose,
        judge=restore_exposes,
        example={"c": 2, "P": 1, "N": 5},
        make=_room,
        hint="high pages crash, and the same slots get back what was taken: use two low ones",
        source="SGLang issue 38645",
        code=(Ranks, RetractionPool),
    ),
)

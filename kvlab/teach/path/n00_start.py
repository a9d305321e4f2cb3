"""Exercises of 00_start_here: owner, row, and what a raw read hits."""

from random import Random

from kvlab.index import DcpLayout
from kvlab.teach import path
from kvlab.teach.exercise import Exercise, Inputs

NOTEBOOK = "00_start_here"


def rank_and_row(v: int, c: int) -> tuple[int, int]:
    """The ranks take turns, so the remainder is the rank; each full turn is a row."""
    return v % c, v // c


def _rank_and_row(v: int, c: int) -> tuple[int, int]:
    layout = DcpLayout(c, page_size=1, num_pages=v // c + 1)
    return layout.owner(v), layout.row(v)


def _slot(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, size)
    return {"v": path.number(rng, size, low=c), "c": c}


def slot_read(v: int, c: int, rank: int) -> int:
    """Row v of this rank holds the slot that is v full turns on, in the rank's place."""
    return v * c + rank


def _slot_read(v: int, c: int, rank: int) -> int:
    return DcpLayout(c, page_size=1, num_pages=v + 1).slot(rank, v)


def _raw(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, size)
    return {"v": path.number(rng, size, low=c), "c": c, "rank": rng.randrange(c)}


def outcome(v: int, c: int, P: int, N: int) -> str:
    """A rank has N + 1 pages of P rows, since the padding page takes room too."""
    return "silent" if v < (N + 1) * P else "crash"


def _outcome(v: int, c: int, P: int, N: int) -> str:
    return "silent" if v < DcpLayout(c, P, N).row_end else "crash"


def _near_the_bound(rng: Random, size: int) -> Inputs:
    c, P = path.ranks(rng, size), path.page(rng, size)
    N = rng.randint(2, 4) if size < 3 else rng.randint(2, 30 * size)
    layout = DcpLayout(c, P, N)
    near = rng.choice([layout.row_end, N * P, layout.slot_end, layout.row_end])
    v = near + rng.randint(-2, 2) if rng.random() < 0.7 else rng.randrange(layout.slot_end)
    return {"v": min(max(v, layout.first_slot), layout.slot_end - 1), "c": c, "P": P, "N": N}


ALL = (
    Exercise(
        "owner-by-hand",
        NOTEBOOK,
        1,
        "Owner and row by hand",
        """c ranks share the KV of a request. On which rank is slot v, and in which row of that
        rank's buffer? Do two by hand, then write the rule: return (rank, row).""",
        answer=rank_and_row,
        spec=_rank_and_row,
        example={"v": 1001, "c": 4},
        make=_slot,
        hint="write the slots 0, 1, 2, ... in lines of c: the column is the rank, the line the row",
    ),
    Exercise(
        "wrong-row-by-hand",
        NOTEBOOK,
        1,
        "Whose row is read instead?",
        """Somebody uses slot v as a row number on rank `rank`, without localizing it. The buffer is
        large enough. Which slot does the row that is read belong to? Return that slot.""",
        answer=slot_read,
        spec=_slot_read,
        example={"v": 5, "c": 2, "rank": 0},
        make=_raw,
        hint="row v of rank r holds the slot s with s // c == v and s % c == r; solve for s",
        source="SGLang issue 38645",
    ),
    Exercise(
        "silent-or-loud",
        NOTEBOOK,
        2,
        "Silent or loud?",
        """A pool has c ranks, pages of P rows, and N pages that can be handed out. Slot v, which
        was handed out, is used as a row number. Return "silent" when the row exists, so that a
        wrong row is read without an error, and "crash" when it lies past the buffer.""",
        answer=outcome,
        spec=_outcome,
        example={"v": 7, "c": 2, "P": 2, "N": 3},
        make=_near_the_bound,
        hint="how many rows has the buffer of one rank? The padding page counts, the factor c not",
        source="SGLang issue 38645",
    ),
)

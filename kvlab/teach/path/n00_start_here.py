"""Exercises of 00_start_here: owner, row, and what a raw read hits."""

from kvlab.index import DcpLayout
from kvlab.teach.draw import Draw, Inputs
from kvlab.teach.exercise import task


def rank_and_row(v: int, c: int) -> tuple[int, int]:
    """The ranks take turns, so the remainder is the rank; each full turn is a row."""
    return v % c, v // c


@task(grade=1, answer=rank_and_row, example=(1001, 4), make=lambda d: (d.number(d.c), d.c))
def owner_by_hand(v: int, c: int) -> tuple[int, int]:
    """Owner and row by hand.

    c ranks share the KV of a request. On which rank is slot v, and in which row of that rank's
    buffer? Do two by hand, then write the rule: return (rank, row).
    Hint: write the slots 0, 1, 2, ... in lines of c: the column is the rank, the line the row
    """
    layout = DcpLayout(c, page_size=1, num_pages=v // c + 1)
    return layout.owner(v), layout.row(v)


def slot_read(v: int, c: int, rank: int) -> int:
    """Row v of this rank holds the slot that is v full turns on, in the rank's place."""
    return v * c + rank


@task(grade=1, answer=slot_read, example=(5, 2, 0), make=lambda d: (d.number(d.c), d.c, d.rank))
def wrong_row_by_hand(v: int, c: int, rank: int) -> int:
    """Whose row is read instead?

    Somebody uses slot v as a row number on rank `rank`, without localizing it. The buffer is large
    enough. Which slot does the row that is read belong to? Return that slot.
    Hint: row v of rank r holds the slot s with s // c == v and s % c == r; solve for s
    Source: SGLang issue 38645.
    """
    return DcpLayout(c, page_size=1, num_pages=v + 1).slot(rank, v)


def outcome(v: int, c: int, P: int, N: int) -> str:
    """A rank has N + 1 pages of P rows, since the padding page takes room too."""
    return "silent" if v < (N + 1) * P else "crash"


def _near_the_bound(d: Draw) -> Inputs:
    c, P, N = d.c, d.P, d.pick(range(2, 5), range(2, 30 * d.size + 1))
    layout = DcpLayout(c, P, N)
    v = d.randrange(layout.slot_end)
    if d.random() < 0.7:
        bounds = (layout.row_end, layout.row_end, N * P, layout.slot_end)
        v = d.choice(bounds) + d.randint(-2, 2)
    return min(max(v, layout.first_slot), layout.slot_end - 1), c, P, N


@task(grade=2, answer=outcome, example=(7, 2, 2, 3), make=_near_the_bound)
def silent_or_loud(v: int, c: int, P: int, N: int) -> str:
    """Silent or loud?

    A pool has c ranks, pages of P rows, and N pages that can be handed out. Slot v, which was
    handed out, is used as a row number. Return "silent" when the row exists, so that a wrong row is
    read without an error, and "crash" when it lies past the buffer.
    Hint: how many rows has the buffer of one rank? The padding page counts, the factor c not
    Source: SGLang issue 38645.
    """
    return "silent" if v < DcpLayout(c, P, N).row_end else "crash"

"""Exercises of 04_backup_and_restore: what to save, the order of steps, where it comes back."""

from collections.abc import Callable

import torch

from kvlab.index import DcpLayout, Shard, localize_masked, localize_virtual
from kvlab.teach.draw import Draw, Inputs, slots_of
from kvlab.teach.exercise import task
from kvlab.teach.path.n03_crash_reproduction import Ranks


def to_save(prompt: int, generated: int, c: int, P: int) -> tuple[int, int]:
    """The newest token was sampled, and its KV is not written yet."""
    positions = prompt + generated - 1
    return positions, -(-positions // (P * c))


def _request(d: Draw) -> Inputs:
    c, P = d.c, d.P
    tokens = d.randint(1, 4) * P * c + d.choice([0, 1, 2, d.randrange(P * c)])
    generated = d.randint(1, tokens)
    return tokens - generated + 1, generated, c, P


@task(grade=2, answer=to_save, example=(6, 3, 4, 2), make=_request)
def positions_to_save(prompt: int, generated: int, c: int, P: int) -> tuple[int, int]:
    """How much is there to save?

    A request of `prompt` tokens has generated `generated` tokens (the first one was sampled by the
    prefill) and is retracted between two forwards. c ranks, pages of P rows on each. Return
    (positions that are backed up, widened pages that the allocator must give when it comes back).
    Hint: which token has been sampled, and has not been through a forward yet?
    Source: SGLang pull request 39487.
    """
    written = list(range(prompt))  # by the prefill, which samples token 1
    for token in range(1, generated):  # the forward that samples token + 1 writes this one
        written.append(prompt + token - 1)
    return len(written), DcpLayout(c, P, 1).pages_for(len(written))


def chunks(ids: list[int], c: int, rank: int, size: int) -> list[list[int]]:
    """Localize the whole run once; only then cut."""
    rows = [slot // c for slot in ids if slot % c == rank]
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def _run(d: Draw) -> Inputs:
    c, P = d.c, d.pick((1, 2), range(1, 3 * d.size + 1))
    count = d.randint(1, 2 + d.size // 2)
    length = d.randint((count - 1) * P * c + 1, count * P * c)
    ids = slots_of(d.pages(count, count + 2 + d.size), length, P * c)
    return ids, c, d.randrange(c), d.randint(1, 3 + d.size)


@task(grade=3, answer=chunks, example=(list(range(8, 20)), 4, 1, 2), make=_run)
def localize_then_chunk(ids: list[int], c: int, rank: int, size: int) -> list[list[int]]:
    """Localize, then cut.

    `ids` are the slots of positions 0, 1, 2, ... of a request. Rank `rank` of c copies its rows to
    the host in chunks of `size` rows, the last one shorter; a rank without rows has no chunk.
    Return the chunks, a list of lists of rows, in the order of the positions.
    Hint: a chunk of slots begins the turn of the ranks anew; a chunk of rows has no turns
    Source: SGLang pull request 39487.
    """
    rows = localize_masked(torch.tensor(ids), Shard(c, rank))
    return [rows[i : i + size].tolist() for i in range(0, len(rows), size)]


def rank_and_row(v: int, c: int, P: int, v2p: list[int]) -> tuple[int, int]:
    """Shard the virtual id first; then look up the page of the row that comes out."""
    row = v // c
    return v % c, v2p[row // P] * P + row % P


def _unified(d: Draw) -> Inputs:
    c, P, N = d.c, d.P, d.pick((2, 3), range(2, 10 * d.size + 1))
    return d.randrange(P * c, (N + 1) * P * c), c, P, [0, *d.pages(N, N + 2)]


@task(grade=3, answer=rank_and_row, example=(9, 2, 2, [0, 2, 3, 1]), make=_unified, core=False)
def shard_then_look_up(v: int, c: int, P: int, v2p: list[int]) -> tuple[int, int]:
    """Two steps in one order.

    A unified pool has a page table between the slots and the rows: v2p[q] is the physical page of
    virtual page q, and v2p[0] = 0. Pages have P rows on each of the c ranks, and page q of the
    allocator is virtual page q. On which rank and in which physical row is virtual slot v? Return
    (rank, row).
    Hint: divide by c once; what is left is a row, P to a page; look that page up
    Source: SGLang pull request 36890.
    """
    slot, table = torch.tensor([v]), torch.tensor(v2p)
    rows = [localize_virtual(slot, table, P, Shard(c, rank))[1].tolist() for rank in range(c)]
    return next((rank, found[0]) for rank, found in enumerate(rows) if found)


class HostCopyPool(Ranks):
    """The same, with a backup that was repaired: each rank saves the rows that it owns."""

    def back_up(self, slots: list[int]) -> list[list[tuple[int, int]]]:
        """For each rank (row, token) of the slots that it owns, in the order of the slots."""
        return [
            [(v // self.c, rows[v // self.c]) for v in slots if v % self.c == rank]
            for rank, rows in enumerate(self.ranks)
        ]

    def restore(self, saved: list[list[tuple[int, int]]], slots: list[int]) -> None:
        """Write the host copies into new slots."""
        assert sum(len(copy) for copy in saved) == len(slots)
        for rows, copy in zip(self.ranks, saved, strict=True):
            for row, token in copy:
                rows[row] = token


def restore(self: HostCopyPool, saved: list[list[tuple[int, int]]], slots: list[int]) -> None:
    """The new slots are localized by themselves; only the order of the positions is old."""
    for rank, copy in enumerate(saved):
        new_rows = [v // self.c for v in slots if v % self.c == rank]
        for row, (_, token) in zip(new_rows, copy, strict=True):
            self.ranks[rank][row] = token


def _brought_back(
    restore: Callable[..., object], c: int, P: int, *given: list[int]
) -> list[list[int]]:
    """What the victim, and a newcomer in its old slots, find after the restore."""
    old, new, tokens = given
    repaired = type("Repaired", (HostCopyPool,), {"restore": restore})
    pool: HostCopyPool = repaired(c, P, max([*old, *new]) // (P * c))
    pool.write(old, tokens)
    saved = pool.back_up(old)
    pool.write(old, [-token for token in tokens])
    pool.restore(saved, new)
    return [pool.read(new), pool.read(old)]


def _moved(d: Draw) -> Inputs:
    c, P = d.c, d.pick((1, 2), range(1, 3 + d.size // 2))
    count = d.randint(1, 1 + d.size // 3)
    length = d.randint((count - 1) * P * c + 1, count * P * c)
    pages = d.pages(2 * count, 2 * count + 1 + d.size)
    old, new = (slots_of(p, length, P * c) for p in (pages[:count], pages[count:]))
    return c, P, old, new, [d.pick(range(1, 10), range(1, 10_000)) for _ in old]


@task(
    grade=4,
    answer=restore,
    example=(2, 1, [2, 3, 4], [6, 7, 8], [3, 1, 4]),
    make=_moved,
    code=(Ranks, HostCopyPool),
    run=_brought_back,
)
def restore_into_new_slots(
    c: int, P: int, old: list[int], new: list[int], tokens: list[int]
) -> list[list[int]]:
    """Repair the restore.

    The backup of this pool was repaired, its restore was not. Write the method `restore` anew. The
    check writes `tokens` into the slots `old`, backs them up, lets a newcomer write -tokens into
    the same slots, restores the request into `new` with your method, and reads both: the request
    must find its tokens, and the newcomer must keep its own.
    Hint: what does the method take from the new slots? Each rank owns some of them, too
    Source: SGLang pull request 38790.
    """
    return [tokens, [-token for token in tokens]]

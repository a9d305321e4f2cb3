"""Exercises of 04_backup_and_restore: what to save, the order of steps, where it comes back."""

from collections.abc import Callable
from random import Random

import torch

from kvlab.index import DcpLayout, Shard, localize_masked, localize_virtual
from kvlab.teach import path
from kvlab.teach.exercise import Exercise, Inputs
from kvlab.teach.suspects import HostCopyPool, Ranks

NOTEBOOK = "04_backup_and_restore"


def to_save(prompt: int, generated: int, c: int, P: int) -> tuple[int, int]:
    """The newest token was sampled, and its KV is not written yet."""
    positions = prompt + generated - 1
    return positions, -(-positions // (P * c))


def _to_save(prompt: int, generated: int, c: int, P: int) -> tuple[int, int]:
    written = list(range(prompt))  # by the prefill, which samples token 1
    for token in range(1, generated):  # the forward that samples token + 1 writes this one
        written.append(prompt + token - 1)
    return len(written), DcpLayout(c, P, 1).pages_for(len(written))


def _request(rng: Random, size: int) -> Inputs:
    c, P = path.ranks(rng, size), path.page(rng, size)
    tokens = rng.randint(1, 4) * P * c + rng.choice([0, 1, 2, rng.randrange(P * c)])
    generated = rng.randint(1, tokens)
    return {"prompt": tokens - generated + 1, "generated": generated, "c": c, "P": P}


def chunks(ids: list[int], c: int, rank: int, size: int) -> list[list[int]]:
    """Localize the whole run once; only then cut."""
    rows = [slot // c for slot in ids if slot % c == rank]
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def _chunks(ids: list[int], c: int, rank: int, size: int) -> list[list[int]]:
    rows = localize_masked(torch.tensor(ids), Shard(c, rank))
    return [rows[i : i + size].tolist() for i in range(0, len(rows), size)]


def _run(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, size)
    P = rng.randint(1, 2) if size < 3 else rng.randint(1, 3 * size)
    count = rng.randint(1, 2 + size // 2)
    length = rng.randint((count - 1) * P * c + 1, count * P * c)
    ids = path.slots_of(path.pages(rng, count, count + 2 + size), length, P * c)
    return {"ids": ids, "c": c, "rank": rng.randrange(c), "size": rng.randint(1, 3 + size)}


def rank_and_row(v: int, c: int, P: int, v2p: list[int]) -> tuple[int, int]:
    """Shard the virtual id first; then look up the page of the row that comes out."""
    row = v // c
    return v % c, v2p[row // P] * P + row % P


def _rank_and_row(v: int, c: int, P: int, v2p: list[int]) -> tuple[int, int]:
    table = torch.tensor(v2p)
    for rank in range(c):
        elements, rows = localize_virtual(torch.tensor([v]), table, P, Shard(c, rank))
        if len(elements):
            return rank, int(rows[0])
    raise AssertionError("some rank owns every slot")


def _unified(rng: Random, size: int) -> Inputs:
    c, P = path.ranks(rng, size), path.page(rng, size)
    N = rng.randint(2, 3) if size < 3 else rng.randint(2, 10 * size)
    return {
        "v": rng.randrange(P * c, (N + 1) * P * c),
        "c": c,
        "P": P,
        "v2p": [0, *path.pages(rng, N, N + 2)],
    }


def restore(self: HostCopyPool, saved: list[list[tuple[int, int]]], slots: list[int]) -> None:
    """The new slots are localized by themselves; only the order of the positions is old."""
    for rank, copy in enumerate(saved):
        new_rows = [v // self.c for v in slots if v % self.c == rank]
        for row, (_, token) in zip(new_rows, copy, strict=True):
            self.ranks[rank][row] = token


def _brought_back(
    restore: Callable[..., object],
    c: int,
    P: int,
    old: list[int],
    new: list[int],
    tokens: list[int],
) -> list[list[int]]:
    """What the victim, and a newcomer in its old slots, find after the restore."""
    repaired = type("Repaired", (HostCopyPool,), {"restore": restore})
    pool: HostCopyPool = repaired(c, P, max([*old, *new]) // (P * c))
    pool.write(old, tokens)
    saved = pool.back_up(old)
    pool.write(old, [-token for token in tokens])
    pool.restore(saved, new)
    return [pool.read(new), pool.read(old)]


def _meant(c: int, P: int, old: list[int], new: list[int], tokens: list[int]) -> list[list[int]]:
    return [tokens, [-token for token in tokens]]


def _moved(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, min(size, 6))
    P = rng.randint(1, 2) if size < 3 else rng.randint(1, 2 + size // 2)
    count = rng.randint(1, 1 + size // 3)
    length = rng.randint((count - 1) * P * c + 1, count * P * c)
    pages = path.pages(rng, 2 * count, 2 * count + 1 + size)
    old, new = (path.slots_of(p, length, P * c) for p in (pages[:count], pages[count:]))
    tokens = [rng.randint(1, 9 if size < 3 else 9999) for _ in range(length)]
    return {"c": c, "P": P, "old": old, "new": new, "tokens": tokens}


ALL = (
    Exercise(
        "positions-to-save",
        NOTEBOOK,
        2,
        "How much is there to save?",
        """A request of `prompt` tokens has generated `generated` tokens (the first one was sampled
        by the prefill) and is retracted between two forwards. c ranks, pages of P rows on each.
        Return (positions that are backed up, widened pages that the allocator must give when it
        comes back).""",
        answer=to_save,
        spec=_to_save,
        example={"prompt": 6, "generated": 3, "c": 4, "P": 2},
        make=_request,
        hint="which token has been sampled, and has not been through a forward yet?",
        source="SGLang pull request 39487",
    ),
    Exercise(
        "localize-then-chunk",
        NOTEBOOK,
        3,
        "Localize, then cut",
        """`ids` are the slots of positions 0, 1, 2, ... of a request. Rank `rank` of c copies its
        rows to the host in chunks of `size` rows, the last one shorter; a rank without rows has no
        chunk. Return the chunks, a list of lists of rows, in the order of the positions.""",
        answer=chunks,
        spec=_chunks,
        example={"ids": list(range(8, 20)), "c": 4, "rank": 1, "size": 2},
        make=_run,
        hint="a chunk of slots begins the turn of the ranks anew; a chunk of rows has no turns",
        source="SGLang pull request 39487",
    ),
    Exercise(
        "shard-then-look-up",
        NOTEBOOK,
        3,
        "Two steps in one order",
        """A unified pool has a page table between the slots and the rows: v2p[q] is the physical
        page of virtual page q, and v2p[0] = 0. Pages have P rows on each of the c ranks, and page
        q of the allocator is virtual page q. On which rank and in which physical row is virtual
        slot v? Return (rank, row).""",
        answer=rank_and_row,
        spec=_rank_and_row,
        example={"v": 9, "c": 2, "P": 2, "v2p": [0, 2, 3, 1]},
        make=_unified,
        hint="divide by c once; what is left is a row, P to a page; look that page up",
        source="SGLang pull request 36890",
        core=False,
    ),
    Exercise(
        "restore-into-new-slots",
        NOTEBOOK,
        4,
        "Repair the restore",
        """The backup of this pool was repaired, its restore was not. Write the method `restore`
        anew. The check writes `tokens` into the slots `old`, backs them up, lets a newcomer write
        -tokens into the same slots, restores the request into `new` with your method, and reads
        both: the request must find its tokens, and the newcomer must keep its own.""",
        answer=restore,
        spec=_meant,
        run=_brought_back,
        example={"c": 2, "P": 1, "old": [2, 3, 4], "new": [6, 7, 8], "tokens": [3, 1, 4]},
        make=_moved,
        hint="what does the method take from the new slots? Each rank owns some of them, too",
        source="SGLang pull request 38790",
        code=(Ranks, HostCopyPool),
    ),
)

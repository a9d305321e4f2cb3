"""Small classes that look right. Each has one bug, most from public reports; readers find it.

Tokens are numbers, a buffer is a list of rows for each rank, so that every step can be redone by
hand. The docstrings say what a class is for, and not what is wrong with it.

Below them stand the judges: what happens with an answer to a *find the bug* exercise. A judge runs
the suspect with the answer, refuses what no allocator, node or host would do, so that only the bug
is left to show, and takes the class as its last argument: the repaired class is exposed by nothing.
"""

import math
from functools import reduce

import torch

from kvlab.attn import merge_stacked
from kvlab.index import DcpLayout
from kvlab.teach.exercise import Verdict


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


class PageAllocator:
    """Hands out widened pages of W slots; a request that ends gives back ranges of positions."""

    def __init__(self, W: int, N: int) -> None:
        self.W = W
        self.free_pages = list(range(1, N + 1))

    def alloc(self, tokens: int) -> list[int]:
        """The pages of a new request, in position order."""
        count = -(-tokens // self.W)
        taken, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        return taken

    def free(self, pages: list[int], ranges: list[tuple[int, int]]) -> None:
        """Give back the pages of these half-open position ranges."""
        for begin, end in ranges:
            self.free_pages += pages[begin // self.W : -(-end // self.W)]


class DecodeBatch:
    """The running requests of a node, each as [prompt, generated], the oldest first."""

    def __init__(self, W: int, running: list[list[int]], free: int) -> None:
        self.W, self.running, self.free = W, running, free
        self.total = free + self.held()

    def held(self) -> int:
        """Pages that the running requests hold: KV is written for all tokens but the newest."""
        return sum(-(-(prompt + generated - 1) // self.W) for prompt, generated in self.running)

    def needed(self) -> int:
        """Pages that the next forward opens."""
        return sum((prompt + generated - 1) % self.W == 0 for prompt, generated in self.running)

    def retract(self) -> list[list[int]]:
        """Retract until the next forward fits, or one request is left: the victims."""
        victims = []
        while self.needed() > self.free and len(self.running) > 1:
            # Fewest generated, then the longest prompt, then the last to join.
            victim = min(reversed(self.running), key=lambda request: (request[1], -request[0]))
            self.running.remove(victim)
            self.free += -(-sum(victim) // self.W)
            victims.append(victim)
        return victims

    def audit(self) -> bool:
        """Whether free and held pages add up to those of the pool."""
        return self.free + self.held() == self.total


class TreeMerge:
    """Merges the partials of the ranks, two at a time; a partial is (out, lse in nats)."""

    def pair(self, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
        """The partial over the keys of both."""
        top = max(a[1], b[1])
        if top == -math.inf:
            return 0.0, -math.inf
        wa, wb = math.exp(a[1] - top), math.exp(b[1] - top)
        return (wa * a[0] + wb * b[0]) / (wa + wb), top

    def merge(self, outs: list[float], lses: list[float]) -> float:
        """The output over the keys of all ranks."""
        return reduce(self.pair, zip(outs, lses, strict=True))[0]


class RankBackups:
    """Host memory of at most capacity bytes, from which the ranks of a node take their copies."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lent: list[int] = []

    def back_up(self, sizes: list[int]) -> bool:
        """Take one block a rank; False when the host has no room, and the request is aborted."""
        for size in sizes:
            if sum(self.lent) + size > self.capacity:
                return False
            self.lent.append(size)
        return True

    def give_back(self, sizes: list[int]) -> None:
        """The request came back: its blocks are free again."""
        for size in sizes:
            self.lent.remove(size)


class ReusingArena:
    """Host memory of at most capacity bytes, in blocks that are kept and lent again."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lent: list[int] = []
        self.idle: list[int] = []

    def take(self, size: int) -> int | None:
        """The bytes of a block that holds size, or None when the bound would be passed."""
        fitting = [block for block in self.idle if block >= size]
        if fitting:
            block = min(fitting)
            self.idle.remove(block)
        elif sum(self.lent) + size <= self.capacity:
            block = size
        else:
            return None
        self.lent.append(block)
        return block

    def give(self, block: int) -> None:
        """Take a block back, for the next backup."""
        self.lent.remove(block)
        self.idle.append(block)

    def audit(self) -> bool:
        """Whether all blocks together keep the bound."""
        return sum(self.lent) + sum(self.idle) <= self.capacity


def restore_exposes(
    answer: object, c: int, P: int, N: int, suspect: type[RetractionPool] = RetractionPool
) -> Verdict:
    """Backs up, restores and reads in the slots of ``answer``."""
    layout = DcpLayout(c, P, N)
    match answer:
        case [[*before], [*after]]:
            old, new = _whole_numbers(before), _whole_numbers(after)
        case _:
            return Verdict(False, "two lists are meant: the slots before and the slots after")
    if old is None or new is None:
        return Verdict(False, "a slot is a whole number")
    for name, slots in (("old", old), ("new", new)):
        wrong = _refuse(slots, layout)
        if wrong:
            return Verdict(False, f"the {name} slots are not what an allocator gives: {wrong}")
    if len(old) != len(new):
        return Verdict(False, f"{len(old)} old and {len(new)} new slots: a request has one length")
    tokens = [101 + i for i in range(len(old))]
    pool = suspect(c, P, N)
    pool.write(old, tokens)
    try:
        pool.restore(pool.back_up(old), new)
    except IndexError:
        high = max([*old, *new])
        return Verdict(False, f"it crashes, {high} is past the {layout.row_end} rows: not silent")
    found = pool.read(new)
    if found == tokens:
        return Verdict(False, f"the pool gives back {len(found)} right tokens: this test passes")
    at = next(i for i, token in enumerate(tokens) if found[i] != token)
    return Verdict(
        True, f"no error, and position {at} comes back as {found[at]} instead of {tokens[at]}"
    )


def _whole_numbers(values: list[object]) -> list[int] | None:
    numbers = [x for x in values if isinstance(x, int) and not isinstance(x, bool)]
    return numbers if len(numbers) == len(values) else None


def _refuse(slots: list[int], layout: DcpLayout) -> str:
    W = layout.widened_page_size
    if not slots:
        return "there are none"
    pages: list[int] = []
    for i, v in enumerate(slots):
        if not layout.first_slot <= v < layout.slot_end:
            return f"element {i} is {v}, slots are {layout.first_slot} .. {layout.slot_end - 1}"
        if v % W != i % W:
            return f"element {i} is slot {v}, at {v % W} in its page of {W} instead of {i % W}"
        if i % W == 0:
            pages.append(v // W)
        elif v // W != pages[-1]:
            return f"element {i} is in page {v // W}, before page {pages[-1]} is full"
    return "a page is named twice" if len(set(pages)) != len(pages) else ""


def seam_exposes(
    answer: object,
    c: int,
    P: int,
    kept: int,
    length: int,
    suspect: type[PageAllocator] = PageAllocator,
) -> Verdict:
    """Frees a request in two ranges that meet at ``answer`` and looks for a page freed twice."""
    W = P * c
    if type(answer) is not int:
        return Verdict(False, f"{answer!r} is no position: one whole number is meant")
    if not kept < answer < length:
        return Verdict(False, f"{answer} does not cut [{kept}, {length}) into two ranges")
    if answer % P:
        return Verdict(False, f"{answer} is no multiple of P = {P}: nobody cuts there")
    ranges = [(kept, answer), (answer, length)]
    allocator = suspect(W, length // W + 3)
    pages = allocator.alloc(length)
    allocator.free_pages = []
    allocator.free(pages, ranges)
    freed = allocator.free_pages
    twice = sorted({page for page in freed if freed.count(page) > 1})
    told = f"[{kept}, {answer}) and [{answer}, {length}) give back pages {freed}"
    if not twice:
        return Verdict(False, f"{told}, each once, as it should be")
    return Verdict(True, f"{told}: page {twice[0]} twice, and two requests will get it")


def batch_exposes(
    answer: object, c: int, P: int, suspect: type[DecodeBatch] = DecodeBatch
) -> Verdict:
    """Retracts from the batch of ``answer`` and audits the books."""
    match answer:
        case [[*running], int(free)] if len(running) > 1 and _whole_numbers([free]) and free >= 0:
            pass
        case _:
            return Verdict(False, "two or more requests and a number of free pages are meant")
    requests: list[list[int]] = []
    for request in running:
        pair = _whole_numbers(request) if isinstance(request, list) else None
        if pair is None or len(pair) != 2 or min(pair) < 1:
            return Verdict(False, f"{request!r} is no [prompt, generated] of at least 1 each")
        requests.append(pair)
    batch = suspect(P * c, requests, free)
    before, victims = batch.needed(), batch.retract()
    if not victims:
        return Verdict(False, f"the next forward needs {before} pages of {free}: nobody leaves")
    told = f"victims {victims}; then {batch.free} free and {batch.held()} held of {batch.total}"
    if batch.audit():
        return Verdict(False, f"{told} pages: the books are right")
    return Verdict(True, f"{told} pages: the books are wrong")


def merge_exposes(
    answer: object, outs: list[float], suspect: type[TreeMerge] = TreeMerge
) -> Verdict:
    """Merges ``outs`` with the LSE of ``answer``, by the suspect and at once."""
    if not isinstance(answer, list) or len(answer) != len(outs):
        return Verdict(False, f"a list of {len(outs)} numbers is meant, the LSE of each rank")
    for x in answer:
        if type(x) not in (int, float) or not (x == -math.inf or abs(x) <= 50):
            return Verdict(False, f"{x!r} is no LSE: -50 to 50, or -inf for a rank without keys")
    got = suspect().merge(outs, [float(x) for x in answer])
    out = torch.tensor(outs, dtype=torch.float64)[:, None]
    right = float(merge_stacked(out, torch.tensor(answer, dtype=torch.float64)).out)
    told = f"it merges to {got:.4g}, attention over all keys is {right:.4g}"
    return Verdict(abs(got - right) > 0.01, told)


def leak_exposes(
    answer: object, capacity: int, c: int, suspect: type[RankBackups] = RankBackups
) -> Verdict:
    """Backs up two requests, of which the first is declined."""
    match answer:
        case [[*one], [*two]] if len(one) == len(two) == c:
            first, second = _whole_numbers(one), _whole_numbers(two)
        case _:
            return Verdict(False, f"two requests are meant, each with {c} sizes, one a rank")
    if first is None or second is None or min(*first, *second) < 0:
        return Verdict(False, "a size is a whole number of bytes, at least 0")
    if sum(second) > capacity:
        return Verdict(False, f"the second request has {sum(second)} bytes: it never fits")
    host = suspect(capacity)
    if host.back_up(first):
        return Verdict(False, "the first request fits: nothing was declined")
    left = sum(host.lent)
    if host.back_up(second):
        return Verdict(False, f"the second request fits beside the {left} bytes that are lent")
    return Verdict(True, f"nobody has a backup, {left} of {capacity} bytes are lent for ever")


def arena_exposes(
    answer: object, capacity: int, suspect: type[ReusingArena] = ReusingArena
) -> Verdict:
    """Takes and gives blocks as ``answer`` says, and looks at the bound after each."""
    if not isinstance(answer, list) or any(type(x) is not int or x == 0 for x in answer):
        return Verdict(False, "a list of whole numbers is meant, none of them 0")
    arena, blocks = suspect(capacity), list[int | None]()
    for x in answer:
        if x > capacity:
            return Verdict(False, f"a backup of {x} bytes fits no arena of {capacity}")
        if x > 0:
            blocks.append(arena.take(x))
        elif -x > len(blocks) or blocks[-x - 1] is None:
            return Verdict(False, f"{x} gives back a block that is not lent")
        else:
            arena.give(blocks[-x - 1] or 0)
            blocks[-x - 1] = None
        told = f"after {x}: {arena.lent} lent and {arena.idle} idle"
        if not arena.audit():
            return Verdict(True, f"{told} are more than {capacity} bytes")
    return Verdict(False, f"{told if answer else 'nothing'}: the bound of {capacity} is kept")

"""Small classes that look right. Each has one bug, most from public reports; readers find it.

Tokens are numbers, a buffer is a list of rows for each rank, so that every step can be redone by
hand. The docstrings say what a class is for, and not what is wrong with it.
"""

import math
from functools import reduce


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

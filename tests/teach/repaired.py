"""The suspects of ``kvlab.teach`` without their bug: no answer may expose these."""

import math
from typing import Any

from kvlab.index import merge_touching
from kvlab.teach import exercise
from kvlab.teach.exercise import Miss
from kvlab.teach.path.n03_crash_reproduction import RetractionPool
from kvlab.teach.path.n05_retraction_counts import DecodeBatch, PageAllocator
from kvlab.teach.path.n06_logprob_drift import TreeMerge
from kvlab.teach.path.n07_what_it_costs import RankBackups, ReusingArena


class GoodPool(RetractionPool):
    def back_up(self, slots: list[int]) -> list[list[int]]:
        owned = [[v for v in slots if v % self.c == rank] for rank in range(self.c)]
        return [[self.ranks[r][v // self.c] for v in mine] for r, mine in enumerate(owned)]

    def restore(self, saved: list[list[int]], slots: list[int]) -> None:
        for rank, copy in enumerate(saved):
            mine = [v for v in slots if v % self.c == rank]
            for v, token in zip(mine, copy, strict=True):
                self.ranks[rank][v // self.c] = token


class GoodAllocator(PageAllocator):
    def free(self, pages: list[int], ranges: list[tuple[int, int]]) -> None:
        super().free(pages, merge_touching(ranges))


class GoodBatch(DecodeBatch):
    def retract(self) -> list[list[int]]:
        victims = []
        while self.needed() > self.free and len(self.running) > 1:
            victim = min(reversed(self.running), key=lambda request: (request[1], -request[0]))
            self.running.remove(victim)
            self.free += -(-(sum(victim) - 1) // self.W)
            victims.append(victim)
        return victims


class GoodMerge(TreeMerge):
    def pair(self, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
        out, top = super().pair(a, b)
        if top == -math.inf:
            return out, top
        return out, top + math.log(math.exp(a[1] - top) + math.exp(b[1] - top))


class GoodBackups(RankBackups):
    def back_up(self, sizes: list[int]) -> bool:
        if sum(self.lent) + sum(sizes) > self.capacity:
            return False
        return super().back_up(sizes)


class GoodArena(ReusingArena):
    def take(self, size: int) -> int | None:
        if not any(block >= size for block in self.idle):
            while self.idle and sum(self.lent) + sum(self.idle) + size > self.capacity:
                self.idle.pop(0)
        return super().take(size)


REPAIRED: dict[str, type] = {
    "a-test-that-sees-it": GoodPool,
    "mid-page-seam": GoodAllocator,
    "books-of-the-scheduler": GoodBatch,
    "merge-of-three": GoodMerge,
    "a-full-host": GoodBackups,
    "arena-over-its-bound": GoodArena,
}


def exposes(name: str, answer: Any, *inputs: object, **suspect: type) -> bool:
    """Whether an answer exposes the suspect of an exercise."""
    try:
        return bool(exercise(name).rule(answer, *inputs, **suspect))
    except Miss:
        return False

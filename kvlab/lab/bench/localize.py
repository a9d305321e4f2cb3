"""Localize: what the check of a run costs beside the stride that checks nothing, and the mask.

A rank's first look at a run verifies every id; the other ranks of the process find it verified.
Calls go round several runs, so that ids are no warmer in the cache than a server's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots, localize, localize_strided
from kvlab.lab.bench import upstream
from kvlab.lab.bench.clock import Contender, take_turns
from kvlab.lab.bench.rows import Aim, Row, compare

PART = "localize"
PAGE_SIZE = 64
NEAR_STRIDE = Aim(1 / 1.3, "within 1.3x of it")
ABOVE_MASK = Aim(5.0, "at least 5x")

STRIDE, MASK, STRIDES = "unchecked stride", "mask", "c unchecked strides"
CHECKED, FIRST, FURTHER, ALL = (
    "checked stride",
    "localize, first rank",
    "localize, further rank",
    "localize, all c ranks",
)


@dataclass(frozen=True, slots=True)
class LocalizeCase:
    """Runs of ``ids`` slots each on ``dcp_size`` ranks; ``runs`` of them are gone through."""

    ids: int
    dcp_size: int
    runs: int
    repetitions: int
    warmup: int
    aimed: bool = False

    @property
    def name(self) -> str:
        """For instance "128k ids, c=8"."""
        size = str(self.ids)
        for unit, of in (("M", 2**20), ("k", 2**10)):
            if self.ids % of == 0:
                size = f"{self.ids // of}{unit}"
                break
        return f"{size} ids, c={self.dcp_size}"

    @property
    def layout(self) -> DcpLayout:
        """A pool with room for four such runs."""
        return DcpLayout(self.dcp_size, PAGE_SIZE, 4 * -(-self.ids // (PAGE_SIZE * self.dcp_size)))

    @property
    def rank(self) -> int:
        """The rank that localizes, not the first where there is a choice."""
        return min(3, self.dcp_size - 1)


FULL = (
    LocalizeCase(4 * 2**10, 8, runs=64, repetitions=60, warmup=5),
    LocalizeCase(128 * 2**10, 8, runs=16, repetitions=60, warmup=5, aimed=True),
    LocalizeCase(4 * 2**20, 8, runs=3, repetitions=15, warmup=2),
    LocalizeCase(128 * 2**10, 2, runs=16, repetitions=20, warmup=3),
    LocalizeCase(128 * 2**10, 4, runs=16, repetitions=20, warmup=3),
    LocalizeCase(128 * 2**10, 3, runs=16, repetitions=20, warmup=3),
)
QUICK = (
    LocalizeCase(4 * 2**10, 8, runs=64, repetitions=15, warmup=2),
    LocalizeCase(128 * 2**10, 8, runs=16, repetitions=15, warmup=2, aimed=True),
)


def make_runs(case: LocalizeCase) -> list[Tensor]:
    """``case.runs`` runs from position 0, each on pages in random order: int64 ``(ids,)``."""
    chance = torch.Generator().manual_seed(0)
    page = case.layout.widened_page_size
    runs = []
    for _ in range(case.runs):
        pages = torch.randperm(case.layout.num_pages, generator=chance)[: -(-case.ids // page)] + 1
        slots = (pages[:, None] * page + torch.arange(page)).flatten()
        runs.append(slots[: case.ids].contiguous())
    return runs


def ways(case: LocalizeCase) -> dict[str, Callable[[Tensor, WidenedSlots], Sequence[Tensor]]]:
    """Every contender: from (ids, the same ids verified before) to the rows of one or all ranks."""
    c, rank, layout = case.dcp_size, case.rank, case.layout

    def all_ranks(ids: Tensor, _: WidenedSlots) -> list[Tensor]:
        slots = WidenedSlots(ids)
        return [localize(slots, layout, r).ids for r in range(c)]

    return {
        STRIDE: lambda ids, _: [upstream.stride(ids, c, rank)],
        MASK: lambda ids, _: [upstream.mask(ids, c, rank)],
        CHECKED: lambda ids, _: [localize_strided(ids, c, rank)],
        FIRST: lambda ids, _: [localize(WidenedSlots(ids), layout, rank).ids],
        FURTHER: lambda _, verified: [localize(verified, layout, rank).ids],
        STRIDES: lambda ids, _: [upstream.stride(ids, c, r) for r in range(c)],
        ALL: all_ranks,
    }


def rows_of(case: LocalizeCase) -> list[Row]:
    """Time one case. Errors: StudyError when two contenders disagree about the rows."""
    inputs = []
    for ids in make_runs(case):
        verified = WidenedSlots(ids)
        localize(verified, case.layout, (case.rank + 1) % case.dcp_size)
        inputs.append((ids, verified))
    contenders = []
    for name, way in ways(case).items():
        for ids, verified in inputs[:2]:
            _require_equal(case, name, way(ids, verified), ids)
        contenders.append(Contender(name, _round(way, inputs), calls=len(inputs)))
    timing = take_turns(contenders, case.repetitions, case.warmup)
    near, above = (NEAR_STRIDE, ABOVE_MASK) if case.aimed else (None, None)
    return [
        compare(PART, case.name, timing, ours, baseline, aim)
        for ours, baseline, aim in (
            (CHECKED, STRIDE, near),
            (CHECKED, MASK, above),
            (FIRST, STRIDE, near),
            (FIRST, MASK, above),
            (FURTHER, STRIDE, None),
            (ALL, STRIDES, near),
        )
    ]


def measure(quick: bool) -> Iterator[list[Row]]:
    """The rows of each case."""
    for case in QUICK if quick else FULL:
        yield rows_of(case)


def _round(
    way: Callable[[Tensor, WidenedSlots], object], inputs: Sequence[tuple[Tensor, WidenedSlots]]
) -> Callable[[int], Callable[[], object]]:
    def go_round() -> None:
        for ids, verified in inputs:
            way(ids, verified)

    return lambda _: go_round


def _require_equal(case: LocalizeCase, name: str, found: Sequence[Tensor], ids: Tensor) -> None:
    ranks = [case.rank] if len(found) == 1 and case.dcp_size > 1 else range(case.dcp_size)
    for rank, rows in zip(ranks, found, strict=True):
        if not torch.equal(rows, upstream.mask(ids, case.dcp_size, rank)):
            raise StudyError(
                f"what is timed must be right: the rows of {name!r} for rank {rank} "
                f"({case.name}) are not those of the mask; do not trust this benchmark"
            )

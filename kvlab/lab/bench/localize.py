"""Localize: what the check of a run costs beside the stride that checks nothing, and the mask.

A rank's first look at a run verifies every id; the other ranks of the process find it verified.
``localize_run`` checks into a flag that nobody reads while the clock runs, by each backend that the
device has. Calls go through more runs than the last-level cache holds, so that ids are as cold as a
server's. The copy moves what a checked localization must: it reads n ids and writes n/c.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots, localize, localize_strided
from kvlab.lab.bench import upstream
from kvlab.lab.bench.clock import Effort, take_turns_within
from kvlab.lab.bench.place import Place
from kvlab.lab.bench.rows import Aim, Facts, LeftOut, Row, compare
from kvlab.lab.bench.tour import Tour
from kvlab.ops import Backend, CheckFlag, localize_run

PART = "localize"
PAGE_SIZE = 64
NEAR_STRIDE = Aim(1 / 1.3, "within 1.3x of it")
ABOVE_MASK = Aim(5.0, "at least 5x")
NEAR_COPY = Aim(1 / 1.1, "within 1.1x of it")

STRIDE, MASK, STRIDES, COPY = "unchecked stride", "mask", "c unchecked strides", "copy"
CHECKED, FIRST, FURTHER, ALL = (
    "checked stride",
    "localize, first rank",
    "localize, further rank",
    "localize, all c ranks",
)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The slots of a run, the same ones verified before, and memory that a copy goes to."""

    ids: Tensor
    verified: WidenedSlots
    target: Tensor


Way = Callable[[Run], Sequence[Tensor]]
_EFFORT, _QUICK = Effort(2.0, most=60), Effort(0.3, most=15)


@dataclass(frozen=True, slots=True)
class LocalizeCase:
    """Runs of ``ids`` slots each on ``dcp_size`` ranks. ``runs`` of them are gone through; None:
    as many as the cache cannot hold. ``aimed``: the device whose aims are of this size."""

    ids: int
    dcp_size: int
    effort: Effort = _EFFORT
    runs: int | None = None
    aimed: str | None = None

    @property
    def name(self) -> str:
        """For instance "128k ids, c=8"."""
        return f"{count_text(self.ids)} ids, c={self.dcp_size}"

    @property
    def layout(self) -> DcpLayout:
        """A pool with room for four such runs."""
        return DcpLayout(self.dcp_size, PAGE_SIZE, 4 * -(-self.ids // (PAGE_SIZE * self.dcp_size)))

    @property
    def rank(self) -> int:
        """The rank that localizes, not the first where there is a choice."""
        return min(3, self.dcp_size - 1)

    @property
    def copy_ids(self) -> int:
        """Ids of a copy that moves as much: half of the n that are read and the n/c written."""
        return -(-(self.ids + len(range(self.rank, self.ids, self.dcp_size))) // 2)

    def runs_at(self, place: Place) -> int:
        """How many runs are gone through."""
        return place.sets(8 * self.ids) if self.runs is None else self.runs


FULL = (
    *(LocalizeCase(n * 2**10, 8) for n in (1, 4, 16)),
    LocalizeCase(128 * 2**10, 8, aimed="cpu"),
    LocalizeCase(2**20, 8),
    LocalizeCase(4 * 2**20, 8, aimed="cuda"),
    LocalizeCase(16 * 2**20, 8),
    *(LocalizeCase(128 * 2**10, c) for c in (2, 4, 3)),
)
QUICK = (LocalizeCase(4 * 2**10, 8, _QUICK), LocalizeCase(128 * 2**10, 8, _QUICK, aimed="cpu"))


def count_text(count: int) -> str:
    """ "128k", "4M", or the number itself where it is no whole multiple of 1024."""
    for unit, of in (("M", 2**20), ("k", 2**10)):
        if count % of == 0:
            return f"{count // of}{unit}"
    return str(count)


def make_runs(case: LocalizeCase, place: Place) -> list[Tensor]:
    """Runs from position 0, each on pages in random order: int64 ``(ids,)`` on the device."""
    chance = torch.Generator().manual_seed(0)
    page = case.layout.widened_page_size
    runs = []
    for _ in range(case.runs_at(place)):
        pages = torch.randperm(case.layout.num_pages, generator=chance)[: -(-case.ids // page)] + 1
        slots = (pages[:, None] * page + torch.arange(page)).flatten()
        runs.append(slots[: case.ids].contiguous().to(place.device))
    return runs


def run_name(backend: Backend) -> str:
    """What a row calls ``localize_run`` by this backend."""
    return f"localize_run, {backend}"


def ways(case: LocalizeCase, place: Place, flag: CheckFlag) -> dict[str, Way]:
    """Every contender: from a run to the rows of one rank or of all."""
    c, rank, layout = case.dcp_size, case.rank, case.layout
    bounds, shard = (layout.first_slot, layout.slot_end), layout.shard(rank)

    def all_ranks(run: Run) -> list[Tensor]:
        slots = WidenedSlots(run.ids)
        return [localize(slots, layout, r).ids for r in range(c)]

    def by(backend: Backend) -> Way:
        return lambda run: [localize_run(run.ids, shard, bounds=bounds, flag=flag, backend=backend)]

    return {
        STRIDE: lambda run: [upstream.stride(run.ids, c, rank)],
        MASK: lambda run: [upstream.mask(run.ids, c, rank)],
        CHECKED: lambda run: [localize_strided(run.ids, shard)],
        FIRST: lambda run: [localize(WidenedSlots(run.ids), layout, rank).ids],
        FURTHER: lambda run: [localize(run.verified, layout, rank).ids],
        STRIDES: lambda run: [upstream.stride(run.ids, c, r) for r in range(c)],
        ALL: all_ranks,
        **{run_name(backend): by(backend) for backend in place.backends},
    }


def rows_of(case: LocalizeCase, place: Place) -> list[Row]:
    """Time one case. Errors: StudyError when two contenders disagree about the rows."""
    inputs: list[Run] = []
    for ids in make_runs(case, place):
        verified = WidenedSlots(ids)
        localize(verified, case.layout, (case.rank + 1) % case.dcp_size)
        inputs.append(Run(ids, verified, torch.zeros_like(ids[: case.copy_ids])))
    flag = CheckFlag(place.device)
    found = ways(case, place, flag)
    tour = Tour(inputs, len(found) + 1)
    for name, way in found.items():
        for run in inputs[:2]:
            _require_equal(case, name, way(run), run.ids)
    contenders = [tour.add(name, way) for name, way in found.items()]
    contenders.append(tour.add(COPY, lambda run: run.target.copy_(run.ids[: case.copy_ids])))
    timing = take_turns_within(contenders, case.effort, place.wait)
    if flag.read() is not None:
        raise StudyError(
            f"what is timed must be right: localize_run finds id {flag.read()} of a right run bad "
            f"({case.name}); do not trust this benchmark"
        )
    held = case.aimed == place.device.type
    near, above = (NEAR_STRIDE, ABOVE_MASK) if held and place.on_cpu else (None, None)
    best = NEAR_COPY if held and not place.on_cpu else None
    plain = Facts("localize", "torch", ids=case.ids, dcp_size=case.dcp_size)
    whole = Facts(
        "localize", "torch", ids=case.ids, dcp_size=case.dcp_size, bytes=8 * case.copy_ids
    )
    rows = [
        compare(PART, case.name, timing, ours, baseline, aim, facts=whole, copy=COPY)
        for ours in (CHECKED, FIRST)
        for baseline, aim in ((STRIDE, near), (MASK, above), (COPY, None))
    ]
    rows += [
        compare(PART, case.name, timing, FURTHER, STRIDE, facts=plain),
        compare(PART, case.name, timing, ALL, STRIDES, near, facts=plain),
    ]
    for backend in place.backends:
        aim = best if backend == place.backend else None
        for baseline in (STRIDE, MASK, COPY):
            rows.append(
                compare(
                    PART,
                    case.name,
                    timing,
                    run_name(backend),
                    baseline,
                    aim if baseline == COPY else None,
                    facts=replace(whole, backend=backend),
                    copy=COPY,
                )
            )
    return rows


def measure(quick: bool, place: Place) -> Iterator[list[Row] | LeftOut]:
    """The rows of each case."""
    for case in QUICK if quick else FULL:
        # The runs, the targets of the copies, and temporaries of the mask.
        why = place.lacks(0, 16 * case.ids * (case.runs_at(place) + 2))
        yield rows_of(case, place) if why is None else LeftOut(PART, case.name, why)


def _require_equal(case: LocalizeCase, name: str, found: Sequence[Tensor], ids: Tensor) -> None:
    ranks = [case.rank] if len(found) == 1 and case.dcp_size > 1 else range(case.dcp_size)
    for rank, rows in zip(ranks, found, strict=True):
        if not torch.equal(rows, upstream.mask(ids, case.dcp_size, rank)):
            raise StudyError(
                f"what is timed must be right: the rows of {name!r} for rank {rank} "
                f"({case.name}) are not those of the mask; do not trust this benchmark"
            )

"""Owner write: the new rows of a step, of which a rank stores those whose slot is its own.

The pool's method refuses a slot past its end before it writes, so it looks at every id first; the
op leaves such a slot in a flag; upstream's eager form looks at nothing. A decode step brings one
slot a request, each somewhere in its page; a chunk of a prefill brings whole pages. The copy moves
what a rank must: all ids read, its own rows read and written. Worked example: 8,192 ids on c=8 are
64 KiB and 1,024 rows of 1,152 bytes, a copy of 1.2 MB.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.bench import upstream
from kvlab.lab.bench.clock import Effort, take_turns_within
from kvlab.lab.bench.localize import count_text
from kvlab.lab.bench.place import Place
from kvlab.lab.bench.rows import Facts, LeftOut, Row, compare
from kvlab.lab.bench.tour import Tour
from kvlab.memory import MLATokenToKVPool
from kvlab.ops import Backend, CheckFlag, set_mla_kv_buffer

PART = "owner_write"
PAGE_SIZE = 64
KV_LORA_RANK, QK_ROPE_HEAD_DIM = 512, 64
ROW_BYTES = 2 * (KV_LORA_RANK + QK_ROPE_HEAD_DIM)
EAGER, POOL, COPY = "upstream's eager write", "the pool's method", "copy"

_EFFORT, _QUICK = Effort(0.8, most=30), Effort(0.3, most=9)


@dataclass(frozen=True, slots=True)
class WriteCase:
    """``ids`` slots a step on ``dcp_size`` ranks: of a decode batch, or of pages of a prefill."""

    ids: int
    dcp_size: int
    paged: bool
    effort: Effort = _EFFORT

    @property
    def name(self) -> str:
        """For instance "prefill, 8k ids x 576 bf16, c=8"."""
        kind = "prefill" if self.paged else "decode"
        return f"{kind}, {count_text(self.ids)} ids x {ROW_BYTES // 2} bf16, c={self.dcp_size}"

    @property
    def rank(self) -> int:
        """The rank that stores, not the first where there is a choice."""
        return min(3, self.dcp_size - 1)

    @property
    def copy_bytes(self) -> int:
        """Half of the ids read, and of a rank's rows read and written."""
        return 4 * self.ids + self.ids // self.dcp_size * ROW_BYTES

    def steps(self, place: Place) -> int:
        """How many steps are gone through."""
        return place.sets(2 * self.copy_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Slots ``(n,)`` and their rows ``(n, 576)`` in two parts; bytes to copy, and where to."""

    ids: Tensor
    k_nope: Tensor
    k_rope: Tensor
    source: Tensor
    target: Tensor


Write = Callable[[Step], None]
FULL = tuple(
    WriteCase(ids, c, paged)
    for ids, paged in ((64, False), (512, False), (8192, True))
    for c in (1, 2, 4, 8)
)
QUICK = (
    WriteCase(64, 8, False, _QUICK),
    WriteCase(8192, 8, True, _QUICK),
)


class WriteBench:
    """A pool of one layer, and steps of slots and rows that share none."""

    def __init__(self, case: WriteCase, place: Place) -> None:
        self.case, self.place = case, place
        count = case.steps(place)
        page = PAGE_SIZE * case.dcp_size
        self.layout = DcpLayout(case.dcp_size, PAGE_SIZE, -(-count * case.ids // page))
        self.pool = MLATokenToKVPool(
            self.layout,
            case.rank,
            layers=1,
            kv_lora_rank=KV_LORA_RANK,
            qk_rope_head_dim=QK_ROPE_HEAD_DIM,
            device=place.device,
        )
        self.flag = CheckFlag(place.device)
        chance = torch.Generator(place.device).manual_seed(0)
        # The values of each step, and behind them as much as a copy at c=1 takes beside them.
        words = case.ids * ROW_BYTES // 8
        shape = (count, words + case.ids // 2)
        self.values = torch.empty(shape, dtype=torch.int64, device=place.device)
        # Finite bfloat16, whatever the bits: the top bit of each exponent is cleared.
        finite = int.from_bytes(b"\xff\xbf" * 4, "little", signed=True)
        self.values.random_(generator=chance).bitwise_and_(finite)
        size = case.copy_bytes
        target = torch.zeros(count, size, dtype=torch.uint8, device=place.device)
        self.steps: list[Step] = []
        for ids, step, copied in zip(self._slots(count), self.values, target, strict=True):
            rows = step[:words].view(torch.bfloat16).view(case.ids, -1)
            parts = (rows[:, :KV_LORA_RANK], rows[:, KV_LORA_RANK:])
            self.steps.append(Step(ids, *parts, step.view(torch.uint8)[:size], copied))

    def _slots(self, count: int) -> list[Tensor]:
        """Distinct slots of each step, as many of every owner as of any other."""
        c, here = self.case.dcp_size, torch.Generator().manual_seed(0)
        width = self.layout.widened_page_size if self.case.paged else c
        lines = (self.layout.slot_end - self.layout.first_slot) // width
        order = torch.randperm(lines, generator=here)[:, None] * width
        slots = (self.layout.first_slot + order + torch.arange(width)).flatten()
        steps = slots[: count * self.case.ids].view(count, self.case.ids)
        if not self.case.paged:
            steps = steps[:, torch.randperm(self.case.ids, generator=here)]
        return list(steps.contiguous().to(self.place.device))

    def ways(self) -> dict[str, Write]:
        """Every contender that writes a step."""
        case, layout, layer = self.case, self.layout, self.pool.buffer[0]

        def by(backend: Backend) -> Write:
            return lambda step: set_mla_kv_buffer(
                layer,
                step.ids,
                step.k_nope,
                step.k_rope,
                layout.shard(case.rank),
                first_slot=layout.first_slot,
                slot_end=layout.slot_end,
                flag=self.flag,
                backend=backend,
            )

        def eager(step: Step) -> None:
            parts = (step.ids, step.k_nope, step.k_rope)
            upstream.write_owned(layer, *parts, case.dcp_size, case.rank)

        def pool(step: Step) -> None:
            self.pool.set_mla_kv_buffer(0, step.ids, step.k_nope, step.k_rope)

        return {
            EAGER: eager,
            POOL: pool,
            **{op_name(backend): by(backend) for backend in self.place.backends},
        }


def op_name(backend: Backend) -> str:
    """What a row calls the op by this backend."""
    return f"set_mla_kv_buffer, {backend}"


def rows_of(case: WriteCase, place: Place) -> list[Row]:
    """Time one case. Errors: StudyError when two contenders store different rows."""
    bench = WriteBench(case, place)
    ways = bench.ways()
    require_equal(bench, ways)
    tour = Tour(bench.steps, len(ways) + 1)
    contenders = [tour.add(name, way) for name, way in ways.items()]
    contenders.append(tour.add(COPY, lambda step: step.target.copy_(step.source)))
    timing = take_turns_within(contenders, case.effort, place.wait)
    facts = Facts("owner_write", ids=case.ids, dcp_size=case.dcp_size, bytes=case.copy_bytes)
    backends: dict[str, Backend] = {op_name(backend): backend for backend in place.backends}
    return [
        compare(
            PART,
            case.name,
            timing,
            name,
            baseline,
            facts=replace(facts, backend=backends.get(name, place.backend)),
            copy=COPY,
        )
        for name in (POOL, *backends)
        for baseline in (EAGER, COPY)
    ]


def measure(quick: bool, place: Place) -> Iterator[list[Row] | LeftOut]:
    """The rows of each case."""
    for case in QUICK if quick else FULL:
        # The rows of all steps and what a rank stores of them, twice while that is compared.
        why = place.lacks(0, case.steps(place) * (case.ids + 4 * case.ids // case.dcp_size) * 1160)
        yield rows_of(case, place) if why is None else LeftOut(PART, case.name, why)


def require_equal(bench: WriteBench, ways: dict[str, Write]) -> None:
    """Raise StudyError unless every way leaves the same layer, and not the one before."""
    found = []
    for way in ways.values():
        bench.pool.buffer.zero_()
        for step in bench.steps[:2]:
            way(step)
        found.append(bench.pool.buffer.clone())
    same = all(torch.equal(found[0], other) for other in found[1:])
    if not same or not bool(found[0].any()) or bench.flag.read() is not None:
        raise StudyError(
            f"what is timed must be right: {', '.join(ways)} do not store the same rows "
            f"({bench.case.name}); do not trust this benchmark"
        )

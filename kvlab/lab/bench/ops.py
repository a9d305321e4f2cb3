"""Localize, merge and owner write: each backend of the op beside upstream's way and one copy.

``kvlab.ops.SPECS`` says of each op what to call and how many bytes it must move; the copy is of
half of them. Inputs are rotated past the cache, so they are as cold as a server's. Upstream's ways
are the bare stride, the mask, and a write by mask, select and assign.

Worked example: 1,024 ids on c=4 ranks are 8 KiB to read and 2 KiB to write, a copy of 5 KiB. A
merge of 64 requests of 32 heads x 512 bf16 on c=8 is a copy of 9.5 MB. A chunk of 8,192 ids on c=8
reads 64 KiB of ids and moves 1,024 rows of 1,152 bytes, a copy of 1.2 MB.

Source: SGLang ``layers/dcp/layout.py`` (PR 39487), the mask of PR 38790, and its plan
``plan_dcp_owner_write`` carried out by torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvlab.index import DcpLayout, WidenedSlots, localize, localize_strided
from kvlab.lab.bench.clock import Effort, Place, Timing, rotate_inputs, take_turns
from kvlab.lab.bench.rows import Aim, Facts, Row, compare, require_same
from kvlab.memory import MLATokenToKVPool, ReqToTokenPool
from kvlab.ops import SPECS, Backend

LOCALIZE, MERGE, WRITE = "localize", "merge", "owner_write"
PAGE_SIZE = 64
KV_LORA_RANK, QK_ROPE_HEAD_DIM = 512, 64
ROW_BYTES = 2 * (KV_LORA_RANK + QK_ROPE_HEAD_DIM)
COPY = "copy"
STRIDE, MASK, STRIDES = "unchecked stride", "mask", "c unchecked strides"
CHECKED, FIRST, TABLE, ALL = (
    "checked stride",
    "localize, first rank",
    "localize, read from the table",
    "localize, all c ranks",
)
FURTHER = "localize, further rank"  # of files recorded before runs were verified in the table
EAGER, POOL = "upstream's eager write", "the pool's method"
#: The op of each part.
OPS = {LOCALIZE: "localize_run", MERGE: "merge_stacked", WRITE: "set_mla_kv_buffer"}
NEAR_STRIDE = Aim(1 / 1.1, "within 1.1x of it")
ABOVE_MASK = Aim(5.0, "at least 5x")
NEAR_COPY = Aim(1 / 1.1, "within 1.1x of it")
NEAR_MERGE_COPY = Aim(0.8, "at least 0.8")
NEAR_EAGER = Aim(1 / 1.3, "within 1.3x of it")
SPEC = {spec.name: spec for spec in SPECS}
_LONG, _EFFORT, _QUICK = Effort(2.0, most=60), Effort(0.8, most=30), Effort(0.3, most=9)


def op_name(part: str, backend: Backend) -> str:
    """What a row calls the op of a part by this backend."""
    return f"{OPS[part]}, {backend}"


def count_text(count: int) -> str:
    """ "128k", "4M", or the number itself where it is no whole multiple of 1024."""
    for unit, of in (("M", 2**20), ("k", 2**10)):
        if count % of == 0:
            return f"{count // of}{unit}"
    return str(count)


@dataclass(frozen=True, slots=True)
class LocalizeCase:
    """Runs of ``ids`` slots each on ``dcp_size`` ranks; ``aimed``: the device whose aims are of
    this size."""

    ids: int
    dcp_size: int
    effort: Effort = _LONG
    aimed: str | None = None

    @property
    def name(self) -> str:
        """For instance "128k ids, c=8"."""
        return f"{count_text(self.ids)} ids, c={self.dcp_size}"

    @property
    def touched_bytes(self) -> int:
        """Bytes of one run."""
        return 8 * self.ids


@dataclass(frozen=True, slots=True)
class MergeCase:
    """``dcp_size`` partials of ``requests`` x ``heads`` rows of ``width`` bf16 elements."""

    model: str
    dcp_size: int
    requests: int
    heads: int
    width: int
    effort: Effort = _EFFORT

    @property
    def name(self) -> str:
        """For instance "Kimi Linear, 64 requests x 32 heads x 512, c=8"."""
        shape = f"{self.requests} requests x {self.heads} heads x {self.width}"
        return f"{self.model}, {shape}, c={self.dcp_size}"

    @property
    def touched_bytes(self) -> int:
        """Bytes of the partials of one merge."""
        return self.dcp_size * self.requests * self.heads * (2 * self.width + 4)


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
    def touched_bytes(self) -> int:
        """Bytes that a rank reads and writes in one step."""
        return 8 * self.ids + 2 * self.ids // self.dcp_size * ROW_BYTES


Case = LocalizeCase | MergeCase | WriteCase
FULL: dict[str, tuple[Case, ...]] = {
    LOCALIZE: (
        *(LocalizeCase(n * 2**10, 8) for n in (1, 4, 16)),
        LocalizeCase(128 * 2**10, 8, aimed="cpu"),
        LocalizeCase(2**20, 8),
        LocalizeCase(4 * 2**20, 8, aimed="cuda"),
        LocalizeCase(16 * 2**20, 8),
        *(LocalizeCase(128 * 2**10, c) for c in (2, 4, 3)),
    ),
    MERGE: tuple(
        MergeCase(model, c, requests, heads, width)
        for model, heads in (("Kimi Linear", 32), ("DeepSeek", 128))
        for width in (512, 128)
        for requests in (8, 64)
        for c in (2, 4, 8)
    ),
    WRITE: tuple(
        WriteCase(ids, c, paged)
        for ids, paged in ((64, False), (512, False), (8192, True))
        for c in (1, 2, 4, 8)
    ),
}
QUICK: dict[str, tuple[Case, ...]] = {
    LOCALIZE: (
        LocalizeCase(4 * 2**10, 8, _QUICK),
        LocalizeCase(128 * 2**10, 8, _QUICK, aimed="cpu"),
    ),
    MERGE: (MergeCase("Kimi Linear", 8, 8, 32, 512, _QUICK),),
    WRITE: (WriteCase(64, 8, False, _QUICK), WriteCase(8192, 8, True, _QUICK)),
}


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The arguments of one call of the op; as many bytes to copy, and where to; and, of a run, the
    same slots as the request table hands them out."""

    inputs: dict[str, Any]
    source: Tensor
    target: Tensor
    read: WidenedSlots | None = None


Way = Callable[[Work], object]


def measure(part: str, quick: bool, place: Place) -> Iterator[list[Row] | str]:
    """The rows of each case of ``part``."""
    for case in (QUICK if quick else FULL)[part]:
        # The inputs, the copies of as many bytes, and temporaries in float32.
        width = case.dcp_size if isinstance(case, WriteCase) else 1
        need = case.touched_bytes * width * (2 * place.sets(case.touched_bytes) + 4)
        why = place.lacks(0, need)
        yield rows_of(case, place) if why is None else f"left out: {part}, {case.name}: {why}"


def rows_of(case: Case, place: Place) -> list[Row]:
    """Time one case. Errors: StudyError when two contenders differ."""
    if isinstance(case, LocalizeCase):
        return localize_rows(case, place)
    return merge_rows(case, place) if isinstance(case, MergeCase) else write_rows(case, place)


def localize_rows(case: LocalizeCase, place: Place) -> list[Row]:
    """The check of a run beside the stride that checks nothing, the mask, and a copy.

    A foreign run is verified when it is first localized, one that the request table handed out was
    verified as it was written.
    """
    c, rank = case.dcp_size, min(3, case.dcp_size - 1)
    layout, works = make_runs(case, place)
    ways: dict[str, Way] = {
        STRIDE: lambda work: work.inputs["ids"][rank::c] // c,
        MASK: lambda work: masked(work.inputs["ids"], c, rank),
        CHECKED: lambda work: localize_strided(work.inputs["ids"], layout.shard(rank)),
        FIRST: lambda work: localize(WidenedSlots(work.inputs["ids"]), layout, rank).ids,
        TABLE: lambda work: localize(_read(work), layout, rank).ids,
        **_backends(LOCALIZE, place),
    }
    of_all: dict[str, Way] = {
        STRIDES: lambda work: [work.inputs["ids"][r::c] // c for r in range(c)],
        ALL: lambda work: _all_ranks(WidenedSlots(work.inputs["ids"]), layout),
    }
    for work in works[:2]:
        require_same(case.name, {name: _tensors(way(work)) for name, way in ways.items()})
        require_same(case.name, {name: _tensors(way(work)) for name, way in of_all.items()})
    timing = _timed(case, place, works, ways | of_all)
    on_gpu = case.aimed == place.device.type and not place.on_cpu
    near, above = (
        (NEAR_STRIDE, ABOVE_MASK) if case.aimed == "cpu" and place.on_cpu else (None, None)
    )
    facts = Facts("localize", "torch", ids=case.ids, dcp_size=c, bytes=works[0].source.nbytes)
    beside = ((STRIDE, None), (MASK, above), (COPY, None))
    pairs = [(ours, base, aim) for ours in (CHECKED, FIRST) for base, aim in beside]
    rows = compare(LOCALIZE, case.name, timing, pairs, facts, COPY)
    rest = [(TABLE, STRIDE, near), (ALL, STRIDES, None)]
    rows += compare(LOCALIZE, case.name, timing, rest, replace(facts, bytes=None))
    for backend in place.backends:
        best = NEAR_COPY if on_gpu and backend == place.backend else None
        ours = op_name(LOCALIZE, backend)
        pairs = [(ours, STRIDE, None), (ours, MASK, None), (ours, COPY, best)]
        told = replace(facts, backend=backend)
        rows += compare(LOCALIZE, case.name, timing, pairs, told, COPY)
    return rows


def merge_rows(case: MergeCase, place: Place) -> list[Row]:
    """c partials of a decode step into one, beside a copy."""
    spec = SPEC[OPS[MERGE]]
    sizes: dict[str, int | str] = {
        "dcp_size": case.dcp_size,
        "queries": case.requests,
        "heads": case.heads,
        "d": case.width,
        "dtype": "bfloat16",
    }
    count = place.sets(case.touched_bytes)
    works = [_work(MERGE, spec.make_inputs(sizes, seed, place.device)) for seed in range(count)]
    ways = _backends(MERGE, place)
    found = {op_name(MERGE, b): spec.run(works[0].inputs, b) for b in place.backends}
    require_same(case.name, found, near=2e-2)
    timing = _timed(case, place, works, ways)
    rows = []
    for backend in place.backends:
        facts = Facts(
            MERGE,
            backend,
            tokens=case.requests,
            dcp_size=case.dcp_size,
            bytes=works[0].source.nbytes,
        )
        aim = NEAR_MERGE_COPY if backend == place.backend and not place.on_cpu else None
        pairs = [(op_name(MERGE, backend), COPY, aim)]
        rows += compare(MERGE, case.name, timing, pairs, facts, COPY)
    return rows


def write_rows(case: WriteCase, place: Place) -> list[Row]:
    """The new rows of a step, of which a rank stores those whose slot is its own."""
    rank = min(3, case.dcp_size - 1)
    pool, works = make_steps(case, place, rank)
    layer = pool.buffer[0]

    def eager(work: Work) -> None:
        ids: Tensor = work.inputs["ids"]
        mine = (ids % case.dcp_size == rank).nonzero().flatten()
        parts = (work.inputs["k_nope"][mine], work.inputs["k_rope"][mine])
        layer[ids[mine] // case.dcp_size] = torch.cat(parts, dim=1)

    def method(work: Work) -> None:
        step = work.inputs
        pool.set_mla_kv_buffer(0, step["ids"], step["k_nope"], step["k_rope"])

    ways: dict[str, Way] = {EAGER: eager, POOL: method, **_backends(WRITE, place)}
    found = {}
    for name, way in ways.items():
        pool.buffer.zero_()
        for work in works[:2]:
            way(work)
        found[name] = [pool.buffer.clone()]
    require_same(case.name, found)
    timing = _timed(case, place, works, ways)
    near = NEAR_EAGER if case.ids == 64 and place.on_cpu else None
    facts = Facts(
        WRITE, place.backend, ids=case.ids, dcp_size=case.dcp_size, bytes=works[0].source.nbytes
    )
    pairs = [(POOL, EAGER, near), (POOL, COPY, None)]
    rows = compare(WRITE, case.name, timing, pairs, facts, COPY)
    for backend in place.backends:
        ours = op_name(WRITE, backend)
        pairs = [(ours, EAGER, None), (ours, COPY, None)]
        told = replace(facts, backend=backend)
        rows += compare(WRITE, case.name, timing, pairs, told, COPY)
    return rows


def masked(ids: Tensor, dcp_size: int, dcp_rank: int) -> Tensor:
    """Upstream's first form: rows of ``dcp_rank``, whatever the order of the ids."""
    return ids[ids % dcp_size == dcp_rank] // dcp_size


def make_runs(case: LocalizeCase, place: Place) -> tuple[DcpLayout, list[Work]]:
    """A layout with room for four runs, and runs from position 0 on pages in random order."""
    c = case.dcp_size
    layout = DcpLayout(c, PAGE_SIZE, 4 * -(-case.ids // (PAGE_SIZE * c)))
    width, chance = layout.widened_page_size, torch.Generator().manual_seed(0)
    works = []
    for _ in range(place.sets(case.touched_bytes)):
        pages = torch.randperm(layout.num_pages, generator=chance)[: -(-case.ids // width)] + 1
        ids = (pages[:, None] * width + torch.arange(width)).flatten()[: case.ids]
        ids = ids.contiguous().to(place.device)
        table = ReqToTokenPool(1, case.ids, layout, place.device)
        request = table.alloc()
        assert request is not None
        table.append(request, ids)
        inputs = {
            "ids": ids,
            "shard": layout.shard(min(3, c - 1)),
            "start": 0,
        }
        works.append(_work(LOCALIZE, inputs, table.slots(request)))
    return layout, works


def make_steps(case: WriteCase, place: Place, rank: int) -> tuple[MLATokenToKVPool, list[Work]]:
    """A pool of one layer, and steps that share no slot, each with as many of every owner."""
    c, count = case.dcp_size, place.sets(case.touched_bytes)
    layout = DcpLayout(c, PAGE_SIZE, -(-count * case.ids // (PAGE_SIZE * c)))
    pool = MLATokenToKVPool(
        layout,
        rank,
        layers=1,
        kv_lora_rank=KV_LORA_RANK,
        qk_rope_head_dim=QK_ROPE_HEAD_DIM,
        device=place.device,
    )
    here = torch.Generator().manual_seed(0)
    chance = torch.Generator(place.device).manual_seed(0)
    # Whole pages of a prefill; of a decode batch c slots side by side, then in random order.
    width = layout.widened_page_size if case.paged else c
    lines = (layout.slot_end - layout.first_slot) // width
    order = torch.randperm(lines, generator=here)[:, None] * width
    slots = (layout.first_slot + order + torch.arange(width)).flatten()
    works = []
    for ids in slots[: count * case.ids].view(count, case.ids):
        mixed = ids if case.paged else ids[torch.randperm(case.ids, generator=here)]
        rows = torch.empty(case.ids, ROW_BYTES // 2, dtype=torch.bfloat16, device=place.device)
        rows.normal_(generator=chance)
        inputs = {
            "layer": pool.buffer[0],
            "ids": mixed.contiguous().to(place.device),
            "k_nope": rows[:, :KV_LORA_RANK],
            "k_rope": rows[:, KV_LORA_RANK:],
            "shard": layout.shard(rank),
            "first_slot": layout.first_slot,
            "slot_end": layout.slot_end,
        }
        works.append(_work(WRITE, inputs))
    return pool, works


def _work(part: str, inputs: dict[str, Any], read: WidenedSlots | None = None) -> Work:
    size = SPEC[OPS[part]].bytes_moved(inputs) // 2
    if read is not None:  # what is verified is read whole
        size = size // 2 + 4 * len(read)
    device = next(x.device for x in inputs.values() if isinstance(x, Tensor))
    source = torch.ones(size, dtype=torch.uint8, device=device)
    return Work(inputs, source, torch.zeros_like(source), read)


def _backends(part: str, place: Place) -> dict[str, Way]:
    op = SPEC[OPS[part]].op

    def by(backend: Backend) -> Way:
        return lambda work: op(**work.inputs, backend=backend)

    return {op_name(part, backend): by(backend) for backend in place.backends}


def _timed(case: Case, place: Place, works: Sequence[Work], ways: Mapping[str, Way]) -> Timing:
    copy: Way = lambda work: work.target.copy_(work.source)  # noqa: E731
    return take_turns(rotate_inputs(works, {**ways, COPY: copy}), case.effort, place.wait)


def _read(work: Work) -> WidenedSlots:
    assert work.read is not None
    return work.read


def _all_ranks(slots: WidenedSlots, layout: DcpLayout) -> list[Tensor]:
    return [localize(slots, layout, rank).ids for rank in range(layout.dcp_size)]


def _tensors(found: object) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)  # type: ignore[call-overload]

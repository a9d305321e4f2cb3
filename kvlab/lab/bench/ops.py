"""Localize, merge and owner write: each backend of the op beside upstream's way and one copy.

``kvlab.ops.SPECS`` says of each op what to call and how many bytes it must move; the copy is of
half of them. Worked example: 1,024 ids on c=4 ranks are 8 KiB to read and 2 KiB to write, a copy of
5 KiB. Source: SGLang ``layers/dcp/layout.py`` (PR 39487), the mask of PR 38790, and the plan
``plan_dcp_owner_write`` carried out by torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlab.index import DcpLayout, WidenedSlots, localize, localize_strided
from kvlab.lab.bench.clock import Effort, Place, Timing, rotate_inputs, take_turns
from kvlab.lab.bench.table import Case, Row, compare, require_same
from kvlab.memory import MLATokenToKVPool, ReqToTokenPool
from kvlab.ops import SPECS, Backend

LOCALIZE, MERGE, WRITE = "localize", "merge", "owner_write"
SPEC = {spec.name: spec for spec in SPECS}
#: The op of each part.
OPS = {LOCALIZE: "localize_run", MERGE: "merge_stacked", WRITE: "set_mla_kv_buffer"}
PAGE_SIZE = 64
RANK, ROPE = 512, 64
COPY, STRIDE, MASK, STRIDES = "copy", "unchecked stride", "mask", "c unchecked strides"
CHECKED, FIRST = "checked stride", "localize, first rank"
TABLE, ALL = "localize, read from the table", "localize, all c ranks"
EAGER, POOL = "upstream's eager write", "the pool's method"
#: Least ratios: what is within 1.1x of another takes at most 1.1 of its time.
NEAR_STRIDE, ABOVE_MASK, NEAR_COPY, NEAR_MERGE_COPY, NEAR_EAGER = (
    1 / 1.1,
    5.0,
    1 / 1.1,
    0.8,
    1 / 1.3,
)
#: (ids, c); (model, c, requests, heads, width); (ids, c, whether whole pages of a prefill).
RUNS = [(2**n, 8) for n in (10, 12, 14, 17, 20, 22, 24)] + [(2**17, c) for c in (2, 4, 3)]
MERGES = [
    (model, c, requests, heads, width)
    for model, heads in (("Kimi Linear", 32), ("DeepSeek", 128))
    for width in (512, 128)
    for requests in (8, 64)
    for c in (2, 4, 8)
]
STEPS = [(ids, c, ids == 8192) for ids in (64, 512, 8192) for c in (1, 2, 4, 8)]
_LONG, _USUAL, _QUICK = Effort(2.0, most=60), Effort(0.8, most=30), Effort(0.3, most=9)


def cases(quick: bool) -> list[Case]:
    """Every case of the three parts."""
    if quick:
        return [
            localize_case(4 * 2**10, 8, _QUICK),
            localize_case(128 * 2**10, 8, _QUICK, aimed="cpu"),
            merge_case("Kimi Linear", 8, 8, 32, 512, _QUICK),
            write_case(64, 8, False, _QUICK),
            write_case(8192, 8, True, _QUICK),
        ]
    aimed = {(2**17, 8): "cpu", (2**22, 8): "cuda"}
    return [
        *(localize_case(*size, aimed=aimed.get(size)) for size in RUNS),
        *(merge_case(*size) for size in MERGES),
        *(write_case(*size) for size in STEPS),
    ]


def op_name(part: str, backend: Backend) -> str:
    """What a row calls the op of a part by this backend."""
    return f"{OPS[part]}, {backend}"


def count_text(count: int) -> str:
    """ "128k", "4M", or the number itself where it is no whole multiple of 1024."""
    for unit, of in (("M", 2**20), ("k", 2**10)):
        if count % of == 0:
            return f"{count // of}{unit}"
    return str(count)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The arguments of one call of the op, as many bytes to copy, and where to; and, of a run, the
    same slots as the request table hands them out."""

    inputs: dict[str, Any]
    source: Tensor
    target: Tensor
    read: Any = None


Way = Callable[[Work], Any]


def localize_case(ids: int, c: int, effort: Effort = _LONG, aimed: str | None = None) -> Case:
    """Runs of ``ids`` slots on c ranks: the check beside the stride that checks nothing, the mask,
    and a copy. ``aimed``: the device whose aims are of this size."""
    name, rank = f"{count_text(ids)} ids, c={c}", min(3, c - 1)

    def rows(place: Place) -> list[Row]:
        layout, works = make_runs(ids, c, place)

        def all_ranks(slots: WidenedSlots) -> list[Tensor]:
            return [localize(slots, layout, r).ids for r in range(c)]

        ways: dict[str, Way] = {
            STRIDE: lambda work: work.inputs["ids"][rank::c] // c,
            MASK: lambda work: masked(work.inputs["ids"], c, rank),
            CHECKED: lambda work: localize_strided(work.inputs["ids"], layout.shard(rank)),
            FIRST: lambda work: localize(WidenedSlots(work.inputs["ids"]), layout, rank).ids,
            TABLE: lambda work: localize(work.read, layout, rank).ids,
            **_backends(LOCALIZE, place),
        }
        of_all: dict[str, Way] = {
            STRIDES: lambda work: [work.inputs["ids"][r::c] // c for r in range(c)],
            ALL: lambda work: all_ranks(WidenedSlots(work.inputs["ids"])),
        }
        for work in works[:2]:
            require_same(name, {key: [way(work)] for key, way in ways.items()})
            require_same(name, {key: way(work) for key, way in of_all.items()})
        timing = _timed(effort, place, works, ways | of_all)
        on_cpu, here = place.on_cpu, aimed == place.device.type
        near, above = (NEAR_STRIDE, ABOVE_MASK) if here and on_cpu else (None, None)
        facts = {"op": LOCALIZE, "backend": "torch", "ids": ids, "dcp_size": c}
        found = compare(
            LOCALIZE, name, timing, [(TABLE, STRIDE, near), (ALL, STRIDES, None)], facts
        )
        facts["bytes"] = works[0].source.nbytes
        for ours in (CHECKED, FIRST):
            pairs = [(ours, STRIDE, None), (ours, MASK, above), (ours, COPY, None)]
            found += compare(LOCALIZE, name, timing, pairs, facts, COPY)
        for backend in place.backends:
            ours, facts["backend"] = op_name(LOCALIZE, backend), backend
            best = NEAR_COPY if here and not on_cpu and backend == place.backend else None
            pairs = [(ours, STRIDE, None), (ours, MASK, None), (ours, COPY, best)]
            found += compare(LOCALIZE, name, timing, pairs, facts, COPY)
        return found

    return Case(LOCALIZE, name, rows, _needs(8 * ids))


def merge_case(
    model: str, c: int, requests: int, heads: int, width: int, effort: Effort = _USUAL
) -> Case:
    """c partials of a decode step into one: ``requests`` x ``heads`` rows of ``width`` bf16."""
    name = f"{model}, {requests} requests x {heads} heads x {width}, c={c}"
    touched = c * requests * heads * (2 * width + 4)

    def rows(place: Place) -> list[Row]:
        spec, sizes = (
            SPEC[OPS[MERGE]],
            {"dcp_size": c, "queries": requests, "heads": heads, "d": width},
        )
        made = (
            spec.make_inputs({**sizes, "dtype": "bfloat16"}, seed, place.device)
            for seed in range(place.sets(touched))
        )
        works = [_work(MERGE, inputs) for inputs in made]
        found = {op_name(MERGE, b): spec.run(works[0].inputs, b) for b in place.backends}
        require_same(name, found, near=2e-2)
        timing = _timed(effort, place, works, _backends(MERGE, place))
        facts = {"op": MERGE, "tokens": requests, "dcp_size": c, "bytes": works[0].source.nbytes}
        told = []
        for backend in place.backends:
            aim = NEAR_MERGE_COPY if backend == place.backend and not place.on_cpu else None
            pairs = [(op_name(MERGE, backend), COPY, aim)]
            told += compare(MERGE, name, timing, pairs, {**facts, "backend": backend}, COPY)
        return told

    return Case(MERGE, name, rows, _needs(touched))


def write_case(ids: int, c: int, paged: bool, effort: Effort = _USUAL) -> Case:
    """The new rows of a step, of a decode batch or of pages of a prefill: a rank stores those whose
    slot is its own."""
    kind, rank = "prefill" if paged else "decode", min(3, c - 1)
    name = f"{kind}, {count_text(ids)} ids x {RANK + ROPE} bf16, c={c}"
    touched = 8 * ids + 4 * (ids // c) * (RANK + ROPE)

    def rows(place: Place) -> list[Row]:
        pool, works = make_steps(ids, c, paged, place.sets(touched), place, rank)
        layer = pool.buffer[0]

        def eager(work: Work) -> None:
            step = work.inputs
            mine = (step["ids"] % c == rank).nonzero().flatten()
            parts = (step["k_nope"][mine], step["k_rope"][mine])
            layer[step["ids"][mine] // c] = torch.cat(parts, dim=1)

        def method(work: Work) -> None:
            pool.set_mla_kv_buffer(0, *(work.inputs[key] for key in ("ids", "k_nope", "k_rope")))

        ways: dict[str, Way] = {EAGER: eager, POOL: method, **_backends(WRITE, place)}
        found = {}
        for key, way in ways.items():
            pool.buffer.zero_()
            for work in works[:2]:
                way(work)
            found[key] = [pool.buffer.clone()]
        require_same(name, found)
        timing = _timed(effort, place, works, ways)
        facts = {"op": WRITE, "ids": ids, "dcp_size": c, "bytes": works[0].source.nbytes}
        near = NEAR_EAGER if ids == 64 and place.on_cpu else None
        told = []
        for ours, backend, aim in (
            (POOL, place.backend, near),
            *((op_name(WRITE, backend), backend, None) for backend in place.backends),
        ):
            pairs = [(ours, EAGER, aim), (ours, COPY, None)]
            told += compare(WRITE, name, timing, pairs, {**facts, "backend": backend}, COPY)
        return told

    return Case(WRITE, name, rows, _needs(touched, c))


def masked(ids: Tensor, dcp_size: int, dcp_rank: int) -> Tensor:
    """Upstream's first form: rows of ``dcp_rank``, whatever the order of the ids."""
    return ids[ids % dcp_size == dcp_rank] // dcp_size


def make_runs(ids: int, c: int, place: Place) -> tuple[DcpLayout, list[Work]]:
    """A layout with room for four runs, and runs from position 0 on pages in random order."""
    layout = DcpLayout(c, PAGE_SIZE, 4 * -(-ids // (PAGE_SIZE * c)))
    width, chance = layout.widened_page_size, torch.Generator().manual_seed(0)
    works = []
    for _ in range(place.sets(8 * ids)):
        pages = torch.randperm(layout.num_pages, generator=chance)[: -(-ids // width)] + 1
        run = (pages[:, None] * width + torch.arange(width)).flatten()[:ids].contiguous()
        table = ReqToTokenPool(1, ids, layout, place.device)
        request = table.alloc()
        assert request is not None
        table.append(request, run.to(place.device))
        inputs = {"ids": run.to(place.device), "shard": layout.shard(min(3, c - 1)), "start": 0}
        works.append(_work(LOCALIZE, inputs, table.slots(request)))
    return layout, works


def make_steps(
    ids: int, c: int, paged: bool, steps: int, place: Place, rank: int
) -> tuple[MLATokenToKVPool, list[Work]]:
    """A pool of one layer, and steps that share no slot, each with as many of every owner."""
    layout = DcpLayout(c, PAGE_SIZE, -(-steps * ids // (PAGE_SIZE * c)))
    pool = MLATokenToKVPool(
        layout,
        rank,
        layers=1,
        kv_lora_rank=RANK,
        qk_rope_head_dim=ROPE,
        device=place.device,
    )
    chance = torch.Generator().manual_seed(0)
    # Whole pages of a prefill; of a decode batch c slots side by side, then in random order.
    width = layout.widened_page_size if paged else c
    lines = (layout.slot_end - layout.first_slot) // width
    order = torch.randperm(lines, generator=chance)[:, None] * width
    slots = (layout.first_slot + order + torch.arange(width)).flatten()
    works = []
    for run in slots[: steps * ids].view(steps, ids):
        mixed = run if paged else run[torch.randperm(ids, generator=chance)]
        rows = torch.randn(ids, RANK + ROPE, device=place.device).to(torch.bfloat16)
        inputs = {
            "layer": pool.buffer[0],
            "ids": mixed.contiguous().to(place.device),
            "k_nope": rows[:, :RANK],
            "k_rope": rows[:, RANK:],
            "shard": layout.shard(rank),
            "first_slot": layout.first_slot,
            "slot_end": layout.slot_end,
        }
        works.append(_work(WRITE, inputs))
    return pool, works


def _needs(touched: int, width: int = 1) -> Callable[[Place], tuple[int, int]]:
    """The inputs, the copies of as many bytes, and temporaries in float32."""
    return lambda place: (0, touched * width * (2 * place.sets(touched) + 4))


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


def _timed(effort: Effort, place: Place, works: Sequence[Work], ways: Mapping[str, Way]) -> Timing:
    copy: Way = lambda work: work.target.copy_(work.source)  # noqa: E731
    return take_turns(rotate_inputs(works, {**ways, COPY: copy}), effort, place.wait)

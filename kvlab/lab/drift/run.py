"""One run of the study: a condition at a DCP size in a dtype, seen one of two ways.

*Forced*: every token is the reference's (one rank, no retraction, one request a forward), so that a
position means the same in every run. *Free*: tokens are drawn, by (seed, request, position) only;
not greedy, because a tiny model left to its likeliest token falls into loops by itself. Pages hold
one row, so what a victim gives up is taken by others within one forward.
"""

import logging
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvlab.engine import NodeConfig, StepNode
from kvlab.engine.model import (
    Forced,
    Greedy,
    Prefilled,
    Sampler,
    Seeded,
    ShardedModel,
    Watch,
    load_model,
)
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.drift.defects import INTERVAL, REFERENCE, Point
from kvlab.lab.drift.faults import CELLS, MERGES, Verified
from kvlab.lab.drift.prompts import RUNNING, STEP_S, Prompts
from kvlab.lab.drift.study import DriftStudy
from kvlab.lab.drift.tables import cut, divergence, events_array, ranks
from kvlab.lab.keep import Values
from kvlab.ops import merge_partials

COMPUTE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": torch.bfloat16}
ROWS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
PAGE_SIZE = 1
#: Capacity of a short pool, as a share of what all running requests hold when they end: so short
#: that there are 10 retractions or more at each c (with --quick at least one), and no abort.
SHORT = 0.195


@dataclass(frozen=True, slots=True)
class Drawn:
    """``Seeded``, and where the logprobs hold a NaN the token that argmax names (the first NaN):
    what a server then says over and over."""

    seeded: Seeded

    def pick(self, rid: int, position: int, logprobs: Tensor) -> int:
        if bool(torch.isnan(logprobs).any()):
            return int(torch.argmax(logprobs))
        return self.seeded.pick(rid, position, logprobs)


def node_config(point: Point, prompts: Prompts) -> NodeConfig:
    """The node of a point: how large its pools are, and who leaves when.

    Silent regime ("forced" and "calm"): when u pages are in use, lowest first, ids lie below
    (u + 1) W. All of them are rows of a rank, so that code which takes ids for rows raises nothing,
    when (u + 1) W <= (N + 1) P, that is N + 1 >= c (u + 1).
    """
    known, wide = point.known, PAGE_SIZE * point.dcp_size
    if known.schedule == "natural":
        requests = prompts.workload.requests
        mean = sum(r.prompt_tokens + r.output_tokens for r in requests) / len(requests)
        pages = -(-int(max(SHORT * RUNNING * mean, prompts.positions + wide)) // wide)
    else:
        pages = point.dcp_size * (RUNNING * -(-prompts.positions // wide) + 1)
    return NodeConfig(
        DcpLayout(point.dcp_size, PAGE_SIZE, pages),
        concurrency=None,
        max_running=RUNNING,
        step_time_s=STEP_S,
        reserved_decode_tokens=0,  # else a short pool admits so few that it never runs dry
        restore=known.restore,
        force_retract_interval=INTERVAL if known.schedule == "forced" else None,
    )


def reference_run(study: DriftStudy, dtype: str, view: str) -> Values:
    """The reference of a dtype: for "forced" its greedy output, for "free" the drawn one.

    Returns ``token`` int32 and ``logprob`` float32, one a token, request after request; ``length``
    int32, the tokens of each request; for "forced" ``logprobs`` float32 ``(tokens, vocabulary)``.
    """
    said: dict[int, list[Tensor]] = {}
    sampler = Greedy() if view == "forced" else Drawn(Seeded(study.seed, study.temperature))

    def watch(rid: int, position: int, logprobs: Tensor) -> None:
        said.setdefault(rid, []).append(logprobs)

    cells, _ = _played(study, Point(REFERENCE, 1, dtype), sampler, watch)
    lines = torch.stack([line for rid in sorted(said) for line in said[rid]])
    lengths = np.array([len(said[rid]) for rid in sorted(said)], np.int32)
    found = {**_drawn(cells), "length": lengths}
    return {**found, "logprobs": lines.numpy()} if view == "forced" else found


def forced_run(study: DriftStudy, point: Point, reference: Values) -> Values:
    """One token an element, request after request: ``logprob`` float32 of the reference's token,
    ``kl`` float32 (nats), ``rank`` int32; ``events`` as ``tables.events_array``; ``restores``
    int32 ``(2,)``: those that came back as they left, and the others."""
    prompts, lengths = study.prompts.tokens, reference["length"].tolist()
    outputs = cut(reference["token"], lengths)
    streams = {rid: (*prompts[rid], *output.tolist()) for rid, output in enumerate(outputs)}
    starts = np.cumsum([0, *lengths[:-1]]) - [len(prompt) for prompt in prompts]
    wanted = torch.from_numpy(reference["logprobs"])
    said = torch.full_like(wanted, torch.nan)  # NaN: never said

    def watch(rid: int, position: int, logprobs: Tensor) -> None:
        said[starts[rid] + position] = logprobs

    cells, events = _played(study, point, Forced(streams), watch)
    tokens = torch.from_numpy(reference["token"]).long()
    return {
        "logprob": said.gather(1, tokens[:, None]).flatten().numpy(),
        "kl": divergence(wanted, said).float().numpy(),
        "rank": ranks(tokens, said).int().numpy(),
        "events": events,
        "restores": np.array([cells.same, cells.different], np.int32),
    }


def free_run(study: DriftStudy, point: Point) -> Values:
    """``token`` int32 and ``logprob`` float32 of what was drawn, request after request."""
    cells, _ = _played(study, point, Drawn(Seeded(study.seed, study.temperature)))
    return _drawn(cells)


def _drawn(cells: Verified) -> Values:
    streams = [cells.streams[rid] for rid in sorted(cells.streams)]
    return {
        "token": np.array([t for s in streams for t in s.output], np.int32),
        "logprob": np.array([x for s in streams for x in s.logprobs], np.float32),
    }


def _played(
    study: DriftStudy,
    point: Point,
    sampler: Sampler,
    watch: Watch | None = None,
) -> tuple[Verified, Any]:
    """The cells after a run of all requests, and its events."""
    defect, loaded = point.known.defect, _loaded(str(study.model), point.dtype, study.prompts)
    name, on_node = (defect.name, defect.on_node) if defect is not None else ("", False)
    config = node_config(point, study.prompts)
    sharded = ShardedModel(
        loaded.model,
        config.layout,
        requests=RUNNING,
        kv_dtype=ROWS[point.dtype],
        batch_invariant=point.known.schedule == "alone",
        select_padding=name != "nan_padding",
        merge=MERGES.get(name, merge_partials),
    )
    _warm(sharded, loaded, study.prompts)
    cells = CELLS.get(name, Verified)(
        sharded,
        dict(enumerate(study.prompts.tokens)),
        sampler=sampler,
        handover=not on_node,
        prefilled=None if on_node else loaded.prefilled,
        watch=watch,
    )
    done = StepNode(config, cells).run(study.prompts.workload, record=True)
    return cells, events_array(done.events)


@dataclass(slots=True)
class _Loaded:
    """What one process keeps of a model in a dtype. ``other``: rows ``(layers, n, elements)`` as
    stored, of the longest prompt read backwards."""

    model: Any
    prefilled: Prefilled
    other: Tensor | None = None


@lru_cache(maxsize=3)
def _loaded(path: str, dtype: str, prompts: Prompts) -> _Loaded:
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it tells of kernels it lacks
    with redirect_stderr(StringIO()):  # and draws a bar of its own
        return _Loaded(load_model(path, COMPUTE[dtype]), Prefilled())


def _warm(sharded: ShardedModel, kept: _Loaded, prompts: Prompts) -> None:
    """Fill all rows but the padding page with rows of another text, in a fixed order: a row that
    nobody restored holds something, as on a server that has run for a while."""
    if kept.other is None:
        tokens = max(prompts.tokens, key=len)[::-1]
        node = sharded.like(DcpLayout(1, PAGE_SIZE, len(tokens)), requests=1)
        ids = WidenedSlots(torch.arange(PAGE_SIZE, PAGE_SIZE + len(tokens)))
        node.prefill(torch.tensor(tokens), ids, node.pools.alloc_state())
        kept.other = node.pools.ranks[0].buffer[:, PAGE_SIZE:].clone()
    generator = torch.Generator().manual_seed(1)
    for pool in sharded.pools.ranks:
        rows = pool.rows_per_rank - PAGE_SIZE
        order = torch.randint(0, kept.other.shape[1], (rows,), generator=generator)
        pool.buffer[:, PAGE_SIZE:] = kept.other[:, order.to(pool.device)]

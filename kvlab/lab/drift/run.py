"""One run of the study: a condition at a DCP size in a dtype, seen one of two ways.

*Forced*: every token is the reference's, so that a position means the same in every run, and what
the run would have said is in its logprobs. *Free*: tokens are drawn, by a sampler that depends on
(seed, request, position) only. It is not greedy because a tiny model left to its likeliest token
falls into loops by itself, and those would drown the loops that a defect makes; at temperature 1
draws break up loops of either kind. 0.7 lies between: how many requests repeat depends on it.

The reference: one rank, no retraction, one request a forward (``batch_invariant``), same dtype.
"""

import logging
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine import StepNode
from kvlab.engine.model import (
    Forced,
    Greedy,
    Prefilled,
    Sampler,
    Seeded,
    ShardedModel,
    load_model,
)
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.drift.cells import CELLS, MERGES, Verified
from kvlab.lab.drift.conditions import Condition, condition
from kvlab.lab.drift.events import as_array
from kvlab.lab.drift.metrics import divergence, ranks
from kvlab.lab.drift.node import PAGE_SIZE, node_config
from kvlab.lab.drift.prompts import Prompts
from kvlab.memory import PagedTokenToKVPoolAllocator
from kvlab.ops import merge_partials

COMPUTE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": torch.bfloat16}
ROWS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a study share: ``model``: a folder; ``prompts``; ``running`` requests at
    once; ``seed`` and ``temperature`` of the free view."""

    model: str
    prompts: Prompts
    running: int
    seed: int
    temperature: float = 0.7


@dataclass(frozen=True, slots=True)
class Reference:
    """``tokens``: output of each request, by rid; ``logprobs`` float32 ``(tokens, vocabulary)`` of
    all, request after request."""

    tokens: tuple[tuple[int, ...], ...]
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Drawn:
    """``Seeded``, and where the logprobs hold a NaN the token that argmax names (the first NaN):
    what a server then says over and over."""

    seeded: Seeded

    def pick(self, rid: int, position: int, logprobs: Tensor) -> int:
        """The token."""
        if bool(torch.isnan(logprobs).any()):
            return int(torch.argmax(logprobs))
        return self.seeded.pick(rid, position, logprobs)


def reference_run(setting: Setting, dtype: str, view: str) -> tuple[Reference, Arrays]:
    """The reference of a dtype: for "forced" its greedy output, for "free" the drawn one.

    Returns it, and as arrays: ``token`` int32 and ``logprob`` float32, one a token.
    """
    calm = condition("no_retraction")
    sampler: Sampler = (
        Greedy() if view == "forced" else Drawn(Seeded(setting.seed, setting.temperature))
    )
    lines: dict[int, list[Tensor]] = {}
    cells = _cells(setting, calm, 1, dtype, sampler, batch_invariant=True)
    cells.watch = lambda rid, position, logprobs: lines.setdefault(rid, []).append(logprobs)
    _play(setting, calm, 1, cells)
    outputs = tuple(tuple(cells.streams[rid].output) for rid in sorted(cells.streams))
    logprobs = torch.stack([line for rid in sorted(lines) for line in lines[rid]])
    picked = torch.tensor([token for output in outputs for token in output])
    chosen = logprobs.gather(1, picked[:, None]).flatten()
    arrays: Arrays = {"token": picked.int().numpy(), "logprob": chosen.numpy()}
    return Reference(outputs, logprobs), arrays


def forced_run(
    setting: Setting, known: Condition, dcp_size: int, dtype: str, reference: Reference
) -> Arrays:
    """One token an element, request after request: ``logprob`` float32 of the reference's token,
    ``kl`` float32 (nats), ``rank`` int32; ``events`` int32 ``(events, 4)``: step, kind, request, KV
    tokens; ``restores`` int32 ``(2,)``: those that came back as they left, and the others."""
    streams = {
        rid: (*setting.prompts.tokens[rid], *output) for rid, output in enumerate(reference.tokens)
    }
    starts, begin = [], 0
    for rid, output in enumerate(reference.tokens):
        starts.append(begin - len(setting.prompts.tokens[rid]))
        begin += len(output)
    said = torch.full_like(reference.logprobs, torch.nan)  # NaN: never said

    def watch(rid: int, position: int, logprobs: Tensor) -> None:
        said[starts[rid] + position] = logprobs

    cells = _cells(setting, known, dcp_size, dtype, Forced(streams))
    cells.watch = watch
    events = _play(setting, known, dcp_size, cells)
    tokens = torch.tensor([token for output in reference.tokens for token in output])
    return {
        "logprob": said.gather(1, tokens[:, None]).flatten().numpy(),
        "kl": divergence(reference.logprobs, said).float().numpy(),
        "rank": ranks(tokens, said).int().numpy(),
        "events": events,
        "restores": np.array([cells.same, cells.different], np.int32),
    }


def free_run(setting: Setting, known: Condition, dcp_size: int, dtype: str) -> Arrays:
    """``token`` int32 and ``logprob`` float32 of what was drawn, request after request; ``events``
    as in ``forced_run``."""
    sampler = Drawn(Seeded(setting.seed, setting.temperature))
    cells = _cells(setting, known, dcp_size, dtype, sampler)
    events = _play(setting, known, dcp_size, cells)
    streams = [cells.streams[rid] for rid in sorted(cells.streams)]
    return {
        "token": np.array([t for s in streams for t in s.output], np.int32),
        "logprob": np.array([x for s in streams for x in s.logprobs], np.float32),
        "events": events,
    }


def _cells(
    setting: Setting,
    known: Condition,
    dcp_size: int,
    dtype: str,
    sampler: Sampler,
    *,
    batch_invariant: bool = False,
) -> Verified:
    kept = _loaded(setting.model, dtype, setting.prompts)
    name = known.defect.name if known.defect is not None else ""
    config = node_config(known, dcp_size, setting.prompts, setting.running)
    sharded = ShardedModel(
        kept.model,
        config.layout,
        requests=setting.running,
        kv_dtype=ROWS[dtype],
        batch_invariant=batch_invariant,
        select_padding=name != "nan_padding",
        merge=MERGES.get(name, merge_partials),
    )
    _warm(sharded, kept, setting.prompts)
    on_node = known.defect is not None and known.defect.on_node
    return CELLS.get(name, Verified)(
        sharded,
        dict(enumerate(setting.prompts.tokens)),
        sampler=sampler,
        handover=not on_node,
        prefilled=None if on_node else kept.prefilled,
    )


def _play(setting: Setting, known: Condition, dcp_size: int, cells: Verified) -> NDArray[np.int32]:
    config = node_config(known, dcp_size, setting.prompts, setting.running)
    done = StepNode(config, cells).run(setting.prompts.workload, record=True)
    return as_array(done.events)


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
        ids = PagedTokenToKVPoolAllocator(node.layout).alloc_extend(0, len(tokens))
        assert ids is not None  # the layout was made for it
        node.prefill(torch.tensor(tokens), WidenedSlots(ids), node.pools.alloc_state())
        kept.other = node.pools.ranks[0].buffer[:, PAGE_SIZE:].clone()
    generator = torch.Generator().manual_seed(1)
    for pool in sharded.pools.ranks:
        rows = pool.rows_per_rank - PAGE_SIZE
        order = torch.randint(0, kept.other.shape[1], (rows,), generator=generator)
        pool.buffer[:, PAGE_SIZE:] = kept.other[:, order.to(pool.device)]

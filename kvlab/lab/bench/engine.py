"""The engine on a CPU: the decode node over a trace, and decode steps of a real model.

The sweep is what a retraction study runs, against a bound in seconds. Growth compares the time a
request takes in workloads of ten times the length: 1 is linear. A decode step is one token of each
request of a batch, by the sharded engine and by the transformers library, which expands the keys of
every cached row; kvlab does so in the row "keys expanded". Random weights change no time.
"""

import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kvlab
from kvlab.engine import NodeConfig, StepNode, simulate
from kvlab.engine.model import Form, ShardedModel
from kvlab.engine.model.tiny import new_tiny_model
from kvlab.engine.workload import (
    LengthModel,
    Lognormal,
    Workload,
    default_workload,
    generate_closed_loop,
    load_trace,
)
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.bench.clock import Contender, Effort, Place, Timing, take_turns
from kvlab.lab.bench.table import Case, Pair, Row, compare, require_same
from kvlab.lab.retraction import RetractionStudy, suggest_budgets
from kvlab.memory import PagedTokenToKVPoolAllocator

SCHEDULER, DECODE = "scheduler", "decode"
MODEL = "Kimi-Linear-48B-A3B"
TRACE = "azure_llm_2023_conv.csv"
BOUND_S, LINEAR = 90.0, 1 / 1.5
SHORT = LengthModel(Lognormal(200.0, 0.8, 8, 800), Lognormal(60.0, 0.8, 1, 300))
#: A pool that is too small for what runs at once, so that requests are retracted and resumed.
SMALL_NODE = NodeConfig(DcpLayout(4, 16, 60), concurrency=32, reserved_decode_tokens=16)
COUNTING, LIBRARY = "counting node", "the library's decode"
PAGE_SIZE = 16
DECODE_AIMS = {1: 1 / 1.2, 8: 1 / 2.5}  # by DCP size
Step = Callable[[], Tensor]


def cases(quick: bool) -> list[Case]:
    """Every case of the two parts."""
    if quick:
        return [
            sweep_case(1000, 1),
            growth_case((300, 1000, 3000), 3),
            twin_case(60, 3),
            decode_case(4, 16, Effort.exactly(3, 1), steps=2, dcp_sizes=(1, 8)),
        ]
    return [
        sweep_case(None, 3),
        growth_case((1000, 10_000, 100_000), 5, LINEAR),
        twin_case(300, 9),
        decode_case(16, 128, Effort.exactly(24, 2), aims=DECODE_AIMS),
        decode_case(16, 1024, Effort.exactly(12, 2)),
        decode_case(1, 128, Effort.exactly(24, 2)),
    ]


def find_trace() -> Path | None:
    """The Azure trace, or None: in the folder ``$KVLAB_TRACES``, else ``shared/data/traces`` in or
    beside the checkout."""
    root = Path(kvlab.__file__).resolve().parents[1]
    named = os.environ.get("KVLAB_TRACES")
    inside = Path("shared", "data", "traces")
    folders = [Path(named)] if named else [root / inside, root.parent / inside]
    return next((folder / TRACE for folder in folders if (folder / TRACE).is_file()), None)


def sweep_case(requests: int | None, sweeps: int) -> Case:
    """Seconds of 20 runs against the bound, of ``requests`` (None: of all, with the aim) of the
    trace or else of the shipped workload; decode tokens a second in the note."""

    def rows(_: Place) -> list[Row]:
        trace = find_trace()
        workload = default_workload() if trace is None else load_trace(trace)
        workload = workload if requests is None else workload.head(requests)
        study = RetractionStudy(workload, model=MODEL, budgets_gib=suggest_budgets(workload, MODEL))
        points = [study.config(*point) for point in study.points()]
        seconds, tokens = [], 0
        for _sweep in range(sweeps):
            begun = time.perf_counter()
            tokens = sum(simulate(workload, node).counters.decode_tokens for node in points)
            seconds.append(time.perf_counter() - begun)
        bound = f"bound of {BOUND_S:.0f} s"
        times = {COUNTING: np.array(seconds), bound: np.full(sweeps, BOUND_S)}
        aim = 1.0 if requests is None and trace is not None else None
        name = f"{len(points)} runs of {study.workload.name}, {len(workload)} requests"
        note = f"{tokens / np.median(seconds) / 1e6:.1f} M decode tokens/s"
        timing = Timing(times, sweeps, 0)
        return compare(SCHEDULER, name, timing, [(COUNTING, bound, aim)], note=note)

    return Case(SCHEDULER, "20 runs", rows)


def growth_case(sizes: tuple[int, ...], repetitions: int, aim: float | None = None) -> Case:
    """Time a request, each size against the one before it."""

    def rows(_: Place) -> list[Row]:
        contenders = []
        for n in sizes:
            workload = generate_closed_loop(n, seed=1)
            study = RetractionStudy(workload, model=MODEL, dcp_sizes=(8,), budgets_gib=(1.0,))
            run = _simulated(workload, study.config(8, 1.0))
            contenders.append(Contender(f"{n} requests", run, calls=n))
        timing = take_turns(contenders, Effort.exactly(repetitions))
        pairs = [(longer.name, shorter.name, aim) for shorter, longer in pairwise(contenders)]
        return compare(SCHEDULER, "time a request", timing, pairs)

    return Case(SCHEDULER, "time a request", rows)


def twin_case(requests: int, repetitions: int) -> Case:
    """Counting against every step on real pools of all ranks; tests hold that results agree."""
    name = f"{requests} short requests, c={SMALL_NODE.layout.dcp_size}"

    def rows(_: Place) -> list[Row]:
        workload = generate_closed_loop(requests, SHORT, seed=3)
        steps = Contender("step node", lambda _: lambda: StepNode(SMALL_NODE).run(workload))
        counting = Contender(COUNTING, _simulated(workload, SMALL_NODE))
        timing = take_turns([counting, steps], Effort.exactly(repetitions))
        return compare(SCHEDULER, name, timing, [(COUNTING, "step node", None)])

    return Case(SCHEDULER, name, rows)


def _simulated(workload: Workload, node: NodeConfig) -> Callable[[int], Callable[[], object]]:
    return lambda _: lambda: simulate(workload, node)


def decode_case(
    requests: int,
    tokens: int,
    effort: Effort,
    steps: int = 8,
    dcp_sizes: tuple[int, ...] = (1, 2, 4, 8),
    aims: dict[int, float] | None = None,
) -> Case:
    """``requests`` in one batch, each of ``tokens`` when the clock starts; a call is ``steps``."""
    # The comparison, the rounds, and one for the start.
    last = tokens + 1 + steps * (effort.least + effort.warmup)
    name = f"{requests} request{'' if requests == 1 else 's'} of {tokens} to {last} tokens"

    def rows(_: Place) -> list[Row]:
        library, model = new_tiny_model(0), new_tiny_model(0)
        library.train(False)  # the engine sees to its own
        chance = torch.Generator().manual_seed(1)
        ids = torch.randint(0, 256, (requests, last), generator=chance)
        ours = {f"decode, c={c}": sharded_steps(model, ids, tokens, c) for c in dcp_sizes}
        pairs: list[Pair] = [
            (key, LIBRARY, (aims or {}).get(c)) for key, c in zip(ours, dcp_sizes, strict=True)
        ]
        expanded = "decode, c=1, keys expanded"
        ours[expanded] = sharded_steps(model, ids, tokens, 1, "expanded")
        pairs.append((expanded, LIBRARY, None))
        runs = {LIBRARY: library_steps(library, ids, tokens), **ours}
        # Logits deviate by 0.2 to 1; float32 sums in another order differ by 1e-6.
        require_same(name, {key: [step()] for key, step in runs.items()}, near=1e-4)

        def call(step: Step) -> Callable[[int], Callable[[], object]]:
            return lambda _: lambda: [step() for _ in range(steps)][:0]

        timing = take_turns(
            [Contender(k, call(step), calls=steps) for k, step in runs.items()], effort
        )
        found = compare(DECODE, name, timing, pairs)
        return [row | {"note": f"{1 / row['ours_s']:.0f} steps/s"} for row in found]

    return Case(DECODE, name, rows)


def sharded_steps(model: Any, ids: Tensor, filled: int, c: int, form: Form = "absorbed") -> Step:
    """Steps of kvlab's engine on c ranks over ``ids`` ``(requests, tokens)``, ``filled`` of them
    prefilled; a step gives logits ``(requests, vocabulary)``."""
    requests, last = ids.shape
    layout = DcpLayout(c, PAGE_SIZE, requests * -(-last // (c * PAGE_SIZE)))
    engine = ShardedModel(model, layout, requests=requests, form=form)
    allocator = PagedTokenToKVPoolAllocator(layout)
    taken = [allocator.alloc_extend(0, last) for _ in range(requests)]
    slots = [ids for ids in taken if ids is not None]  # all: the layout was made for them
    states = [engine.pools.alloc_state() for _ in slots]
    engine.forward(ids[:, :filled], [WidenedSlots(run[:filled]) for run in slots], states)
    ends = iter(range(filled + 1, last + 1))

    def step() -> Tensor:
        end = next(ends)
        runs = [WidenedSlots(run[:end]) for run in slots]
        return engine.decode(ids[:, end - 1].tolist(), runs, states)

    return step


def library_steps(model: Any, ids: Tensor, filled: int) -> Step:
    """The same by the model's own cache and attention."""
    with torch.no_grad():
        cache = model(input_ids=ids[:, :filled], use_cache=True).cache
    at = iter(range(filled, ids.shape[1]))

    @torch.no_grad()
    def step() -> Tensor:
        i = next(at)
        logits: Tensor = model(input_ids=ids[:, i : i + 1], cache=cache, use_cache=True).logits
        return logits[:, -1]

    return step

"""The engine on a CPU: the decode node over a trace, and decode steps of a real model.

The sweep is what a retraction study runs: 5 DCP sizes x 4 memory budgets, in this process, against
a bound in seconds. Growth compares the time a request takes in workloads of ten times the length: 1
is linear, below 1 the longer workload costs more a request.

A decode step is one token of each request of a batch, by the sharded engine at c = 1, 2, 4, 8 and
by the transformers library. The library expands the keys and values of every cached row in every
step; kvlab does so in the row "keys expanded" and otherwise maps the queries into the latent space.
So a long context shows the form of the attention, and a short one the cost of the plan and of c
ranks. The weights are random, which changes no time.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

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
from kvlab.lab.bench.clock import Contender, Effort, Timing, take_turns
from kvlab.lab.bench.rows import Aim, Row, compare, require_same
from kvlab.lab.retraction import RetractionStudy, suggest_budgets
from kvlab.memory import PagedTokenToKVPoolAllocator

SCHEDULER, DECODE = "scheduler", "decode"
MODEL = "Kimi-Linear-48B-A3B"
TRACE = "azure_llm_2023_conv.csv"
BOUND_S = 90.0
IN_TIME = Aim(1.0, f"under {BOUND_S:.0f} s")
LINEAR = Aim(1 / 1.5, "within 1.5x a request")
SHORT = LengthModel(Lognormal(200.0, 0.8, 8, 800), Lognormal(60.0, 0.8, 1, 300))
#: A pool that is too small for what runs at once, so that requests are retracted and resumed.
SMALL_NODE = NodeConfig(DcpLayout(4, 16, 60), concurrency=32, reserved_decode_tokens=16)
LIBRARY = "the library's decode"
PAGE_SIZE = 16
DECODE_AIMS = {1: Aim(1 / 1.2, "within 1.2x"), 8: Aim(1 / 2.5, "within 2.5x")}


@dataclass(frozen=True, slots=True)
class SchedulerCase:
    """How much of each is run. ``sweep_requests``: None takes the whole trace."""

    sweep_requests: int | None
    sweeps: int
    sizes: tuple[int, ...]
    growth_repetitions: int
    twin_requests: int
    twin_repetitions: int


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """``requests`` in one batch, each of ``tokens`` when the clock starts; a call is ``steps``."""

    requests: int
    tokens: int
    repetitions: int
    warmup: int = 2
    steps: int = 8
    dcp_sizes: tuple[int, ...] = (1, 2, 4, 8)
    aimed: bool = False

    @property
    def last(self) -> int:
        """Tokens of a request at the end: the comparison, the rounds, and one for the start."""
        return self.tokens + 1 + self.steps * (self.repetitions + self.warmup)

    @property
    def name(self) -> str:
        """For instance "16 requests of 128 to 337 tokens"."""
        requests = f"{self.requests} request{'' if self.requests == 1 else 's'}"
        return f"{requests} of {self.tokens} to {self.last} tokens"


FULL_SCHEDULER = SchedulerCase(None, 3, (1000, 10_000, 100_000), 5, 300, 9)
QUICK_SCHEDULER = SchedulerCase(1000, 1, (300, 1000, 3000), 3, 60, 3)
FULL_DECODE = (
    DecodeCase(16, 128, repetitions=24, aimed=True),
    DecodeCase(16, 1024, repetitions=12),
    DecodeCase(1, 128, repetitions=24),
)
QUICK_DECODE = (DecodeCase(4, 16, repetitions=3, warmup=1, steps=2, dcp_sizes=(1, 8)),)


def measure(part: str, quick: bool) -> Iterator[list[Row]]:
    """The rows of the scheduler, or of the decode steps."""
    if part == DECODE:
        yield from (decode_rows(case) for case in (QUICK_DECODE if quick else FULL_DECODE))
        return
    case = QUICK_SCHEDULER if quick else FULL_SCHEDULER
    yield sweep_rows(case, find_trace())
    yield growth_rows(case)
    yield twin_rows(case)


def find_trace() -> Path | None:
    """The Azure trace, or None: in the folder ``$KVLAB_TRACES``, else ``shared/data/traces`` in or
    beside the checkout."""
    root = Path(kvlab.__file__).resolve().parents[1]
    named = os.environ.get("KVLAB_TRACES")
    inside = Path("shared", "data", "traces")
    folders = [Path(named)] if named else [root / inside, root.parent / inside]
    return next((folder / TRACE for folder in folders if (folder / TRACE).is_file()), None)


def sweep_rows(case: SchedulerCase, trace: Path | None) -> list[Row]:
    """Seconds of 20 runs against the bound, on the trace or else on the shipped workload; decode
    tokens a second in the note."""
    workload = default_workload() if trace is None else load_trace(trace)
    if case.sweep_requests is not None:
        workload = workload.head(case.sweep_requests)
    study = RetractionStudy(workload, model=MODEL, budgets_gib=suggest_budgets(workload, MODEL))
    points = [study.config(*point) for point in study.points()]
    seconds, tokens = [], 0
    for _ in range(case.sweeps):
        begun = time.perf_counter()
        tokens = sum(simulate(study.workload, node).counters.decode_tokens for node in points)
        seconds.append(time.perf_counter() - begun)
    bound = f"bound of {BOUND_S:.0f} s"
    timing = Timing(
        {"counting node": tuple(seconds), bound: (BOUND_S,) * len(seconds)}, len(seconds), 0
    )
    aim = IN_TIME if case.sweep_requests is None and trace is not None else None
    name = f"{len(points)} runs of {study.workload.name}, {len(study.workload)} requests"
    rate = tokens / sorted(seconds)[len(seconds) // 2]
    rows = compare(SCHEDULER, name, timing, [("counting node", bound, aim)])
    return [replace(row, note=f"{rate / 1e6:.1f} M decode tokens/s") for row in rows]


def growth_rows(case: SchedulerCase) -> list[Row]:
    """Time a request, each size against the one before it."""
    contenders = []
    for n in case.sizes:
        workload = generate_closed_loop(n, seed=1)
        study = RetractionStudy(workload, model=MODEL, dcp_sizes=(8,), budgets_gib=(1.0,))
        node = study.config(8, 1.0)
        contenders.append(Contender(f"{n} requests", _simulated(workload, node), calls=n))
    timing = take_turns(contenders, Effort.exactly(case.growth_repetitions))
    names = [contender.name for contender in contenders]
    aim = LINEAR if case is FULL_SCHEDULER else None
    pairs = [(longer, shorter, aim) for shorter, longer in pairwise(names)]
    return compare(SCHEDULER, "time a request", timing, pairs)


def twin_rows(case: SchedulerCase) -> list[Row]:
    """Counting from event to event against every step on real pools of all ranks.

    Tests hold that both give the same results.
    """
    workload = generate_closed_loop(case.twin_requests, SHORT, seed=3)
    steps = Contender("step node", lambda _: lambda: StepNode(SMALL_NODE).run(workload))
    events = Contender("counting node", _simulated(workload, SMALL_NODE))
    timing = take_turns([events, steps], Effort.exactly(case.twin_repetitions))
    name = f"{case.twin_requests} short requests, c={SMALL_NODE.layout.dcp_size}"
    return compare(SCHEDULER, name, timing, [(events.name, steps.name, None)])


def _simulated(workload: Workload, node: NodeConfig) -> Callable[[int], Callable[[], object]]:
    return lambda _: lambda: simulate(workload, node)


class Sharded:
    """kvlab's engine on ``dcp_size`` ranks with the case's requests in it, prefilled."""

    def __init__(
        self, model: Any, case: DecodeCase, tokens: Tensor, dcp_size: int, form: Form = "absorbed"
    ) -> None:
        pages = -(-case.last // (dcp_size * PAGE_SIZE))
        layout = DcpLayout(dcp_size, PAGE_SIZE, case.requests * pages)
        self.model = ShardedModel(model, layout, requests=case.requests, form=form)
        allocator = PagedTokenToKVPoolAllocator(layout)
        found = [allocator.alloc_extend(0, case.last) for _ in range(case.requests)]
        self.ids = [ids for ids in found if ids is not None]  # all: the layout was made for them
        self.states = [self.model.pools.alloc_state() for _ in self.ids]
        self.tokens, self.filled = tokens, case.tokens
        self.model.forward(tokens[:, : case.tokens], self._slots(), self.states)

    def step(self) -> Tensor:
        """The next token of each request: logits ``(requests, vocabulary)``."""
        column = self.tokens[:, self.filled].tolist()
        self.filled += 1
        return self.model.decode(column, self._slots(), self.states)

    def _slots(self) -> list[WidenedSlots]:
        return [WidenedSlots(ids[: self.filled]) for ids in self.ids]


class Library:
    """The same model with its own cache and attention."""

    def __init__(self, model: Any, case: DecodeCase, tokens: Tensor) -> None:
        self.model, self.tokens, self.filled = model, tokens, case.tokens
        with torch.no_grad():
            self.cache = model(input_ids=tokens[:, : case.tokens], use_cache=True).cache

    @torch.no_grad()
    def step(self) -> Tensor:
        """The next token of each request: logits ``(requests, vocabulary)``."""
        column = self.tokens[:, self.filled : self.filled + 1]
        self.filled += 1
        logits: Tensor = self.model(input_ids=column, cache=self.cache, use_cache=True).logits
        return logits[:, -1]


def decode_rows(case: DecodeCase) -> list[Row]:
    """Time one case, times a step. Errors: StudyError when the logits of two contenders differ."""
    library, ours = new_tiny_model(0), new_tiny_model(0)
    library.train(False)  # the engine sees to its own
    chance = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 256, (case.requests, case.last), generator=chance)
    runs: dict[str, Library | Sharded] = {LIBRARY: Library(library, case, tokens)}
    pairs: list[tuple[str, str, Aim | None]] = []
    for dcp_size in case.dcp_sizes:
        name = f"decode, c={dcp_size}"
        runs[name] = Sharded(ours, case, tokens, dcp_size)
        pairs.append((name, LIBRARY, DECODE_AIMS.get(dcp_size) if case.aimed else None))
    expanded = "decode, c=1, keys expanded"
    runs[expanded] = Sharded(ours, case, tokens, 1, "expanded")
    pairs.append((expanded, LIBRARY, None))
    # Logits have a standard deviation of 0.2 to 1; float32 sums in another order differ by 1e-6.
    require_same(case.name, {name: [run.step()] for name, run in runs.items()}, near=1e-4)

    def steps(run: Library | Sharded) -> Callable[[int], Callable[[], object]]:
        return lambda _: lambda: [run.step() for _ in range(case.steps)][:0]

    timing = take_turns(
        [Contender(name, steps(run), calls=case.steps) for name, run in runs.items()],
        Effort.exactly(case.repetitions, case.warmup),
    )
    rows = compare(DECODE, case.name, timing, pairs)
    return [replace(row, note=f"{1 / row.seconds.median:.0f} steps/s") for row in rows]

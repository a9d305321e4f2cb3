"""The event-driven scheduler: a sweep over a trace, its growth, and the scheduler it stands in for.

The sweep is what a retraction study runs: 5 DCP sizes x 4 memory budgets, in this process. It is
held against a bound in seconds. Growth compares the time a request takes in workloads of ten times
the length: 1 is linear, below 1 the longer workload costs more a request.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import kvlab
from kvlab.engine import NodeConfig, StepNode, simulate
from kvlab.engine.workload import (
    LengthModel,
    Lognormal,
    Workload,
    default_workload,
    generate_closed_loop,
    load_trace,
)
from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.bench.clock import Contender, Timing, take_turns
from kvlab.lab.bench.place import Place
from kvlab.lab.bench.rows import Aim, LeftOut, Row, compare
from kvlab.lab.retraction import RetractionStudy, suggest_budgets

PART = "scheduler"
MODEL = "Kimi-Linear-48B-A3B"
TRACE = "azure_llm_2023_conv.csv"
TRACE_FOLDERS_VARIABLE = "KVLAB_TRACES"
BOUND_S = 90.0
IN_TIME = Aim(1.0, f"under {BOUND_S:.0f} s")
LINEAR = Aim(1 / 1.5, "within 1.5x a request")

SHORT = LengthModel(Lognormal(200.0, 0.8, 8, 800), Lognormal(60.0, 0.8, 1, 300))
#: A pool that is too small for what runs at once, so that requests are retracted and resumed.
SMALL_NODE = NodeConfig(DcpLayout(4, 16, 60), concurrency=32, reserved_decode_tokens=16)


@dataclass(frozen=True, slots=True)
class SchedulerCase:
    """How much of each is run. ``sweep_requests``: None takes the whole trace."""

    sweep_requests: int | None
    sweeps: int
    sizes: tuple[int, ...]
    growth_repetitions: int
    twin_requests: int
    twin_repetitions: int


FULL = SchedulerCase(None, 3, (1000, 10_000, 100_000), 5, 300, 9)
QUICK = SchedulerCase(1000, 1, (300, 1000, 3000), 3, 60, 3)


def find_trace() -> Path | None:
    """The Azure trace, or None: in the folder ``$KVLAB_TRACES``, else ``shared/data/traces``
    in or beside the checkout."""
    root = Path(kvlab.__file__).resolve().parents[1]
    named = os.environ.get(TRACE_FOLDERS_VARIABLE)
    inside = Path("shared", "data", "traces")
    folders = [Path(named)] if named else [root / inside, root.parent / inside]
    return next((folder / TRACE for folder in folders if (folder / TRACE).is_file()), None)


def sweep_study(case: SchedulerCase, trace: Path | None) -> RetractionStudy:
    """20 runs on the trace, or on the shipped workload where there is no trace."""
    workload = default_workload() if trace is None else load_trace(trace)
    if case.sweep_requests is not None:
        workload = workload.head(case.sweep_requests)
    return RetractionStudy(workload, model=MODEL, budgets_gib=suggest_budgets(workload, MODEL))


def sweep_row(case: SchedulerCase, trace: Path | None) -> Row:
    """Seconds of the whole sweep against the bound; decode tokens a second in the note."""
    study = sweep_study(case, trace)
    points = [study.config(*point) for point in study.points()]
    seconds, tokens = [], 0
    for _ in range(case.sweeps):
        begun = time.perf_counter()
        tokens = sum(simulate(study.workload, node).counters.decode_tokens for node in points)
        seconds.append(time.perf_counter() - begun)
    bound = f"bound of {BOUND_S:.0f} s"
    timing = Timing(
        {"event scheduler": tuple(seconds), bound: (BOUND_S,) * len(seconds)}, len(seconds), 0
    )
    rate = tokens / sorted(seconds)[len(seconds) // 2]
    return compare(
        PART,
        f"{len(points)} runs of {study.workload.name}, {len(study.workload)} requests",
        timing,
        "event scheduler",
        bound,
        IN_TIME if case.sweep_requests is None and trace is not None else None,
        note=f"{rate / 1e6:.1f} M decode tokens/s",
    )


def growth_rows(case: SchedulerCase) -> list[Row]:
    """Time a request, each size against the one before it."""
    contenders = []
    for n in case.sizes:
        workload = generate_closed_loop(n, seed=1)
        study = RetractionStudy(workload, model=MODEL, dcp_sizes=(8,), budgets_gib=(1.0,))
        node = study.config(8, 1.0)
        contenders.append(Contender(f"{n} requests", _simulated(workload, node), calls=n))
    timing = take_turns(contenders, case.growth_repetitions, 1)
    names = [contender.name for contender in contenders]
    aim = LINEAR if case is FULL else None
    return [
        compare(PART, "time a request", timing, longer, shorter, aim)
        for shorter, longer in pairwise(names)
    ]


def twin_row(case: SchedulerCase) -> Row:
    """Jumping from event to event against every step on real pools of all ranks.

    Errors: StudyError when the two results differ.
    """
    workload = generate_closed_loop(case.twin_requests, SHORT, seed=3)
    if StepNode(SMALL_NODE).run(workload) != simulate(workload, SMALL_NODE):
        raise StudyError(
            f"what is timed must be right: the step and the event scheduler differ on "
            f"{len(workload)} requests; do not trust this benchmark"
        )
    steps = Contender("step scheduler", lambda _: lambda: StepNode(SMALL_NODE).run(workload))
    events = Contender("event scheduler", _simulated(workload, SMALL_NODE))
    timing = take_turns([events, steps], case.twin_repetitions, 1)
    case_name = f"{case.twin_requests} short requests, c={SMALL_NODE.layout.dcp_size}"
    return compare(PART, case_name, timing, events.name, steps.name)


def measure(quick: bool, _: Place) -> Iterator[list[Row] | LeftOut]:
    """The rows of the sweep, of the growth, and of the twin."""
    case = QUICK if quick else FULL
    yield [sweep_row(case, find_trace())]
    yield growth_rows(case)
    yield [twin_row(case)]


def _simulated(workload: Workload, node: NodeConfig) -> Callable[[int], Callable[[], object]]:
    return lambda _: lambda: simulate(workload, node)

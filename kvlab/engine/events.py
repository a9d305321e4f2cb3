"""The event-driven scheduler of a decode node: it obeys ``policy.py`` and jumps between events.

It gives the counters, outcomes, and events of a node that runs every step, at a cost of O(log n)
for each arrival, admission, retraction, resumption, and finish: see ``event_run.Run``.

Worked example, one request of 6 prompt and 100 output tokens: it enters at step 0 with its first
token, and its 99 forwards are one jump. A second request that arrives at step 40 splits that jump
in two, 40 forwards and 59.
"""

from collections.abc import Callable, Sequence

from kvlab.engine.event_run import Run
from kvlab.engine.policy import NodeConfig
from kvlab.engine.result import RunResult
from kvlab.engine.tally import Tally
from kvlab.engine.workload import Request, Workload

Progress = Callable[[int, int], None]


class EventNode:
    """A decode node that counts pages and jumps from event to event."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config

    def __repr__(self) -> str:
        return f"EventNode({self.config!r})"

    def _repr_html_(self) -> str:
        """The rules it follows, for a notebook cell."""
        return self.config._repr_html_()

    def run(
        self,
        workload: Workload | Sequence[Request],
        *,
        record: bool = False,
        progress: Progress | None = None,
    ) -> RunResult:
        """Serve every request until it has finished or was aborted.

        Args:
            workload: the requests; a plain sequence is checked as a `Workload` is.
            record: keep the events, three a request and two a retraction.
            progress: called with (requests done, requests in all), at most some 100 times.

        Cost: about 20 microseconds a request, and as much a retraction. Errors: WorkloadError for
        a sequence that is not a workload, StudyError for an arrival past step 2**53.
        """
        if not isinstance(workload, Workload):
            workload = Workload("requests", tuple(workload), "a plain sequence")
        last = workload.requests[-1]
        self.config.arrival_step(last.arrival_s, last.rid)  # none is later
        tally = Tally(self.config, record, len(workload.requests))
        run, told, total = Run(self.config, workload.requests, tally), 0, len(workload.requests)
        while run.proceed():
            done = len(tally.outcomes)
            if progress and ((done - told) * 100 >= total or told < done == total):
                progress(done, total)
                told = done
        return tally.result()


def simulate(
    workload: Workload | Sequence[Request], config: NodeConfig, record: bool = False
) -> RunResult:
    """``EventNode(config).run(workload)`` in one call."""
    return EventNode(config).run(workload, record=record)

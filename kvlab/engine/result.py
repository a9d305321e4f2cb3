"""What a run of a decode node leaves behind: counters, one outcome a request, and its events.

The counters carry upstream's meaning. ``retracted_requests`` counts every retraction of the run
(``sglang:num_retracted_requests_total``); ``last_batch_retracted`` is the gauge of the last batch
alone (``sglang:num_retracted_reqs``). Reading the gauge for the counter turns 48 into 1.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from kvlab.engine.policy import NodeConfig
from kvlab.show import GAP, Cell, Table, facts, html, strip

ABORT_TOO_LARGE = "cannot fit with its reserve even alone in an empty pool"
ABORT_LAST = "out of memory even after retracting all other requests"
ABORT_NO_RESUME = "cannot be restored with its reserve even into an empty pool"
ABORT_HOST_FULL = "its backup does not fit the host"
# What a notebook cell shows of a run.
MOST_REQUESTS, MOST_STORIES, MOST_EVENTS = 8, 3, 7
_COLORS = {"retract": 5, "resume": 2}  # vermillion and green; the word stands in the cell

EventKind = Literal["arrive", "admit", "retract", "resume", "finish", "abort"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a request. ``tokens``: KV tokens it held, took or gave back."""

    step: int
    kind: EventKind
    rid: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request fared. Steps are node steps; None where it never happened."""

    rid: int
    status: Literal["finished", "aborted"]
    reason: str
    admitted_step: int | None
    end_step: int
    generated: int
    retractions: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of one run. Units in the names; a page is a widened page."""

    requests: int = 0
    finished: int = 0
    aborted: int = 0
    forwards: int = 0
    decode_tokens: int = 0
    last_step: int = 0
    retracted_requests: int = 0
    retracted_input_tokens: int = 0
    retracted_output_tokens: int = 0
    last_batch_retracted: int = 0
    forced_retractions: int = 0
    resumed_requests: int = 0
    backed_up_tokens: int = 0
    restored_tokens: int = 0
    recomputed_tokens: int = 0
    backup_bytes: int = 0
    restore_bytes: int = 0
    declined_backups: int = 0
    peak_pages: int = 0
    peak_running: int = 0
    peak_host_tokens: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """Counters, outcomes by rid, and (when recorded) the events in order."""

    counters: Counters
    outcomes: tuple[Outcome, ...]
    events: tuple[Event, ...] = ()

    def retraction_histogram(self) -> dict[int, int]:
        """How many requests were retracted how often (upstream histogram ``num_retractions``)."""
        return dict(sorted(Counter(o.retractions for o in self.outcomes).items()))

    def abort_reasons(self) -> dict[str, int]:
        """How many requests were aborted for which reason."""
        return dict(Counter(o.reason for o in self.outcomes if o.status == "aborted"))

    def as_dict(self) -> dict[str, int]:
        """The counters as a flat mapping, for a table row."""
        return asdict(self.counters)

    def __repr__(self) -> str:
        c = self.counters
        return (
            f"RunResult({c.requests} requests, {c.finished} finished, {c.aborted} aborted; "
            f"{c.retracted_requests} retractions, {c.resumed_requests} resumed; last step "
            f"{c.last_step}; {len(self.events)} events)"
        )

    def _repr_html_(self) -> str:
        """The counters that are not 0, the requests that were retracted most, and, of a recorded
        run, what happened to the first of them. Cost: O(events)."""
        counters = self.as_dict()
        counted = [(name, f"{count:,}") for name, count in counters.items() if count]
        zero = [name for name, count in counters.items() if not count]
        told = [*counted, ("zero", ", ".join(zero))] if zero else counted
        most = sorted(self.outcomes, key=lambda o: (-o.retractions, o.rid))[:MOST_REQUESTS]
        tables = [facts("Counters of the run (simulated)", told)]
        if most:
            tables.append(_retractions(most, len(self.outcomes)))
        retracted = [o.rid for o in most[:MOST_STORIES] if o.retractions]
        if self.events and retracted:
            tables.append(_stories(retracted, self.events))
        return html(*tables)


def _retractions(most: Sequence[Outcome], total: int) -> Table:
    columns: list[Sequence[object] | str] = [
        (o.rid, Cell(o.retractions, 5 if o.retractions else None), f"{o.status} {o.end_step}")
        for o in most
    ]
    if total > len(most):
        columns.append(f"{GAP} ({total - len(most):,} more)")
    names = ("request", "retractions", "ended, at step")
    return strip("Requests, those retracted most first", names, columns)


def _stories(rids: Sequence[int], events: Sequence[Event]) -> Table:
    """One line a request: its events and their steps, in order."""
    of = {rid: [event for event in events if event.rid == rid] for rid in rids}
    wide = max(min(len(story), MOST_EVENTS) for story in of.values())
    lines: list[tuple[object, ...]] = [("request", *(f"event {i + 1}" for i in range(wide)))]
    for rid, story in of.items():
        cells = [Cell(f"{e.kind} {e.step}", _COLORS.get(e.kind)) for e in story[:wide]]
        if len(story) > wide:
            cells[-1] = Cell(f"{GAP} ({len(story) - wide + 1:,} more)")
        lines.append((rid, *cells, *[""] * (wide - len(cells))))
    return Table("What happened to them, with the step", tuple(lines), headed=True)


@dataclass(slots=True)
class RunRecorder:
    """A result in the making: the one place where counters, events and outcomes are written.
    Methods are named after what happened."""

    config: NodeConfig
    record: bool
    requests: int
    counts: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    admitted: dict[int, int] = field(default_factory=dict)
    retractions: dict[int, int] = field(default_factory=dict)
    host_tokens: int = 0

    def add(self, name: str, by: int) -> None:
        """Raise a counter."""
        self.counts[name] = self.counts.get(name, 0) + by

    def peak(self, name: str, value: int) -> None:
        """Raise a peak to ``value`` if that is higher."""
        self.counts[name] = max(self.counts.get(name, 0), value)

    def event(self, step: int, kind: EventKind, rid: int, tokens: int) -> None:
        """Note an event (kept only when recording)."""
        if self.record:
            self.events.append(Event(step, kind, rid, tokens))

    def backed_up(self, kv_tokens: int) -> None:
        """A request's KV went to the host."""
        self.add("backed_up_tokens", kv_tokens)
        self.add("backup_bytes", kv_tokens * self.config.token_bytes)
        self.host_tokens += kv_tokens
        self.peak("peak_host_tokens", self.host_tokens)

    def retracted(self, step: int, rid: int, prompt: int, generated: int, kv_tokens: int) -> None:
        """A running request gave its KV back and will return."""
        self.add("retracted_requests", 1)
        self.add("retracted_input_tokens", prompt)
        self.add("retracted_output_tokens", generated)
        self.retractions[rid] = self.retractions.get(rid, 0) + 1
        self.event(step, "retract", rid, kv_tokens)

    def resumed(self, step: int, rid: int, kv_tokens: int) -> None:
        """A retracted request came back from the host."""
        self.add("resumed_requests", 1)
        self.add("restored_tokens", kv_tokens)
        self.add("restore_bytes", kv_tokens * self.config.token_bytes)
        self.host_tokens -= kv_tokens
        self.event(step, "resume", rid, kv_tokens)

    def ended(
        self,
        step: int,
        status: Literal["finished", "aborted"],
        rid: int,
        generated: int,
        kv_tokens: int,
        reason: str = "",
    ) -> None:
        """A request left for good."""
        self.add(status, 1)
        self.peak("last_step", step)
        self.event(step, "finish" if status == "finished" else "abort", rid, kv_tokens)
        times = self.retractions.get(rid, 0)
        admitted = self.admitted.get(rid)
        self.outcomes[rid] = Outcome(rid, status, reason, admitted, step, generated, times)

    def result(self) -> RunResult:
        """The finished run."""
        counters = Counters(requests=self.requests, **self.counts)
        ordered = tuple(self.outcomes[rid] for rid in sorted(self.outcomes))
        return RunResult(counters, ordered, tuple(self.events))

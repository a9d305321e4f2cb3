"""Counting what happens to requests: the one place where counters and events are written."""

from dataclasses import dataclass, field
from typing import Literal

from kvlab.engine.policy import NodeConfig
from kvlab.engine.result import Counters, Event, EventKind, Outcome, RunResult
from kvlab.engine.workload import Request


@dataclass(slots=True)
class Tally:
    """Counters of a run in the making. Methods are named after what happened."""

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

    def retracted(self, step: int, request: Request, generated: int, kv_tokens: int) -> None:
        """A running request gave its KV back and will return."""
        self.add("retracted_requests", 1)
        self.add("retracted_input_tokens", request.prompt_tokens)
        self.add("retracted_output_tokens", generated)
        self.retractions[request.rid] = self.retractions.get(request.rid, 0) + 1
        self.event(step, "retract", request.rid, kv_tokens)

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

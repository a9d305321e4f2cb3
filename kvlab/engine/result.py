"""What a run of a decode node leaves behind: counters, one outcome a request, and its events.

The counters carry upstream's meaning. ``retracted_requests`` counts every retraction of the run
(``sglang:num_retracted_requests_total``); ``last_batch_retracted`` is the gauge of the last batch
alone (``sglang:num_retracted_reqs``). Reading the gauge for the counter turns 48 into 1.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Literal

ABORT_TOO_LARGE = "cannot fit with its reserve even alone in an empty pool"
ABORT_LAST = "out of memory even after retracting all other requests"
ABORT_NO_RESUME = "cannot be restored with its reserve even into an empty pool"
ABORT_HOST_FULL = "its backup does not fit the host"

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

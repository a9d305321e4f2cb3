"""The counting node: a decode node that counts pages and skips its quiet steps.

A step is quiet when it is a forward and nothing else, and quiet steps are taken at once. What they
change follows from a clock that counts forwards: a running request has generated ``clock - born``
tokens. Source: SGLang ``scheduler.update_running_batch``, ``ScheduleBatch.retract_decode``,
``disaggregation/decode.py``.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import Literal

from kvlab.engine import policy
from kvlab.engine.policy import NewTokenRatio, NodeConfig
from kvlab.engine.result import (
    ABORT_HOST_FULL,
    ABORT_LAST,
    ABORT_NO_RESUME,
    ABORT_TOO_LARGE,
    Counters,
    Event,
    EventKind,
    Outcome,
    RunResult,
)
from kvlab.engine.workload import Request, Workload
from kvlab.memory import KvBackup

Progress = Callable[[int, int], None]


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request in the system. ``generated`` is right unless it runs: then it is ``clock - born``.
    ``joined`` counts entries into the batch; ``row`` and ``backups`` are those of a ``StepNode``.
    """

    rid: int
    prompt: int
    output: int
    asked: int
    generated: int = 0
    born: int = 0
    joined: int = 0
    admitted: int | None = None
    retractions: int = 0
    row: int = 0
    backups: list[KvBackup] | None = None

    @property
    def kv(self) -> int:
        """Positions whose KV is cached: all but that of the token sampled last."""
        return self.prompt + self.generated - 1

    @property
    def still_asked(self) -> int:
        """Output tokens that its client waits for (0 if it asked for fewer than it gets)."""
        return max(0, self.asked - self.generated)


class CountingNode:
    """A decode node without pools. ``StepNode`` is the same node with them.

    What a step does, in order:

        arrive    requests come, at their times or as others leave (closed loop)
        resume    those on the host come back, first in first out
        admit     the waiting enter, first in first out; the recomputed wait among them
        give up   nobody runs: the head can never fit, or time goes to the next arrival
        retract   pages are short, or it is the n-th forward: the least advanced leave, to the host
                  or, with no backup, to the end of the queue (or for good: ``host_full="abort"``)
        forward   every running request takes a page if it must, and gains one token

    By the clock none of these needs a walk over the requests:

        tokens held           sum of (prompt - born) + requests * clock
        pages that open now   the requests whose ``phase`` is ``clock % W``
        who finishes          ``born + output - 1``, known on joining
        who is retracted      order of ``-born``, which does not change

    Example, W = 4: a request of 6 prompt and 100 output tokens joins at clock 10 with its first
    token, so it is born at 9. At clock 12 it has 3 generated and 8 tokens of KV, and a page opens:
    phase (9 + 1 - 6) % 4 = 0 = 12 % 4.
    """

    def __init__(self, config: NodeConfig) -> None:
        self.config = config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config!r})"

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
        self._begin(workload.requests, record)
        told, total = 0, len(workload.requests)
        while self._proceed():
            done = len(self.outcomes)
            if progress and ((done - told) * 100 >= total or told < done == total):
                progress(done, total)
                told = done
        outcomes = tuple(self.outcomes[rid] for rid in sorted(self.outcomes))
        return RunResult(Counters(**self.count), outcomes, tuple(self.events))

    def _begin(self, requests: Sequence[Request], record: bool) -> None:
        self.requests, self.arrived = requests, 0
        self._arrival_steps = [self.config.arrival_step(r.arrival_s, r.rid) for r in requests]
        self.record, self.events = record, list[Event]()
        self.count, self.outcomes = asdict(Counters(len(requests))), dict[int, Outcome]()
        self.step = self.clock = 0
        self.waiting: deque[RunningRequest] = deque()  # for a prefill
        self.retracted: deque[RunningRequest] = deque()  # their backups are on the host
        self.running: dict[int, RunningRequest] = {}  # by order of joining
        self.free = self.config.layout.num_pages
        self.queued = self.host_tokens = 0  # tokens that the retracted are owed, and have
        self._width = self.config.layout.widened_page_size
        self._held = 0  # sum of prompt - born
        self._most: int | None = None  # see `_largest`
        self._due = [0] * self._width  # how many open a page, by phase
        self._ends: dict[int, list[RunningRequest]] = {}
        self._end_clocks: list[int] = []
        self._joins = self._forced_at = 0
        self._by_ratio = self.config.admission == "new_token_ratio"
        self._ratio = NewTokenRatio(self.config.initial_new_token_ratio)

    # What a step does ---------------------------------------------------------------------------

    def _proceed(self) -> bool:
        """One step in which something may happen, and the quiet ones after it. False at the end."""
        self._arrive()
        if self.retracted:
            self._resume()
        entered = bool(self.waiting) and self._admit()
        before = len(self.running)
        if not before:
            # Whoever entered has finished on entering, and what it was charged is free again.
            return entered or self._give_up()
        self._retract()
        if not self.running:
            self.step += 1
        elif len(self.running) < before:
            self._forward(*self._fitting(1))
        else:
            forwards, pages = self._quiet_forwards()
            self._forward(forwards, pages)
            if self._by_ratio:
                self._ratio = self._ratio.after(forwards)
        return True

    def _arrive(self) -> None:
        """Who has come waits, unless the prefill made its only token."""
        while (soonest := self._next_arrival()) is not None and soonest <= self.step:
            request = self.requests[self.arrived]
            rid, prompt, output = request.rid, request.prompt_tokens, request.output_tokens
            self.arrived += 1
            came = RunningRequest(rid, prompt, output, self.config.asked(output))
            self._event("arrive", came, prompt)
            if output == 1:
                self._prefill_only(came)
                came.generated = 1
                self._end(came, 0)
            else:
                self.waiting.append(came)

    def _next_arrival(self) -> int | None:
        """The step of the next arrival; None after the last, or when a closed loop is full."""
        bound = self.config.concurrency
        in_system = len(self.waiting) + len(self.running) + len(self.retracted)
        if self.arrived == len(self.requests) or (bound is not None and in_system >= bound):
            return None
        return self._arrival_steps[self.arrived]

    def _resume(self) -> None:
        available = self.free * self._width
        budget = policy.allocatable(available, len(self.running), self.config)
        while self.retracted and self._has_slot():
            kv = self.retracted[0].kv
            required = policy.required_to_resume(kv, self.config)
            if required > budget:
                break
            budget -= required
            request = self.retracted.popleft()
            self._join(request)
            self._restore(request)
            self._off_host(request)
            self.count["resumed_requests"] += 1
            self.count["restored_tokens"] += kv
            self.count["restore_bytes"] += kv * self.config.token_bytes
            self._event("resume", request, kv)

    def _has_slot(self) -> bool:
        return self.config.max_running is None or len(self.running) < self.config.max_running

    def _admit(self) -> bool:
        """Whether anybody entered."""
        # Both before anybody enters: the newcomers of one step do not vouch for each other.
        budget, tokens = self._budget(), self._tokens()
        entered = False
        while self.waiting and self._has_slot():
            charge = self._charge(self.waiting[0], budget, tokens)
            if charge is None:
                break
            budget -= charge
            entered = True
            self._enter(self.waiting.popleft())
        return entered

    def _enter(self, request: RunningRequest) -> None:
        """Prefill of everything it has: the KV arrives, and one more token is sampled."""
        fill = request.prompt + request.generated
        if request.admitted is None:
            request.admitted = self.step
        self._event("admit", request, fill)
        if request.generated:
            self.count["recomputed_tokens"] += fill
        if request.generated + 1 == request.output:
            self._prefill_only(request)
            request.generated += 1
            self._end(request, fill)
        else:
            request.generated += 1
            self._join(request)
            self._prefill(request)

    def _give_up(self) -> bool:
        """Nobody runs: a head that can never fit is aborted, or time goes to the next arrival."""
        if self.retracted:
            request = self.retracted.popleft()
            for backup in request.backups or ():
                backup.discard()
            self._off_host(request)
            self._end(request, 0, ABORT_NO_RESUME)
        elif self.waiting:
            self._end(self.waiting.popleft(), 0, ABORT_TOO_LARGE)
        elif (soonest := self._next_arrival()) is not None:
            self.step = soonest  # later than now: `_arrive` took the others
        else:
            return False
        return True

    def _retract(self) -> None:
        """Until the next forward finds its pages, the least advanced leave; and one leaves if it
        is the n-th forward. The last one is not retracted: if even it is short, it is aborted."""
        short, forced = self._is_short(), self._is_forced()
        if not short and not forced:
            return
        retracted, first = 0, True
        while len(self.running) > 1 and (first or self._is_short()):
            first = False
            # At one clock, the order of -born is the order of what was generated.
            victim = min(
                self.running.values(), key=lambda r: policy.victim_key(-r.born, r.prompt, r.joined)
            )
            retracted += self._take_out(victim)
        if len(self.running) == 1 and self._is_short():
            (last,) = self.running.values()
            self._leave(last)
            self._end(last, last.kv, ABORT_LAST)
        if retracted:
            self.count["last_batch_retracted"] = retracted
            self.count["forced_retractions"] += 0 if short else retracted
            survivors = ((self.clock - r.born, r.asked) for r in self.running.values())
            self._ratio = NewTokenRatio.after_retraction(survivors, self.config)

    def _is_short(self) -> bool:
        """Whether the next forward needs more pages than are free (``check_decode_mem``)."""
        return self._due[self.clock % self._width] > self.free

    def _is_forced(self) -> bool:
        """Whether a retraction is due whatever the memory; true once at any clock."""
        interval = self.config.force_retract_interval
        if interval is None or self.clock % interval:
            return False
        # After an abort of the last request the clock stands still.
        again, self._forced_at = self.clock == self._forced_at, self.clock
        return not again

    def _take_out(self, request: RunningRequest) -> int:
        """Retract; 1, or 0 if it was an abort because the host is full."""
        request.generated = self.clock - request.born
        kv, config = request.kv, self.config
        wanted = config.restore == "backup"
        kept = wanted and config.host_has_room(kv, self.host_tokens) and self._back_up(request)
        self.count["declined_backups"] += wanted and not kept
        self._leave(request)
        if kept:
            self.retracted.append(request)
            self.queued += policy.required_to_resume(kv, config)
            self.host_tokens += kv
            self.count["backed_up_tokens"] += kv
            self.count["backup_bytes"] += kv * config.token_bytes
            self._peak("peak_host_tokens", self.host_tokens)
        elif not wanted or config.host_full == "recompute":
            self.waiting.append(request)
        else:
            self._end(request, kv, ABORT_HOST_FULL)
            return 0
        request.retractions += 1
        self.count["retracted_requests"] += 1
        self.count["retracted_input_tokens"] += request.prompt
        self.count["retracted_output_tokens"] += request.generated
        self._event("retract", request, kv)
        return 1

    def _off_host(self, request: RunningRequest) -> None:
        self.queued -= policy.required_to_resume(request.kv, self.config)
        self.host_tokens -= request.kv

    def _forward(self, forwards: int, pages: int) -> None:
        """So many forwards at once, which open ``pages``; requests finish in the last only."""
        self.free -= pages
        self._peak("peak_pages", self.config.layout.num_pages - self.free)
        self.count["forwards"] += forwards
        self.count["decode_tokens"] += forwards * len(self.running)
        self.clock += forwards
        self.step += forwards - 1
        for request in list(self._ends.get(self.clock - 1, ())):
            self._leave(request)
            self._end(request, request.kv)
        self.step += 1

    # How many steps are quiet -------------------------------------------------------------------

    def _quiet_forwards(self) -> tuple[int, int]:
        """Forwards until something else may happen, at least 1, and the pages that they open. Who
        is on the host needs no look: what it may take only shrinks until then."""
        while not self._ends[self._end_clocks[0]]:
            del self._ends[heappop(self._end_clocks)]
        quiet = self._end_clocks[0] - self.clock + 1
        if (soonest := self._next_arrival()) is not None:
            quiet = min(quiet, max(1, soonest - self.step))
        interval = self.config.force_retract_interval
        if interval is not None and len(self.running) > 1:
            quiet = min(quiet, interval - self.clock % interval)
        quiet, pages = self._fitting(quiet)
        if not self.waiting or not self._has_slot():
            return quiet, pages
        # While no page opens, the budget only grows and what the head must find only falls, so its
        # entry is found by bisection. Pages that open can make it too early; then it asks again.
        head = self.waiting[0]

        def may_enter(ahead: int) -> bool:
            return self._charge(head, self._budget(ahead), self._tokens(ahead)) is not None

        if not may_enter(quiet):
            return quiet, pages
        return self._fitting(1 + bisect_left(range(1, quiet), True, key=may_enter))

    def _fitting(self, forwards: int) -> tuple[int, int]:
        """How many of the next forwards find their pages among the free ones, and these pages."""
        width, due, size = self._width, self._due, len(self.running)
        rounds = min(forwards // width, self.free // size)  # W forwards open a page for each
        fit, pages, at = rounds * width, rounds * size, self.clock % width
        while fit < forwards and pages + due[at] <= self.free:
            pages += due[at]
            fit += 1
            at = at + 1 if at + 1 < width else 0
        return fit, pages

    # The rule of admission, for now or for a later forward --------------------------------------

    def _tokens(self, ahead: int = 0) -> int:
        """Prompt and generated tokens of the running, so many forwards from now."""
        return self._held + len(self.running) * (self.clock + ahead)

    def _budget(self, ahead: int = 0) -> float:
        """Tokens for newcomers, so many forwards from now, if no page opens until then."""
        config, available = self.config, self.free * self._width
        if self._by_ratio:
            clock, clip = self.clock + ahead, config.clip_max_new_tokens
            asked = (min(max(0, r.asked + r.born - clock), clip) for r in self.running.values())
            ratio = self._ratio.after(ahead).value(config)
            return policy.ratio_budget(available, sum(asked), ratio) - self.queued
        single = policy.need_single(self._largest(), self._tokens(ahead))
        return policy.allocatable(available, len(self.running), config, single, self.queued)

    def _charge(self, request: RunningRequest, budget: float, tokens: int) -> int | None:
        """What a request that waits is charged for entering; None if ``budget`` is not enough."""
        fill = request.prompt + request.generated
        if self._by_ratio:
            charge = policy.required_by_ratio(fill, request.still_asked, self.config)
            return charge if charge < budget else None
        need, charge = policy.required_to_admit(fill, request.still_asked, tokens, self.config)
        return charge if need <= budget else None

    def _largest(self) -> int | None:
        """``max(prompt + min(asked, clip))`` of the running; counted anew after it left."""
        if self._most is None and self.running:
            self._most = max(self._full(request) for request in self.running.values())
        return self._most

    def _full(self, request: RunningRequest) -> int:
        return request.prompt + min(request.asked, self.config.clip_max_new_tokens)

    # Joining and leaving the batch, and what is noted -------------------------------------------

    def _join(self, request: RunningRequest) -> None:
        self._joins += 1
        request.joined, request.born = self._joins, self.clock - request.generated
        self.running[request.joined] = request
        self.free += request.kv // -self._width  # a page less for each that is begun
        end = request.born + request.output - 1
        if end not in self._ends:
            self._ends[end] = []
            heappush(self._end_clocks, end)
        self._ends[end].append(request)
        self._due[(request.born + 1 - request.prompt) % self._width] += 1
        self._held += request.prompt - request.born
        if self._most is not None or len(self.running) == 1:
            self._most = max(self._most or 0, self._full(request))
        self._peak("peak_pages", self.config.layout.num_pages - self.free)
        self._peak("peak_running", len(self.running))

    def _leave(self, request: RunningRequest) -> None:
        request.generated = self.clock - request.born
        del self.running[request.joined]
        self.free -= request.kv // -self._width
        self._ends[request.born + request.output - 1].remove(request)
        self._due[(request.born + 1 - request.prompt) % self._width] -= 1
        self._held -= request.prompt - request.born
        if self._most == self._full(request):
            self._most = None

    def _end(self, request: RunningRequest, kv: int, reason: str = "") -> None:
        """A request leaves for good: finished, or aborted for a ``reason``."""
        status: Literal["finished", "aborted"] = "aborted" if reason else "finished"
        self.count[status] += 1
        self._peak("last_step", self.step)
        self._event("abort" if reason else "finish", request, kv)
        told = (request.admitted, self.step, request.generated, request.retractions)
        self.outcomes[request.rid] = Outcome(request.rid, status, reason, *told)

    def _event(self, kind: EventKind, request: RunningRequest, tokens: int) -> None:
        if self.record:
            self.events.append(Event(self.step, kind, request.rid, tokens))

    def _peak(self, name: str, value: int) -> None:
        if value > self.count[name]:
            self.count[name] = value

    # What a node with pools does beside ---------------------------------------------------------

    def _prefill_only(self, request: RunningRequest) -> None:
        """A request ends with the token that its prefill samples."""

    def _prefill(self, request: RunningRequest) -> None:
        """A request has joined: its KV arrives."""

    def _back_up(self, request: RunningRequest) -> bool:
        """Whether the host took the KV of a request that is about to leave."""
        return True

    def _restore(self, request: RunningRequest) -> None:
        """A request has joined again: its KV comes back from the host."""


def simulate(workload: Workload | Sequence[Request], config: NodeConfig) -> RunResult:
    """``CountingNode(config).run(workload)`` in one call."""
    return CountingNode(config).run(workload)

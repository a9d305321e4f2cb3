"""The slowest way to run a decode node: one step after the other, over plain lists.

It exists to be read beside the rules and to be compared with: no sums are kept, nothing is
skipped, and every quantity of a step is counted anew from the requests. It shares the pure rules
of ``kvlab.engine.policy`` with the nodes that it judges, and nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvlab.engine import (
    Counters,
    Event,
    EventKind,
    NewTokenRatio,
    NodeConfig,
    Outcome,
    RunResult,
    victim_key,
)
from kvlab.engine.policy import (
    allocatable,
    need_single,
    ratio_budget,
    required_by_ratio,
    required_to_admit,
    required_to_resume,
)
from kvlab.engine.result import ABORT_HOST_FULL, ABORT_LAST, ABORT_NO_RESUME, ABORT_TOO_LARGE
from kvlab.engine.workload import Request
from kvlab.index import DcpLayout


def opens_page(kv_tokens: int, layout: DcpLayout) -> bool:
    """Whether the next token of a request with ``kv_tokens`` cached opens a page."""
    return layout.pages_for(kv_tokens + 1) > layout.pages_for(kv_tokens)


@dataclass(eq=False)
class Req:
    """A request and where it stands; ``pages`` is 0 unless it runs."""

    rid: int
    p: int
    o: int
    g: int = 0
    joined: int = 0
    pages: int = 0
    retractions: int = 0
    admitted_step: int | None = None

    @property
    def kv(self) -> int:
        return self.p + self.g - 1


@dataclass
class ReferenceNode:
    """One run of ``requests``; use once."""

    config: NodeConfig
    requests: list[Request]
    t: int = 0
    forwards: int = 0
    joins: int = 0
    arrived: int = 0
    forced_at: int | None = None
    waiting: list[Req] = field(default_factory=list)
    running: list[Req] = field(default_factory=list)
    retracted: list[Req] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    def run(self) -> RunResult:
        self.ratio = NewTokenRatio(self.config.initial_new_token_ratio)
        while self.one_step():
            assert self.free_pages >= 0
        self.count["requests"] = len(self.requests)
        self.count["last_step"] = self.events[-1].step
        outcomes = tuple(self.outcomes[r.rid] for r in self.requests)
        return RunResult(Counters(**self.count), outcomes, tuple(self.events))

    def one_step(self) -> bool:
        self.arrive()
        self.resume()
        entered = self.admit()
        if not self.running:
            return entered or self.give_up()
        removed = self.retract()
        if self.running:
            self.forward()
            if not removed:
                self.ratio = self.ratio.after(1)
        self.t += 1
        return True

    @property
    def free_pages(self) -> int:
        return self.config.layout.num_pages - sum(r.pages for r in self.running)

    @property
    def available(self) -> int:
        return self.free_pages * self.config.layout.widened_page_size

    @property
    def host_tokens(self) -> int:
        return sum(r.kv for r in self.retracted)

    def asked_left(self, req: Req) -> int:
        return max(0, self.config.asked(req.o) - req.g)

    def has_slot(self) -> bool:
        return self.config.max_running is None or len(self.running) < self.config.max_running

    def arrive(self) -> None:
        while self.arrived < len(self.requests):
            request = self.requests[self.arrived]
            in_system = len(self.waiting) + len(self.running) + len(self.retracted)
            if self.config.arrival_step(request.arrival_s) > self.t:
                return
            if self.config.concurrency is not None and in_system >= self.config.concurrency:
                return
            self.arrived += 1
            req = Req(request.rid, request.prompt_tokens, request.output_tokens)
            self.log("arrive", req, req.p)
            if req.o == 1:
                req.g = 1
                self.end("finish", req, 0)
            else:
                self.waiting.append(req)

    def resume(self) -> None:
        budget = allocatable(self.available, len(self.running), self.config)
        while self.retracted and self.has_slot():
            req = self.retracted[0]
            required = required_to_resume(req.kv, self.config)
            if required > budget:
                return
            budget -= required
            del self.retracted[0]
            self.add(restored_tokens=req.kv, restore_bytes=req.kv * self.config.token_bytes)
            self.add(resumed_requests=1)
            self.log("resume", req, req.kv)
            self.join(req)

    def admit(self) -> bool:
        config, clip = self.config, self.config.clip_max_new_tokens
        retractable = sum(r.p + r.g for r in self.running)
        largest = max((r.p + min(config.asked(r.o), clip) for r in self.running), default=None)
        queued = sum(required_to_resume(r.kv, config) for r in self.retracted)
        outstanding = sum(min(self.asked_left(r), clip) for r in self.running)
        budget: float
        if config.admission == "reserved":
            alone = need_single(largest, retractable)
            budget = allocatable(self.available, len(self.running), config, alone, queued)
        else:
            ratio = self.ratio.value(config)
            budget = ratio_budget(self.available, outstanding, ratio) - queued
        entered = False
        while self.waiting and self.has_slot():
            req = self.waiting[0]
            fill, left = req.p + req.g, self.asked_left(req)
            if config.admission == "reserved":
                need, charge = required_to_admit(fill, left, retractable, config)
                if need > budget:
                    break
            else:
                need = charge = required_by_ratio(fill, left, config)
                if need >= budget:
                    break
            budget -= charge
            del self.waiting[0]
            self.enter(req, fill)
            entered = True
        return entered

    def enter(self, req: Req, fill: int) -> None:
        if req.admitted_step is None:
            req.admitted_step = self.t
        if req.g > 0:
            self.add(recomputed_tokens=fill)
        self.log("admit", req, fill)
        req.g += 1
        if req.g == req.o:
            self.end("finish", req, fill)
        else:
            self.join(req)

    def give_up(self) -> bool:
        if self.retracted:
            self.end("abort", self.retracted.pop(0), 0, ABORT_NO_RESUME)
        elif self.waiting:
            self.end("abort", self.waiting.pop(0), 0, ABORT_TOO_LARGE)
        elif self.arrived < len(self.requests):
            arrival = self.requests[self.arrived].arrival_s
            self.t = max(self.t, self.config.arrival_step(arrival))
        else:
            return False
        return True

    def short(self) -> bool:
        need = sum(opens_page(r.kv, self.config.layout) for r in self.running)
        return need > self.free_pages

    def retract(self) -> bool:
        """Make room for the next forward; whether anybody left."""
        interval, short = self.config.force_retract_interval, self.short()
        forced = interval is not None and self.forwards > 0 and self.forwards % interval == 0
        forced = forced and self.forced_at != self.forwards
        if not short and not forced:
            return False
        if forced:
            self.forced_at = self.forwards
        before, first, retracted = len(self.running), True, 0
        while first or self.short():
            if len(self.running) == 1:
                break
            first = False
            victim = min(self.running, key=lambda r: victim_key(r.g, r.p, r.joined))
            retracted += self.take_out(victim)
        if len(self.running) == 1 and self.short():
            last = self.running.pop()
            self.end("abort", last, last.kv, ABORT_LAST)
        if retracted:
            self.count["last_batch_retracted"] = retracted
            self.add(forced_retractions=0 if short else retracted)
            survivors = [(r.g, self.config.asked(r.o)) for r in self.running]
            self.ratio = NewTokenRatio.after_retraction(survivors, self.config)
        return len(self.running) < before

    def take_out(self, req: Req) -> bool:
        self.running.remove(req)
        req.pages = 0
        if self.config.restore == "recompute":
            self.waiting.append(req)
        elif self.host_takes(req):
            self.retracted.append(req)
            self.add(backed_up_tokens=req.kv, backup_bytes=req.kv * self.config.token_bytes)
            self.peak("peak_host_tokens", self.host_tokens)
        else:
            self.add(declined_backups=1)
            if self.config.host_full == "abort":
                self.end("abort", req, req.kv, ABORT_HOST_FULL)
                return False
            self.waiting.append(req)
        req.retractions += 1
        self.add(retracted_requests=1, retracted_input_tokens=req.p)
        self.add(retracted_output_tokens=req.g)
        self.log("retract", req, req.kv)
        return True

    def host_takes(self, req: Req) -> bool:
        bound = self.config.host_capacity_tokens
        return bound is None or self.host_tokens + req.kv <= bound

    def forward(self) -> None:
        for req in self.running:
            req.pages += opens_page(req.kv, self.config.layout)
        self.peak("peak_pages", self.config.layout.num_pages - self.free_pages)
        for req in self.running:
            req.g += 1
        self.forwards += 1
        self.add(forwards=1, decode_tokens=len(self.running))
        done = [r for r in self.running if r.g == r.o]
        self.running = [r for r in self.running if r.g < r.o]
        for req in done:
            self.end("finish", req, req.kv)

    def join(self, req: Req) -> None:
        self.joins += 1
        req.joined = self.joins
        req.pages = self.config.layout.pages_for(req.kv)
        self.running.append(req)
        self.peak("peak_running", len(self.running))
        self.peak("peak_pages", self.config.layout.num_pages - self.free_pages)

    def add(self, **amounts: int) -> None:
        for name, amount in amounts.items():
            self.count[name] = self.count.get(name, 0) + amount

    def peak(self, name: str, value: int) -> None:
        self.count[name] = max(self.count.get(name, 0), value)

    def log(self, kind: EventKind, req: Req, tokens: int) -> None:
        self.events.append(Event(self.t, kind, req.rid, tokens))

    def end(self, kind: EventKind, req: Req, tokens: int, reason: str = "") -> None:
        self.log(kind, req, tokens)
        finished = kind == "finish"
        self.add(**{"finished" if finished else "aborted": 1})
        self.outcomes[req.rid] = Outcome(
            req.rid,
            "finished" if finished else "aborted",
            reason,
            req.admitted_step,
            self.t,
            req.g,
            req.retractions,
        )


def reference(requests: Iterable[Request], config: NodeConfig) -> RunResult:
    """Run the requests, events recorded."""
    return ReferenceNode(config, list(requests)).run()

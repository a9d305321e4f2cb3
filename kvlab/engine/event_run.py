"""One run of the event-driven scheduler.

What a step does, in order:

    A  arrive    requests come, at their times or as others leave (closed loop)
    B  resume    those on the host come back, first in first out
    C  admit     the waiting enter, first in first out; the recomputed wait among them
    D  give up   nobody runs: the head can never fit, or time jumps to the next arrival
    E  retract   pages are short, or it is the n-th forward: the least advanced leave, to the host
                 or, with no backup, to the end of the queue (or for good: ``host_full="abort"``)
    F  skip      nobody is left: the step ends without a forward
    G  forward   every running request takes a page if it must, and gains one token

After E the node looks ahead: until the next finish, arrival, shortage, or admission the steps
consist of G alone. They are taken at once.
"""

from collections import deque
from collections.abc import Sequence

from kvlab.engine.event_gate import Gate
from kvlab.engine.event_state import Batch, Member
from kvlab.engine.policy import NodeConfig, allocatable, required_to_resume
from kvlab.engine.result import (
    ABORT_HOST_FULL,
    ABORT_LAST,
    ABORT_NO_RESUME,
    ABORT_TOO_LARGE,
)
from kvlab.engine.tally import Tally
from kvlab.engine.workload import Request


class Run:
    """One run. ``step`` counts steps, ``clock`` counts forwards, ``free`` counts pages.

    Queues: ``waiting`` for a prefill, those who are recomputed among them; ``retracted``, whose
    backups are on the host.
    """

    def __init__(self, config: NodeConfig, requests: Sequence[Request], tally: Tally) -> None:
        self.config = config
        self.layout = config.layout
        self.requests = requests
        self.tally = tally
        self.step = 0
        self.clock = 0
        self.free = config.layout.num_pages
        self.arrived = 0
        self.batch = Batch(config)
        self.gate = Gate(config, self.batch)
        self.waiting: deque[Member] = deque()
        self.retracted: deque[Member] = deque()
        self.queued = 0  # what the retracted are owed, in tokens
        self.thinned = False  # whether E took anybody out in this step
        self.forced_at = 0

    def proceed(self) -> bool:
        """One step in which something may happen, and the quiet ones after it. False at the end."""
        self._arrive()
        self._resume()
        entered = self._admit()
        if not self.batch.size:
            # Whoever entered has finished on entering, and what it was charged is free again.
            return entered or self._give_up()
        self._retract()
        if self.batch.size:
            self._forward(self._quiet_forwards())
        else:
            self.step += 1
        return True

    def _arrive(self) -> None:
        """A. Who has come waits, unless the prefill made its only token."""
        while (soonest := self._next_arrival()) is not None and soonest <= self.step:
            member = Member.of(self.requests[self.arrived], self.config)
            self.arrived += 1
            self.tally.event(self.step, "arrive", member.rid, member.prompt)
            if member.output == 1:
                member.generated = 1
                self._finish(member, self.step, 0)
            else:
                self.waiting.append(member)

    def _next_arrival(self) -> int | None:
        """The step of the next arrival; None after the last, or when a closed loop is full."""
        in_system = len(self.waiting) + self.batch.size + len(self.retracted)
        bound = self.config.concurrency
        if self.arrived == len(self.requests) or (bound is not None and in_system >= bound):
            return None
        return self.config.arrival_step(self.requests[self.arrived].arrival_s)

    def _resume(self) -> None:
        """B. Who has no backup is not in this queue."""
        if not self.retracted:
            return
        available = self.free * self.layout.widened_page_size
        budget = allocatable(available, self.batch.size, self.config)
        while self.retracted and self._has_slot():
            kv = self.retracted[0].kv_tokens
            required = required_to_resume(kv, self.config)
            if required > budget:
                break
            budget -= required
            self.queued -= required
            member = self.retracted.popleft()
            self.tally.resumed(self.step, member.rid, kv)
            self._join(member)

    def _has_slot(self) -> bool:
        return self.config.max_running is None or self.batch.size < self.config.max_running

    def _join(self, member: Member) -> None:
        self.free -= self.layout.pages_for(member.kv_tokens)
        self.batch.join(member, self.clock)
        self.tally.peak("peak_pages", self.layout.num_pages - self.free)
        self.tally.peak("peak_running", self.batch.size)

    def _admit(self) -> bool:
        """C. Whether anybody entered."""
        if not self.waiting or not self._has_slot():
            return False
        self.batch.settle(self.clock)
        # Both before anybody enters: the newcomers of one step do not vouch for each other.
        budget = self.gate.budget(self.clock, self.free, self.queued)
        retractable = self.batch.tokens(self.clock)
        before = len(self.waiting)
        while self.waiting and self._has_slot():
            need, charge = self.gate.terms(self.waiting[0], retractable)
            if not self.gate.admits(budget, need):
                break
            budget -= charge
            self._enter(self.waiting.popleft())
        return len(self.waiting) < before

    def _enter(self, member: Member) -> None:
        fill = member.prompt + member.generated
        self.tally.admitted.setdefault(member.rid, self.step)
        self.tally.event(self.step, "admit", member.rid, fill)
        if member.generated > 0:
            self.tally.add("recomputed_tokens", fill)
        member.generated += 1
        if member.generated == member.output:
            self._finish(member, self.step, fill)
        else:
            self._join(member)

    def _give_up(self) -> bool:
        """D. Abort a head that can never fit, or go on to the next arrival. False at the end."""
        if self.retracted:
            member = self.retracted.popleft()
            self.queued -= required_to_resume(member.kv_tokens, self.config)
            self.tally.host_tokens -= member.kv_tokens
            self._abort(member, 0, ABORT_NO_RESUME)
        elif self.waiting:
            self._abort(self.waiting.popleft(), 0, ABORT_TOO_LARGE)
        elif (soonest := self._next_arrival()) is not None:
            self.step = soonest  # later than now: A took the others
        else:
            return False
        return True

    def _retract(self) -> None:
        """E. The last one is never retracted: if even it is short of a page, it is aborted."""
        before, retracted = self.batch.size, 0
        short, forced = self._is_short(), self._is_forced()
        if forced and not short and before > 1:
            retracted = self._take_out(self.batch.victim())
        while self.batch.size > 1 and self._is_short():
            retracted += self._take_out(self.batch.victim())
        if self.batch.size == 1 and self._is_short():
            last = self.batch.victim()
            self._leave(last)
            self._abort(last, last.kv_tokens, ABORT_LAST)
        if retracted:
            self.tally.counts["last_batch_retracted"] = retracted
            self.tally.add("forced_retractions", 0 if short else retracted)
            self.gate.note_retraction(self.clock)
        self.thinned = self.batch.size < before

    def _is_short(self) -> bool:
        return self.batch.pages.due(self.clock) > self.free

    def _is_forced(self) -> bool:
        """Whether a retraction is due whatever the memory; true once at any clock."""
        interval = self.config.force_retract_interval
        if interval is None or self.clock % interval:
            return False
        # After an abort of the last request the clock stands still.
        again, self.forced_at = self.clock == self.forced_at, self.clock
        return not again

    def _take_out(self, member: Member) -> int:
        """Retract; 1, or 0 if it was an abort because the host is full."""
        self._leave(member)
        kv, config = member.kv_tokens, self.config
        backup = config.restore == "backup"
        if backup and config.host_has_room(kv, self.tally.host_tokens):
            self.retracted.append(member)
            self.queued += required_to_resume(kv, config)
            self.tally.backed_up(kv)
        else:
            if backup:
                self.tally.add("declined_backups", 1)
            if config.without_backup == "abort":
                self._abort(member, kv, ABORT_HOST_FULL)
                return 0
            self.waiting.append(member)
        self.tally.retracted(self.step, self.requests[member.rid], member.generated, kv)
        return 1

    def _leave(self, member: Member) -> None:
        self.batch.leave(member, self.clock)
        self.free += self.layout.pages_for(member.kv_tokens)

    def _quiet_forwards(self) -> int:
        """Forwards until A to E may act again, at least 1."""
        if self.thinned:
            return 1
        quiet = self.batch.next_end() - self.clock + 1
        if (soonest := self._next_arrival()) is not None:
            quiet = min(quiet, max(1, soonest - self.step))
        interval = self.config.force_retract_interval
        if interval is not None and self.batch.size > 1:
            quiet = min(quiet, interval - self.clock % interval)
        quiet = self.batch.pages.fitting(self.clock, quiet, self.free)
        # B needs no look: what the retracted may take only shrinks until one of these events.
        if not self.waiting or not self._has_slot():
            return quiet
        head = self.waiting[0]
        return self.gate.forwards_to_entry(head, self.clock, self.free, self.queued, quiet)

    def _forward(self, forwards: int) -> None:
        """G, so many times at once; requests finish in the last of them only."""
        self.free -= self.batch.pages.opened(self.clock, forwards)
        self.tally.peak("peak_pages", self.layout.num_pages - self.free)
        self.tally.add("forwards", forwards)
        self.tally.add("decode_tokens", forwards * self.batch.size)
        self.clock += forwards
        for member in self.batch.ending(self.clock - 1):
            self._leave(member)
            self._finish(member, self.step + forwards - 1, member.kv_tokens)
        if not self.thinned:
            self.gate.note_forwards(forwards)
        self.step += forwards

    def _finish(self, member: Member, step: int, kv_tokens: int) -> None:
        self.tally.ended(step, "finished", member.rid, member.generated, kv_tokens)

    def _abort(self, member: Member, kv_tokens: int, reason: str) -> None:
        self.tally.ended(self.step, "aborted", member.rid, member.generated, kv_tokens, reason)

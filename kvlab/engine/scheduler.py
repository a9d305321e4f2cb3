"""A decode node, step by step, on real pools of all ranks.

Each step: arrivals, resume (FIFO), admission, memory check and retraction, forward. The node hands
out widened slots; the cells behind it (``Cells``) hold the rows of every rank. It is the slow,
faithful twin of ``EventNode``: both obey ``policy`` and must leave identical results.

Source: SGLang ``scheduler.update_running_batch``, ``ScheduleBatch.retract_decode``,
``disaggregation/decode.py``.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch

from kvlab.engine import policy
from kvlab.engine.books import Live, NodeBooks
from kvlab.engine.cells import Cells, FingerprintCells
from kvlab.engine.policy import NodeConfig
from kvlab.engine.result import (
    ABORT_HOST_FULL,
    ABORT_LAST,
    ABORT_NO_RESUME,
    ABORT_TOO_LARGE,
    RunResult,
)
from kvlab.engine.step_gate import StepGate
from kvlab.engine.tally import Tally
from kvlab.engine.workload import Request, Workload
from kvlab.errors import HostFullError, PoolError, StudyError
from kvlab.memory import KvBackup

Progress = Callable[[int, int], None]


class StepNode:
    """Runs a workload on real pools. One instance, one run.

    Args:
        config: pool and rules.
        cells: what the rows hold; None makes ``FingerprintCells`` of the layout.
        check_every_step: verify every running request's rows on every rank after each step,
            not only those that were restored or finish.

    Errors: StudyError for cells of another layout.
    """

    def __init__(
        self, config: NodeConfig, cells: Cells | None = None, *, check_every_step: bool = False
    ) -> None:
        self.config = config
        self.cells: Cells = cells if cells is not None else FingerprintCells(config.layout)
        if self.cells.layout != config.layout:
            raise StudyError(
                f"scheduler and cells share one layout: the node has {config.layout}, its cells "
                f"{self.cells.layout}; make the cells with the node's"
            )
        self.check_every_step = check_every_step
        self.retracted: deque[Live] = deque()
        self.waiting: deque[Live] = deque()
        self.step = self.forwards = 0
        self._forced_at = 0
        self._spent = False

    def __repr__(self) -> str:
        queues = f"{len(self.waiting)} waiting, {len(self.retracted)} retracted"
        return f"StepNode(step {self.step}, {self.forwards} forwards, {queues}, {self.config!r})"

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
        """Run to the end. Errors: StudyError when the node has run already; PoolError when a row
        does not hold what was written (which no workload can cause); WorkloadError."""
        if self._spent:
            raise StudyError("a StepNode runs one workload: make a new node for the next run")
        if not isinstance(workload, Workload):
            workload = Workload("requests", tuple(workload), "a plain sequence")
        self._spent, requests, last = True, workload.requests, workload.requests[-1]
        self.config.arrival_step(last.arrival_s, last.rid)  # refuses what no step can hold
        self.tally = Tally(self.config, record, len(requests))
        rows = min(len(requests), self.config.layout.num_pages)
        longest = max(r.prompt_tokens + r.output_tokens for r in requests)
        self.books = NodeBooks(self.config, self.cells, rows, longest)
        self.gate = StepGate(self.config, self.books)
        self._arrivals = deque(requests)
        while self._one_step():
            if progress is not None:
                progress(len(self.tally.outcomes), len(requests))
        return self.tally.result()

    # One step -----------------------------------------------------------------------------------

    def _one_step(self) -> bool:
        self._arrive()
        if self.config.restore == "backup":
            self._resume()
        entered = self._admit()
        self.tally.peak("peak_running", len(self.books.running))
        self.tally.peak("peak_pages", self.books.allocator.used_pages)
        if not self.books.running:
            # Whoever entered had one token to go and is done: the next head gets its own look.
            return entered > 0 or self._idle()
        gave_up = self._make_room()
        if self.books.running:
            self._forward(decay=not gave_up)
        if self.check_every_step:
            self._check_all()
        self.step += 1
        return True

    def _arrive(self) -> None:
        config = self.config
        while self._arrivals:
            request = self._arrivals[0]
            in_system = len(self.waiting) + len(self.books.running) + len(self.retracted)
            if config.arrival_step(request.arrival_s) > self.step or (
                config.concurrency is not None and in_system >= config.concurrency
            ):
                break
            self._arrivals.popleft()
            self.tally.event(self.step, "arrive", request.rid, request.prompt_tokens)
            if request.output_tokens == 1:  # the prefill made its only token
                self.cells.prefill_only(request.rid, request.prompt_tokens)
                self.tally.ended(self.step, "finished", request.rid, 1, 0)
            else:
                self.waiting.append(Live(request))

    def _resume(self) -> None:
        budget = policy.allocatable(
            self.books.allocator.available_size(), len(self.books.running), self.config
        )
        while self.retracted and self.books.has_slot():
            live = self.retracted[0]
            need = policy.required_to_resume(live.kv, self.config)
            if need > budget:
                break
            budget -= need
            self.retracted.popleft()
            slots = self.books.join(live, live.kv)
            assert live.backups is not None
            self.cells.restore(live.request.rid, live.backups, slots)
            live.backups = None
            self.cells.check(live.request.rid, slots)
            self.tally.resumed(self.step, live.request.rid, live.kv)

    def _admit(self) -> int:
        """Let the heads of the queue in, by the rule of the node; how many entered."""
        # Both before anybody enters: the newcomers of one step do not vouch for each other.
        budget, retractable = self.gate.budget(self.retracted), self.gate.retractable()
        entered = 0
        while self.waiting and self.books.has_slot():
            charge = self.gate.charge(self.waiting[0], budget, retractable)
            if charge is None:
                break
            budget -= charge
            self._enter(self.waiting.popleft())
            entered += 1
        return entered

    def _enter(self, live: Live) -> None:
        """Prefill of everything it has: the KV arrives, and one more token is sampled."""
        rid, fill = live.request.rid, live.tokens
        self.tally.admitted.setdefault(rid, self.step)
        self.tally.event(self.step, "admit", rid, fill)
        if live.generated:
            self.tally.add("recomputed_tokens", fill)
        live.generated += 1
        if live.generated == live.request.output_tokens:
            self.cells.prefill_only(rid, fill)
            self.tally.ended(self.step, "finished", rid, live.generated, fill)
            return
        slots = self.books.join(live, fill)
        positions = torch.arange(fill)
        self.cells.write(torch.full_like(positions, rid), positions, slots.ids)

    def _idle(self) -> bool:
        """Nothing runs: the head that cannot enter an empty pool never will; else time passes."""
        if self.retracted:
            live = self.retracted.popleft()
            for backup in live.backups or []:
                backup.discard()
            self.tally.host_tokens -= live.kv
            self._abort(live, 0, ABORT_NO_RESUME)
        elif self.waiting:
            self._abort(self.waiting.popleft(), 0, ABORT_TOO_LARGE)
        elif self._arrivals:
            soonest = self.config.arrival_step(self._arrivals[0].arrival_s)
            self.step = max(self.step, soonest)
        else:
            return False
        return True

    def _make_room(self) -> bool:
        """Retract until the next forward fits (or once, when forced). Whether anyone left."""
        interval = self.config.force_retract_interval
        short = self.books.is_short()
        forced = (
            interval is not None
            and self.forwards > self._forced_at
            and self.forwards % interval == 0
        )
        if forced:
            self._forced_at = self.forwards
        if not (short or forced):
            return False
        before, batch, first = len(self.books.running), 0, True
        while (first or self.books.is_short()) and len(self.books.running) > 1:
            first = False
            batch += self._retract(min(self.books.running, key=Live.victim_key))
        if not short:
            self.tally.add("forced_retractions", batch)
        if len(self.books.running) == 1 and self.books.is_short():
            last = self.books.running[0]
            self.books.release(last)
            self._abort(last, last.kv, ABORT_LAST)
        if batch:
            self.tally.counts["last_batch_retracted"] = batch
            self.gate.note_retraction()
        return len(self.books.running) < before

    def _retract(self, live: Live) -> int:
        """Free a victim's pages, after its backup if there is one; 1, or 0 if it was aborted."""
        kv = live.kv
        if self.config.restore == "backup":
            live.backups = self._back_up(live)
            if live.backups is None:
                self.tally.add("declined_backups", 1)
        self.books.release(live)
        if live.backups is not None:
            self.tally.backed_up(kv)
            self.retracted.append(live)
        elif self.config.without_backup == "recompute":
            self.waiting.append(live)
        else:
            self._abort(live, kv, ABORT_HOST_FULL)
            return 0
        self.tally.retracted(self.step, live.request, live.generated, kv)
        return 1

    def _back_up(self, live: Live) -> list[KvBackup] | None:
        """One backup a rank, or None when the host has no room; then nothing has changed."""
        if not self.config.host_has_room(live.kv, self.tally.host_tokens):
            return None
        try:
            return self.cells.back_up(live.request.rid, self.books.slots(live))
        except HostFullError:
            return None

    def _forward(self, *, decay: bool) -> None:
        """One token for each running request; its KV goes to position ``kv``."""
        rows = [live.row for live in self.books.running]
        kv = [live.kv for live in self.books.running]
        lasts = [self.books.table.last_slot(row) for row in rows]
        slots = self.books.allocator.alloc_decode([n + 1 for n in kv], lasts)
        if slots is None:
            raise PoolError("the memory check passed but the allocator is short: books disagree")
        for i, row in enumerate(rows):
            self.books.table.append(row, slots[i : i + 1])
        rids = torch.tensor([live.request.rid for live in self.books.running])
        self.cells.write(rids, torch.tensor(kv), slots)
        self.tally.peak("peak_pages", self.books.allocator.used_pages)
        self.tally.add("decode_tokens", len(rows))
        self.tally.add("forwards", 1)
        self.forwards += 1
        for live in self.books.running:
            live.generated += 1
        for live in [x for x in self.books.running if x.generated == x.request.output_tokens]:
            self.cells.check(live.request.rid, self.books.slots(live))
            self.books.release(live)
            self.tally.ended(self.step, "finished", live.request.rid, live.generated, live.kv)
        if decay:
            self.gate.note_forward()

    def _abort(self, live: Live, kv: int, reason: str) -> None:
        self.tally.ended(self.step, "aborted", live.request.rid, live.generated, kv, reason)

    def _check_all(self) -> None:
        for live in self.books.running:
            self.cells.check(live.request.rid, self.books.slots(live))
        broken = self.books.audit()
        if broken:
            raise PoolError(f"after step {self.step}: {'; '.join(broken)}")

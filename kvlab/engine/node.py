"""The node on real pools of all ranks: every step is run, and every row is written.

It is the ``CountingNode`` with memory behind it: an allocator hands out widened slots, the request
table keeps them, a ``CacheBackend`` holds the rows. Whether pages are short is decided by what the
node has counted; an allocator that has another count ends the run with an error.
"""

from collections.abc import Sequence

import torch

from kvlab.engine.backends import CacheBackend, FingerprintCells
from kvlab.engine.counting import CountingNode, RunningRequest
from kvlab.engine.policy import NodeConfig
from kvlab.engine.workload import Request
from kvlab.errors import HostFullError, PoolError, StudyError
from kvlab.index import WidenedSlots
from kvlab.memory import PagedTokenToKVPoolAllocator, ReqToTokenPool


class StepNode(CountingNode):
    """Runs a workload on real pools.

    Args:
        config: pool and rules.
        cells: what the rows hold; None makes ``FingerprintCells`` of the layout.
        check_every_step: verify every running request's rows on every rank after each step,
            not only those that were restored or finish.

    Errors: StudyError for cells of another layout; from ``run`` PoolError when a row does not hold
    what was written (which no workload can cause).
    """

    def __init__(
        self,
        config: NodeConfig,
        cells: CacheBackend | None = None,
        *,
        check_every_step: bool = False,
    ) -> None:
        super().__init__(config)
        self.cells: CacheBackend = cells if cells is not None else FingerprintCells(config.layout)
        if self.cells.layout != config.layout:
            raise StudyError(
                f"scheduler and cells share one layout: the node has {config.layout}, its cells "
                f"{self.cells.layout}"
            )
        self.check_every_step = check_every_step

    def audit(self) -> list[str]:
        """The broken laws of allocator and table, and those between them and the requests."""
        broken = [*self.allocator.audit(), *self.table.audit()]
        counted = self.config.layout.num_pages - self.free
        if counted != self.allocator.used_pages:
            broken.append(f"requests hold {counted} pages, {self.allocator.used_pages} are out")
        owners: dict[int, int] = {}
        for request in self.running.values():
            for page in torch.unique(self._slots(request).ids // self.allocator.page_size).tolist():
                if owners.setdefault(page, request.rid) != request.rid:
                    broken.append(f"page {page} belongs to two requests")
        return broken

    def _begin(self, requests: Sequence[Request], record: bool) -> None:
        super()._begin(requests, record)
        layout = self.config.layout
        longest = max(request.prompt_tokens + request.output_tokens for request in requests)
        self.allocator = PagedTokenToKVPoolAllocator(layout)
        self.table = ReqToTokenPool(min(len(requests), layout.num_pages), longest, layout)

    def _proceed(self) -> bool:
        goes_on = super()._proceed()
        if self.check_every_step:
            for request in self.running.values():
                self.cells.check(request.rid, self._slots(request))
            if broken := self.audit():
                raise PoolError(f"after step {self.step}: {'; '.join(broken)}")
        return goes_on

    def _quiet_forwards(self) -> tuple[int, int]:
        return self._fitting(1)  # each is run

    def _forward(self, forwards: int, pages: int) -> None:
        """One token for each running request; its KV goes to the position after its last."""
        requests = list(self.running.values())
        kv = [request.prompt + self.clock - request.born - 1 for request in requests]
        lasts = [self.table.last_slot(request.row) for request in requests]
        slots = self.allocator.alloc_decode([n + 1 for n in kv], lasts)
        if slots is None:
            raise PoolError("the memory check passed but the allocator is short: books disagree")
        for i, request in enumerate(requests):
            self.table.append(request.row, slots[i : i + 1])
        rids = torch.tensor([request.rid for request in requests])
        self.cells.write(rids, torch.tensor(kv), slots)
        for request in self._ends.get(self.clock, ()):  # they finish now
            self.cells.check(request.rid, self._slots(request))
        super()._forward(forwards, pages)

    def _slots(self, request: RunningRequest) -> WidenedSlots:
        """The slots of all positions of a running request."""
        return self.table.slots(request.row)

    def _join(self, request: RunningRequest) -> None:
        super()._join(request)
        slots, row = self.allocator.alloc_extend(0, request.kv), self.table.alloc()
        if slots is None or row is None:
            raise PoolError("admission promised room that the allocator has not: books disagree")
        self.table.append(row, slots)
        request.row = row

    def _leave(self, request: RunningRequest) -> None:
        slots = self._slots(request)
        self.cells.release(request.rid, slots)
        self.allocator.free_segments(slots.ids, [(0, len(slots))])
        self.table.free(request.row)
        super()._leave(request)

    def _prefill_only(self, request: RunningRequest) -> None:
        self.cells.prefill_only(request.rid, request.prompt + request.generated)

    def _prefill(self, request: RunningRequest) -> None:
        positions = torch.arange(request.kv)
        rids = torch.full_like(positions, request.rid)
        self.cells.write(rids, positions, self._slots(request).ids)

    def _back_up(self, request: RunningRequest) -> bool:
        try:
            request.backups = self.cells.back_up(request.rid, self._slots(request))
        except HostFullError:  # nothing has changed
            return False
        return True

    def _restore(self, request: RunningRequest) -> None:
        slots, backups = self._slots(request), request.backups
        assert backups is not None
        self.cells.restore(request.rid, backups, slots)
        request.backups = None
        self.cells.check(request.rid, slots)

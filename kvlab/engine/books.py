"""The books of a decode node: which request runs, and which pages and table row it holds."""

from dataclasses import dataclass

import torch

from kvlab.engine import policy
from kvlab.engine.cells import Cells
from kvlab.engine.policy import NodeConfig
from kvlab.engine.workload import Request
from kvlab.errors import PoolError
from kvlab.index import WidenedSlots
from kvlab.memory import KvBackup, PagedTokenToKVPoolAllocator, ReqToTokenPool


@dataclass(slots=True, eq=False)
class Live:
    """A request in the system. ``row`` of the request table and ``joined`` while it runs."""

    request: Request
    generated: int = 0
    row: int = -1
    joined: int = -1
    backups: list[KvBackup] | None = None

    @property
    def kv(self) -> int:
        """Positions whose KV is cached while it runs: all but the newest token's."""
        return self.request.prompt_tokens + self.generated - 1

    @property
    def tokens(self) -> int:
        """Tokens it has: prompt and generated."""
        return self.request.prompt_tokens + self.generated

    def still_asked(self, config: NodeConfig) -> int:
        """Output tokens that its client still asks for."""
        return max(0, config.asked(self.request.output_tokens) - self.generated)

    def largest(self, config: NodeConfig) -> int:
        """Prompt and output that admission counts with."""
        asked = config.asked(self.request.output_tokens)
        return self.request.prompt_tokens + min(asked, config.clip_max_new_tokens)

    def victim_key(self) -> tuple[int, int, int]:
        """Its place in the order of retraction."""
        return policy.victim_key(self.generated, self.request.prompt_tokens, self.joined)


class NodeBooks:
    """Allocator, request table and the running batch, in the order in which requests joined."""

    def __init__(self, config: NodeConfig, cells: Cells, rows: int, max_context: int) -> None:
        self.config, self.cells = config, cells
        self.allocator = PagedTokenToKVPoolAllocator(config.layout)
        self.table = ReqToTokenPool(rows, max_context, config.layout)
        self.running: list[Live] = []
        self._joins = 0

    def join(self, live: Live, fill: int) -> WidenedSlots:
        """Give a request pages and a table row for ``fill`` positions; it runs from now on."""
        slots = self.allocator.alloc_extend(0, fill)
        row = self.table.alloc()
        if slots is None or row is None:
            raise PoolError("admission promised room that the allocator has not: books disagree")
        self.table.append(row, slots)
        live.row, live.joined = row, self._joins
        self._joins += 1
        self.running.append(live)
        return self.slots(live)

    def release(self, live: Live) -> None:
        """Free a running request's pages and row."""
        slots = self.slots(live)
        self.cells.release(live.request.rid, slots)
        self.allocator.free_segments(slots.ids, [(0, len(slots))])
        self.table.free(live.row)
        self.running.remove(live)

    def slots(self, live: Live) -> WidenedSlots:
        """The slots of all positions of a running request."""
        return self.table.slots(live.row)

    def is_short(self) -> bool:
        """Whether the next forward needs more pages than are free (``check_decode_mem``)."""
        opening = sum(policy.opens_page(live.kv, self.config.layout) for live in self.running)
        return opening * self.allocator.page_size > self.allocator.available_size()

    def has_slot(self) -> bool:
        """Whether one more request may run."""
        bound = self.config.max_running
        return bound is None or len(self.running) < bound

    def audit(self) -> list[str]:
        """The broken laws of allocator and table, and of the books between them."""
        broken = [*self.allocator.audit(), *self.table.audit()]
        pages = sum(self.config.layout.pages_for(live.kv) for live in self.running)
        if pages != self.allocator.used_pages:
            broken.append(f"requests hold {pages} pages, {self.allocator.used_pages} are out")
        owners: dict[int, int] = {}
        for live in self.running:
            for page in torch.unique(self.slots(live).ids // self.allocator.page_size).tolist():
                if owners.setdefault(page, live.request.rid) != live.request.rid:
                    broken.append(f"page {page} belongs to two requests")
        return broken

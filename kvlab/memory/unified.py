"""A unified pool: virtual pages above, physical pages below, and a table between them.

Ids in ``req_to_token`` are widened *virtual* slots, stable while compaction moves rows. Reaching a
row takes two steps in one order: shard (owner, divide) on the virtual id, then look its page up.

Worked example, c=2, page_size=2, v2p = [0, 2, 3, 1]: virtual slot 9 is rank 1's virtual row 4, in
virtual page 2, so physical page 3, so row 6. Looked up first, its owner would come from another id.

Source: SGLang ``unified_memory_pool.py``, ``kv_index_translator.py``; PRs 36890, 36731.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvlab.errors import PoolError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize, look_up_rows
from kvlab.index.layout import require_index, require_int, require_layout
from kvlab.index.spaces import make_rows
from kvlab.memory.pool import MLATokenToKVPool

_EDITIONS = count(1)


@dataclass(slots=True, eq=False)
class PageTable:
    """``v2p``, shared by the ranks: pages 1..N of ``layout`` above, so many ``physical_pages``
    below, -1 where a page has none; page 0 is the padding page of both.

    ``compactions`` has the (from, to) pages of each: a pool that has not copied its rows for all of
    them, in order, refuses to serve. ``edition`` is a new number, no other table's, whenever a page
    lost its place: rows looked up in an older edition are refused.
    """

    layout: DcpLayout
    physical_pages: int
    v2p: Tensor = field(init=False)
    edition: int = field(init=False)
    compactions: list[list[tuple[int, int]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        require_layout(self.layout)
        require_int("physical_pages", self.physical_pages, 1, "pages below the table")
        self.v2p = torch.full((self.layout.num_pages + 1,), -1, dtype=torch.int64)
        self.v2p[0] = 0
        self.edition = next(_EDITIONS)

    def map_pages(self, virtual: list[int]) -> bool:
        """Give each virtual page a physical one, lowest free first; False (nothing) when short.
        Errors: PoolError for a page that is mapped already, named twice, or out of range."""
        virtual, free = self._require_virtual(virtual, mapped=False), self._holes()
        if len(free) < len(virtual):
            return False
        self.v2p[virtual] = torch.tensor(free[: len(virtual)], dtype=torch.int64)
        return True

    def unmap_pages(self, virtual: list[int]) -> None:
        """Free the physical pages. Errors: PoolError for a page that is not mapped, or named
        twice; then nothing is freed."""
        self.v2p[self._require_virtual(virtual, mapped=True)] = -1
        self.edition = next(_EDITIONS)

    def compact(self) -> list[tuple[int, int]]:
        """Move the highest pages into the lowest holes: the (from, to) physical pages, in order.
        Every rank's pool must then ``apply_moves``."""
        used = sorted(self.v2p[self.v2p > 0].tolist(), reverse=True)
        moves = [pair for pair in zip(used, self._holes(), strict=False) if pair[0] > pair[1]]
        for high, low in moves:
            self.v2p[self.v2p == high] = low
        if moves:
            self.compactions.append(list(moves))
            self.edition = next(_EDITIONS)
        return moves

    def audit(self) -> list[str]:
        """The broken laws: each physical page has one virtual page, and page 0 is page 0's."""
        broken, pages = [], self.v2p[1:][self.v2p[1:] >= 0]
        if bool((pages > self.physical_pages).any()):
            broken.append(f"v2p names a page past the {self.physical_pages} physical ones")
        if len(torch.unique(pages)) != len(pages):
            broken.append("the page table maps two virtual pages to one physical page")
        if int(self.v2p[0]) != 0 or bool((pages == 0).any()):
            broken.append("the padding page is mapped elsewhere")
        return broken

    def _holes(self) -> list[int]:
        used = set(self.v2p.tolist())
        return [page for page in range(1, self.physical_pages + 1) if page not in used]

    def _require_virtual(self, pages: list[int], *, mapped: bool) -> list[int]:
        pages = [require_index("virtual page", page) for page in pages]
        for page in pages:
            if not 1 <= page <= self.layout.num_pages:
                raise PoolError(
                    f"a virtual page must lie in [1, {self.layout.num_pages}]: got {page}; page 0 "
                    f"is the padding page"
                )
            if (int(self.v2p[page]) >= 0) != mapped:
                raise PoolError(f"virtual page {page} is {'not' if mapped else 'already'} mapped")
        if len(set(pages)) != len(pages):
            raise PoolError(f"each virtual page is named once: got {pages}; nothing was changed")
        return pages


class UnifiedKVPool(MLATokenToKVPool):
    """The MLA rows of one rank behind a ``PageTable``. Other arguments as ``MLATokenToKVPool``."""

    space: ClassVar[str] = "resolved"

    def __init__(self, table: PageTable, rank: int, **options: Any) -> None:
        self.table = table
        super().__init__(table.layout, rank, **options)
        self._applied = len(table.compactions)

    @property
    def rows_per_rank(self) -> int:
        """Rows of the *physical* pages, which may be fewer than the virtual ones."""
        return (self.table.physical_pages + 1) * self.layout.page_size

    @property
    def write_loc_dcp_span(self) -> int:
        """1: ids that reach the buffer are rows already."""
        return 1

    def apply_moves(self, moves: list[tuple[int, int]]) -> None:
        """Copy this rank's rows for the next compaction that it has not applied, in its order.

        Errors: PoolError for moves of another compaction; then nothing is copied.
        """
        if not moves:
            return
        done, made = self._applied, self.table.compactions
        due = made[done] if done < len(made) else []
        if moves != due:
            raise PoolError(
                f"compactions are applied one by one, in their order: rank {self.rank} has applied "
                f"{done} of {len(made)}, next are the moves {due}: got {moves}; nothing was copied"
            )
        pages = self.buffer.view(self.layers, -1, self.layout.page_size, self.buffer.shape[2])
        self.before_write()
        for source, target in moves:
            pages[:, target] = pages[:, source]
        self._applied = done + 1

    def audit(self) -> list[str]:
        """The broken laws of the pool and of the page table."""
        return [*super().audit(), *self.table.audit()]

    def _localize(self, slots: WidenedSlots) -> PhysicalRows:
        """Shard, then look up. Errors: IndexSpaceError for an unmapped page."""
        virtual = localize(slots, self.layout, self.rank)
        rows = self._look_up(virtual.ids)
        return make_rows(rows, virtual.source, self.rank, self.layout, slots, self.table.edition)

    def _look_up(self, rows: Tensor) -> Tensor:
        self._require_applied()
        return look_up_rows(rows, self.table.v2p.to(rows.device), self.layout.page_size)

    @property
    def _edition(self) -> int | None:
        self._require_applied()
        return self.table.edition

    def _require_applied(self) -> None:
        made = len(self.table.compactions)
        if self._applied != made:
            raise PoolError(
                f"rank {self.rank} has applied {self._applied} of {made} compactions: "
                f"its rows are not where the table says; call apply_moves first"
            )

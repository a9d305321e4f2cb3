"""A pool that every rank holds whole: draft models and indexers.

Its rows are the slots themselves, so it must hold every id that the allocator can issue: with c=2,
page_size=2 and two pages that is 12 rows, not 6. Sized by the physical space it runs out at the
first high slot (SGLang pull request 35221).
"""

from typing import ClassVar

from kvlab.index import DcpLayout
from kvlab.memory.mla_pool import MLATokenToKVPool


class ReplicatedKVPool(MLATokenToKVPool):
    """Every rank stores every slot: draft models and indexers. Rows are slots, span 1.

    Sized by the widened space: it must hold every id the allocator can issue.
    """

    space: ClassVar[str] = "replicated"

    @property
    def row_layout(self) -> DcpLayout:
        """One rank with pages of W rows: slot and row are the same number."""
        return DcpLayout(1, self.layout.widened_page_size, self.layout.num_pages)

    @property
    def row_rank(self) -> int:
        """0: seen from its own rows, a replicated pool is the only rank."""
        return 0

    @property
    def write_loc_dcp_span(self) -> int:
        """1: ids are rows already."""
        return 1

"""The paged allocator: widened pages of ``W = page_size * dcp_size`` slots; page 0 stays put.

Worked example, W = 8: ``alloc_extend`` of 10 tokens gives slots 8..15 and 16, 17; the next decode
slots are 18, 19, ...; at position 24 ``alloc_decode`` opens another page.

Source: SGLang ``mem_cache/allocator/paged.py``, ``base.py``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvlab.errors import PoolError
from kvlab.index import DcpLayout, merge_touching, pages_of_free
from kvlab.index.layout import require_index, require_int, require_layout
from kvlab.index.spaces import as_ids, require_within


class PagedTokenToKVPoolAllocator:
    """Hands out widened slots of ``layout``; freed pages first. All counts are tokens unless a name
    says pages. It knows nothing of ranks: every rank runs the same allocator on the same numbers.
    """

    def __init__(self, layout: DcpLayout, device: str | torch.device = "cpu") -> None:
        require_layout(layout)
        self.layout, self.device = layout, torch.device(device)
        self.page_size = layout.widened_page_size
        # Pages in order, each once; the front of the queue is the end.
        self._free = dict.fromkeys(range(layout.num_pages, 0, -1))

    def available_size(self) -> int:
        """Tokens of all free pages."""
        return len(self._free) * self.page_size

    @property
    def used_pages(self) -> int:
        """Pages that are handed out."""
        return self.layout.num_pages - len(self._free)

    def alloc_extend(self, prefix_len: int, seq_len: int, last_loc: int = -1) -> Tensor | None:
        """Slots of positions ``prefix_len .. seq_len-1`` of one request, or None when short.

        Fills the page of ``last_loc`` (the slot of position ``prefix_len - 1``) first, then whole
        pages, then a ragged tail. None changes nothing. Errors: PoolError when ``last_loc`` is
        not where the prefix ends, or lies in a page that is not handed out.
        """
        require_int("prefix_len", prefix_len, 0, "positions that have slots")
        require_int("seq_len", seq_len, prefix_len, "positions after the extend, >= prefix_len")
        last_loc = self._require_last(last_loc, prefix_len)
        room = -prefix_len % self.page_size
        first = min(room, seq_len - prefix_len)
        rest = seq_len - prefix_len - first
        pages = self._take(-(-rest // self.page_size))
        if pages is None:
            return None
        head = torch.arange(first, device=self.device) + (last_loc + 1)
        return torch.cat([head, self._slots(pages)[:rest]])

    def alloc_decode(self, seq_lens: Sequence[int], last_locs: Sequence[int]) -> Tensor | None:
        """One slot a request, int64 ``(requests,)``, or None when short (nothing changes).

        ``seq_lens``: positions of each request after this token; ``last_locs``: the slot of
        position ``seq_len - 2``. A page is taken only where a request crosses into one. Errors:
        PoolError as ``alloc_extend``, and when two requests would get one slot.
        """
        if len(seq_lens) != len(last_locs):
            raise PoolError(
                f"seq_lens and last_locs name the same requests: got {len(seq_lens)} and "
                f"{len(last_locs)}"
            )
        lasts = []
        for n, last in zip(seq_lens, last_locs, strict=True):
            require_int("seq_len", n, 1, "positions of a request, its new token included")
            lasts.append(self._require_last(last, n - 1))
        opening = [(n - 1) % self.page_size == 0 for n in seq_lens]
        inside = [last for last, opens in zip(lasts, opening, strict=True) if not opens]
        if len(set(inside)) != len(inside):
            twice = next(last for last in inside if inside.count(last) > 1)
            raise PoolError(
                f"a slot goes to one request: two of the {len(lasts)} requests name last_loc "
                f"{twice}, so both would get slot {twice + 1}; read each from its own row"
            )
        pages = self._take(sum(opening))
        if pages is None:
            return None
        heads = iter(pages)
        out = [
            next(heads) * self.page_size if opens else last + 1
            for last, opens in zip(lasts, opening, strict=True)
        ]
        return torch.tensor(out, dtype=torch.int64, device=self.device)

    def free(self, ids: Tensor) -> None:
        """Give back the pages of these slots, each once, whatever part of a page they name.

        Errors: IndexSpaceError for a slot that is never handed out; PoolError when a page is free
        already. Then nothing is freed.
        """
        ids = as_ids(ids, "ids")
        instead = "only slots that the allocator handed out can be freed"
        layout = self.layout
        require_within(ids, layout.first_slot, layout.slot_end, "widened slot", instead)
        self._release(torch.unique(ids // self.page_size).tolist())

    def free_segments(self, row: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        """Free positions of one request's table row; touching ranges are merged first.

        Args:
            row: int64 or int32 ``(n,)``, the request's slots from position 0.
            ranges: half-open position ranges; each merged one must begin on a widened page.

        Errors: IndexSpaceError for a range that shares a page with another or begins inside one;
        PoolError for a range past the row, a row that does not begin its pages with their first
        slot, and when a page is free already. Then nothing is freed.
        """
        slots = as_ids(row, "row")
        merged = merge_touching(ranges)
        if merged and merged[-1][1] > len(slots):
            raise PoolError(
                f"a range must lie in the row: it ends at {merged[-1][1]}, the row at "
                f"{len(slots)}; pass the whole row of req_to_token, from position 0"
            )
        positions = [page * self.page_size for page in pages_of_free(merged, self.page_size)]
        heads = slots[positions].tolist()
        for position, head in zip(positions, heads, strict=True):
            if head % self.page_size:
                raise PoolError(
                    f"position {position} begins a page of {self.page_size}, so its slot must "
                    f"too: got slot {head}; pass the whole row of req_to_token, from position 0; "
                    f"nothing was freed"
                )
        self._release([head // self.page_size for head in heads])

    def audit(self) -> list[str]:
        """The broken law: what is free lies in 1..N, so that the padding page stays put."""
        wrong = [page for page in self._free if not 1 <= page <= self.layout.num_pages]
        return [f"pages {wrong} are listed as free"] if wrong else []

    def _take(self, count: int) -> list[int] | None:
        if count > len(self._free):
            return None
        return [self._free.popitem()[0] for _ in range(count)]

    def _release(self, pages: list[int]) -> None:
        for page in pages:
            if not 1 <= page <= self.layout.num_pages:
                raise PoolError(
                    f"a page must lie in [1, {self.layout.num_pages}]: got {page}; the row names a "
                    f"slot that was never handed out"
                )
            if page in self._free:
                raise PoolError(
                    f"page {page} (slots {page * self.page_size}.."
                    f"{(page + 1) * self.page_size - 1}) is freed already: one free a page; "
                    f"nothing was freed"
                )
        if len(set(pages)) != len(pages):
            raise PoolError(f"a row names one page twice among {pages}; nothing was freed")
        self._free |= dict.fromkeys(reversed(pages))

    def _slots(self, pages: list[int]) -> Tensor:
        heads = torch.tensor(pages, dtype=torch.int64, device=self.device) * self.page_size
        return (heads[:, None] + torch.arange(self.page_size, device=self.device)).reshape(-1)

    def _require_last(self, last_loc: int, prefix_len: int) -> int:
        last_loc = require_index("last_loc", last_loc)
        if prefix_len == 0:
            return last_loc
        page, offset = divmod(last_loc, self.page_size)
        if offset != (prefix_len - 1) % self.page_size or last_loc < 0:
            raise PoolError(
                f"last_loc must be the slot of position {prefix_len - 1}: got {last_loc}, whose "
                f"offset {offset} in its page of {self.page_size} is not "
                f"{(prefix_len - 1) % self.page_size}; read it from req_to_token"
            )
        if not 1 <= page <= self.layout.num_pages or page in self._free:
            raise PoolError(
                f"last_loc must lie in a page that is handed out: got {last_loc} in page {page} "
                f"of 1..{self.layout.num_pages} ({self.used_pages} handed out); read it from "
                f"req_to_token, before the request is freed"
            )
        return last_loc

"""The request table: which widened slot holds each position of each request.

Rows are request slots, columns positions, values *widened* slots. It is the same on every rank.

Source: SGLang ``ReqToTokenPool``; int32 there and here, int64 where the layout needs it.
"""

import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.index.layout import require_index, require_int, require_layout
from kvlab.index.localize import require_run
from kvlab.index.spaces import as_ids


class ReqToTokenPool:
    """``size`` requests of at most ``max_context`` positions over one layout.

    Unwritten cells are -1. Errors: LayoutError for a size below 1.
    """

    def __init__(
        self,
        size: int,
        max_context: int,
        layout: DcpLayout,
        device: str | torch.device = "cpu",
    ) -> None:
        require_layout(layout)
        require_int("size", size, 1, "requests that the table can hold")
        require_int("max_context", max_context, 1, "positions of one request")
        self.size, self.max_context, self.layout = size, max_context, layout
        kind = torch.int32 if layout.slot_end <= 2**31 else torch.int64
        self.req_to_token = torch.full((size, max_context), -1, dtype=kind, device=device)
        self._lens: dict[int, int] = {}

    def alloc(self) -> int | None:
        """A row for one request, or None when all are taken."""
        req = next((row for row in range(self.size) if row not in self._lens), None)
        if req is not None:
            self._lens[req] = 0
        return req

    def append(self, req: int, slots: Tensor) -> None:
        """Write the slots of the next positions, each with the owner of its position: here ids are
        verified, once. Errors: PoolError past max_context or for an unused row; IndexSpaceError
        for ids that the layout does not hand out, or of another owner."""
        req, have = self._used(req)
        ids = as_ids(slots, "slots")
        if have + len(ids) > self.max_context:
            raise PoolError(
                f"a request holds at most {self.max_context} positions: request {req} has {have}, "
                f"{len(ids)} more do not fit; raise max_context"
            )
        require_run(ids, have, self.layout)
        self.req_to_token[req, have : have + len(ids)] = ids.to(self.req_to_token.dtype)
        self._lens[req] = have + len(ids)

    def slots(self, req: int, start: int = 0, end: int | None = None) -> WidenedSlots:
        """The slots of positions ``start .. end-1`` (default: all that are written), as a copy:
        they outlive the row, and ``localize`` knows that they are a run."""
        req, have = self._used(req)
        start = require_index("start", start)
        stop = have if end is None else require_index("end", end)
        if not 0 <= start <= stop <= have:
            raise IndexSpaceError(
                f"positions must be written ones: got [{start}, {stop}) of request {req}, which "
                f"has [0, {have})"
            )
        ids = self.req_to_token[req, start:stop].to(torch.int64, copy=True)
        return WidenedSlots.of_table(ids, start, self.layout)

    def last_slot(self, req: int) -> int:
        """The slot of the newest position, -1 when there is none (as alloc_extend wants it)."""
        req, have = self._used(req)
        return int(self.req_to_token[req, have - 1]) if have else -1

    def length(self, req: int) -> int:
        """Positions written. Errors: PoolError for a row that is not in use."""
        return self._used(req)[1]

    def free(self, req: int) -> None:
        """Give a row back; its cells become -1. Errors: PoolError for one that is not in use."""
        req, _ = self._used(req)
        self.req_to_token[req] = -1
        del self._lens[req]

    def audit(self) -> list[str]:
        """The broken laws: written cells are slots, others -1; no slot stands twice."""
        broken, cells = [], []
        for req, row in enumerate(self.req_to_token):
            have = self._lens.get(req, 0)
            if have and int(row[:have].min()) < self.layout.first_slot:
                broken.append(f"request {req} has a hole among its {have} positions")
            if have and int(row[:have].max()) >= self.layout.slot_end:
                broken.append(f"request {req} has a slot past the layout's {self.layout.slot_end}")
            if bool((row[have:] != -1).any()):
                broken.append(f"request row {req} has cells written past its {have} positions")
            cells.append(row[:have])
        written = torch.cat(cells)
        if len(torch.unique(written)) != len(written):
            broken.append("a slot stands at two positions of the table")
        return broken

    def _used(self, req: int) -> tuple[int, int]:
        """(req, positions written) of a row in use. True would pass for 1 and index otherwise."""
        req = require_index("request row", req)
        if req not in self._lens:
            raise PoolError(
                f"request row {req} is not in use ({len(self._lens)} of {self.size} are); "
                f"call alloc() first"
            )
        return req, self._lens[req]

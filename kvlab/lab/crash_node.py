"""The node under the crash study: real pools of all ranks, and the two ways to retract on them."""

import pandas as pd
import torch
from torch import Tensor

from kvlab.engine import FingerprintCells, victim_key
from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab import before_fix
from kvlab.memory import PagedTokenToKVPoolAllocator, ReqToTokenPool


class CrashNode:
    """Requests 0, 1, ... of ``tokens`` cached positions each; generated tokens fall with rid."""

    def __init__(self, layout: DcpLayout, requests: int, tokens: int, device: str) -> None:
        self.layout, self.tokens = layout, tokens
        self.cells = FingerprintCells(layout, device=device)
        self.allocator = PagedTokenToKVPoolAllocator(layout)
        self.table = ReqToTokenPool(requests, tokens, layout)
        self.rows: dict[int, int] = {}
        for rid in range(requests):
            self.admit(rid)

    def victim(self) -> int:
        """Whom the node's own rule retracts: the newest has generated least."""
        return min(self.rows, key=lambda rid: victim_key(-rid, self.tokens, rid))

    def pages(self, rid: int) -> tuple[int, ...]:
        """The widened pages of a request, ascending."""
        return tuple(torch.unique(self.slots(rid).ids // self.allocator.page_size).tolist())

    def admit(self, rid: int) -> None:
        """A request enters: it gets slots, and its fingerprints are written."""
        slots = self.take(rid)
        positions = torch.arange(len(slots))
        self.cells.write(torch.full_like(positions, rid), positions, slots.ids)

    def take(self, rid: int) -> WidenedSlots:
        """Slots and a table row for a request, nothing written."""
        ids = self.allocator.alloc_extend(0, self.tokens)
        row = self.table.alloc()
        if ids is None or row is None:
            raise StudyError(
                f"the pool of {self.layout.num_pages} pages has no room for another request "
                f"of {self.tokens} positions; use more pages"
            )
        self.table.append(row, ids)
        self.rows[rid] = row
        return self.slots(rid)

    def slots(self, rid: int) -> WidenedSlots:
        """The slots of a request that runs."""
        return self.table.slots(self.rows[rid])

    def give_up(self, rid: int) -> None:
        """Free a request's pages and row; its rows are overwritten."""
        slots = self.slots(rid)
        self.cells.release(rid, slots)
        self.allocator.free(slots.ids)
        self.table.free(self.rows.pop(rid))

    def held(self, rid: int) -> pd.DataFrame:
        """One row a position of the request: what its owner holds there, and a verdict."""
        slots = self.slots(rid)
        parts = []
        for pool in self.cells.pools:
            rows = pool.resolve(slots)
            held = named(pool.buffer[0][rows.ids], pool.rank)
            held.insert(1, "row", rows.ids.tolist())
            held.insert(1, "position", rows.source.tolist())
            parts.append(held)
        table = pd.concat(parts, ignore_index=True).sort_values("position", ignore_index=True)
        right = (table["holds_request"] == rid) & (table["holds_position"] == table["position"])
        empty = table["holds_request"] < 0
        table["verdict"] = "another token"
        table.loc[empty, "verdict"] = "not restored"
        table.loc[right, "verdict"] = "right"
        return table

    def damaged(self, victim: int) -> pd.DataFrame:
        """The positions of all other requests that no longer hold what was written."""
        parts = []
        for rid in self.rows:
            if rid != victim:
                held = self.held(rid)
                held.insert(0, "request", rid)
                parts.append(held[held["verdict"] != "right"])
        return pd.concat(parts, ignore_index=True)


class CopyError(Exception):
    """A copy failed on ``rank`` with the text of torch."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.text, self.rank = text, rank


class AfterFix:
    """The pools' own copies: localized on both sides."""

    def __init__(self, cells: FingerprintCells, rid: int, slots: WidenedSlots) -> None:
        self.cells, self.rid = cells, rid
        self.copies = cells.back_up(rid, slots)

    def saved(self) -> list[Tensor]:
        """The rows of layer 0 that each rank saved."""
        return [copy.kv[0].clone() for copy in self.copies]

    def restore(self, slots: WidenedSlots) -> None:
        """Write them into new slots."""
        self.cells.restore(self.rid, self.copies, slots)

    def reads_back(self, slots: WidenedSlots) -> bool | None:
        """None: nothing is read raw."""
        return None


class BeforeFix:
    """Widened ids as rows, on both sides."""

    def __init__(self, cells: FingerprintCells, rid: int, slots: WidenedSlots) -> None:
        self.cells = cells
        self.copies: list[list[list[Tensor]]] = []
        for pool in cells.pools:
            try:
                self.copies.append(before_fix.copy_out(pool.buffer, slots.ids))
            except IndexError as error:
                raise CopyError(str(error), pool.rank) from error

    def saved(self) -> list[Tensor]:
        """The rows of layer 0 that each rank saved."""
        return [torch.cat(layers[0]) for layers in self.copies]

    def restore(self, slots: WidenedSlots) -> None:
        """Write them into new slots."""
        for pool, copy in zip(self.cells.pools, self.copies, strict=True):
            before_fix.copy_in(pool.buffer, copy, slots.ids)

    def reads_back(self, slots: WidenedSlots) -> bool | None:
        """Whether a check that reads the same raw rows again is satisfied."""
        again = [before_fix.copy_out(pool.buffer, slots.ids) for pool in self.cells.pools]
        return all(
            torch.equal(torch.cat(mine), torch.cat(theirs))
            for old, new in zip(self.copies, again, strict=True)
            for mine, theirs in zip(old, new, strict=True)
        )


def named(rows: Tensor, rank: int) -> pd.DataFrame:
    """Request and position that each fingerprint row names; -1 for a row that holds none."""
    marks = rows.cpu()
    live = (marks[:, 0] == marks[:, 3]) & (marks[:, 0] > 0)
    request = torch.where(live, marks[:, 0] - 1, -1.0).to(torch.int64)
    position = torch.where(live, marks[:, 1] - 1, -1.0).to(torch.int64)
    return pd.DataFrame(
        {
            "rank": rank,
            "holds_request": request.numpy(),  # an array keeps its dtype when it is empty
            "holds_position": position.numpy(),
        }
    )

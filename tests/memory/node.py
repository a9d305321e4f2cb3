"""A decode node in small, whose rows say whose they are: (request, position, layer).

Rows, drafts, virtual pages and state take the same way through admit, extend, decode, retract,
resume and leave; ``wrong`` looks at every position on every rank.
"""

from typing import Any

import torch
from torch import Tensor

from kvlab.errors import BackupError
from kvlab.index import DcpLayout
from kvlab.memory import (
    HostArena,
    KvBackup,
    MLATokenToKVPool,
    PagedTokenToKVPoolAllocator,
    PageTable,
    ReplicatedKVPool,
    ReqToTokenPool,
    StateBackup,
    StatePool,
    UnifiedKVPool,
)

from .support import assemble

REQUESTS = 4


def small() -> dict[str, Any]:
    """Sizes of a pool whose row holds three numbers."""
    return {
        "layers": 2,
        "kv_lora_rank": 2,
        "qk_rope_head_dim": 1,
        "dtype": torch.float32,
        "host": HostArena(grain=64),
    }


class Node:
    """c ranks, one allocator, one request table, pools of three kinds, and recurrent state."""

    def __init__(self, layout: DcpLayout, pool: type[MLATokenToKVPool] = MLATokenToKVPool) -> None:
        self.layout = layout
        self.allocator = PagedTokenToKVPoolAllocator(layout)
        self.table = ReqToTokenPool(REQUESTS, layout.capacity_tokens, layout)
        self.pages = PageTable(layout, physical_pages=layout.num_pages)
        ranks = range(layout.dcp_size)
        self.kinds: list[list[MLATokenToKVPool]] = [
            [pool(layout, rank, **small()) for rank in ranks],
            [ReplicatedKVPool(layout, rank, **small()) for rank in ranks],
            [UnifiedKVPool(self.pages, rank, **small()) for rank in ranks],
        ]
        self.states = StatePool(REQUESTS, layers=1, conv_shape=(1,), temporal_shape=(1, 1))
        self.rows: dict[int, tuple[int, int]] = {}  # request: (table row, state slot)
        self.away: dict[int, tuple[list[KvBackup], StateBackup, int]] = {}

    def mark(self, rid: int, begin: int, end: int) -> Tensor:
        """``(layers, n, 3)``: request, position, layer of each row."""
        at = torch.arange(begin, end, dtype=torch.float32)
        one = torch.stack([torch.full_like(at, rid), at, torch.zeros_like(at)], dim=1)
        return torch.stack([one, one + torch.tensor([0.0, 0.0, 1.0])])

    def place(self, slots: Tensor, rid: int, begin: int) -> None:
        """Map the pages that are new, and write the rows of these positions on every rank."""
        pages = torch.unique(slots // self.layout.widened_page_size).tolist()
        assert self.pages.map_pages([page for page in pages if int(self.pages.v2p[page]) < 0])
        values = self.mark(rid, begin, begin + len(slots))
        for pools in self.kinds:
            for pool in pools:
                for layer in range(2):
                    part = values[layer]
                    pool.set_mla_kv_buffer(layer, slots, part[:, :2], part[:, 2:])

    def admit(self, rid: int, tokens: int) -> bool:
        slots = self.allocator.alloc_extend(0, tokens)
        if slots is None:
            return False
        row, state = self.table.alloc(), self.states.alloc()
        assert row is not None
        assert state is not None
        self.rows[rid] = row, state
        self.states.conv[:, state] = rid
        self.table.append(row, slots)
        self.place(slots, rid, 0)
        return True

    def extend(self, rid: int, tokens: int) -> bool:
        row, _ = self.rows[rid]
        have = self.table.length(row)
        slots = self.allocator.alloc_extend(have, have + tokens, self.table.last_slot(row))
        if slots is None:
            return False
        self.table.append(row, slots)
        self.place(slots, rid, have)
        return True

    def decode(self) -> bool:
        running = list(self.rows)
        rows = [self.rows[rid][0] for rid in running]
        lens = [self.table.length(row) for row in rows]
        slots = self.allocator.alloc_decode(
            [n + 1 for n in lens], [self.table.last_slot(row) for row in rows]
        )
        if slots is None:
            return False
        for i, (rid, row, n) in enumerate(zip(running, rows, lens, strict=True)):
            self.table.append(row, slots[i : i + 1])
            self.place(slots[i : i + 1], rid, n)
        return True

    def leave(self, rid: int) -> None:
        """Give everything back; the rows are overwritten, as the next owner would."""
        row, state = self.rows.pop(rid)
        slots = self.table.slots(row).ids
        self.place(slots, -rid, 0)
        self.states.conv[:, state] = -rid
        self.states.free(state)
        self.table.free(row)
        self.allocator.free(slots)
        self.pages.unmap_pages(torch.unique(slots // self.layout.widened_page_size).tolist())

    def retract(self, rid: int) -> bool:
        """Back up all positions but the newest (its row is not written yet upstream)."""
        row, state = self.rows[rid]
        keep = max(self.table.length(row) - 1, 1)
        slots = self.table.slots(row, 0, keep)
        backups: list[KvBackup] = []
        try:
            for pools in self.kinds:
                for pool in pools:
                    backups.append(pool.get_cpu_copy(slots))
        except BackupError:
            for backup in backups:
                backup.discard()
            return False
        self.away[rid] = backups, self.states.get_cpu_copy(state), keep
        self.leave(rid)
        return True

    def resume(self, rid: int) -> bool:
        backups, state_backup, keep = self.away[rid]
        slots = self.allocator.alloc_extend(0, keep)
        if slots is None:
            return False
        row, state = self.table.alloc(), self.states.alloc()
        assert row is not None
        assert state is not None
        self.rows[rid] = row, state
        self.table.append(row, slots)
        self.place(slots, -1000, 0)  # maps the pages; whatever lay there before
        left = iter(backups)
        for pools in self.kinds:
            for pool in pools:
                pool.load_cpu_copy(next(left), self.table.slots(row))
        self.states.load_cpu_copy(state_backup, state)
        del self.away[rid]
        return True

    def compact(self) -> None:
        moves = self.pages.compact()
        for pool in self.kinds[2]:
            assert isinstance(pool, UnifiedKVPool)
            pool.apply_moves(moves)

    def wrong(self) -> list[str]:
        """Every position that is not where it must be, and every law that an audit finds broken."""
        found = [*self.allocator.audit(), *self.table.audit(), *self.states.audit()]
        for pools in self.kinds:
            name, held = type(pools[0]).__name__, assemble(pools)
            found += [law for pool in pools for law in pool.audit()]
            for rid, (row, _) in self.rows.items():
                slots = self.table.slots(row)
                want = self.mark(rid, 0, len(slots))
                bad = torch.nonzero((held[:, slots.ids] != want).any(dim=2).any(dim=0)).flatten()
                for at in bad.tolist():
                    whose = held[0, int(slots.ids[at])].tolist()
                    found.append(f"{name}: position {at} of request {rid} holds {whose}")
                seen = 0
                for pool in pools:
                    rows = pool.resolve(slots)
                    nope, rope = pool.get_mla_kv_buffer(1, rows)
                    if not torch.equal(torch.cat([nope, rope], dim=1), want[1, rows.source]):
                        found.append(f"{name}: rank {pool.rank} reads others' rows for {rid}")
                    seen += len(rows)
                if seen != len(slots) * (len(pools) if name == "ReplicatedKVPool" else 1):
                    found.append(f"{name}: the ranks read {seen} rows of {len(slots)} positions")
        for rid, (_, state) in self.rows.items():
            if not bool((self.states.conv[:, state] == rid).all()):
                found.append(f"state slot {state} of request {rid} holds another's state")
        away = sum(len(backups) for backups, _, _ in self.away.values())
        lent = sum(len(pool.host._lent) for pools in self.kinds for pool in pools)
        if lent != away:
            found.append(f"{lent} host blocks are lent for {away} backups")
        used = {
            int(slot) // self.layout.widened_page_size
            for row, _ in self.rows.values()
            for slot in self.table.slots(row).ids
        }
        if self.allocator.used_pages != len(used):
            found.append(
                f"{self.allocator.used_pages} pages are handed out, {len(used)} are in use"
            )
        return found

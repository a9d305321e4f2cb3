"""The defects in code: ``ModelCells`` with one defect each, and the two defective merges.

Each class changes one act of the right cells. A row "does not come back" means that its new place
keeps what it held before: the study fills its pools with rows of another text first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvlab.attn import Partial, merge_partials
from kvlab.engine.model import ModelCells
from kvlab.errors import PoolError
from kvlab.index import WidenedSlots
from kvlab.lab import crash
from kvlab.memory import KvBackup, MLATokenToKVPool

State = tuple[Tensor, Tensor]


class Verified(ModelCells):
    """The right cells. What comes back is compared bit by bit with what was given up, and counted
    instead of refused: ``same`` and ``different`` restores. A defect overrides ``leaves`` or
    ``returns``, and notes in ``kept``, by request or state slot, what it needs later."""

    def __init__(self, *given: Any, **rules: Any) -> None:
        super().__init__(*given, verify=True, **rules)
        self.same = self.different = 0
        self.kept: dict[int | None, Any] = {}

    def check(self, rid: int, slots: WidenedSlots) -> None:
        """Count where a restore is due to be compared; else as the right cells."""
        due = rid in self._given_up
        try:
            super().check(rid, slots)
            self.same += due
        except PoolError:
            if not due:
                raise
            self.different += 1

    def back_up(self, rid: int, slots: WidenedSlots) -> list[KvBackup]:
        made = super().back_up(rid, slots)
        self.leaves(rid, slots)
        return made

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        held = self.rows(slots)
        super().restore(rid, backups, slots)
        self.returns(rid, slots, held)

    def leaves(self, rid: int, slots: WidenedSlots) -> None:
        """What a defect does when a request was backed up, whose rows are still there."""

    def returns(self, rid: int, slots: WidenedSlots, held: Tensor) -> None:
        """What a defect does when a request was restored; ``held``: what its new rows held."""

    @property
    def ranks(self) -> Sequence[MLATokenToKVPool]:
        return self.sharded.pools.ranks

    def rows(self, slots: WidenedSlots) -> Tensor:
        """The stored rows of all positions ``(layers, positions, elements)``, a copy."""
        layers, _, elements = self.ranks[0].buffer.shape
        found = self.ranks[0].buffer.new_empty(layers, len(slots), elements)
        for pool in self.ranks:
            here = pool.resolve(slots)
            found[:, here.source] = pool.buffer[:, here.ids]
        return found

    def put_rows(self, slots: WidenedSlots, rows: Tensor) -> None:
        for pool in self.ranks:
            here = pool.resolve(slots)
            pool.buffer[:, here.ids] = rows[:, here.source]

    def state(self, rid: int) -> State | None:
        """The state of a running request, a copy; None for a model without state."""
        states, slot = self.sharded.pools.states, self._held[rid].state
        if states is None or slot is None:
            return None
        return states.conv[:, slot].clone(), states.temporal[:, slot].clone()

    def put_state(self, rid: int, state: State | None) -> None:
        """Set the state of a running request; None: to zeros. Nothing for a model without."""
        states, slot = self.sharded.pools.states, self._held[rid].state
        if states is not None and slot is not None:
            states.conv[:, slot], states.temporal[:, slot] = state or (0.0, 0.0)


class WidenedAsRows(Verified):
    """Every rank takes the widened ids for its rows: rows are copied out and put back there, and
    not where they belong, per layer and chunk as upstream does it. Errors: IndexError where an id
    is no row."""

    def _ids(self, pool: MLATokenToKVPool, slots: WidenedSlots) -> Tensor:
        return slots.ids

    def leaves(self, rid: int, slots: WidenedSlots) -> None:
        self.kept[rid] = [crash.copy_out(p.buffer, self._ids(p, slots)) for p in self.ranks]

    def returns(self, rid: int, slots: WidenedSlots, held: Tensor) -> None:
        self.put_rows(slots, held)
        for pool, copies in zip(self.ranks, self.kept.pop(rid), strict=True):
            crash.copy_in(pool.buffer, copies, self._ids(pool, slots))


class TranslatedTwice(WidenedAsRows):
    """Rows are taken for slots once more: as ``maybe_dcp_kernel_indices``, every c-th from r on."""

    def _ids(self, pool: MLATokenToKVPool, slots: WidenedSlots) -> Tensor:
        size = pool.layout.dcp_size
        rows = pool.resolve(slots).ids
        return rows if size == 1 else rows[pool.rank :: size] // size


class OldRows(Verified):
    """Rows go to the slots that the request gave up, whoever holds them now."""

    def leaves(self, rid: int, slots: WidenedSlots) -> None:
        self.kept[rid] = WidenedSlots(slots.ids.clone())

    def returns(self, rid: int, slots: WidenedSlots, held: Tensor) -> None:
        right = self.rows(slots)
        self.put_rows(slots, held)
        self.put_rows(self.kept.pop(rid), right)


class StateNotRestored(Verified):
    """The state slot stays as ``alloc`` gives it: zeros."""

    def returns(self, rid: int, slots: WidenedSlots, held: Tensor) -> None:
        self.put_state(rid, None)


class StateStale(Verified):
    """The state slot keeps what its last user left, who may be the request itself."""

    def release(self, rid: int, slots: WidenedSlots) -> None:
        self.kept[self._held[rid].state] = self.state(rid)
        super().release(rid, slots)

    def returns(self, rid: int, slots: WidenedSlots, held: Tensor) -> None:
        self.put_state(rid, self.kept.get(self._held[rid].state))


class SnapshotAhead(Verified):
    """After a restore the newest token runs twice, so the state has it twice. Its row is written
    to one place both times, which is why rows alone would not show it."""

    def returns(self, rid: int, slots: WidenedSlots, held: Tensor) -> None:
        self.kept[rid] = True

    def write(self, rids: Tensor, positions: Tensor, slots: Tensor) -> None:
        for rid, slot in zip(rids.tolist(), slots, strict=True):
            if self.kept.pop(rid, False):
                held = self._held[rid]
                run = WidenedSlots(torch.cat([held.ids, slot[None]]))
                self.sharded.decode([self.streams[rid].tokens[-1]], [run], [held.state])
        super().write(rids, positions, slots)


class SnapshotBehind(Verified):
    """The state lacks the last cached token, and so does its row."""

    def write(self, rids: Tensor, positions: Tensor, slots: Tensor) -> None:
        for rid in set(rids.tolist()) & self._held.keys():
            self.kept[rid] = self.state(rid)
        super().write(rids, positions, slots)

    def returns(self, rid: int, slots: WidenedSlots, held: Tensor) -> None:
        if rid not in self.kept:
            return  # nothing was decoded yet: the snapshot of a prefill is whole
        right = self.rows(slots)
        right[:, -1] = held[:, -1]
        self.put_rows(slots, right)
        self.put_state(rid, self.kept[rid])


class NanPadding(Verified):
    """The padding row of every rank is NaN from the first retraction on."""

    def leaves(self, rid: int, slots: WidenedSlots) -> None:
        for pool in self.ranks:
            pool.buffer[:, 0] = pool.codec.filled(float("nan"), pool.device)


class ScalesLost(Verified):
    """Quantized rows come back, their scales, which lie behind the values, stay what the new rows
    had."""

    def returns(self, rid: int, slots: WidenedSlots, held: Tensor) -> None:
        right, values = self.rows(slots), self.ranks[0].codec.elements
        right[..., values:] = held[..., values:]
        self.put_rows(slots, right)


def wrong_log_base(partials: Sequence[Partial]) -> Partial:
    """Natural lse, taken for base 2 and converted."""
    return merge_partials([Partial.from_log2(p.out, p.lse) for p in partials])


def empty_lse_zero(partials: Sequence[Partial]) -> Partial:
    """An empty shard weighs exp(0) and adds zeros."""
    return merge_partials(
        [replace(p, lse=torch.where(p.lse == -torch.inf, 0.0, p.lse)) for p in partials]
    )


CELLS: Mapping[str, type[Verified]] = {
    "widened_as_rows": WidenedAsRows,
    "translated_twice": TranslatedTwice,
    "old_rows": OldRows,
    "state_not_restored": StateNotRestored,
    "state_stale": StateStale,
    "snapshot_ahead": SnapshotAhead,
    "snapshot_behind": SnapshotBehind,
    "nan_padding": NanPadding,
    "scales_lost": ScalesLost,
}
MERGES: Mapping[str, Callable[[Sequence[Partial]], Partial]] = {
    "wrong_log_base": wrong_log_base,
    "empty_lse_zero": empty_lse_zero,
}

"""A hybrid pool: MLA rows by token, KDA state by request, under global layer ids.

Only the rows are localized. State slots are request slots and pass through untouched, at every
DCP size: dividing one by c would restore another request's state.

Source: SGLang ``HybridLinearKVPool``; its CPU copy returns (kv, state or None).
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from kvlab.errors import BackupError, PoolError
from kvlab.index import PhysicalRows, WidenedSlots
from kvlab.memory.backup import KvBackup
from kvlab.memory.mla_pool import MLATokenToKVPool
from kvlab.memory.state_pool import StatePool


class HybridLinearKVPool:
    """Delegates rows to ``full`` (global layer ids ``full_layer_ids``) and state to ``state``.

    Errors: PoolError when the ids do not name each dense layer once.
    """

    def __init__(
        self, full: MLATokenToKVPool, state: StatePool, full_layer_ids: Sequence[int]
    ) -> None:
        if len(set(full_layer_ids)) != len(full_layer_ids) or len(full_layer_ids) != full.layers:
            raise PoolError(
                f"full_layer_ids must name each of the {full.layers} MLA layers once: got "
                f"{list(full_layer_ids)}"
            )
        self.full, self.state = full, state
        self._dense = {layer: i for i, layer in enumerate(full_layer_ids)}

    def set_mla_kv_buffer(
        self, layer: int, loc: Tensor | WidenedSlots, k_nope: Tensor, k_rope: Tensor
    ) -> None:
        """As the inner pool's, with a global layer id."""
        self.full.set_mla_kv_buffer(self._dense_id(layer), loc, k_nope, k_rope)

    def get_mla_kv_buffer(self, layer: int, rows: PhysicalRows) -> tuple[Tensor, Tensor]:
        """As the inner pool's, with a global layer id."""
        return self.full.get_mla_kv_buffer(self._dense_id(layer), rows)

    def get_cpu_copy(
        self, slots: WidenedSlots | PhysicalRows, state_slot: int | None = None
    ) -> KvBackup:
        """Back up a run of rows and, if named, one request's state. Changes nothing."""
        state = None if state_slot is None else self.state.get_cpu_copy(state_slot)
        return replace(self.full.get_cpu_copy(slots), state=state)

    def load_cpu_copy(
        self,
        backup: KvBackup,
        slots: WidenedSlots | PhysicalRows,
        state_slot: int | None = None,
    ) -> None:
        """Restore rows and state; both are checked before either is written.

        Errors: BackupError when state was backed up and no slot is named, or the other way round.
        """
        if (backup.state is None) != (state_slot is None):
            raise BackupError(
                f"rows and state of a request are restored together: the backup has "
                f"{'no' if backup.state is None else 'a'} state, state_slot is {state_slot}; "
                f"nothing was written"
            )
        if backup.state is None or state_slot is None:
            self.full.load_cpu_copy(backup, slots)
            return
        self.state.check_load(backup.state, state_slot)
        self.full.load_cpu_copy(replace(backup, state=None), slots)  # checks, then writes
        self.state.load_cpu_copy(backup.state, state_slot)

    def audit(self) -> list[str]:
        """The broken laws of both pools."""
        return [*self.full.audit(), *self.state.audit()]

    def _dense_id(self, layer: int) -> int:
        if layer not in self._dense:
            raise PoolError(
                f"layer {layer} has no KV rows: MLA layers are {sorted(self._dense)}; "
                f"the others keep state"
            )
        return self._dense[layer]

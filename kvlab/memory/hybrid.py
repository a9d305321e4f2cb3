"""A hybrid pool: MLA rows by token, KDA state by request, under global layer ids.

Only the rows are localized: a state slot divided by c would restore another request's state.
Source: SGLang ``HybridLinearKVPool``; its CPU copy returns (kv, state or None).
"""

from collections.abc import Sequence

from torch import Tensor

from kvlab.errors import PoolError
from kvlab.index import PhysicalRows, WidenedSlots
from kvlab.memory.backup import KvBackup
from kvlab.memory.pool import MLATokenToKVPool, back_up_ranks, restore_ranks
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
                f"full_layer_ids must name each of {full.layers} MLA layers once: got "
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
        self, slots: WidenedSlots | PhysicalRows, state_slot: int | None = None, wait: bool = True
    ) -> KvBackup:
        """Back up a run of rows and, if named, one request's state; as ``back_up_ranks``."""
        return back_up_ranks([self.full], slots, self.state, state_slot, wait)[0]

    def load_cpu_copy(
        self,
        backup: KvBackup,
        slots: WidenedSlots | PhysicalRows,
        state_slot: int | None = None,
    ) -> None:
        """Restore rows and state; both are checked before either is written."""
        restore_ranks([self.full], [backup], slots, self.state, state_slot)

    def audit(self) -> list[str]:
        """The broken laws of both pools."""
        return [*self.full.audit(), *self.state.audit()]

    def _dense_id(self, layer: int) -> int:
        if layer not in self._dense:
            raise PoolError(f"layer {layer} has no KV rows: MLA layers are {sorted(self._dense)}")
        return self._dense[layer]

"""The MLA pool: one compressed row (latent and rope part) a token, layer and rank.

Worked example, c=2, page_size=2: writing slots [8, 9, 10] puts two rows (4, 5) on rank 0 and one
row (4) on rank 1; slot 0 (padding) and -1 (hole) are stored by nobody.

Source: SGLang ``mem_cache/memory_pool.py`` (``MLATokenToKVPool``), with the fix of PR 39487.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvlab.errors import BackupError, HostFullError, IndexSpaceError, PoolError, RankMismatchError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.index.layout import require_index, require_int, require_layout
from kvlab.index.spaces import as_ids, require_within
from kvlab.index.upstream import localize_move, require_targets_once
from kvlab.memory.backup import HostArena, HostTransfer, KvBackup, PendingCopy, default_arena
from kvlab.memory.codec import RowCodec
from kvlab.memory.state_pool import StatePool
from kvlab.memory.transfer import default_transfer

_HOST = torch.device("cpu")


class MLATokenToKVPool:
    """KV rows of one rank, all layers in one buffer ``(layers, rows, elements)``. It is *sharded*:
    rank r stores the slots it owns. Callers hand over widened slots; the pool localizes, once.

    Args:
        layout, rank: the two index spaces, and the rank whose rows these are.
        layers: MLA layers.
        kv_lora_rank, qk_rope_head_dim: elements of the two parts of a row.
        dtype: float32, bfloat16, float16, float8_e4m3fn or float8_e5m2.
        scaled: fp8 rows with a float32 scale each, see ``codec``; else fp8 is a plain cast.
        host: arena for backups; None makes ``default_arena``.
        transfer: how rows are copied from and to the host; None makes ``default_transfer``.

    Errors: LayoutError for a bad rank or size, PoolError for a dtype that cannot be stored or a
    transfer of another device, BackupError for one whose staging memory is below a row.
    """

    space: ClassVar[str] = "sharded"

    def __init__(
        self,
        layout: DcpLayout,
        rank: int,
        *,
        layers: int,
        kv_lora_rank: int = 512,
        qk_rope_head_dim: int = 64,
        dtype: torch.dtype = torch.bfloat16,
        scaled: bool = False,
        device: str | torch.device = "cpu",
        host: HostArena | None = None,
        transfer: HostTransfer | None = None,
    ) -> None:
        require_layout(layout)
        require_int("layers", layers, 1, "MLA layers")
        require_int("kv_lora_rank", kv_lora_rank, 1, "elements of the latent part")
        require_int("qk_rope_head_dim", qk_rope_head_dim, 0, "elements of the rope part")
        self.layout, self.rank, self.layers, self.dtype = layout, rank, layers, dtype
        self.shard = layout.shard(rank)
        self.kv_lora_rank, self.qk_rope_head_dim = kv_lora_rank, qk_rope_head_dim
        self.codec = RowCodec(dtype, kv_lora_rank + qk_rope_head_dim, scaled)
        #: What the bytes of a row mean, as a backup remembers it: parts and dtype.
        self.row_format = f"{kv_lora_rank} + {qk_rope_head_dim} {self.codec.meaning}"
        rows, width = self.rows_per_rank, self.codec.width
        with torch.inference_mode(False):  # to be written to outside of it as well
            self.buffer = torch.zeros(layers, rows, width, dtype=self.codec.stored, device=device)
        self.device = self.buffer.device  # with its number: "cuda" is not equal to "cuda:0"
        self.host = default_arena(self.buffer) if host is None else host
        self.transfer = default_transfer(self.device) if transfer is None else transfer
        self.transfer.require_pool(self.buffer)

    @property
    def rows_per_rank(self) -> int:
        """Rows of the buffer, padding page included."""
        return self.layout.rows_per_rank

    @property
    def write_loc_dcp_span(self) -> int:
        """By which factor the ids that callers hand over exceed rows (upstream
        ``_write_loc_dcp_span``): c for a sharded pool, 1 for a resolved or replicated one."""
        return self.layout.dcp_size

    @property
    def scales(self) -> Tensor:
        """The scales of scaled rows, float32 ``(layers, rows)``, a view into the buffer."""
        return self.codec.scales(self.buffer)

    def resolve(self, slots: WidenedSlots) -> PhysicalRows:
        """This rank's rows of a run of slots, on the pool's device wherever the slots are. Errors:
        IndexSpaceError, RankMismatchError."""
        return self._localize(slots).to(self.device)

    def set_mla_kv_buffer(
        self, layer: int, loc: Tensor | WidenedSlots, k_nope: Tensor, k_rope: Tensor
    ) -> None:
        """Store one row a slot, where this rank owns the slot; others store nothing.

        ``loc`` int64 or int32 ``(n,)`` widened slots in any order (``out_cache_loc``): slots of the
        padding page and -1 are stored by nobody. ``k_nope`` ``(n, kv_lora_rank)`` and ``k_rope``
        ``(n, qk_rope_head_dim)`` of any float dtype. On a GPU the host waits for the ids, once;
        ``put_rows`` does not. Errors: IndexSpaceError for a slot past the layout, PoolError for a
        wrong shape or layer.
        """
        ids = loc.ids if isinstance(loc, WidenedSlots) else as_ids(loc, "loc")
        ids, layout = ids.to(self.device), self.layout
        least, most = (int(x) for x in torch.aminmax(ids)) if len(ids) else (0, 0)
        if least < -1 or most >= layout.slot_end:
            instead = (
                f"write ids are widened slots, -1 is a hole; {layout.row_end} is the bound of a "
                f"row of a sharded pool, not of a slot"
            )
            require_within(ids, -1, layout.slot_end, "write slot", instead)
        k_nope = self._part("k_nope", k_nope, len(ids), self.kv_lora_rank)
        k_rope = self._part("k_rope", k_rope, len(ids), self.qk_rope_head_dim)
        into = self._of_layer(layer)
        own = self.shard.owner(ids) == self.shard.rank
        if least < layout.first_slot:  # stored by nobody
            own &= ids >= layout.first_slot
        mine = own.nonzero().flatten()
        rows = self._look_up(self.shard.row(ids.index_select(0, mine)))
        parts = [part.index_select(0, mine) for part in (k_nope, k_rope)]
        if k_nope.dtype != k_rope.dtype:  # fp8 has no common dtype with others
            parts = [part.to(self.codec.taken) for part in parts]
        values = torch.cat(parts, dim=1).to(self.codec.taken)
        self.before_write()
        into.index_copy_(0, rows, self.codec.encode(values))

    def get_mla_kv_buffer(self, layer: int, rows: PhysicalRows) -> tuple[Tensor, Tensor]:
        """(k_nope ``(m, kv_lora_rank)``, k_rope ``(m, qk_rope_head_dim)``) of rows, in ``dtype``;
        of scaled rows in float32. Errors: IndexSpaceError for anything but PhysicalRows,
        RankMismatchError for rows of another rank or layout."""
        stored = self.get_rows(layer, rows)
        return stored[:, : self.kv_lora_rank], stored[:, self.kv_lora_rank :]

    def get_rows(self, layer: int, rows: PhysicalRows) -> Tensor:
        """Whole rows ``(m, elements)``, latent part first; a copy. Errors: as the read of parts."""
        return self.codec.decode(self._of_layer(layer).index_select(0, self._ids_of(rows)))

    def put_rows(self, layer: int, rows: PhysicalRows, values: Tensor) -> None:
        """Store whole rows ``(m, elements)`` of any float dtype, latent part first, where they were
        localized to: the plan of a step does that once for all layers. Errors: as a read, and
        PoolError for another shape."""
        ids = self._ids_of(rows)
        taken = self._part("rows", values, len(ids), self.codec.elements).to(self.codec.taken)
        self.before_write()
        self._of_layer(layer).index_copy_(0, ids, self.codec.encode(taken))

    def fill(self, rows: PhysicalRows, value: float) -> None:
        """Overwrite rows of all layers with one value, its scale 1: freed rows, and faults."""
        ids = self._ids_of(rows)
        self.before_write()
        self.buffer[:, ids] = self.codec.filled(value, self.device)

    def move_kv_cache(self, target: Tensor, source: Tensor) -> None:
        """Copy the rows of ``source`` slots to ``target`` slots, on the rank that owns both. A pair
        of two owners, a target named twice or a slot out of bounds is an IndexSpaceError."""
        target, source = as_ids(target, "target slots"), as_ids(source, "source slots")
        target, source, layout = target.to(self.device), source.to(self.device), self.layout
        for name, ids in (("target slot", target), ("source slot", source)):
            instead = "the padding page holds no token"
            require_within(ids, layout.first_slot, layout.slot_end, name, instead)
        to, at = localize_move(target, source, self.shard)
        require_targets_once(target)
        self.before_write()
        self.buffer[:, self._look_up(to)] = self.buffer[:, self._look_up(at)]

    def before_write(self) -> None:
        """Order what the caller's stream does next after the copies that still need the rows as
        they are: written over while a backup is in flight, they would come back as another
        request's. The host does not wait. Code that writes ``buffer`` itself has to call this."""
        self.transfer.before_write()

    def get_cpu_copy(self, slots: WidenedSlots | PhysicalRows, wait: bool = True) -> KvBackup:
        """Back up a run: localize once, then copy all layers in one pass. The pool is not changed.

        With ``wait=False`` a staged backup is in flight when it is returned (``backup.wait()``,
        ``backup.done``). Errors: IndexSpaceError for ids of another space, HostFullError when the
        host arena is full (nothing was taken).
        """
        rows, arena = self._rows_on_host(slots), self.host
        shape = (self.layers, int(rows.ids.shape[0]), self.buffer.shape[2])
        nbytes = shape[0] * shape[1] * shape[2] * self.buffer.element_size()
        block = arena.take(nbytes)
        if block is None:
            powers = " and powers of two" if arena.pinned else ""
            raise HostFullError(
                f"a backup must fit the host arena: {nbytes} bytes for {rows.positions} positions "
                f"of rank {self.rank}, in blocks of {arena.grain}{powers}; {arena.lent_bytes} of "
                f"{arena.capacity_bytes} bytes are lent; restore or discard backups, or raise "
                f"capacity_bytes; nothing was changed"
            )
        backup = None
        try:
            with torch.inference_mode(False):  # bytes may move into it outside of that mode
                kv = block[:nbytes].view(self.buffer.dtype).view(shape)
            made = self.transfer.back_up(self.buffer, rows.ids, kv, self.layout.page_size)
            backup = KvBackup(rows, self.space, self.row_format, kv, arena, block, made)
            if wait:
                backup.wait()
        except BaseException:
            if backup is None:
                arena.give(block)
            elif not backup.spent:  # an interrupt: nobody has the backup
                backup.discard()
            raise
        return backup

    def load_cpu_copy(self, backup: KvBackup, slots: WidenedSlots | PhysicalRows) -> None:
        """Restore a backup into newly allocated slots of the same positions; consumes it.

        Everything is checked before the first byte is written, but for the checksum: bytes are
        summed as they are written, and the new rows of a backup that changed hold what must not be
        read. Errors: BackupError for a spent or changed backup, another layout, rank, row format or
        position range, rows of the padding page, or one with a state; IndexSpaceError.
        """
        restore_ranks([self], [backup], slots)

    def check_load(self, backup: KvBackup, slots: WidenedSlots | PhysicalRows) -> PhysicalRows:
        """The rows to write, once nothing stands against a restore; writes nothing, and does not
        look at the state."""
        rows = self._rows_on_host(slots)
        backup.require_fits(rows, self.buffer, self.space, self.row_format)
        return rows

    def write_rows(self, backup: KvBackup, rows: PhysicalRows) -> PendingCopy:
        """Write a backup to rows that ``check_load`` gave, without consuming it."""
        page_size = self.layout.page_size
        return self.transfer.restore(self.buffer, rows.ids, backup.kv, page_size, backup.sums)

    def audit(self) -> list[str]:
        """The broken laws: the padding page is never written, and the arena keeps its bound."""
        broken = self.host.audit() + self.codec.audit(self.buffer)
        padding = self.buffer[:, : self.layout.first_row]
        if bool(padding.view(torch.uint8).any()):
            broken.append(f"the padding page of rank {self.rank} was written")
        return broken

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rank {self.rank} of {self.layout.dcp_size}, {self.layers} "
            f"layers x {self.rows_per_rank} rows x {self.row_format} on {self.device})"
        )

    def _localize(self, slots: WidenedSlots) -> PhysicalRows:
        """This rank's rows, where the slots are."""
        return localize(slots, self.layout, self.rank)

    def _look_up(self, rows: Tensor) -> Tensor:
        """Rows of the buffer of localized ids."""
        return rows

    def _rows_on_host(self, slots: WidenedSlots | PhysicalRows) -> PhysicalRows:
        """The rows that a backup or restore names; on a GPU the one synchronization of either."""
        if isinstance(slots, PhysicalRows):
            self._require_rows(slots)
            return slots.to(_HOST)
        if isinstance(slots, WidenedSlots) and slots.ids.device != _HOST:
            slots = WidenedSlots(slots.ids.cpu(), slots.start)
        return self._localize(slots)

    def _part(self, name: str, part: Tensor, n: int, width: int) -> Tensor:
        """A part ``(n, width)`` of rows, on the pool's device: values, not their graph."""
        given: object = part
        if not isinstance(given, Tensor) or not given.is_floating_point():
            kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
            raise PoolError(f"{name} must be a tensor of a float dtype: got {kind}")
        if tuple(given.shape) != (n, width):
            raise PoolError(
                f"{name} must have shape ({n}, {width}), one row a slot: got {tuple(given.shape)}"
            )
        return (given.detach() if given.requires_grad else given).to(self.device)

    def _of_layer(self, layer: int) -> Tensor:
        layer = require_index("layer", layer)
        if not 0 <= layer < self.layers:
            raise PoolError(f"layer must lie in [0, {self.layers}): got {layer}")
        return self.buffer[layer]

    def _ids_of(self, rows: PhysicalRows) -> Tensor:
        self._require_rows(rows)
        return rows.ids.to(self.device)

    def _require_rows(self, rows: PhysicalRows) -> None:
        given: object = rows
        if not isinstance(given, PhysicalRows):
            raise IndexSpaceError(
                f"a read takes PhysicalRows, got {type(given).__name__}: a buffer has rows, not "
                f"slots; call pool.resolve(slots) first"
            )
        rank, layout, edition = self.rank, self.layout, self._edition
        if given.rank != rank or given.layout != layout:
            raise RankMismatchError(
                f"rows of rank {given.rank} ({given.layout}) cannot index the pool of rank "
                f"{rank} ({layout}); each rank localizes for itself"
            )
        if given.resolved_at != edition:
            raise IndexSpaceError(
                f"rows must come from this pool's own resolve: these are of edition "
                f"{given.resolved_at} of a page table, the pool wants {edition} (None: not looked "
                f"up in one); call pool.resolve(slots)"
            )

    @property
    def _edition(self) -> int | None:
        """The edition of the page table that rows must be good for; None: there is none."""
        return None


class ReplicatedKVPool(MLATokenToKVPool):
    """Every rank stores every slot, as draft models and indexers do: slot and row are one number.

    Sized by the widened space: it must hold every id that the allocator can issue, with c=2,
    page_size=2 and two pages 12 rows, not 6 (SGLang pull request 35221). So it is the pool of a
    layout of one rank whose pages have W rows; whose copy it is makes no difference.
    """

    space: ClassVar[str] = "replicated"

    def __init__(self, layout: DcpLayout, rank: int, **options: Any) -> None:
        require_layout(layout)
        layout.shard(rank)  # refuses a rank outside
        whole = DcpLayout(1, layout.widened_page_size, layout.num_pages)
        super().__init__(whole, 0, **options)


def back_up_ranks(
    pools: Sequence[MLATokenToKVPool],
    slots: WidenedSlots | PhysicalRows,
    states: StatePool | None = None,
    state_slot: int | None = None,
    wait: bool = True,
) -> list[KvBackup]:
    """One backup a pool; the first carries the state, if a slot of ``states`` is named: recurrent
    state is whole on every rank.

    The ranks' copies run side by side where they are staged; ``wait=False`` returns while they are
    in flight. Errors: as ``get_cpu_copy``, and BackupError for a slot without ``states``; then no
    host memory is held.
    """
    if state_slot is not None and states is None:
        raise BackupError(f"a state slot is one of a StatePool: got {state_slot!r} and no states")
    state = None if states is None or state_slot is None else states.get_cpu_copy(state_slot)
    made: list[KvBackup] = []
    try:
        for pool in pools:
            made.append(pool.get_cpu_copy(slots, wait=False))
        for backup in made if wait else []:  # begun on every rank before any is waited for
            backup.wait()
    except BaseException:
        for backup in made:
            if not backup.spent:  # one that was lost has given its memory back
                backup.discard()
        raise
    if made:
        made[0].state = state
    return made


def restore_ranks(
    pools: Sequence[MLATokenToKVPool],
    backups: Sequence[KvBackup],
    slots: WidenedSlots | PhysicalRows,
    states: StatePool | None = None,
    state_slot: int | None = None,
) -> None:
    """Write each pool's backup into newly allocated slots, and the state into its slot.

    Everything is checked on every rank before the first one writes, and no backup is spent before
    every rank has written: after an error in the middle the same backups can be restored again.

    Errors: BackupError when state was backed up and no slot is named, or the other way round, and
    as ``load_cpu_copy``; then nothing was written. BackupError for a host copy that changed, after
    rows were written, and before the state is or any backup is consumed.
    """
    if len(backups) != len(pools) or not backups:
        raise BackupError(
            f"each rank restores its own backup: got {len(backups)} backups for {len(pools)} "
            f"ranks; pass all that back_up_ranks gave; nothing was written"
        )
    state = backups[0].state
    if (state is None) != (state_slot is None) or (state is not None and states is None):
        raise BackupError(
            f"rows and state of a request are restored together: the backup has "
            f"{'no' if state is None else 'a'} state, state_slot is {state_slot}; pass the pool of "
            f"states and a slot of it, or neither; nothing was written"
        )
    if states is not None and state is not None and state_slot is not None:
        states.check_load(state, state_slot)
    rows = [pool.check_load(backup, slots) for pool, backup in zip(pools, backups, strict=True)]
    copies: list[PendingCopy] = []
    try:
        for pool, backup, places in zip(pools, backups, rows, strict=True):
            copies.append(pool.write_rows(backup, places))
        for copy in copies:
            copy.wait()
    except BaseException:
        for copy in copies:  # nothing is written behind the back of who tries again
            copy.settle()
        raise
    if states is not None and state is not None and state_slot is not None:
        states.load_cpu_copy(state, state_slot)
    for backup in backups:
        backup.close("restored")

"""The MLA pool: one compressed row (latent and rope part) a token, layer and rank.

``MLATokenToKVPool`` is *sharded*: rank r stores the slots it owns. Callers hand over widened slots;
the pool localizes, once. Pools with another rule for rows subclass it.

Worked example, c=2, page_size=2: writing slots [8, 9, 10] puts two rows (4, 5) on rank 0 and one
row (4) on rank 1; slot 0 (padding) and -1 (hole) are stored by nobody.

Whoever writes rows calls ``before_write`` first: while a backup is in flight its rows are still
being read, and written over too early, they would come back as another request's. The pool's own
methods do so; code that writes ``pool.buffer`` itself has to.

Source: SGLang ``mem_cache/memory_pool.py`` (``MLATokenToKVPool``), with the fix of PR 39487.
"""

from typing import ClassVar

import torch
from torch import Tensor

from kvlab.errors import BackupError, HostFullError, IndexSpaceError, PoolError, RankMismatchError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.index.layout import pages_strip, require_index, require_int, require_layout
from kvlab.index.spaces import as_ids, require_within
from kvlab.index.upstream import localize_move, require_targets_once
from kvlab.memory.arena import HostArena, default_arena
from kvlab.memory.backup import KvBackup
from kvlab.memory.codec import RowCodec
from kvlab.memory.transfer import HostTransfer, PendingCopy, default_transfer
from kvlab.show import facts, html, size

_HOST = torch.device("cpu")


class MLATokenToKVPool:
    """KV rows of one rank, all layers in one buffer ``(layers, rows, elements)``.

    Args:
        layout: the two index spaces.
        rank: the rank whose rows these are.
        layers: MLA layers.
        kv_lora_rank, qk_rope_head_dim: elements of the two parts of a row.
        dtype: float32, bfloat16, float16, float8_e4m3fn or float8_e5m2.
        scaled: fp8 rows with a float32 scale each, see ``codec``; else fp8 is a plain cast.
        host: arena for backups; None makes ``default_arena``: on the CPU unbounded, on CUDA
            pinned and bounded.
        transfer: how rows are copied from and to the host; None: at once on the CPU, beside the
            caller on CUDA.

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
        layout.shard(rank)  # refuses a rank outside
        require_int("layers", layers, 1, "MLA layers")
        require_int("kv_lora_rank", kv_lora_rank, 1, "elements of the latent part")
        require_int("qk_rope_head_dim", qk_rope_head_dim, 0, "elements of the rope part")
        self.layout, self.rank, self.layers, self.dtype = layout, rank, layers, dtype
        #: The layout by which slots become rows of this pool, and the rank that the rows carry.
        self.row_layout, self.row_rank = self._row_space()
        self.shard = self.row_layout.shard(self.row_rank)
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
        return self.row_layout.rows_per_rank

    @property
    def write_loc_dcp_span(self) -> int:
        """By which factor the ids that callers hand over exceed rows (upstream
        ``_write_loc_dcp_span``): c for a sharded pool, 1 for a resolved or replicated one."""
        return self.row_layout.dcp_size

    @property
    def scales(self) -> Tensor:
        """The scales of scaled rows, float32 ``(layers, rows)``, a view into the buffer.

        Errors: PoolError for a pool without."""
        return self.codec.scales(self.buffer)

    def resolve(self, slots: WidenedSlots) -> PhysicalRows:
        """This rank's rows of a run of slots, on the pool's device wherever the slots are.

        Errors: IndexSpaceError, RankMismatchError.
        """
        return self._localize(slots).to(self.device)

    def set_mla_kv_buffer(
        self, layer: int, loc: Tensor | WidenedSlots, k_nope: Tensor, k_rope: Tensor
    ) -> None:
        """Store one row a slot, where this rank owns the slot; others store nothing.

        Args:
            layer: dense layer id.
            loc: int64 or int32 ``(n,)`` widened slots in any order (``out_cache_loc``). Slots of
                the padding page and -1 are stored by nobody.
            k_nope: ``(n, kv_lora_rank)``; k_rope: ``(n, qk_rope_head_dim)``; any float dtype.

        On a GPU the host waits for the ids, once; ``put_rows`` does not. Errors: IndexSpaceError
        for a slot past the layout, PoolError for a wrong shape or layer.
        """
        ids = loc.ids if isinstance(loc, WidenedSlots) else as_ids(loc, "loc")
        ids, layout = ids.to(self.device), self.row_layout
        least, most = (int(x) for x in torch.aminmax(ids)) if len(ids) else (0, 0)
        if least < -1 or most >= layout.slot_end:
            instead = (
                f"write ids are widened slots, -1 is a hole; {self.layout.row_end} is the bound of "
                f"a row of a sharded pool, not of a slot"
            )
            require_within(ids, -1, layout.slot_end, "write slot", instead)
        parts = (
            self._part("k_nope", k_nope, len(ids), self.kv_lora_rank),
            self._part("k_rope", k_rope, len(ids), self.qk_rope_head_dim),
        )
        into = self.buffer[self._layer(layer)]
        elements, rows = self._write_plan(ids, holes=least < layout.first_slot)
        values = torch.cat([part[elements].to(self.codec.taken) for part in parts], dim=1)
        self.before_write()
        into[rows] = self.codec.encode(values)

    def get_mla_kv_buffer(self, layer: int, rows: PhysicalRows) -> tuple[Tensor, Tensor]:
        """(k_nope ``(m, kv_lora_rank)``, k_rope ``(m, qk_rope_head_dim)``) of rows, in ``dtype``;
        of scaled rows in float32.

        Errors: IndexSpaceError for anything but PhysicalRows, RankMismatchError for rows of
        another rank or layout.
        """
        stored = self.get_rows(layer, rows)
        return stored[:, : self.kv_lora_rank], stored[:, self.kv_lora_rank :]

    def get_rows(self, layer: int, rows: PhysicalRows) -> Tensor:
        """Whole rows ``(m, elements)``, latent part first; a copy. Errors: as the read of parts."""
        self._require_rows(rows)
        return self.codec.decode(self.buffer[self._layer(layer)][rows.ids.to(self.device)])

    def put_rows(self, layer: int, rows: PhysicalRows, values: Tensor) -> None:
        """Store whole rows ``(m, elements)`` of any float dtype, latent part first, where they were
        localized to: the plan of a step does that once for all layers.

        Errors: PoolError for another shape; IndexSpaceError and RankMismatchError as a read.
        """
        self._require_rows(rows)
        taken = self._part("rows", values, len(rows), self.codec.elements).to(self.codec.taken)
        self.before_write()
        self.buffer[self._layer(layer)][rows.ids.to(self.device)] = self.codec.encode(taken)

    def fill(self, rows: PhysicalRows, value: float) -> None:
        """Overwrite rows of all layers with one value, its scale 1: freed rows, and faults."""
        self._require_rows(rows)
        self.before_write()
        self.buffer[:, rows.ids.to(self.device)] = self.codec.filled(value, self.device)

    def move_kv_cache(self, target: Tensor, source: Tensor) -> None:
        """Copy the rows of ``source`` slots to ``target`` slots, on the rank that owns both.

        Errors: IndexSpaceError: a pair of two owners, a target named twice, a slot out of bounds.
        """
        target, source = as_ids(target, "target slots"), as_ids(source, "source slots")
        target, source, layout = target.to(self.device), source.to(self.device), self.row_layout
        for name, ids in (("target slot", target), ("source slot", source)):
            instead = "the padding page holds no token"
            require_within(ids, layout.first_slot, layout.slot_end, name, instead)
        to, at = localize_move(target, source, self.shard)
        require_targets_once(target)
        self.before_write()
        self.buffer[:, self._look_up(to)] = self.buffer[:, self._look_up(at)]

    def before_write(self) -> None:
        """Order what the caller's stream does next after the copies that still need the rows as
        they are. The host does not wait. For code that writes ``buffer`` itself."""
        self.transfer.before_write()

    def get_cpu_copy(self, slots: WidenedSlots | PhysicalRows, wait: bool = True) -> KvBackup:
        """Back up a run: localize once, then copy all layers in one pass.

        The pool is not changed. With ``wait=False`` a staged backup is in flight when it is
        returned (``backup.wait()``, ``backup.done``); later writes to the pool wait for its rows by
        themselves. Ids on a device are fetched first, and looked through on the host.

        Errors: IndexSpaceError for ids of another space, HostFullError when the host arena is full
        (nothing was taken).
        """
        rows = self._rows_on_host(slots)
        layers, _, elements = self.buffer.shape
        count = int(rows.ids.shape[0])
        nbytes = layers * count * elements * self.buffer.element_size()
        arena = self.host
        block = arena.take(nbytes)
        if block is None:
            powers = " and powers of two" if arena.pinned else ""
            raise HostFullError(
                f"a backup must fit the host arena: {nbytes} bytes for {rows.positions} positions "
                f"of rank {self.rank}, in blocks of {arena.grain}{powers}; {arena.lent_bytes} of "
                f"{arena.capacity_bytes} bytes are lent; restore or discard backups, or raise "
                f"capacity_bytes; nothing was changed"
            )
        page_size = self.row_layout.page_size
        try:
            with torch.inference_mode(False):  # bytes may move into it outside of that mode
                kv = block[:nbytes].view(self.buffer.dtype).view(layers, count, elements)
            made = self.transfer.back_up(self.buffer, rows.ids, kv, page_size)
            backup = KvBackup(
                layout=self.layout,
                rank=self.rank,
                space=self.space,
                row_format=self.row_format,
                came_from=rows,
                kv=kv,
                page_size=page_size,
                arena=arena,
                block=block,
                made=made,
            )
        except BaseException:
            arena.give(block)
            raise
        try:
            if wait:
                backup.wait()
        except BaseException:
            if not backup.spent:  # an interrupt: nobody has the backup
                backup.discard()
            raise
        return backup

    def load_cpu_copy(self, backup: KvBackup, slots: WidenedSlots | PhysicalRows) -> None:
        """Restore a backup into newly allocated slots of the same positions; consumes it.

        The new slots are localized by themselves: nothing of the old ones is used. Everything is
        checked before the first byte is written, but for the checksum: bytes are summed as they are
        written, and the new rows of a backup that changed hold what must not be read.

        Errors: BackupError for a spent or changed backup, another layout, rank, row format or
        position range, rows of the padding page, or a state, which only the HybridLinearKVPool
        restores; IndexSpaceError as ``get_cpu_copy``.
        """
        if backup.state is not None:
            raise BackupError(
                f"rows and state of a request are restored together: the backup of "
                f"{backup.positions} positions has a state, and this pool keeps none; restore it "
                f"through the HybridLinearKVPool that made it; nothing was written"
            )
        copy = self.write_rows(backup, self.check_load(backup, slots))
        try:
            copy.wait()
        except BaseException:
            copy.settle()  # after an interrupt too nothing is written behind the caller's back
            raise
        backup.close("restored")

    def check_load(self, backup: KvBackup, slots: WidenedSlots | PhysicalRows) -> PhysicalRows:
        """The rows to write, once nothing stands against a restore; writes nothing, and does not
        look at the state."""
        rows = self._rows_on_host(slots)
        belongs = (self.layout, self.rank, self.space, self.row_format)
        backup.require_fits(rows, self.buffer, belongs, self.row_layout.first_row)
        return rows

    def write_rows(self, backup: KvBackup, rows: PhysicalRows) -> PendingCopy:
        """Write a backup to rows that ``check_load`` gave, without consuming it."""
        page_size = self.row_layout.page_size
        return self.transfer.restore(self.buffer, rows.ids, backup.kv, page_size, backup.sums)

    def audit(self) -> list[str]:
        """The broken laws: the padding page is never written, and the arena keeps its bound."""
        broken = self.host.audit() + self.transfer.audit() + self.codec.audit(self.buffer)
        padding = self.buffer[:, : self.row_layout.first_row]
        if bool(padding.view(torch.uint8).any()):
            broken.append(f"the padding page of rank {self.rank} was written")
        return broken

    def __repr__(self) -> str:
        mib = self.buffer.numel() * self.buffer.element_size() / 2**20
        return (
            f"{type(self).__name__}(rank {self.rank} of {self.layout.dcp_size}, "
            f"{self.layers} layers x {self.rows_per_rank} rows x {self.buffer.shape[2]} "
            f"{self.dtype}, {mib:.1f} MiB on {self.device})"
        )

    def _repr_html_(self) -> str:
        """Sizes and spaces, for a notebook cell; reads no row and waits for nothing."""
        told = [
            ("layout", self.layout.in_words()),
            ("space", f"{self.space}; its ids span {self.write_loc_dcp_span}"),
            ("a row", self.row_format),
            ("memory", f"{size(self.buffer.nbytes)} on {self.device}"),
            ("host", f"{self.host!r}, by {type(self.transfer).__name__}"),
        ]
        page_size = self.row_layout.page_size
        rows = pages_strip("Its rows", self.rows_per_rank // page_size - 1, {"rows": page_size})
        return html(facts(f"{type(self).__name__} of rank {self.rank}", told), rows)

    def _row_space(self) -> tuple[DcpLayout, int]:
        return self.layout, self.rank

    def _localize(self, slots: WidenedSlots) -> PhysicalRows:
        """This rank's rows, where the slots are."""
        return localize(slots, self.row_layout, self.row_rank)

    def _look_up(self, rows: Tensor) -> Tensor:
        """Rows of the buffer of localized ids."""
        return rows

    def _write_plan(self, ids: Tensor, *, holes: bool) -> tuple[Tensor, Tensor]:
        """(elements, rows) that this rank stores of in-bounds ids: int64 ``(m,)`` each.

        ``holes``: some of them are stored by nobody.
        """
        own = self.shard.owner(ids) == self.shard.rank
        if holes:
            own &= ids >= self.row_layout.first_slot
        mine = torch.nonzero(own).flatten()
        return mine, self._look_up(self.shard.row(ids[mine]))

    def _rows_on_host(self, slots: WidenedSlots | PhysicalRows) -> PhysicalRows:
        """The rows that a backup or restore names, localized here or already; on a GPU the one
        synchronization of either."""
        given: object = slots
        if isinstance(given, PhysicalRows):
            self._require_rows(given)
            return given.to(_HOST)
        if isinstance(given, WidenedSlots) and given.ids.device != _HOST:
            return self._localize(WidenedSlots(given.ids.cpu(), given.start))
        return self._localize(slots)  # type: ignore[arg-type]  # refuses all else

    def _part(self, name: str, part: Tensor, n: int, width: int) -> Tensor:
        """A part ``(n, width)`` of rows, on the pool's device: values, not the graph that made
        them. Errors: PoolError for another shape, or no float dtype."""
        given: object = part
        if not isinstance(given, Tensor) or not given.is_floating_point():
            kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
            raise PoolError(f"{name} must be a tensor of a float dtype: got {kind}")
        if tuple(given.shape) != (n, width):
            raise PoolError(
                f"{name} must have shape ({n}, {width}), one row a slot: got {tuple(given.shape)}"
            )
        return given.detach().to(self.device)

    def _layer(self, layer: int) -> int:
        layer = require_index("layer", layer)
        if not 0 <= layer < self.layers:
            raise PoolError(f"layer must lie in [0, {self.layers}): got {layer}")
        return layer

    def _require_rows(self, rows: PhysicalRows) -> None:
        """Raise unless ``rows`` were localized for this rank and layout, in this edition of the
        page table."""
        given: object = rows
        if not isinstance(given, PhysicalRows):
            raise IndexSpaceError(
                f"a read takes PhysicalRows, got {type(given).__name__}: a buffer has rows, not "
                f"slots; call pool.resolve(slots) first"
            )
        rank, layout, edition = self.row_rank, self.row_layout, self._edition
        if given.rank != rank or given.layout != layout:
            raise RankMismatchError(
                f"rows of rank {given.rank} ({given.layout}) cannot index the pool of rank "
                f"{rank} ({layout}); each rank localizes for itself"
            )
        if given.resolved_at != edition:
            was, now = (
                "not looked up in a page table"
                if at is None
                else f"looked up in edition {at} of a page table"
                for at in (given.resolved_at, edition)
            )
            raise IndexSpaceError(
                f"rows must come from this pool's own resolve: these were {was}, the pool wants "
                f"rows {now}; call pool.resolve(slots)"
            )

    @property
    def _edition(self) -> int | None:
        """The edition of the page table that rows must be good for; None: there is none."""
        return None


class ReplicatedKVPool(MLATokenToKVPool):
    """Every rank stores every slot: draft models and indexers. Rows are slots, span 1.

    Sized by the widened space: it must hold every id that the allocator can issue, with c=2,
    page_size=2 and two pages 12 rows, not 6. Sized by the physical space it runs out at the first
    high slot (SGLang pull request 35221).
    """

    space: ClassVar[str] = "replicated"

    def _row_space(self) -> tuple[DcpLayout, int]:
        # One rank with pages of W rows: slot and row are the same number.
        return DcpLayout(1, self.layout.widened_page_size, self.layout.num_pages), 0

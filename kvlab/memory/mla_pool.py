"""The MLA pool: one compressed row (latent and rope part) a token, layer and rank.

``MLATokenToKVPool`` is *sharded*: rank r stores the slots it owns. Callers hand over widened slots;
the pool localizes, once. Pools with another rule for rows subclass it.

Worked example, c=2, page_size=2: writing slots [8, 9, 10] puts two rows (4, 5) on rank 0 and one
row (4) on rank 1; slot 0 (padding) and -1 (hole) are stored by nobody.

Source: SGLang ``mem_cache/memory_pool.py`` (``MLATokenToKVPool``), with the fix of PR 39487.
"""

from typing import ClassVar

import torch
from torch import Tensor

from kvlab.errors import PoolError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.index.layout import require_index, require_int, require_layout
from kvlab.index.spaces import as_ids, require_within
from kvlab.index.upstream import localize_move, require_targets_once
from kvlab.memory.codec import RowCodec
from kvlab.memory.copies import HostCopies
from kvlab.memory.flagged import FlaggedWrites, stored_parts
from kvlab.memory.host import HostArena, default_arena
from kvlab.memory.lanes import Lane, default_lane
from kvlab.memory.plans import pack_rows, require_own_rows, whole_rows, write_plan
from kvlab.memory.shown import pool_html
from kvlab.ranks import require_rank_here


class MLATokenToKVPool(HostCopies):
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
        lane: where copies from and to the host run; None: at once on the CPU, beside the caller
            on CUDA.

    Errors: LayoutError for a bad rank or size, PoolError for a dtype that cannot be stored or a
    lane of another device, BackupError for a lane whose staging memory is below a row.
    """

    write_loc_is_dcp_resolved: ClassVar[bool] = False
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
        lane: Lane | None = None,
    ) -> None:
        require_layout(layout)
        layout.shard(rank)  # refuses a rank outside
        require_int("layers", layers, 1, "MLA layers")
        require_int("kv_lora_rank", kv_lora_rank, 1, "elements of the latent part")
        require_int("qk_rope_head_dim", qk_rope_head_dim, 0, "elements of the rope part")
        self.layout, self.rank, self.layers, self.dtype = layout, rank, layers, dtype
        self.kv_lora_rank, self.qk_rope_head_dim = kv_lora_rank, qk_rope_head_dim
        self.codec = RowCodec(dtype, kv_lora_rank + qk_rope_head_dim, scaled)
        rows, width = self.rows_per_rank, self.codec.width
        with torch.inference_mode(False):  # to be written to outside of it as well
            self.buffer = torch.zeros(layers, rows, width, dtype=self.codec.stored, device=device)
        self.device = self.buffer.device  # with its number: "cuda" is not equal to "cuda:0"
        self.host = host if host is not None else default_arena(self.buffer)
        self.lane = lane if lane is not None else default_lane(self.device)
        self.lane.require_pool(self.buffer)
        self.flagged: FlaggedWrites | None = None
        if self.device.type == "cuda" and not self.write_loc_is_dcp_resolved:
            self.flagged = FlaggedWrites(self.row_layout, self.row_rank, self.device)

    @property
    def rows_per_rank(self) -> int:
        """Rows of the buffer, padding page included."""
        return self.row_layout.rows_per_rank

    @property
    def row_layout(self) -> DcpLayout:
        """The layout by which slots become rows of this pool."""
        return self.layout

    @property
    def row_rank(self) -> int:
        """The rank that rows of this pool carry."""
        return self.rank

    @property
    def write_loc_dcp_span(self) -> int:
        """By which factor the ids that callers hand over exceed rows (upstream
        ``_write_loc_dcp_span``): c for a sharded pool, 1 for a resolved or replicated one."""
        return self.layout.dcp_size

    @property
    def row_format(self) -> str:
        """What the bytes of a row mean, as a backup remembers it: parts and dtype."""
        return f"{self.kv_lora_rank} + {self.qk_rope_head_dim} {self.codec.meaning}"

    @property
    def scales(self) -> Tensor:
        """The scales of scaled rows, float32 ``(layers, rows)``, a view into the buffer.

        Errors: PoolError for a pool without."""
        return self.codec.scales(self.buffer)

    @property
    def kv_buffer(self) -> list[Tensor]:
        """One view a layer, ``(rows, 1, elements)`` in the storage dtype, as upstream names it."""
        return [layer.unsqueeze(1) for layer in self.buffer]

    def resolve(self, slots: WidenedSlots) -> PhysicalRows:
        """This rank's rows of a run of slots, on the pool's device wherever the slots are.

        Errors: IndexSpaceError, RankMismatchError.
        """
        return self.locate(slots).to(self.device)

    def locate(self, slots: WidenedSlots) -> PhysicalRows:
        """As ``resolve``, but the rows stay where the slots are. Errors: as ``resolve``."""
        self._require_here()
        return localize(slots, self.row_layout, self.row_rank)

    def set_mla_kv_buffer(
        self, layer: int, loc: Tensor | WidenedSlots, k_nope: Tensor, k_rope: Tensor
    ) -> None:
        """Store one row a slot, where this rank owns the slot; others store nothing.

        Args:
            layer: dense layer id.
            loc: int64 or int32 ``(n,)`` widened slots in any order (``out_cache_loc``). Slots of
                the padding page and -1 are stored by nobody.
            k_nope: ``(n, kv_lora_rank)``; k_rope: ``(n, qk_rope_head_dim)``; any float dtype.

        On a GPU the host does not wait for the ids, a slot past the layout is stored by nobody,
        and the next backup that is waited for, restore or audit tells of it. Errors:
        IndexSpaceError for a slot past the layout, PoolError for a wrong shape or layer.
        """
        self._require_here()
        ids = loc.ids if isinstance(loc, WidenedSlots) else as_ids(loc, "loc")
        ids = ids.to(self.device)
        if self.flagged is not None:
            widths = (self.kv_lora_rank, self.qk_rope_head_dim)
            parts = stored_parts(k_nope, k_rope, len(ids), widths, self.codec, self.device)
            self.before_write()
            self.flagged.store(self.buffer[self._layer(layer)], ids, *parts)
            return
        self._require_write_loc(ids)
        elements, places = self._write_plan(ids)
        self._store(layer, elements, places, len(ids), k_nope, k_rope)

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
        self.before_read()
        return self.codec.decode(self.buffer[self._layer(layer)][rows.ids.to(self.device)])

    def put_rows(self, layer: int, rows: PhysicalRows, values: Tensor) -> None:
        """Store whole rows ``(m, elements)`` of any float dtype, latent part first, where they were
        localized to: the plan of a step does that once for all layers.

        Errors: PoolError for another shape; IndexSpaceError and RankMismatchError as a read.
        """
        self._require_rows(rows)
        taken = whole_rows(values, len(rows), self.codec, self.device)
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
        self._require_here()
        target, source = as_ids(target, "target slots"), as_ids(source, "source slots")
        target, source = target.to(self.device), source.to(self.device)
        for name, ids in (("target slot", target), ("source slot", source)):
            end = self.row_layout.slot_end
            instead = "the padding page holds no token"
            require_within(ids, self.row_layout.first_slot, end, name, instead)
        lay = self.row_layout
        to, at = localize_move(target, source, lay.shard(self.row_rank))
        require_targets_once(target)
        self.before_write()
        self.buffer[:, self._move_rows(to)] = self.buffer[:, self._move_rows(at)]

    def audit(self) -> list[str]:
        """The broken laws: the padding page is never written, and the arena keeps its bound."""
        self.before_read()
        broken = self.host.audit() + self.lane.audit() + self.codec.audit(self.buffer)
        broken += [] if self.flagged is None else self.flagged.audit()
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
            ("a row", self.row_format),
            ("span of its ids", self.write_loc_dcp_span),
            ("host", f"{self.host!r}, by {type(self.lane).__name__}"),
        ]
        place = (self.layout, self.rank, self.space, self.rows_per_rank, self.row_layout.page_size)
        return pool_html(type(self).__name__, *place, self.buffer, told)

    def _write_plan(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """(elements, rows) that this rank stores of in-bounds ids."""
        return write_plan(ids, self.row_layout, self.row_rank)

    def _move_rows(self, rows: Tensor) -> Tensor:
        return rows

    def _require_write_loc(self, ids: Tensor) -> None:
        instead = (
            f"write ids are widened slots, -1 is a hole; {self.layout.row_end} is the bound of a "
            f"row of a sharded pool, not of a slot"
        )
        require_within(ids, -1, self.row_layout.slot_end, "write slot", instead)

    def _store(
        self, layer: int, elements: Tensor, rows: Tensor, n: int, k_nope: Tensor, k_rope: Tensor
    ) -> None:
        widths = (self.kv_lora_rank, self.qk_rope_head_dim)
        packed = pack_rows(k_nope, k_rope, n, widths, elements, self.codec.taken)
        self.before_write()
        self.buffer[self._layer(layer)][rows] = self.codec.encode(packed)

    def _require_writes(self) -> None:
        if self.flagged is not None:
            self.flagged.require()

    def _layer(self, layer: int) -> int:
        layer = require_index("layer", layer)
        if not 0 <= layer < self.layers:
            raise PoolError(f"layer must lie in [0, {self.layers}): got {layer}")
        return layer

    def _require_rows(self, rows: PhysicalRows) -> None:
        self._require_here()
        require_own_rows(rows, self.row_rank, self.row_layout, self._resolved_at)

    @property
    def _resolved_at(self) -> int | None:
        return None

    def _require_here(self) -> None:
        require_rank_here(type(self).__name__, self.layout.dcp_size, self.rank)

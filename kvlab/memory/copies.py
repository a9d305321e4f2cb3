"""What a pool does with the host: back up a run of rows, restore it, and order writes around both.

Whoever writes rows calls ``before_write`` first, whoever reads them ``before_read``. The pool's own
methods do; code that takes ``pool.buffer`` itself has to. While a backup is in flight its rows are
still being read: written over too early, they would come back as another request's.
"""

from typing import ClassVar

import torch
from torch import Tensor

from kvlab.errors import HostFullError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
from kvlab.memory.backup import KvBackup
from kvlab.memory.fits import require_fits, require_same_rows
from kvlab.memory.flight import Flight
from kvlab.memory.found import Found, localize_unwaited
from kvlab.memory.host import HostArena
from kvlab.memory.lanes import Lane


class HostCopies:
    """The part of a pool that copies from and to the host; ``MLATokenToKVPool`` is the rest."""

    space: ClassVar[str]
    layout: DcpLayout
    rank: int
    buffer: Tensor
    host: HostArena
    lane: Lane

    @property
    def row_layout(self) -> DcpLayout:
        """The layout by which slots become rows of this pool."""
        raise NotImplementedError

    @property
    def row_rank(self) -> int:
        """The rank that rows of this pool carry."""
        raise NotImplementedError

    @property
    def row_format(self) -> str:
        """What the bytes of a row mean."""
        raise NotImplementedError

    def resolve(self, slots: WidenedSlots) -> PhysicalRows:
        """This rank's rows of a run of slots, on the device of the pool."""
        raise NotImplementedError

    def locate(self, slots: WidenedSlots) -> PhysicalRows:
        """As ``resolve``, but the rows stay where the slots are. Errors: as ``resolve``."""
        raise NotImplementedError

    def before_write(self) -> None:
        """Order what the caller's stream does next after the copies that still need the rows as
        they are. The host does not wait. For code that writes ``buffer`` itself, and before each
        replay of a CUDA graph that holds writes to the pool. Errors: PoolError during a capture
        with a copy in flight."""
        self.lane.before_write()

    def before_read(self) -> None:
        """Order what the caller's stream does next after the restores in flight. The host does not
        wait. For code that reads ``buffer`` itself, and before each replay of a graph that does.
        Errors: as ``before_write``."""
        self.lane.before_read()

    def get_cpu_copy(self, slots: WidenedSlots | PhysicalRows, wait: bool = True) -> KvBackup:
        """Back up a run: localize once, then copy all layers in one pass.

        The pool is not changed. With ``wait=False`` the backup is in flight when it is returned
        (``backup.wait()``, ``backup.done``), on a lane that runs beside the caller; later writes to
        the pool wait for its rows by themselves. Slots on the pool's device are then looked at when
        the copy lands, and must agree with their positions about the owner.

        Errors: IndexSpaceError for ids of another space, HostFullError when the host arena is full
        (nothing was taken); with ``wait=False`` IndexSpaceError for the values of ids only from
        ``backup.wait()``.
        """
        if wait:
            self._require_writes()
        rows, found = self._rows_to_read(slots, wait)
        layers, _, elements = self.buffer.shape
        size = layers * len(rows) * elements * self.buffer.element_size()
        arena = self.host
        block = arena.take(size)
        if block is None:
            powers = " and powers of two" if arena.pinned else ""
            raise HostFullError(
                f"a backup must fit the host arena: {size} bytes for {rows.positions} positions of "
                f"rank {self.rank}, in blocks of {arena.grain}{powers}; {arena.lent_bytes} of "
                f"{arena.capacity_bytes} bytes are lent; restore or discard backups, or raise "
                f"capacity_bytes; nothing was changed"
            )
        page_size = self.row_layout.page_size
        try:
            with torch.inference_mode(False):  # bytes may move into it outside of that mode
                kv = block[:size].view(self.buffer.dtype).view(layers, len(rows), elements)
            flight = self.lane.back_up(self.buffer, rows.ids, kv, page_size, found)
        except BaseException:
            arena.give(block)
            raise
        backup = KvBackup(
            layout=self.layout,
            rank=self.rank,
            space=self.space,
            row_format=self.row_format,
            start=rows.start,
            positions=rows.positions,
            source=rows.source,
            kv=kv,
            page_size=page_size,
            _arena=arena,
            _block=block,
            _flights=[flight],
        )
        try:
            if wait:
                backup.wait()
        except BaseException:
            if not backup.spent:  # an interrupt: nobody has the backup
                backup.discard()
            raise
        return backup

    def load_cpu_copy(
        self, backup: KvBackup, slots: WidenedSlots | PhysicalRows, wait: bool = True
    ) -> None:
        """Restore a backup into newly allocated slots of the same positions; consumes it.

        The new slots are localized by themselves: nothing of the old ones is used. Everything is
        checked before the first byte is written; but on a staged lane the checksum while it is
        written, and the new rows then hold what must not be read. With ``wait=False`` the restore
        is in flight when this returns: ``backup.wait()`` says how it ended. Reads through the pool
        wait for it by themselves.

        Errors: BackupError for a spent or changed backup, another layout, rank, row format or
        position range, rows of the padding page, or a state that this pool cannot restore;
        IndexSpaceError as ``get_cpu_copy``.
        """
        backup.begin_restore(self.write_rows(backup, self.check_load(backup, slots)))
        if wait:
            backup.wait()

    def write_rows(self, backup: KvBackup, rows: PhysicalRows) -> Flight:
        """Write a backup to rows that ``check_load`` gave, without consuming it; the flight says
        when it has ended, and how."""
        page_size, ids = self.row_layout.page_size, rows.ids
        if ids.device != self.buffer.device:  # from pinned memory the host need not wait
            ids = ids.pin_memory().to(self.buffer.device, non_blocking=True)
        return self.lane.restore(self.buffer, ids, backup.kv, page_size, backup.checksum)

    def check_load(self, backup: KvBackup, slots: WidenedSlots | PhysicalRows) -> PhysicalRows:
        """The rows to write, once nothing stands against ``load_cpu_copy``; writes nothing. Ids on
        a device are fetched once, and looked through on the host."""
        self._require_writes()
        rows = self._rows_of(_on_host(slots))
        require_fits(
            backup,
            rows,
            layout=self.layout,
            rank=self.rank,
            space=self.space,
            row_format=self.row_format,
        )
        require_same_rows(backup, rows, self.buffer, self.row_layout.first_row)
        if self.lane.verifies_first:
            backup.verify()
        else:
            backup.wait()
        return rows

    def _rows_of(self, slots: WidenedSlots | PhysicalRows) -> PhysicalRows:
        """The rows that a backup or restore names, localized here or already, where they are."""
        if isinstance(slots, PhysicalRows):
            self._require_rows(slots)
            return slots
        return self.locate(slots)

    def _rows_to_read(
        self, slots: WidenedSlots | PhysicalRows, wait: bool
    ) -> tuple[PhysicalRows, Found | None]:
        """Where the ids lie on the device and nobody wants to wait, they are looked at later."""
        given: object = slots
        if (
            wait
            or self.lane.verifies_first
            or not isinstance(given, WidenedSlots)
            or given.ids.device != self.buffer.device
        ):
            return self._rows_of(slots).to(self.buffer.device), None
        return self._rows_unwaited(given)

    def _rows_unwaited(self, slots: WidenedSlots) -> tuple[PhysicalRows, Found | None]:
        self._require_here()
        return localize_unwaited(slots, self.row_layout, self.row_rank)

    def _require_rows(self, rows: PhysicalRows) -> None:
        raise NotImplementedError

    def _require_writes(self) -> None:
        raise NotImplementedError

    def _require_here(self) -> None:
        raise NotImplementedError


def _on_host(slots: WidenedSlots | PhysicalRows) -> WidenedSlots | PhysicalRows:
    """The same ids on the host, where to look at them costs no wait."""
    given: object = slots
    if isinstance(given, PhysicalRows):
        return given.to(torch.device("cpu"))
    if isinstance(given, WidenedSlots) and given.ids.device.type != "cpu":
        return WidenedSlots(given.ids.cpu(), given.start)
    return slots

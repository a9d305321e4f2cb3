"""The host copy of a retracted request's KV on one rank: made once, restored once.

A backup remembers how it was made (layout, rank, space, first position, count), so that it can
refuse every place it does not belong to *before* a byte is written.
"""

from dataclasses import dataclass, field

from torch import Tensor

from kvlab.errors import BackupError
from kvlab.index import DcpLayout
from kvlab.memory.flight import Flight
from kvlab.memory.host import HostArena
from kvlab.memory.rows import checksum
from kvlab.memory.shown import backup_html, backup_state

_DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StateBackup:
    """Recurrent state of one request on the host: ``conv`` and ``temporal``, all layers.

    ``checksum`` is that of the two parts when the backup was made.
    """

    conv: Tensor
    temporal: Tensor
    checksum: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "checksum", self._sum())

    def verify(self) -> None:
        """Errors: BackupError when a part no longer has the checksum it was made with."""
        if self._sum() != self.checksum:
            raise BackupError(
                f"the host copy of a state changed since it was made: checksum {self._sum()}, "
                f"expected {self.checksum}; do not restore it: recompute the request"
            )

    def __repr__(self) -> str:
        conv, temporal = tuple(self.conv.shape), tuple(self.temporal.shape)
        return f"StateBackup(conv {conv}, temporal {temporal}, checksum={self.checksum!r})"

    def _sum(self) -> str:
        parts = (self.conv, self.temporal)
        # An empty layer axis has no element to view; the shape still counts.
        flat = (p.contiguous().view(len(p), 1, -1) for p in parts if p.numel())
        return "-".join(checksum(part, 1) for part in flat)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KvBackup:
    """Rows of one rank for positions ``start .. start+positions-1``.

    Fields: ``layout`` and ``rank`` of the pool; ``space`` ("sharded", "replicated", "resolved");
    ``row_format``: what the bytes of a row mean; ``rows`` this rank holds of the positions, and in
    ``source`` int64 ``(rows,)`` which of them, counted from ``start``; ``kv`` ``(layers, rows,
    elements)`` on the host, in the pool's storage dtype; ``checksum`` of kv, taken in blocks of
    ``page_size``; ``state`` of a hybrid pool.

    Made with ``wait=False`` it is *in flight*: its bytes are on their way, and ``kv`` holds them
    after ``wait()``. Everything else here that needs them waits by itself.
    """

    layout: DcpLayout
    rank: int
    space: str
    row_format: str
    start: int
    positions: int
    source: Tensor
    kv: Tensor
    page_size: int
    state: StateBackup | None = None
    # Shared by the copies that dataclasses.replace makes: there is one block and one host copy.
    _arena: HostArena | None = None
    _block: Tensor | None = None
    _spent: list[str] = field(default_factory=list)
    _flights: list[Flight] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of this rank that the backup holds."""
        return int(self.kv.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of KV on the host (state not counted)."""
        return self.kv.numel() * self.kv.element_size()

    @property
    def checksum(self) -> str:
        """Of the bytes that were backed up; waits for them. Errors: as ``wait``."""
        self._wait_made()
        return self._flights[0].wait()

    @property
    def spent(self) -> bool:
        """Whether it was restored, discarded or lost; its host memory may hold another backup."""
        return bool(self._spent)

    @property
    def done(self) -> bool:
        """Whether no copy from or to the host memory is in flight. Never waits."""
        return all(flight.done for flight in self._flights)

    def wait(self) -> None:
        """Wait until nothing of it is in flight: the backup, and its restore if one was begun.

        Waits for these copies alone, and can be called again. A restore that ends well consumes
        the backup. Errors: what the copy met: IndexSpaceError for ids that were no run of this
        layout (the backup is lost, its host memory given back), BackupError for restored bytes of
        another checksum (the backup can be discarded); BackupError for a discarded one.
        """
        if self._spent == [_DISCARDED]:
            self.require_unspent()
        self._wait_made()
        if len(self._flights) > 1:
            try:
                self._flights[1].wait()
            except Exception:
                self._flights.pop()
                raise
            if not self._spent:
                self.close("restored")

    def settle(self) -> bool:
        """Consume the backup if its restore has ended well; True when nothing is awaited of it.

        Never waits and never raises: a restore that failed stays for ``wait``.
        """
        if self._spent or len(self._flights) == 1:
            return True
        restore = self._flights[1]
        if restore.done:
            restore.settle()
            if restore.error is None:
                self.close("restored")
        return self.spent

    @property
    def failed(self) -> bool:
        """Whether its restore met an error that nobody has waited for yet."""
        return any(flight.error is not None for flight in self._flights[1:])

    def begin_restore(self, flight: Flight) -> None:
        """Take note that its bytes are being written (for the pool that does so). While that is
        in flight the arena asks now and then whether the block comes back."""
        self._flights.append(flight)
        if not self.settle() and self._arena is not None:
            self._arena.expect(self)

    def require_unspent(self) -> None:
        """Errors: BackupError when the backup was restored, discarded or lost before."""
        if self._spent:
            raise BackupError(
                f"a backup is consumed once: this one ({self.positions} positions of rank "
                f"{self.rank}) was {self._spent[0]}; back the request up again"
            )

    def require_here(self) -> None:
        """Errors: BackupError when the backup is spent, or its restore in flight."""
        self.require_unspent()
        if len(self._flights) > 1:
            raise BackupError(
                f"a backup is restored once at a time: a restore of this one ({self.positions} "
                f"positions of rank {self.rank}) is in flight; call wait() first"
            )

    def verify(self) -> None:
        """Errors: BackupError when the host copy no longer has the checksum it was made with."""
        self.require_unspent()
        self._wait_made()
        found = checksum(self.kv, self.page_size)
        if found != self.checksum:
            raise BackupError(
                f"the host copy changed since it was made: checksum {found}, expected "
                f"{self.checksum} ({self.rows} rows of rank {self.rank}); do not restore it: "
                f"recompute the request"
            )

    def discard(self) -> None:
        """Give the host memory back without restoring, once nothing is in flight (waits for that).

        Errors: BackupError when spent."""
        self.require_unspent()
        self.close(_DISCARDED)

    def close(self, why: str) -> None:
        """Mark as spent and give the host memory back (for the pool that restored it).

        Not before the copies have ended: the block's next owner would find their bytes in it."""
        for flight in self._flights:
            flight.ended.wait()
        self._spent.append(why)
        if self._arena is not None and self._block is not None:
            self._arena.give(self._block)

    def _wait_made(self) -> None:
        try:
            self._flights[0].wait()
        except Exception:
            if not self._spent:
                self.close("lost on its way to the host")
            raise

    def __repr__(self) -> str:
        known = self._flights[0].checksum if self._flights else None
        return (
            f"KvBackup(layout={self.layout}, rank={self.rank}, space={self.space!r}, "
            f"row_format={self.row_format!r}, start={self.start}, positions={self.positions}, "
            f"checksum={'in flight' if known is None else known!r}, page_size={self.page_size})"
        )

    def _repr_html_(self) -> str:
        """Where it is, and what it holds, for a notebook cell. Never waits and never raises."""
        return backup_html(
            self.layout,
            self.rank,
            self.space,
            self.row_format,
            (self.start, self.positions),
            self.source,
            self.kv,
            backup_state(self._spent, self._flights),
            self._flights[0].checksum if self._flights else None,
            self.state is not None,
        )

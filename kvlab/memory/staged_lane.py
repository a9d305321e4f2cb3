"""The lane that runs beside the caller: its copies go by way of staging memory, on two streams.

A gather over all layers fills a piece of *staging* memory on the device, one contiguous copy takes
that piece to the host; a restore is the mirror image. A request that is larger than the staging
memory is cut, and staging into two halves: one is filled while the other is copied.

Worked example, staging for 4 rows, request of 3 layers x 3 rows = 9 flat rows, layer after layer:
halves of 2 rows, pieces [0, 2) [2, 4) [4, 6) [6, 8) [8, 9); the third piece waits until the first
has been copied out of its half.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import ClassVar

import torch
from torch import Tensor

from kvlab import ops
from kvlab.errors import BackupError, PoolError
from kvlab.index.layout import require_int
from kvlab.memory.flight import Flight
from kvlab.memory.found import Found
from kvlab.memory.staging import Job, as_rows, pieces
from kvlab.memory.streams import PAST, Event, Streams, order

#: Device memory that a staged lane takes unless told otherwise, bytes.
STAGING_BYTES = 64 * 2**20


class StagedLane:
    """Copies run on two streams beside the caller's, by way of ``staging_bytes`` of device memory.

    Rows move on the one stream, contiguous pieces on the other. Device memory on top of staging,
    while copies are in flight: 8 bytes a row of each (its ids; 16 while it is queued), 8 bytes for
    each layer and block of 4096 rows (its sums), and a flag; an allocator rounds each of them up.
    One lane may serve several pools of one device; its copies then take turns, and writes to one
    pool wait for the others' too. Copies may be queued from several threads, each backup waited for
    by one. ``backend``: of ``kvlab.ops``.

    Errors: LayoutError for a staging size below 1; from ``require_pool`` BackupError for one below
    a row of the pool, PoolError for a pool on another device; of the hooks see ``streams.order``.
    """

    verifies_first: ClassVar[bool] = False

    def __init__(
        self,
        streams: Streams,
        device: str | torch.device,
        staging_bytes: int = STAGING_BYTES,
        backend: ops.Backend | None = None,
    ) -> None:
        require_int("staging_bytes", staging_bytes, 1, "bytes of device memory for staging")
        self.device, self.staging_bytes = torch.device(device), staging_bytes
        self._streams, self.backend = streams, backend
        self._rows, self._copies = streams.stream(), streams.stream()
        self._staging: Tensor | None = None
        self._flights: list[Flight] = []
        self._queue = RLock()  # one copy is queued whole before the next
        # The last use of rows for reading, for writing, and of staging.
        self._freed: Event = PAST
        self._written: Event = PAST
        self._staged: Event = PAST

    @property
    def allocated_bytes(self) -> int:
        """Bytes of staging memory that the lane holds: 0 before its first copy."""
        return 0 if self._staging is None else self._staging.numel()

    @property
    def in_flight(self) -> int:
        """Copies that have not ended."""
        self._flights = [flight for flight in self._flights if not flight.done]
        return len(self._flights)

    def require_pool(self, buffer: Tensor) -> None:
        """Errors: see the class."""
        if buffer.device != self.device:
            raise PoolError(
                f"a lane copies rows of its own device: the lane's is {self.device}, the pool's "
                f"{buffer.device}; make a lane for that device"
            )
        row = buffer.shape[2] * buffer.element_size()
        if row > self.staging_bytes:
            raise BackupError(
                f"staging memory must hold at least one row of one layer: got staging_bytes="
                f"{self.staging_bytes} for rows of {row} bytes; raise staging_bytes (a few MiB "
                f"keep the copy engine busy)"
            )

    def back_up(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, found: Found | None = None
    ) -> Flight:
        """Queue the copy and return; kernels that cannot be launched are errors of the flight."""
        with self._queued(Job(buffer, rows, kv, page_size, found, self.backend)) as job:
            ends: list[Event] = []
            for piece in pieces(kv, as_rows(self._staging, buffer)):
                if len(ends) >= piece.halves:
                    self._rows.after(ends[-piece.halves])
                self._rows.run(job.gather(piece))
                self._copies.after(self._rows.mark())
                self._copies.run(job.to_host(piece))
                ends.append(self._copies.mark())
            self._freed = self._rows.mark()
            self._copies.after(self._freed)
            self._copies.run(job.report())
            return self._end(Flight(self._freed, self._copies.mark(), job.checksum))

    def restore(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, checksum: str
    ) -> Flight:
        """Queue the copy and return. The bytes are summed as they are written."""
        with self._queued(Job(buffer, rows, kv, page_size, None, self.backend)) as job:
            ends: list[Event] = []
            for piece in pieces(kv, as_rows(self._staging, buffer)):
                if len(ends) >= piece.halves:
                    self._copies.after(ends[-piece.halves])
                self._copies.run(job.to_device(piece))
                self._rows.after(self._copies.mark())
                self._rows.run(job.scatter(piece))
                ends.append(self._rows.mark())
            self._freed = self._written = self._rows.mark()
            self._rows.run(job.report())
            return self._end(Flight(self._freed, self._rows.mark(), lambda: job.verified(checksum)))

    def before_write(self) -> None:
        """The caller's stream waits until all rows in flight have been read or written."""
        with self._queue:  # or a copy that another thread queues now would be forgotten
            self._freed = order(self._streams, self._freed)

    def before_read(self) -> None:
        """The caller's stream waits for the restores in flight."""
        with self._queue:
            self._written = order(self._streams, self._written)

    def audit(self) -> list[str]:
        """The broken law: staging memory stays within its parameter."""
        if self.allocated_bytes > self.staging_bytes:
            return [f"staging holds {self.allocated_bytes} bytes, bound {self.staging_bytes}"]
        return []

    @contextmanager
    def _queued(self, job: Job) -> Iterator[Job]:
        """Queue the works of a job. After an error in the middle, an interrupt too, none of them
        runs behind the back of who gets it: rows, staging and host memory are free again."""
        with self._queue, torch.inference_mode(False):
            try:
                self._begin(job)
                yield job
            except BaseException:
                job.give_up()
                for stream in (self._rows, self._copies):
                    stream.mark().wait()
                raise

    def _begin(self, job: Job) -> None:
        here = self._streams.caller().mark()
        self._rows.after(here)  # what the caller wrote is there, and its tensors are
        for used in job.device_tensors:
            for stream in (self._rows, self._copies):
                stream.keep(used)
        if self._staging is None:
            # Memory that the caller's stream may still use. Later restores need not wait for the
            # caller before their first bytes come from the host.
            staging = self._allocate(self.staging_bytes)
            self._copies.after(self._streams.caller().mark())
            for stream in (self._rows, self._copies):
                stream.keep(staging)
            self._staging = staging
        for stream in (self._rows, self._copies):
            stream.after(self._staged)  # the copy before this one is out of staging

    def _end(self, flight: Flight) -> Flight:
        self._staged = flight.ended
        # Kept until it has ended, whoever drops the backup: streams still use its tensors.
        self._flights = [*(f for f in self._flights if not f.done), flight]
        return flight

    def _allocate(self, nbytes: int) -> Tensor:
        """All the staging memory there is comes from here."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

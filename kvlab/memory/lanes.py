"""Lanes: where the copies between a pool and the host run.

``ImmediateLane``: on the caller's thread, one pass, each block summed while it is in the cache.
``StagedLane``: beside the caller. A gather over all layers fills a piece of *staging* memory on
the device, one contiguous copy takes that piece to the host; a restore is the mirror image. A
request that is larger than the staging memory is cut, and staging into two halves: one is filled
while the other is copied. ``CudaLane`` runs it on two side streams, ``DeferredLane`` on streams of
the CPU that run as late (or in as odd an order) as the events between them allow.

Worked example, staging for 4 rows, request of 3 layers x 3 rows = 9 flat rows, layer after layer:
halves of 2 rows, pieces [0, 2) [2, 4) [4, 6) [6, 8) [8, 9); the third piece waits until the first
has been copied out of its half.
"""

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from kvlab import ops
from kvlab.errors import BackupError, PoolError
from kvlab.index.layout import require_int
from kvlab.memory.flight import Flight, landed
from kvlab.memory.found import Found
from kvlab.memory.rows import gather_rows, scatter_rows
from kvlab.memory.staging import Job, pieces
from kvlab.memory.streams import PAST, CpuStreams, CudaStreams, DeferredStreams, Event, Streams

#: Device memory that a staged lane takes unless told otherwise, bytes.
STAGING_BYTES = 64 * 2**20


class Lane(Protocol):
    """The contract of a lane. A pool calls it with rows that it has checked."""

    #: Whether a host copy is verified before a byte of it is written; else while it is written.
    verifies_first: ClassVar[bool]

    def require_pool(self, buffer: Tensor) -> None:
        """Raise PoolError or BackupError for a pool whose rows this lane cannot copy."""

    def back_up(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, found: Found | None = None
    ) -> Flight:
        """Copy ``buffer[:, rows]`` to ``kv`` ``(layers, m, e)`` on the host. ``found``: the flag
        of rows that were localized without a wait, looked at when the copy lands."""

    def restore(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, checksum: str
    ) -> Flight:
        """Copy ``kv`` to ``buffer[:, rows]``; bytes of another checksum are an error of the
        flight where the lane does not verify first."""

    def before_write(self) -> None:
        """What the caller's stream does next may overwrite any row. The host does not wait."""

    def before_read(self) -> None:
        """What the caller's stream does next may read any row. The host does not wait."""

    def audit(self) -> list[str]:
        """The broken laws."""


class ImmediateLane:
    """Copies run when they are asked for: all flights have landed."""

    verifies_first: ClassVar[bool] = True

    def require_pool(self, buffer: Tensor) -> None:
        """Any pool will do; on a GPU the host waits for the device."""

    def back_up(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, found: Found | None = None
    ) -> Flight:
        """One pass over all layers; cost: ``rows.gather_rows``."""
        if found is not None:
            found.require(found.read())
        return landed(gather_rows(buffer, rows, kv, page_size))

    def restore(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, checksum: str
    ) -> Flight:
        """One pass; the caller has verified the copy."""
        scatter_rows(buffer, rows, kv, page_size)
        return landed(checksum)

    def before_write(self) -> None:
        """Nothing is in flight."""

    def before_read(self) -> None:
        """Nothing is in flight."""

    def audit(self) -> list[str]:
        """Nothing can be broken."""
        return []


class StagedLane:
    """Copies run on two streams beside the caller's, by way of ``staging_bytes`` of device memory.

    Rows move on the one stream, contiguous pieces on the other. Device memory on top of staging,
    while copies are in flight: 8 bytes a row of each (its ids) and 8 bytes for each layer and
    block of 4096 rows (its sums). One lane may serve several pools of one device; its copies then
    take turns, and writes to one pool wait for the others' too. ``backend``: of ``kvlab.ops``.

    Errors: LayoutError for a staging size below 1; from ``require_pool`` BackupError for one below
    a row of the pool, PoolError for a pool on another device.
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
        job = self._begin(buffer, rows, kv, page_size, found)
        ends: list[Event] = []
        for piece in pieces(kv, self._stage(buffer)):
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
        job = self._begin(buffer, rows, kv, page_size)
        ends: list[Event] = []
        for piece in pieces(kv, self._stage(buffer)):
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
        self._freed = self._order(self._freed)

    def before_read(self) -> None:
        """The caller's stream waits for the restores in flight."""
        self._written = self._order(self._written)

    def audit(self) -> list[str]:
        """The broken law: staging memory stays within its parameter."""
        if self.allocated_bytes > self.staging_bytes:
            return [f"staging holds {self.allocated_bytes} bytes, bound {self.staging_bytes}"]
        return []

    def _begin(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, found: Found | None = None
    ) -> Job:
        # A copy of the ids: the caller's table may be another request's before they are read.
        job = Job(buffer, rows.clone(), kv, page_size, found, self.backend)
        here = self._streams.caller().mark()
        self._rows.after(here)  # what the caller wrote is there, and its tensors are
        if self._staging is None:
            # Memory that the caller's stream may still use. Later restores need not wait for the
            # caller before their first bytes come from the host.
            self._staging = self._allocate(self.staging_bytes)
            self._copies.after(self._streams.caller().mark())
        for stream in (self._rows, self._copies):
            stream.after(self._staged)  # the copy before this one is out of staging
        self._rows.run(job.prepare())
        return job

    def _order(self, event: Event) -> Event:
        """Order the caller's stream after the event; afterwards what is left to order after."""
        if event is not PAST:
            self._streams.caller().after(event)
        # What has run is forgotten: a CUDA graph that is captured later must not ask for it.
        return PAST if event.done else event

    def _end(self, flight: Flight) -> Flight:
        self._staged = flight.ended
        # Kept until it has ended, whoever drops the backup: streams still use its tensors.
        self._flights = [*(f for f in self._flights if not f.done), flight]
        return flight

    def _stage(self, buffer: Tensor) -> Tensor:
        """Staging as rows of the buffer's dtype, ``(s, e)``."""
        assert self._staging is not None
        row = buffer.shape[2] * buffer.element_size()
        whole = self.staging_bytes // row * row
        return self._staging[:whole].view(buffer.dtype).view(-1, buffer.shape[2])

    def _allocate(self, nbytes: int) -> Tensor:
        """All the staging memory there is comes from here."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)


class CudaLane(StagedLane):
    """A staged lane on two side streams of a CUDA device. Give the pool a pinned arena: copies
    from and to other host memory make the host wait.

    Errors: as ``StagedLane``; PoolError for a device that is not CUDA.
    """

    def __init__(self, device: str | torch.device, staging_bytes: int = STAGING_BYTES) -> None:
        device = torch.device(device)
        if device.type != "cuda":
            raise PoolError(
                f"a CudaLane is for a CUDA device: got {device}; use ImmediateLane() on the CPU, "
                f"or DeferredLane() to test orders there"
            )
        number: int | None = device.index
        if number is None:  # a buffer's device has its number
            device = torch.device("cuda", torch.cuda.current_device())
        super().__init__(CudaStreams(device), device, staging_bytes)


class DeferredLane(StagedLane):
    """A staged lane of the CPU that runs nothing before it is waited for: for tests of orders.

    Args:
        seed: see ``DeferredStreams``.
        staging_bytes, backend: as ``StagedLane``.
    """

    def __init__(
        self,
        seed: int | None = None,
        staging_bytes: int = STAGING_BYTES,
        backend: ops.Backend | None = None,
    ) -> None:
        super().__init__(DeferredStreams(seed), "cpu", staging_bytes, backend)


def default_lane(device: torch.device) -> Lane:
    """The lane of a pool on this device that is given none."""
    return CudaLane(device) if device.type == "cuda" else ImmediateLane()


def staged_on_cpu(staging_bytes: int = STAGING_BYTES) -> StagedLane:
    """A staged lane of the CPU that runs everything at once: the arithmetic without the orders."""
    return StagedLane(CpuStreams(), "cpu", staging_bytes)

"""Copies between a pool and the host: at once, or beside the caller on streams of their own.

``HostTransfer`` copies on the caller's thread, in one pass. ``StagedTransfer`` copies beside it: a
gather over all layers fills a piece of *staging* memory on the device, and one contiguous copy
takes that piece to the host; a restore is the mirror image. A request that is larger than staging
is cut, and staging into two halves: one is filled while the other is copied.

Worked example, staging for 4 rows, request of 3 layers x 3 rows = 9 flat rows (see ``ops.rows``):
halves of 2 rows, pieces [0, 2) [2, 4) [4, 6) [6, 8) [8, 9); the third piece waits until the first
has been copied out of its half.

A stream runs what it is given in that order; two streams run side by side, but for the events that
one waits for. The *caller's stream* is the one on which the pool is written and read.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvlab import ops
from kvlab.errors import BackupError, PoolError
from kvlab.index.layout import require_int

#: Device memory that a staged transfer takes unless told otherwise, bytes.
STAGING_BYTES = 64 * 2**20

Work = Callable[[], None]


class CudaStreams:
    """Streams of one CUDA device, and the only place of this layer that runs works on them.

    Tests put other streams in its place; of a stream they need ``record_event`` and ``wait_event``,
    of an event ``query`` and ``synchronize``.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def caller(self) -> Any:
        """The stream on which the pool is written and read: torch's current one."""
        return torch.cuda.current_stream(self.device)

    def stream(self) -> Any:
        """A new stream beside it."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def run(self, stream: Any, work: Work) -> None:
        """Add a work to the stream."""
        with torch.cuda.stream(stream):
            work()

    def keep(self, stream: Any, tensor: Tensor) -> None:
        """The works of the stream use this tensor: its memory is nobody else's before what was
        added until now has run, whoever drops it."""
        tensor.record_stream(stream)


@dataclass(slots=True, eq=False)
class PendingCopy:
    """One copy between a pool and the host: in flight, landed, or lost.

    After the event ``ended`` (None: there is none to wait for) ``land`` returns the sums of the
    copy, or raises what went wrong; called again, after an interrupt, it does the same. Without
    ``land`` it has landed, and the host memory may be used by others.
    """

    sums: Tensor | None = None
    ended: Any = None
    land: Callable[[], Tensor] | None = field(default=None, repr=False)
    error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether all bytes have moved. Never waits."""
        return self.land is None or (self.ended is not None and bool(self.ended.query()))

    def settle(self) -> None:
        """Wait until the bytes have moved. What went wrong is kept for ``wait``."""
        if self.land is None:
            return
        if self.ended is not None:
            self.ended.synchronize()
        try:
            self.sums = self.land()
        except Exception as error:
            self.error = error
        # Last: after an interrupt it lands once more, to the same end.
        self.land = None

    def wait(self) -> Tensor:
        """The sums of the bytes, once they have moved. Errors: what went wrong, every time."""
        if self.land is not None:
            self.settle()
        if self.error is not None:
            raise self.error
        assert self.sums is not None
        return self.sums


class HostTransfer:
    """Copies on the caller's thread, at once. The contract of all transfers: a pool calls them
    with rows and host copies that it has checked."""

    def require_pool(self, buffer: Tensor) -> None:
        """Errors: PoolError for a pool whose rows this transfer cannot copy."""
        if buffer.device.type != "cpu":
            raise PoolError(
                f"a HostTransfer copies rows of the CPU: got a pool on {buffer.device}; leave "
                f"transfer out, or use a StagedTransfer of that device"
            )

    def back_up(self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int) -> PendingCopy:
        """Copy ``buffer[:, rows]`` to ``kv`` ``(layers, m, e)`` on the host."""
        blocks, flat = ops.summed_rows(page_size), kv.view(-1, kv.shape[2])
        sums = no_sums(kv, blocks)
        ops.gather_rows(buffer, rows, flat, sums=sums, block_rows=blocks, page_size=page_size)
        return PendingCopy(sums)

    def restore(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, want: Tensor
    ) -> PendingCopy:
        """Copy ``kv`` to ``buffer[:, rows]``. The bytes are summed as they are written: sums other
        than ``want`` are an error, here or of the pending copy."""
        blocks, flat = ops.summed_rows(page_size), kv.view(-1, kv.shape[2])
        sums = no_sums(kv, blocks)
        ops.scatter_rows(buffer, rows, flat, sums=sums, block_rows=blocks, page_size=page_size)
        return PendingCopy(verified(sums, want, kv))

    def before_write(self) -> None:
        """What the caller's stream does next may overwrite any row. The host does not wait."""

    def audit(self) -> list[str]:
        """The broken laws."""
        return []


class StagedTransfer(HostTransfer):
    """Copies on two streams beside the caller's, by way of ``staging_bytes`` of device memory.

    Rows move on the one stream, contiguous pieces on the other. Device memory on top of staging,
    while copies are in flight: 8 bytes a row of each (its ids), and 8 bytes for each layer and
    block of rows (its sums). One transfer may serve several pools of one device; its copies then
    take turns, and writes to one pool wait for the others' too. Give a CUDA pool a pinned arena:
    copies from and to other host memory make the host wait.

    Errors: LayoutError for a staging size below 1; from ``require_pool`` BackupError for one below
    a row of the pool, PoolError for a pool on another device.
    """

    def __init__(
        self, streams: CudaStreams, device: torch.device, staging_bytes: int = STAGING_BYTES
    ) -> None:
        require_int("staging_bytes", staging_bytes, 1, "bytes of device memory for staging")
        self.device, self.staging_bytes, self._streams = device, staging_bytes, streams
        self._rows, self._copies = streams.stream(), streams.stream()
        self._staging: Tensor | None = None
        self._pending: list[PendingCopy] = []
        # The last use of rows, and of staging.
        self._freed: Any = None
        self._staged: Any = None

    @property
    def allocated_bytes(self) -> int:
        """Bytes of staging memory that are held: 0 before the first copy."""
        return 0 if self._staging is None else self._staging.numel()

    def require_pool(self, buffer: Tensor) -> None:
        """Errors: see the class."""
        if buffer.device != self.device:
            raise PoolError(
                f"a transfer copies rows of its own device: the transfer's is {self.device}, the "
                f"pool's {buffer.device}; make one for that device"
            )
        row = buffer.shape[2] * buffer.element_size()
        if row > self.staging_bytes:
            raise BackupError(
                f"staging memory must hold at least one row of one layer: got staging_bytes="
                f"{self.staging_bytes} for rows of {row} bytes; raise staging_bytes (a few MiB "
                f"keep the copy engine busy)"
            )

    def back_up(self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int) -> PendingCopy:
        """Queue the copy and return; kernels that cannot be launched are errors of the copy."""
        job = _Job(buffer, rows, kv, page_size)
        with self._queued(job):
            self._queue(job, self._rows, self._copies)
            self._freed = self._rows.record_event()
            self._copies.wait_event(self._freed)
            return self._end(job, self._copies, job.landed)

    def restore(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, want: Tensor
    ) -> PendingCopy:
        """Queue the copy and return; a copy with other sums than ``want`` lands with an error."""
        job = _Job(buffer, rows, kv, page_size, to_buffer=True)
        with self._queued(job):
            self._queue(job, self._copies, self._rows)
            self._freed = self._rows.record_event()
            return self._end(job, self._rows, lambda: verified(job.landed(), want, kv))

    def before_write(self) -> None:
        """The caller's stream waits until all rows in flight have been read or written."""
        if self._freed is not None:
            self._streams.caller().wait_event(self._freed)
            if self._freed.query():
                self._freed = None

    def audit(self) -> list[str]:
        """The broken law: staging memory stays within its parameter."""
        if self.allocated_bytes > self.staging_bytes:
            return [f"staging holds {self.allocated_bytes} bytes, bound {self.staging_bytes}"]
        return []

    def _queue(self, job: "_Job", first: Any, second: Any) -> None:
        """Each piece fills staging on stream ``first`` and leaves it on ``second``."""
        assert self._staging is not None
        ends: list[Any] = []
        for begin, end, stage, halves in _pieces(job.kv, self._staging):
            if len(ends) >= halves:
                first.wait_event(ends[-halves])
            fill, empty = job.works(begin, end, stage)
            self._streams.run(first, fill)
            second.wait_event(first.record_event())
            self._streams.run(second, empty)
            ends.append(second.record_event())

    @contextmanager
    def _queued(self, job: "_Job") -> Iterator[None]:
        """Queue the works of a job. After an error in the middle, an interrupt too, none of them
        runs behind the back of who gets it: rows, staging and host memory are free again."""
        with torch.inference_mode(False):
            try:
                self._begin(job)
                yield
            except BaseException:
                job.give_up()
                for stream in (self._rows, self._copies):
                    stream.record_event().synchronize()
                raise

    def _begin(self, job: "_Job") -> None:
        sides = (self._rows, self._copies)
        self._rows.wait_event(self._streams.caller().record_event())  # what it wrote is there
        used = [job.buffer, job.rows, job.sums]
        if self._staging is None:
            # Memory that the caller's stream may still use. Later restores need not wait for the
            # caller before their first bytes come from the host.
            staging = torch.empty(self.staging_bytes, dtype=torch.uint8, device=self.device)
            self._copies.wait_event(self._streams.caller().record_event())
            used.append(staging)
        for stream in sides:
            for tensor in used:
                self._streams.keep(stream, tensor)
            if self._staged is not None:  # the copy before this one is out of staging
                stream.wait_event(self._staged)
        self._staging = used[3] if self._staging is None else self._staging

    def _end(self, job: "_Job", last: Any, land: Callable[[], Tensor]) -> PendingCopy:
        self._streams.run(last, job.guarded(job.report))
        copy = PendingCopy(None, last.record_event(), land)
        self._staged = copy.ended
        # Kept until it has ended, whoever drops the backup: streams still use its tensors.
        self._pending = [*(c for c in self._pending if not c.done), copy]
        return copy


def default_transfer(device: torch.device) -> HostTransfer:
    """What a pool on this device gets when it is given none: at once on a CPU, staged on CUDA."""
    if device.type != "cuda":
        return HostTransfer()
    number: int | None = device.index
    if number is None:  # a buffer's device has its number
        device = torch.device("cuda", torch.cuda.current_device())
    return StagedTransfer(CudaStreams(device), device)


def checksum_of(sums: Tensor, kv: Tensor) -> str:
    """The checksum of a copy ``kv`` from its sums: 32 hexadecimal digits."""
    values, shape = sums.numpy().tobytes(), f"{tuple(kv.shape)}{kv.dtype}".encode()
    return hashlib.blake2b(values + shape, digest_size=16).hexdigest()


@dataclass(slots=True, eq=False)
class _Job:
    """One staged copy. Its works raise nothing but interrupts: after the first that fails the
    others do nothing, and ``landed`` raises what it raised."""

    buffer: Tensor
    rows: Tensor
    kv: Tensor
    page_size: int
    to_buffer: bool = False
    error: Exception | None = None
    sums: Tensor = field(init=False)
    _told: Tensor = field(init=False)

    def __post_init__(self) -> None:
        device = self.buffer.device
        with torch.inference_mode(False):  # the works run outside of it
            # A copy of the ids: the caller's table may be another request's before they are read.
            # From pinned memory the host need not wait.
            own = self.rows.pin_memory() if device.type == "cuda" else self.rows.clone()
            self.rows = own.to(device, non_blocking=True)
            self.sums = no_sums(self.kv, ops.summed_rows(self.page_size), device)
            self._told = torch.empty(self.sums.shape, dtype=torch.int64, pin_memory=own.is_pinned())

    def works(self, begin: int, end: int, stage: Tensor) -> tuple[Work, Work]:
        """(into staging, out of it) for flat rows ``begin .. end-1``."""
        host, blocks = (
            self.kv.view(-1, self.kv.shape[2])[begin:end],
            ops.summed_rows(self.page_size),
        )
        options: dict[str, Any] = {"sums": self.sums, "block_rows": blocks}
        options["page_size"] = self.page_size
        place = (self.buffer, self.rows, stage, begin, end)
        if self.to_buffer:
            fill = self.guarded(lambda: _carry(stage, host))
            return fill, self.guarded(lambda: ops.scatter_rows(*place, **options))
        fill = self.guarded(lambda: ops.gather_rows(*place, **options))
        return fill, self.guarded(lambda: _carry(host, stage))

    def report(self) -> None:
        """The sums to the host: a few bytes, so that landing needs no stream."""
        _carry(self._told, self.sums)

    def give_up(self) -> None:
        """Works that have not run do nothing."""
        if self.error is None:
            self.error = RuntimeError("this copy was given up while it was queued")

    def landed(self) -> Tensor:
        """The sums of the bytes that moved, once they have. Errors: that of a work."""
        if self.error is not None:
            raise self.error
        return self._told

    def guarded(self, work: Work) -> Work:
        """The work, unless one before it failed."""

        def run() -> None:
            if self.error is not None:
                return
            try:
                # Tensors made in inference mode could not be written to outside of it.
                with torch.inference_mode(False):
                    work()
            except Exception as error:
                self.error = error
            except BaseException:  # an interrupt: for the caller, but no later work may follow
                self.give_up()
                raise

        return run


def _carry(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _pieces(kv: Tensor, staging: Tensor) -> Iterator[tuple[int, int, Tensor, int]]:
    """What of ``kv`` ``(layers, m, e)`` fits staging: (begin, end) of flat rows, where they are
    staged ``(end - begin, e)``, and in how many parts staging was cut: one piece, or halves in
    turn, or (room for one row) row by row."""
    row = kv.shape[2] * kv.element_size()
    total, room = kv.shape[0] * kv.shape[1], len(staging) // row
    stages = staging[: room * row].view(kv.dtype).view(room, kv.shape[2])
    halves = 1 if total <= room or room == 1 else 2
    size = room // halves
    for number, begin in enumerate(range(0, total, size)):
        end, at = min(begin + size, total), number % halves * size
        yield begin, end, stages[at : at + end - begin], halves


def no_sums(kv: Tensor, block_rows: int, device: torch.device | None = None) -> Tensor:
    """Zeros for the sums of a copy, int64 ``(layers, blocks)`` (for a transfer)."""
    blocks = -(-kv.shape[1] // block_rows)
    return torch.zeros(kv.shape[0], blocks, dtype=torch.int64, device=device)


def verified(sums: Tensor, want: Tensor, kv: Tensor) -> Tensor:
    """The sums of a copy that was written. Errors: BackupError where they are not ``want``."""
    if not torch.equal(sums, want):
        raise BackupError(
            f"the host copy changed since it was made: checksum {checksum_of(sums, kv)}, expected "
            f"{checksum_of(want, kv)} ({kv.shape[1]} rows); it was written to the new rows, which "
            f"hold no request: free their slots, discard the backup, recompute the request"
        )
    return sums

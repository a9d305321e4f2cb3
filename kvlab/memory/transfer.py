"""Copies between a pool and the host beside the caller, on streams of their own.

A gather over all layers fills a piece of *staging* memory on the device, and one contiguous copy
takes that piece to the host; a restore is the mirror image. A request that is larger than staging
is cut, and staging into two halves: one is filled while the other is copied.

Worked example, staging for 4 rows, request of 3 layers x 3 rows = 9 flat rows (see ``ops.rows``):
halves of 2 rows, pieces [0, 2) [2, 4) [4, 6) [6, 8) [8, 9); the third piece waits until the first
has been copied out of its half.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvlab import ops
from kvlab.errors import BackupError, PoolError
from kvlab.index.layout import require_int
from kvlab.memory.backup import HostTransfer, PendingCopy, plan_copy, verified

#: Device memory that a staged transfer takes unless told otherwise, bytes.
STAGING_BYTES = 64 * 2**20

Work = Callable[[], object]


class CudaStreams:
    """Streams of one CUDA device, and the only place of this layer that runs works on them.

    Tests put other streams in its place: with ``record_event`` and ``wait_event``, and events with
    ``query`` and ``synchronize``.
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


class StagedTransfer(HostTransfer):
    """Copies on two streams beside the caller's, by way of ``staging_bytes`` of device memory.

    Rows move on the one stream, contiguous pieces on the other. On top of staging a copy in flight
    takes 8 bytes a row (its ids), and 8 for each layer and block of rows (its sums). One transfer
    may serve several pools of one device; its copies then take turns, and writes to one pool wait
    for the others' too. Give a CUDA pool a pinned arena: other host memory makes the host wait.
    """

    def __init__(self, streams: CudaStreams, staging_bytes: int = STAGING_BYTES) -> None:
        require_int("staging_bytes", staging_bytes, 1, "bytes of device memory for staging")
        self.device, self.staging_bytes, self._streams = streams.device, staging_bytes, streams
        self._rows, self._copies = streams.stream(), streams.stream()
        self._staging: Tensor | None = None
        self._pending: list[PendingCopy] = []
        # The last use of rows, and of staging.
        self._freed: Any = None
        self._staged: Any = None

    def require_pool(self, buffer: Tensor) -> None:
        """Errors: PoolError for a pool on another device, BackupError for rows above staging."""
        if buffer.device != self.device:
            raise PoolError(f"a transfer of {self.device} cannot copy rows of {buffer.device}")
        row = buffer.shape[2] * buffer.element_size()
        if row > self.staging_bytes:
            raise BackupError(
                f"staging memory must hold a row of one layer: got staging_bytes="
                f"{self.staging_bytes} for rows of {row} bytes; raise staging_bytes"
            )

    def before_write(self) -> None:
        """The caller's stream waits until all rows in flight have been read or written."""
        if self._freed is not None:
            self._streams.caller().wait_event(self._freed)
            if self._freed.query():
                self._freed = None

    def copy(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, want: Tensor | None = None
    ) -> PendingCopy:
        """Queue the copy and return. After an error in the middle, an interrupt too, no work of it
        runs behind the back of who gets it; an error of a work is one of the pending copy."""
        failed: list[Exception] = []  # works raise nothing but interrupts; after one, none runs

        def land() -> Tensor:
            if failed:
                raise failed[0]
            return told if want is None else verified(told, want, kv)

        try:
            with torch.inference_mode(False):  # what was made in it cannot be written to outside
                # A copy of the ids: the caller's table may be another request's before they are
                # read. From pinned memory the host need not wait.
                own = rows.pin_memory() if self.device.type == "cuda" else rows.clone()
                ids = own.to(self.device, non_blocking=True)
                sums, flat, options = plan_copy(kv, page_size, self.device)
                told = torch.empty(sums.shape, dtype=torch.int64, pin_memory=own.is_pinned())
                staging = self._begin([buffer, ids, sums])
                # Each piece fills staging on stream ``first`` and leaves it on ``second``.
                op: Callable[..., None] = ops.gather_rows
                first, second = self._rows, self._copies
                if want is not None:
                    op, first, second = ops.scatter_rows, self._copies, self._rows
                ends: list[Any] = []
                for begin, end, stage, halves in _pieces(flat, staging):
                    host = flat[begin:end]
                    move = partial(op, buffer, ids, stage, begin, end, sums=sums, **options)
                    fill: Work = move if want is None else _carry(stage, host)
                    empty: Work = _carry(host, stage) if want is None else move
                    if len(ends) >= halves:
                        first.wait_event(ends[-halves])
                    self._add(first, fill, failed)
                    second.wait_event(first.record_event())
                    self._add(second, empty, failed)
                    ends.append(second.record_event())
                self._freed = self._rows.record_event()
                second.wait_event(self._freed)
                # A few bytes more, so that landing needs no stream.
                self._add(second, _carry(told, sums), failed)
                copy = PendingCopy(None, second.record_event(), land)
                self._staged = copy.ended
        except BaseException:
            failed.append(RuntimeError("this copy was given up while it was queued"))
            for stream in (self._rows, self._copies):
                stream.record_event().synchronize()
            raise
        # Kept until it has ended, whoever drops the backup: streams still use its tensors.
        self._pending = [*(c for c in self._pending if not c.done), copy]
        return copy

    def _begin(self, used: list[Tensor]) -> Tensor:
        """Staging, once the copy before is out of it and what the caller wrote is there."""
        self._rows.wait_event(self._streams.caller().record_event())
        staging = self._staging
        if staging is None:
            # Memory that the caller's stream may still use. Later restores need not wait for the
            # caller before their first bytes come from the host.
            staging = torch.empty(self.staging_bytes, dtype=torch.uint8, device=self.device)
            self._copies.wait_event(self._streams.caller().record_event())
            used.append(staging)
        for stream in (self._rows, self._copies):
            for tensor in used:
                self._streams.keep(stream, tensor)
            if self._staged is not None:
                stream.wait_event(self._staged)
        self._staging = staging
        return staging

    def _add(self, stream: Any, work: Work, failed: list[Exception]) -> None:
        def run() -> None:
            if failed:
                return
            try:
                with torch.inference_mode(False):
                    work()
            except Exception as error:
                failed.append(error)
            except BaseException:  # an interrupt: for the caller, but no later work may follow
                failed.append(RuntimeError("this copy was given up while it ran"))
                raise

        self._streams.run(stream, run)


def default_transfer(device: torch.device) -> HostTransfer:
    """What a pool on this device gets when it is given none: at once on a CPU, staged on CUDA."""
    device = torch.empty(0, device=device).device  # with its number, as a buffer's
    return StagedTransfer(CudaStreams(device)) if device.type == "cuda" else HostTransfer()


def _carry(target: Tensor, source: Tensor) -> Work:
    return partial(target.copy_, source, non_blocking=True)


def _pieces(flat: Tensor, staging: Tensor) -> Iterator[tuple[int, int, Tensor, int]]:
    """What of ``flat`` ``(rows, e)`` fits staging: (begin, end), where it is staged, and in how
    many parts staging was cut: one piece, or halves in turn, or (room for one row) row by row."""
    total, row = len(flat), flat.shape[1] * flat.element_size()
    room = len(staging) // row
    stages = staging[: room * row].view(flat.dtype).view(room, flat.shape[1])
    halves = 1 if total <= room or room == 1 else 2
    size = room // halves
    for number, begin in enumerate(range(0, total, size)):
        end, at = min(begin + size, total), number % halves * size
        yield begin, end, stages[at : at + end - begin], halves

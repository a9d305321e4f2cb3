"""The works of one staged copy: its pieces, their sums, and what is looked at when it has landed.

Flat row f of a copy of m rows is row ``f % m`` of layer ``f // m``, so a piece may end in one layer
and begin in another; on the host flat rows lie one behind the other. The sums of the staged rows,
taken on the device, give the checksum that ``rows.checksum`` takes on the host.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab import ops
from kvlab.errors import BackupError
from kvlab.memory.found import Found
from kvlab.memory.rows import block_rows, digest
from kvlab.memory.streams import Work


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Flat rows ``begin .. end-1``, staged in ``stage`` ``(end-begin, e)``; ``halves``: 2 where
    staging was cut in two, else 1."""

    begin: int
    end: int
    stage: Tensor
    halves: int


def as_rows(staging: Tensor | None, buffer: Tensor) -> Tensor:
    """Staging memory, uint8, seen as rows of the buffer: ``(s, e)`` of its dtype."""
    assert staging is not None
    row = buffer.shape[2] * buffer.element_size()
    return staging[: len(staging) // row * row].view(buffer.dtype).view(-1, buffer.shape[2])


def pieces(kv: Tensor, staging: Tensor) -> Iterator[Piece]:
    """Cut ``kv`` ``(layers, m, e)`` into what fits ``staging`` ``(s, e)``, s >= 1: one piece, or
    halves in turn, or (s = 1) row by row."""
    total, room = kv.shape[0] * kv.shape[1], len(staging)
    halves = 1 if total <= room or room == 1 else 2
    size = room // halves
    for number, begin in enumerate(range(0, total, size)):
        end, at = min(begin + size, total), number % halves * size
        yield Piece(begin, end, staging[at : at + end - begin], halves)


@dataclass(slots=True, eq=False)
class Job:
    """One copy of ``rows`` of ``buffer`` from or to ``kv``; its works raise nothing but interrupts.

    Works run in the order in which a lane queues them. After the first that fails the others do
    nothing, and ``checksum`` raises what it raised.
    """

    buffer: Tensor
    rows: Tensor
    kv: Tensor
    page_size: int
    found: Found | None = None
    backend: ops.Backend | None = None
    error: Exception | None = None
    _sums: Tensor = field(init=False)
    _told: list[Tensor] = field(default_factory=list)
    _flat: Tensor = field(init=False)

    def __post_init__(self) -> None:
        blocks = -(-self.kv.shape[1] // block_rows(self.page_size))
        with torch.inference_mode(False):  # the works run outside of it
            self._flat = self.kv.view(-1, self.kv.shape[2])
            # A copy of the ids: the caller's table may be another request's before they are read.
            self.rows = self.rows.clone()
            self._sums = torch.zeros(
                self.kv.shape[0], blocks, dtype=torch.int64, device=self.buffer.device
            )

    @property
    def device_tensors(self) -> list[Tensor]:
        """What the works use on the device, staging apart; all of it is the caller's memory."""
        flag = [] if self.found is None else [self.found.flag_value]
        return [self.buffer, self.rows, self._sums, *flag]

    def gather(self, piece: Piece) -> Work:
        """Rows to staging, summed."""
        return self._guarded(lambda: self._move(ops.gather_rows, piece))

    def scatter(self, piece: Piece) -> Work:
        """Staging to rows, summed."""
        return self._guarded(lambda: self._move(ops.scatter_rows, piece))

    def _move(self, rows_op: Callable[..., None], piece: Piece) -> None:
        rows_op(
            self.buffer,
            self.rows,
            piece.stage,
            piece.begin,
            piece.end,
            sums=self._sums,
            block_rows=block_rows(self.page_size),
            page_size=self.page_size,
            backend=self.backend,
        )

    def to_host(self, piece: Piece) -> Work:
        """Staging to the host, one contiguous copy."""
        return self._guarded(
            lambda: _copy(self._flat[piece.begin : piece.end], piece.stage),
        )

    def to_device(self, piece: Piece) -> Work:
        """The host to staging, one contiguous copy."""
        return self._guarded(
            lambda: _copy(piece.stage, self._flat[piece.begin : piece.end]),
        )

    def report(self) -> Work:
        """Sums and flag to the host: a few bytes, so that landing needs no stream."""
        return self._guarded(self._report)

    def give_up(self) -> None:
        """Works that have not run do nothing."""
        if self.error is None:
            self.error = RuntimeError("this copy was given up while it was queued")

    def checksum(self) -> str:
        """Of the bytes that moved, once they have. Errors: that of a work, or what the flag of
        the rows tells."""
        if self.error is not None:
            raise self.error
        sums, *flag = self._told
        if self.found is not None:
            self.found.require(int(flag[0]))
        return digest(sums, self.kv)

    def verified(self, want: str) -> str:
        """The checksum of bytes that were written. Errors: BackupError for another one."""
        seen = self.checksum()
        if seen != want:
            raise BackupError(
                f"the host copy changed since it was made: checksum {seen}, expected {want} "
                f"({self.kv.shape[1]} rows); it was written to the new rows, which hold no "
                f"request: free their slots, discard the backup, recompute the request"
            )
        return seen

    def _report(self) -> None:
        told = [self._sums] + ([] if self.found is None else [self.found.flag_value])
        for device in told:
            pin = device.device.type == "cuda"
            host = torch.empty(device.shape, dtype=device.dtype, pin_memory=pin)
            _copy(host, device)
            self._told.append(host)

    def _guarded(self, work: Work) -> Work:
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


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)

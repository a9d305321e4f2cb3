"""Lanes: where the copies between a pool and the host run.

``ImmediateLane``: on the caller's thread, one pass, each block summed while it is in the cache.
``StagedLane``: beside the caller, by way of staging memory on the device. ``CudaLane`` runs it on
two side streams, ``DeferredLane`` on streams of the CPU that run as late (or in as odd an order)
as the events between them allow.

Worked example: a pool of the CPU has an ``ImmediateLane``, and its backups have ended when
``get_cpu_copy`` returns; with ``lane=DeferredLane()`` no byte moves before ``backup.wait()``.
"""

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from kvlab import ops
from kvlab.errors import PoolError
from kvlab.memory.flight import Flight, landed
from kvlab.memory.found import Found
from kvlab.memory.rows import gather_rows, scatter_rows
from kvlab.memory.staged_lane import STAGING_BYTES, StagedLane
from kvlab.memory.streams import CpuStreams, CudaStreams, DeferredStreams


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

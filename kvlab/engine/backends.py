"""What the rows of a decode node hold: fingerprints that betray a wrong row.

A node decides *which* slots; a ``CacheBackend`` decides *what* is in them. ``FingerprintCells``
write into each row its request and position, and overwrite freed rows, so a row that was not
restored, or restored to the wrong place, cannot pass for right by luck.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from kvlab.errors import PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import (
    HostArena,
    HostTransfer,
    KvBackup,
    MLATokenToKVPool,
    back_up_ranks,
    default_transfer,
    restore_ranks,
)

# A fingerprint is stored in float32, where integers are exact below this.
_EXACT = 2**24
_FREED = -1.0


class CacheBackend(Protocol):
    """The contract between the scheduler and what it schedules."""

    @property
    def layout(self) -> DcpLayout:
        """The two index spaces of the cells: the scheduler's own."""

    def write(self, rids: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Store the cache entry of each (request, position) in its slot; all int64 ``(n,)``."""

    def prefill_only(self, rid: int, tokens: int) -> None:
        """A request ends with the token that the prefill of its ``tokens`` positions samples: it
        never gets a slot here."""

    def back_up(self, rid: int, slots: WidenedSlots) -> list[KvBackup]:
        """Copy a request's cells to the host, one backup a rank. Errors: HostFullError when the
        host has no room; then it holds nothing of the request, whose cells are as they were."""

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        """Write a request's backups into newly allocated slots."""

    def release(self, rid: int, slots: WidenedSlots) -> None:
        """The slots are about to be freed."""

    def check(self, rid: int, slots: WidenedSlots) -> None:
        """Raise when a cell of the request is not what was written."""


def pools_of_ranks(
    layout: DcpLayout,
    host_bytes: int | None,
    device: str | torch.device,
    transfer: Callable[[], HostTransfer] | None = None,
    **shape: Any,
) -> list[MLATokenToKVPool]:
    """A small pool for each rank, each with a host arena of its own; one staging memory for all,
    unless ``transfer`` makes what copies a rank's rows from and to the host."""
    place = torch.device(device)
    shared = default_transfer(place)
    return [
        MLATokenToKVPool(
            layout,
            rank,
            device=place,
            # A row here is a few bytes: blocks need not be large.
            host=HostArena(host_bytes, pinned=place.type == "cuda", grain=4096),
            transfer=shared if transfer is None else transfer(),
            **shape,
        )
        for rank in range(layout.dcp_size)
    ]


class FingerprintCells:
    """The pools of all ranks of one layout; every row names its request and position.

    Args:
        layers: layers of the pools (each carries its own number in the fingerprint).
        host_bytes: host memory for the backups of each rank; None means no bound.
        transfer: makes what copies each rank's rows; None: the device's usual one, for all ranks.
        wait: whether a backup has ended when ``back_up`` returns.

    Errors: PoolError from ``check`` with the first wrong row: rank, row, found, expected.
    """

    def __init__(
        self,
        layout: DcpLayout,
        *,
        layers: int = 1,
        device: str | torch.device = "cpu",
        host_bytes: int | None = None,
        transfer: Callable[[], HostTransfer] | None = None,
        wait: bool = True,
    ) -> None:
        self.layout, self.wait = layout, wait
        rows = {"kv_lora_rank": 3, "qk_rope_head_dim": 1, "dtype": torch.float32}
        self.pools = pools_of_ranks(layout, host_bytes, device, transfer, layers=layers, **rows)

    def write(self, rids: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Store the fingerprints. Errors: PoolError for a number that float32 cannot hold."""
        for values in (rids, positions):
            if values.numel() and int(values.max()) + 1 >= _EXACT:
                raise PoolError(f"a fingerprint holds numbers below {_EXACT - 1}: {values.max()}")
        for pool in self.pools:
            for layer in range(pool.layers):
                row = _fingerprint(rids, positions, layer)
                pool.set_mla_kv_buffer(layer, slots, row, row[:, :1])

    def prefill_only(self, rid: int, tokens: int) -> None:
        """Nothing to mark: no row of this node is written."""

    def back_up(self, rid: int, slots: WidenedSlots) -> list[KvBackup]:
        """One backup a rank. If one fails, those made before it are discarded again."""
        return back_up_ranks(self.pools, slots, wait=self.wait)

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        """All ranks are checked before the first one writes; after an error it can be repeated."""
        restore_ranks(self.pools, backups, slots)

    def release(self, rid: int, slots: WidenedSlots) -> None:
        """Overwrite the rows, so that nothing can be read from them later."""
        for pool in self.pools:
            pool.fill(pool.resolve(slots), _FREED)

    def check(self, rid: int, slots: WidenedSlots) -> None:
        """Every position's row is on its owner and names this request and position."""
        seen = 0
        for pool in self.pools:
            rows = pool.resolve(slots)
            seen += len(rows)
            want = rows.source + slots.start
            for layer in range(pool.layers):
                found, tail = pool.get_mla_kv_buffer(layer, rows)
                expected = _fingerprint(torch.full_like(want, rid), want, layer)
                wrong = (found != expected).any(dim=1) | (tail != expected[:, :1]).any(dim=1)
                if bool(wrong.any()):
                    at = int(torch.nonzero(wrong)[0])
                    raise PoolError(
                        f"a row must hold what was written: rank {pool.rank}, layer {layer}, row "
                        f"{int(rows.ids[at])} holds (request, position, layer) = "
                        f"{(found[at] - 1).int().tolist()}, expected "
                        f"{(expected[at] - 1).int().tolist()}; {int(wrong.sum())} of "
                        f"{len(rows)} rows are wrong"
                    )
        if seen != len(slots):
            raise PoolError(f"the ranks hold {seen} of {len(slots)} positions, each once")

    def audit(self) -> list[str]:
        """The broken laws of the pools."""
        return [law for pool in self.pools for law in pool.audit()]


def _fingerprint(rids: Tensor, positions: Tensor, layer: int) -> Tensor:
    """float32 ``(n, 3)``: request, position, layer, each plus 1: a fresh pool is all zeros."""
    marks = torch.stack([rids, positions, torch.full_like(rids, layer)], dim=1)
    return (marks + 1).to(torch.float32)

"""Pools on lanes that run beside the caller, and what may not depend on the lane."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import strategies as st

from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import DeferredLane, KvBackup, MLATokenToKVPool, StagedLane
from kvlab.memory.lanes import staged_on_cpu

from .support import ids, make_pools, scramble

#: At once, as late as can be, and in two odd orders.
LANES: dict[str, Callable[[int], StagedLane]] = {
    "at once": staged_on_cpu,
    "late": lambda room: DeferredLane(None, room),
    "shuffled": lambda room: DeferredLane(1, room),
    "shuffled again": lambda room: DeferredLane(2, room),
}


def put_on(pools: Sequence[MLATokenToKVPool], make: Callable[[], StagedLane]) -> list[StagedLane]:
    """Give each pool a lane of its own."""
    lanes = [make() for _ in pools]
    for pool, lane in zip(pools, lanes, strict=True):
        lane.require_pool(pool.buffer)
        pool.lane = lane
    return lanes


def row_bytes(pool: MLATokenToKVPool) -> int:
    return pool.buffer.shape[2] * pool.buffer.element_size()


def whole(backup: KvBackup) -> bytes:
    return bytes(backup.kv.contiguous().view(-1).view(torch.uint8).numpy())


def slots_from(first: int, n: int, start: int = 0) -> WidenedSlots:
    return WidenedSlots(ids(range(first, first + n)), start)


#: Room for so many rows and a bit: one row, a few, more than any request here.
rooms = st.sampled_from((1, 1.5, 2, 3, 4.9, 7, 1000))

every_lane = pytest.mark.parametrize("lane", sorted(LANES))


def staged(lane: str, kind: str = "sharded", room: int = 40) -> list[MLATokenToKVPool]:
    pools = make_pools(DcpLayout(2, 2, 8), kind)
    put_on(pools, lambda: LANES[lane](room))
    scramble(pools, seed=1)
    for pool in pools:  # staging and one idle block: what is left when all is well
        pool.get_cpu_copy(slots_from(4, 11)).discard()
    return pools

"""The Triton twins under a staged lane, in Triton's CPU interpreter: the same bytes, the same sums.

Slow, so few and small; on a GPU ``test_cuda.py`` runs them compiled.
"""

import pytest
import torch

from kvlab.errors import BackupError
from kvlab.index import DcpLayout
from kvlab.memory import DeferredLane
from tests.ops.support import needs_interpreter

from .support import KINDS, Run, assemble, bits, make_pools, scramble, slots_on


@needs_interpreter
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "page", "room"),
    [(torch.bfloat16, 4, 60), (torch.float8_e4m3fn, 3, 1000), (torch.float32, 1, 40)],
)
def test_a_round_trip_by_the_twins_is_one_by_the_references(
    kind: str, dtype: torch.dtype, page: int, room: int
) -> None:
    layout = DcpLayout(2, page, 6)
    n = 2 * 2 * page + 1
    run = Run(layout, 0, slots_on([5, 1, 3], layout, 0, n), slots_on([2, 6, 4], layout, 0, n))
    pools, plain = (make_pools(layout, kind, dtype=dtype) for _ in range(2))
    for group in (pools, plain):
        scramble(group, seed=1)
    for pool, twin in zip(pools, plain, strict=True):
        pool.lane = DeferredLane(3, room, backend="triton")
        backup, want = (
            pool.get_cpu_copy(run.old_slots, wait=False),
            twin.get_cpu_copy(run.old_slots),
        )
        pool.fill(pool.resolve(run.old_slots), 1.0)
        twin.fill(twin.resolve(run.old_slots), 1.0)
        assert backup.checksum == want.checksum
        assert torch.equal(bits(backup.kv), bits(want.kv))
        pool.load_cpu_copy(backup, run.new_slots, wait=False)
        twin.load_cpu_copy(want, run.new_slots)
        backup.wait()
        assert pool.audit() == []
    assert torch.equal(bits(assemble(pools)), bits(assemble(plain)))


@needs_interpreter
def test_the_twins_sums_find_a_changed_host_copy() -> None:
    layout = DcpLayout(2, 2, 4)
    (pool, _) = make_pools(layout)
    pool.lane = DeferredLane(None, 40, backend="triton")
    slots = Run(layout, 0, [4, 5, 6, 7], [8, 9, 10, 11])
    backup = pool.get_cpu_copy(slots.old_slots)
    backup.kv.view(torch.uint8)[0, 1, 2] ^= 4
    with pytest.raises(BackupError, match="the host copy changed"):
        pool.load_cpu_copy(backup, slots.new_slots)

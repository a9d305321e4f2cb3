"""Whatever goes wrong on the way, the pool, the request and the arena are as they were."""

from typing import Any

import pytest
import torch

from kvlab import ops
from kvlab.errors import BackupError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import (
    HostArena,
    HybridLinearKVPool,
    back_up_ranks,
    restore_ranks,
)
from kvlab.memory.host import default_arena, pinned_bound

from .staged import LANES, every_lane, slots_from, staged, whole
from .support import bits, ids, state_pool, taken, untouched

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=8)  # slots 4..35
OLD, NEW = slots_from(4, 11), slots_from(20, 11)
either = pytest.mark.parametrize("wait", [True, False])


def failing(op: str, at: int, patch: pytest.MonkeyPatch) -> None:
    """The ``at``-th call of the op raises."""
    real, calls = getattr(ops, op), 0

    def sometimes(*given: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise RuntimeError("device lost")
        real(*given, **options)

    patch.setattr(f"kvlab.memory.staging.ops.{op}", sometimes)


@every_lane
@either
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_gather_that_fails_loses_the_backup_and_nothing_else(
    lane: str, wait: bool, at: int
) -> None:
    (pool, _) = staged(lane)
    unchanged = untouched([pool])
    with pytest.MonkeyPatch.context() as patch:
        failing("gather_rows", at, patch)
        if wait:
            with pytest.raises(RuntimeError, match="device lost"):
                pool.get_cpu_copy(OLD)
        else:
            backup = pool.get_cpu_copy(OLD, wait=False)
            pool.before_write()  # who writes is not told of another's failure
            for _ in range(2):
                with pytest.raises(RuntimeError, match="device lost"):
                    backup.wait()
            assert backup.spent
            with pytest.raises(BackupError, match="was lost on its way to the host; back the req"):
                backup.discard()
    unchanged()
    assert pool.audit() == []
    pool.load_cpu_copy(pool.get_cpu_copy(OLD), OLD)  # and the lane works on
    unchanged()


@every_lane
@either
def test_a_rank_that_fails_gives_back_what_all_took(lane: str, wait: bool) -> None:
    pools = staged(lane)
    unchanged = untouched(pools)
    with pytest.MonkeyPatch.context() as patch:
        failing("gather_rows", 6 if wait else 0, patch)
        if wait:
            with pytest.raises(RuntimeError, match="device lost"):
                back_up_ranks(pools, OLD)
        else:
            backups = back_up_ranks(pools, OLD, wait=False)
            lost = []
            for backup in backups:
                try:
                    backup.wait()
                    backup.discard()
                except RuntimeError:
                    lost.append(backup.rank)
            assert len(lost) == 1
    unchanged()


@every_lane
@either
def test_a_full_arena_declines_before_anything_is_in_flight(lane: str, wait: bool) -> None:
    (pool, _) = staged(lane)
    pool.host = HostArena(capacity_bytes=128, grain=64)
    unchanged = untouched([pool])
    text = (
        r"^a backup must fit the host arena: 144 bytes for 11 positions of rank 0, in blocks of "
        r"64; 0 of 128 bytes are lent; .*; nothing was changed$"
    )
    with pytest.raises(BackupError, match=text):
        pool.get_cpu_copy(OLD, wait=wait)
    unchanged()


@every_lane
@either
def test_a_host_copy_that_changed_is_found_and_no_request_has_its_rows(
    lane: str, wait: bool
) -> None:
    (pool, _) = staged(lane)
    backup = pool.get_cpu_copy(OLD)
    want = pool.buffer.clone()
    backup.kv.view(torch.uint8)[1, 2, 3] ^= 1
    text = (
        r"^the host copy changed since it was made: checksum [0-9a-f]{32}, expected "
        rf"{backup.checksum} \(6 rows\); it was written to the new rows, which hold no request: "
        r"free their slots, discard the backup, recompute the request$"
    )

    def attempt() -> None:
        pool.load_cpu_copy(backup, NEW, wait=wait)
        backup.wait()

    for _ in range(2):
        with pytest.raises(BackupError, match=text):
            attempt()
        assert not backup.spent
    new = pool.resolve(NEW).ids
    kept = torch.ones(pool.buffer.shape[1], dtype=torch.bool)
    kept[new] = False
    assert torch.equal(bits(pool.buffer[:, kept]), bits(want[:, kept]))
    assert pool.host.lent_bytes > 0
    backup.discard()
    assert pool.host.lent_bytes == 0
    assert pool.audit() == []


def test_the_audit_tells_of_a_failed_restore_that_nobody_waited_for() -> None:
    (pool, _) = staged("late")
    backup = pool.get_cpu_copy(OLD)
    backup.kv.view(torch.uint8)[1, 2, 3] ^= 1
    pool.load_cpu_copy(backup, NEW, wait=False)
    assert pool.audit() == []  # it has not ended
    pool.lane._rows.mark().wait()  # type: ignore[attr-defined]
    assert pool.audit() == ["1 restores failed and nobody waited for them: call wait()"]
    with pytest.raises(BackupError, match="the host copy changed"):
        backup.wait()
    assert pool.audit() == []
    backup.discard()
    assert pool.host.lent_bytes == 0


@every_lane
@either
def test_a_scatter_that_fails_can_be_tried_again(lane: str, wait: bool) -> None:
    pools = staged(lane)
    backups = back_up_ranks(pools, OLD)
    before = [pool.buffer.clone() for pool in pools]
    with pytest.MonkeyPatch.context() as patch:
        failing("scatter_rows", 7 if wait else 0, patch)

        def attempt() -> None:
            restore_ranks(pools, backups, NEW, wait=wait)
            for backup in backups:
                backup.wait()

        with pytest.raises(RuntimeError, match="device lost"):
            attempt()
    if wait:  # no backup is consumed before every rank has written
        assert not any(backup.spent for backup in backups)
        restore_ranks(pools, backups, NEW)
    else:
        assert not all(backup.spent for backup in backups)
        for pool, backup in zip(pools, backups, strict=True):
            backup.wait()
            if not backup.spent:
                pool.load_cpu_copy(backup, NEW)
    for pool, was in zip(pools, before, strict=True):
        new, old = pool.resolve(NEW).ids, pool.resolve(OLD).ids
        was[:, new] = was[:, old]
        assert torch.equal(bits(pool.buffer), bits(was))
        assert pool.audit() == []
        assert pool.host.lent_bytes == 0


@every_lane
def test_a_place_that_does_not_fit_is_refused_before_anything_is_in_flight(lane: str) -> None:
    (pool, _) = staged(lane)
    backup = pool.get_cpu_copy(OLD, wait=False)
    backup.wait()
    unchanged = untouched([pool])
    for slots, text in (
        (slots_from(20, 10), "position count is 11, the place's is 10"),
        (WidenedSlots(ids([20] * 11)), "row counts must match on both sides"),
    ):
        with pytest.raises(BackupError, match=text):
            pool.load_cpu_copy(backup, slots, wait=False)
    unchanged()
    assert pool.lane.in_flight == 0  # type: ignore[attr-defined]


@every_lane
def test_state_and_rows_fail_together(lane: str) -> None:
    (full, _), states = staged(lane), state_pool()
    hybrid = HybridLinearKVPool(full, states, full_layer_ids=[3, 7])
    old, new = taken(states), taken(states)
    states.conv[:, old] = 5.0
    backup = hybrid.get_cpu_copy(OLD, old, wait=False)
    backup.wait()
    backup.kv.view(torch.uint8)[0, 0, 0] ^= 1
    with pytest.raises(BackupError, match="the host copy changed"):
        hybrid.load_cpu_copy(backup, NEW, new)
    assert not bool(states.conv[:, new].any())
    backup.kv.view(torch.uint8)[0, 0, 0] ^= 1
    hybrid.load_cpu_copy(backup, NEW, new, wait=False)
    backup.wait()
    assert bool((states.conv[:, new] == 5.0).all())
    assert hybrid.audit() == []


def test_pinned_memory_is_bounded_by_the_pool_and_the_machine() -> None:
    grain = 2 * 2**20
    assert pinned_bound(10 * 2**30, 16 * 2**30) == 4 * 2**30
    assert pinned_bound(3 * 2**30 + 5, 16 * 2**30) == 3 * 2**30
    assert pinned_bound(1, 16 * 2**30) == grain  # at least one block
    arena = default_arena(torch.empty(1, 2, 3))
    assert (arena.capacity_bytes, arena.pinned) == (None, False)


def test_a_backup_that_is_discarded_in_flight_leaves_no_trace() -> None:
    for lane in LANES:
        (pool, twin) = staged(lane)
        unchanged = untouched([pool, twin])
        backup = pool.get_cpu_copy(OLD, wait=False)
        kept = twin.get_cpu_copy(OLD, wait=False)
        backup.discard()
        assert whole(kept) is not None
        kept.discard()
        unchanged()

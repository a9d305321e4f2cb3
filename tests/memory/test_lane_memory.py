"""Host memory of a copy in flight is nobody else's, and comes back once."""

import pytest
import torch

from kvlab.errors import BackupError
from kvlab.index import DcpLayout
from kvlab.memory import DeferredLane, HostArena

from .staged import put_on, slots_from
from .support import make_pools, scramble

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=8)  # slots 4..35
OLD, NEW = slots_from(4, 11), slots_from(20, 11)


@pytest.mark.parametrize("how", ["discard", "close"])
@pytest.mark.parametrize("restoring", [False, True])
def test_a_block_is_not_given_back_before_its_copy_has_ended(how: str, restoring: bool) -> None:
    (pool, *_) = make_pools(LAYOUT)
    put_on([pool], lambda: DeferredLane(staging_bytes=30))
    scramble([pool], seed=1)
    backup = pool.get_cpu_copy(OLD, wait=False)
    if restoring:
        pool.load_cpu_copy(backup, NEW, wait=False)
    seen: list[bool] = []
    give = pool.host.give

    class Watched(HostArena):
        def give(self, block: torch.Tensor) -> None:
            seen.append(backup.done)
            give(block)

    object.__setattr__(backup, "_arena", Watched(grain=64))
    assert not backup.done
    if how == "discard":
        backup.discard()
    else:
        backup.close("given up")
    assert seen == [True]
    assert backup.spent
    assert pool.host.lent_bytes == 0
    assert pool.audit() == []


def test_a_block_of_a_restore_that_nobody_awaits_comes_back_when_it_has_ended() -> None:
    arena = HostArena(capacity_bytes=192, grain=64)
    (pool, *_) = make_pools(LAYOUT, host=arena)
    (lane,) = put_on([pool], DeferredLane)
    backup = pool.get_cpu_copy(OLD, wait=False)
    pool.load_cpu_copy(backup, NEW, wait=False)
    with pytest.raises(BackupError, match=r"192 of 192 bytes are lent"):
        pool.get_cpu_copy(OLD, wait=False)
    assert lane.in_flight == 1
    lane._rows.mark().wait()  # time goes by
    pool.get_cpu_copy(OLD, wait=False).discard()
    assert backup.spent
    assert arena.lent_bytes == 0
    backup.wait()


def test_a_backup_is_restored_once_at_a_time() -> None:
    (pool, *_) = make_pools(LAYOUT)
    put_on([pool], DeferredLane)
    backup = pool.get_cpu_copy(OLD, wait=False)
    pool.load_cpu_copy(backup, NEW, wait=False)
    text = (
        r"^a backup is restored once at a time: a restore of this one \(11 positions of rank 0\) "
        r"is in flight; call wait\(\) first$"
    )
    with pytest.raises(BackupError, match=text):
        pool.load_cpu_copy(backup, NEW)
    backup.wait()
    with pytest.raises(BackupError, match="was restored"):
        pool.load_cpu_copy(backup, NEW)


def test_waiting_again_is_no_error_and_waiting_for_what_was_discarded_is() -> None:
    (pool, *_) = make_pools(LAYOUT)
    put_on([pool], DeferredLane)
    backup = pool.get_cpu_copy(OLD, wait=False)
    assert repr(backup).endswith("positions=11, checksum='in flight', page_size=2)")
    for _ in range(2):
        backup.wait()
        assert backup.done
        assert not backup.spent
    assert backup.checksum in repr(backup)
    pool.load_cpu_copy(backup, NEW, wait=False)
    for _ in range(2):
        backup.wait()
        assert backup.spent
    assert pool.host.lent_bytes == 0
    for wait in (False, True):
        gone = pool.get_cpu_copy(OLD, wait=wait)
        gone.discard()
        for call in (gone.wait, gone.discard, gone.verify):
            with pytest.raises(BackupError, match=r"consumed once: this one .* was discarded"):
                call()

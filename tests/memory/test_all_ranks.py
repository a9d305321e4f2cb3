"""A request is backed up and restored on all ranks with its state, or can be tried again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvlab import ops
from kvlab.errors import BackupError, LayoutError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import (
    HybridLinearKVPool,
    MLATokenToKVPool,
    PagedTokenToKVPoolAllocator,
    PageTable,
    ReqToTokenPool,
    UnifiedKVPool,
    back_up_ranks,
    restore_ranks,
)

from .late import late
from .support import bits, make_pools, scramble, state_pool

LAYOUT = DcpLayout(3, 2, 8)
OLD, NEW = WidenedSlots(torch.arange(6, 17)), WidenedSlots(torch.arange(30, 41))


def test_rows_of_all_ranks_and_the_state_survive_an_error_in_the_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools, states = make_pools(LAYOUT), state_pool()
    scramble(pools, seed=1)
    old, new = states.alloc(), states.alloc()
    assert old is not None and new is not None
    states.temporal[:, old] = torch.randn(states.temporal[:, old].shape)
    state = states.temporal[:, old].clone()
    rows = [pool.buffer[:, pool.resolve(OLD).ids].clone() for pool in pools]
    backups = back_up_ranks(pools, OLD, states, old)
    assert [backup.state is not None for backup in backups] == [True, False, False]

    calls: list[object] = []
    real = ops.scatter_rows

    def failing(*given: Any, **options: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise RuntimeError("the bus is gone")
        real(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ops, "scatter_rows", failing)
        with pytest.raises(RuntimeError, match="bus"):
            restore_ranks(pools, backups, NEW, states, new)
    assert not any(backup.spent for backup in backups)
    restore_ranks(pools, backups, NEW, states, new)
    assert torch.equal(states.temporal[:, new], state)
    for pool, kept in zip(pools, rows, strict=True):
        assert torch.equal(bits(pool.buffer[:, pool.resolve(NEW).ids]), bits(kept))
    assert all(backup.spent for backup in backups)
    assert [pool.host.lent_bytes for pool in pools] == [0, 0, 0]


def test_nothing_is_written_when_the_last_rank_or_the_state_does_not_fit() -> None:
    pools, states = make_pools(LAYOUT), state_pool()
    scramble(pools, seed=2)
    slot = states.alloc()
    assert slot is not None
    backups = back_up_ranks(pools, OLD, states, slot)
    before = [pool.buffer.clone() for pool in pools]
    with pytest.raises(BackupError, match="rows and state of a request are restored together"):
        restore_ranks(pools, backups, NEW)
    with pytest.raises(BackupError, match="position count is 11, the place's is 10"):
        restore_ranks(pools, backups, WidenedSlots(NEW.ids[:10]), states, slot)
    for pool, old in zip(pools, before, strict=True):  # as bits: random bytes hold NaN
        assert torch.equal(bits(pool.buffer), bits(old))
    assert not any(backup.spent for backup in backups)


def test_a_rank_without_host_memory_gives_back_what_the_others_took() -> None:
    pools = make_pools(LAYOUT)
    pools[2].host.capacity_bytes = 0
    with pytest.raises(BackupError, match="must fit the host arena"):
        back_up_ranks(pools, OLD)
    assert [pool.host.lent_bytes for pool in pools] == [0, 0, 0]


def test_as_many_backups_as_ranks_are_restored() -> None:
    pools = make_pools(LAYOUT)
    backups = back_up_ranks(pools, OLD)
    for given in ([], backups[:2], [*backups, backups[0]]):
        with pytest.raises(BackupError, match=f"got {len(given)} backups for 3 ranks; .* nothing"):
            restore_ranks(pools, given, NEW)
    restore_ranks(pools, backups, NEW)


def test_a_state_slot_without_a_pool_of_states_is_refused() -> None:
    pools, states = make_pools(LAYOUT), state_pool()
    slot = states.alloc()
    text = rf"^a state slot names a state of a StatePool: got state_slot={slot} and no states; "
    with pytest.raises(BackupError, match=text):
        back_up_ranks(pools, OLD, None, slot)
    backups = back_up_ranks(pools, OLD, states, slot)
    with pytest.raises(BackupError, match=text):
        restore_ranks(pools, backups, NEW, None, slot)
    assert not any(backup.spent for backup in backups)


def test_nothing_is_written_behind_the_back_of_who_got_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last rank fails while the copies of the others are in flight: they end first."""
    pools = make_pools(LAYOUT)
    transfers = [late() for _ in pools]
    for pool, transfer in zip(pools, transfers, strict=True):
        pool.transfer = transfer
    scramble(pools, seed=3)
    backups = back_up_ranks(pools, OLD)

    def failing(*_: object) -> None:
        raise RuntimeError("the bus is gone")

    monkeypatch.setattr(pools[2], "write_rows", failing)
    with pytest.raises(RuntimeError, match="bus"):
        restore_ranks(pools, backups, NEW)
    found = [pool.buffer.clone() for pool in pools]
    for transfer in transfers:
        transfer.before_write()  # whatever were still queued would run now
    for pool, before in zip(pools, found, strict=True):
        assert torch.equal(bits(pool.buffer), bits(before))
    assert not any(backup.spent for backup in backups)


@pytest.mark.parametrize("wrong", [None, (2, 2, 4), "DcpLayout(2, 2, 4)"])
def test_what_is_no_layout_is_refused_where_it_is_kept(wrong: Any) -> None:
    makers: tuple[Callable[[], object], ...] = (
        lambda: MLATokenToKVPool(wrong, 0, layers=1),
        lambda: PagedTokenToKVPoolAllocator(wrong),
        lambda: ReqToTokenPool(1, 1, wrong),
        lambda: PageTable(wrong, physical_pages=1),
    )
    for make in makers:
        with pytest.raises(LayoutError, match="layout must be a DcpLayout: got "):
            make()


def test_what_is_no_pool_is_refused_where_it_is_kept() -> None:
    (pool, *_), states = make_pools(LAYOUT), state_pool()
    wrong: Any
    for wrong in (None, LAYOUT, [pool]):
        with pytest.raises(PoolError, match="a hybrid pool has rows and states: full must be of"):
            HybridLinearKVPool(wrong, states, [0, 1])
        with pytest.raises(PoolError, match="a hybrid pool has rows and states: state must be of"):
            HybridLinearKVPool(pool, wrong, [0, 1])
        with pytest.raises(PoolError, match="a unified pool stands behind a PageTable: got"):
            UnifiedKVPool(wrong, 0, layers=1)

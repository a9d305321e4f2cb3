"""A request is backed up and restored on all ranks with its state, or can be tried again."""

from typing import Any

import pytest
import torch

from kvlab import ops
from kvlab.errors import BackupError, LayoutError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import (
    MLATokenToKVPool,
    PagedTokenToKVPoolAllocator,
    PageTable,
    ReplicatedKVPool,
    ReqToTokenPool,
    back_up_ranks,
    restore_ranks,
)

from .late import late
from .support import bits, make_pools, scramble, state_pool, taken

LAYOUT = DcpLayout(3, 2, 8)
OLD, NEW = WidenedSlots(torch.arange(6, 17)), WidenedSlots(torch.arange(30, 41))


def test_rows_of_all_ranks_and_the_state_survive_an_error_in_the_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools, states = make_pools(LAYOUT), state_pool()
    scramble(pools, seed=1)
    old, new = taken(states), taken(states)
    states.temporal[:, old] = torch.randn(states.temporal[:, old].shape)
    rows = [pool.buffer[:, pool.resolve(OLD).ids].clone() for pool in pools]
    backups = back_up_ranks(pools, OLD, states, old)
    assert [backup.state is not None for backup in backups] == [True, False, False]
    real, calls = ops.scatter_rows, 0

    def failing(*given: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("the bus is gone")
        real(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ops, "scatter_rows", failing)
        with pytest.raises(RuntimeError, match="bus"):
            restore_ranks(pools, backups, NEW, states, new)
    assert not any(backup.spent for backup in backups)
    assert not bool(states.temporal[:, new].any())
    restore_ranks(pools, backups, NEW, states, new)
    assert torch.equal(states.temporal[:, new], states.temporal[:, old])
    for pool, kept in zip(pools, rows, strict=True):
        assert torch.equal(bits(pool.buffer[:, pool.resolve(NEW).ids]), bits(kept))
        assert pool.host.lent_bytes == 0
    assert all(backup.spent for backup in backups)


def test_what_does_not_fit_together_writes_nothing() -> None:
    pools, states = make_pools(LAYOUT), state_pool()
    scramble(pools, seed=2)
    slot = taken(states)
    backups = back_up_ranks(pools, OLD, states, slot)
    before = [pool.buffer.clone() for pool in pools]
    together = "rows and state of a request are restored together: the backup has a state, "
    for given, text in (
        ((backups, NEW), together + "state_slot is None; pass"),
        ((backups, WidenedSlots(NEW.ids[:10]), states, slot), "position count is 11, the place's"),
        ((backups, NEW, None, slot), together + f"state_slot is {slot}; pass"),
        ((backups[1:], NEW), "got 2 backups for 3 ranks; .* nothing was written"),
        (([], NEW), "got 0 backups for 3 ranks"),
    ):
        with pytest.raises(BackupError, match=text):
            restore_ranks(pools, *given)
    with pytest.raises(BackupError, match=rf"one of a StatePool: got {slot} and no states"):
        back_up_ranks(pools, OLD, None, slot)
    for pool, old in zip(pools, before, strict=True):  # as bits: random bytes hold NaN
        assert torch.equal(bits(pool.buffer), bits(old))
    assert not any(backup.spent for backup in backups)
    restore_ranks(pools, backups, NEW, states, slot)


def test_a_rank_without_host_memory_gives_back_what_the_others_took() -> None:
    pools = make_pools(LAYOUT)
    pools[2].host.capacity_bytes = 0
    with pytest.raises(BackupError, match="must fit the host arena"):
        back_up_ranks(pools, OLD)
    assert [pool.host.lent_bytes for pool in pools] == [0, 0, 0]


def test_nothing_is_written_behind_the_back_of_who_got_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last rank fails while the copies of the others are in flight: they end first."""
    pools = make_pools(LAYOUT)
    for pool in pools:
        pool.transfer = late()
    scramble(pools, seed=3)
    backups = back_up_ranks(pools, OLD)

    def failing(*_: object) -> None:
        raise RuntimeError("the bus is gone")

    monkeypatch.setattr(pools[2], "write_rows", failing)
    with pytest.raises(RuntimeError, match="bus"):
        restore_ranks(pools, backups, NEW)
    found = [pool.buffer.clone() for pool in pools]
    for pool, before in zip(pools, found, strict=True):
        pool.before_write()  # whatever were still queued would run now
        assert torch.equal(bits(pool.buffer), bits(before))
    assert not any(backup.spent for backup in backups)


def test_what_is_no_layout_is_refused_where_it_is_kept() -> None:
    wrong: Any = (2, 2, 4)
    for make in (
        lambda: MLATokenToKVPool(wrong, 0, layers=1),
        lambda: ReplicatedKVPool(wrong, 0, layers=1),
        lambda: PagedTokenToKVPoolAllocator(wrong),
        lambda: ReqToTokenPool(1, 1, wrong),
        lambda: PageTable(wrong, physical_pages=1),
    ):
        with pytest.raises(LayoutError, match="layout must be a DcpLayout: got "):
            make()

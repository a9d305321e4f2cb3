"""State by request: a slot each, zeroed when taken, copied and restored whole, slot 0 nobody's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import BackupError, IndexSpaceError, KvlabError, LayoutError, PoolError
from kvlab.memory import StateBackup, StatePool

from .support import fill, holds, state_pool, taken


def test_each_request_has_a_slot_of_its_own_and_slot_0_is_nobodys() -> None:
    pool = state_pool()
    slots = [pool.alloc() for _ in range(5)]
    assert slots == [1, 2, 3, 4, None]
    for slot in range(1, 5):
        fill(pool, slot, slot * 100.0)
    assert all(holds(pool, slot, slot * 100.0) for slot in range(1, 5))
    assert (pool.available(), pool.audit()) == (0, [])
    pool.free(2)
    assert (pool.available(), pool.alloc()) == (1, 2)
    assert not pool.conv[:, 2].any()
    assert not pool.temporal[:, 2].any()
    assert holds(pool, 1, 100.0)
    assert holds(pool, 3, 300.0)


def test_a_state_is_restored_into_any_slot_in_use() -> None:
    pool = state_pool()
    first, second = taken(pool), taken(pool)
    fill(pool, first, 7.0)
    fill(pool, second, 9.0)
    backup = pool.get_cpu_copy(first)
    fill(pool, first, 0.5)  # the copy is no view
    pool.free(first)
    third, again = taken(pool), taken(pool)
    fill(pool, third, 1.0)
    pool.load_cpu_copy(backup, again)
    assert again not in (second, third)
    assert holds(pool, again, 7.0)
    assert holds(pool, second, 9.0)
    assert holds(pool, third, 1.0)
    assert pool.audit() == []


@given(st.data())
@settings(max_examples=50)
def test_any_order_of_calls_keeps_the_states_apart(data: st.DataObject) -> None:
    pool = state_pool(3)
    live: dict[int, float] = {}
    away: list[tuple[StateBackup, float]] = []
    for mark in range(1, data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(("alloc", "free", "retract", "resume")))
        if what in ("alloc", "resume"):
            slot = pool.alloc()
            assert (slot is None) == (len(live) == 3)
            if slot is None:
                continue
            assert not pool.conv[:, slot].any()
            if what == "resume" and away:
                backup, live[slot] = away.pop()
                pool.load_cpu_copy(backup, slot)
            else:
                live[slot] = float(mark)
                fill(pool, slot, float(mark))
        elif live:
            slot = data.draw(st.sampled_from(sorted(live)))
            if what == "retract":
                away.append((pool.get_cpu_copy(slot), live[slot]))
            pool.free(slot)
            del live[slot]
        assert pool.audit() == []
        assert all(holds(pool, slot, value) for slot, value in live.items())


@pytest.mark.parametrize(
    ("slot", "error", "text"),
    [
        (0, PoolError, r"must be in use: got 0 of 1\.\.4 \(1 in use\); slot 0 is reserved; call a"),
        (2, PoolError, r"a state slot must be in use: got 2 of 1\.\.4"),
        (-1, PoolError, r"a state slot must be in use: got -1"),
        (5, PoolError, r"a state slot must be in use: got 5"),
        (True, IndexSpaceError, r"state slot must be an int: got True \(bool\)"),
        (1.0, IndexSpaceError, r"state slot must be an int: got 1\.0 \(float\)"),
        (None, IndexSpaceError, r"state slot must be an int: got None"),
    ],
)
def test_a_slot_that_is_not_in_use_is_refused_by_every_call(
    slot: int, error: type[KvlabError], text: str
) -> None:
    pool = state_pool()
    fill(pool, taken(pool), 7.0)
    backup = pool.get_cpu_copy(1)
    for call in (
        lambda: pool.free(slot),
        lambda: pool.get_cpu_copy(slot),
        lambda: pool.load_cpu_copy(backup, slot),
        lambda: pool.check_load(backup, slot),
    ):
        with pytest.raises(error, match=text):
            call()
    assert holds(pool, 1, 7.0)
    assert pool.audit() == []


def test_a_state_of_another_shape_or_dtype_is_refused_before_either_part_is_written() -> None:
    pool = state_pool()
    slot = taken(pool)
    fill(pool, slot, 7.0)
    good = pool.get_cpu_copy(slot)
    text = r"a state is restored into a pool of its own shape: {} is \(.*\) torch\.\w+, the pool's"
    for name, backup in (
        ("conv", StateBackup(good.conv[:2], good.temporal)),
        ("conv", StateBackup(good.conv.half(), good.temporal)),
        ("temporal", StateBackup(good.conv + 1, good.temporal[..., :2])),
        ("temporal", StateBackup(good.conv + 1, good.temporal.double())),
    ):
        with pytest.raises(BackupError, match=text.format(name)):
            pool.load_cpu_copy(backup, slot)
    assert holds(pool, slot, 7.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"slots": 0}, "slots must be at least 1: requests whose state the pool can hold"),
        ({"layers": 0}, "layers must be at least 1: layers with recurrent state"),
        ({"conv_shape": (0, 2)}, "conv_shape must be at least 1: a length of one layer's state"),
        ({"temporal_shape": (2, -1)}, "temporal_shape must be at least 1"),
        ({"temporal_shape": (2.0,)}, "temporal_shape must be an int"),
    ],
)
def test_a_state_has_a_size(options: dict[str, object], text: str) -> None:
    given_ = {"slots": 1, "layers": 1, "conv_shape": (2,), "temporal_shape": (2,)} | options
    with pytest.raises(LayoutError, match=text):
        StatePool(given_.pop("slots"), **given_)  # type: ignore[arg-type]


def test_the_audit_finds_a_lost_slot_and_a_written_reserve() -> None:
    pool = state_pool()
    taken(pool)
    pool._free.pop()
    assert pool.audit() == ["free (2) and used (1) state slots do not partition 1..4"]
    pool = state_pool()
    pool.temporal[2, 0, 1, 1, 1] = 1
    assert pool.audit() == ["the reserved state slot 0 was written"]


def test_a_state_that_changed_on_the_host_is_not_restored() -> None:
    pool = StatePool(2, layers=2, conv_shape=(3, 2), temporal_shape=(2, 4, 4))
    one, two = pool.alloc(), pool.alloc()
    assert one is not None and two is not None
    pool.temporal[:, one] = torch.randn(2, 2, 4, 4)
    for part in ("conv", "temporal"):
        backup = pool.get_cpu_copy(one)
        getattr(backup, part).view(-1)[3] += 1
        before = (pool.conv.clone(), pool.temporal.clone())
        with pytest.raises(BackupError, match=r"a state changed since it was made: checksum \w+"):
            pool.load_cpu_copy(backup, two)
        assert torch.equal(pool.conv, before[0]) and torch.equal(pool.temporal, before[1])

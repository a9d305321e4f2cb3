"""State by request, alone and beside rows by token: a slot each, nobody's index but its own."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import BackupError, IndexSpaceError, KvlabError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import HybridLinearKVPool, StateBackup, StatePool

from .support import (
    KINDS,
    SIZES,
    assemble,
    bits,
    fill,
    holds,
    make_pools,
    scramble,
    state_pool,
    taken,
    untouched,
)

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=4)
OLD, NEW = WidenedSlots(torch.arange(4, 11)), WidenedSlots(torch.arange(12, 19))


def hybrids(layout: DcpLayout = LAYOUT, kind: str = "sharded") -> list[HybridLinearKVPool]:
    return [HybridLinearKVPool(full, state_pool(), [3, 7]) for full in make_pools(layout, kind)]


@given(st.data())
@settings(max_examples=40)
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
            assert not pool.conv[:, slot].any() and not pool.temporal[:, slot].any()
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
                fill(pool, slot, 0.5)  # the copy is no view
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
        (True, IndexSpaceError, r"state slot must be an int: got True \(bool\)"),
        (torch.tensor([1, 2]), IndexSpaceError, r"state slot must be an int"),
    ],
)
def test_a_slot_that_is_not_in_use_is_refused_by_every_call(
    slot: Any, error: type[KvlabError], text: str
) -> None:
    pool = state_pool()
    fill(pool, taken(pool), 7.0)
    backup = pool.get_cpu_copy(1)
    for call in (
        lambda: pool.free(slot),
        lambda: pool.get_cpu_copy(slot),
        lambda: pool.load_cpu_copy(backup, slot),
    ):
        with pytest.raises(error, match=text):
            call()
    assert holds(pool, 1, 7.0)
    assert pool.audit() == []


def test_a_state_of_another_shape_or_dtype_or_that_changed_is_refused_before_a_write() -> None:
    pool = state_pool()
    slot = taken(pool)
    fill(pool, slot, 7.0)
    good = pool.get_cpu_copy(slot)
    changed = [pool.get_cpu_copy(slot) for _ in range(2)]
    changed[0].conv.view(-1)[3] += 1
    changed[1].temporal.view(-1)[3] += 1
    shape = r"a state is restored into a pool of its own shape: got \(.*\) torch\.\w+ for \(.*\) "
    for text, backup in (
        (shape, StateBackup(good.conv[:2], good.temporal)),
        (shape, StateBackup(good.conv.half(), good.temporal)),
        (shape, StateBackup(good.conv + 1, good.temporal[..., :2])),
        (shape, StateBackup(good.conv + 1, good.temporal.double())),
        (r"a state changed since it was made: checksum \w+", changed[0]),
        (r"a state changed since it was made: checksum \w+", changed[1]),
    ):
        with pytest.raises(BackupError, match=text):
            pool.load_cpu_copy(backup, slot)
    assert holds(pool, slot, 7.0)


def test_the_audit_speaks_for_both_pools() -> None:
    for part in ("conv", "temporal"):
        hybrid = hybrids()[0]
        hybrid.full.buffer[0, 0, 0] = 1
        getattr(hybrid.state, part)[2, 0, 1, 1] = 1
        assert hybrid.audit() == [
            "the padding page of rank 0 was written",
            "the reserved state slot 0 was written",
        ]


# --- rows beside state ----------------------------------------------------------------------------


@pytest.mark.parametrize("c", SIZES)
def test_rows_and_state_come_back_together_on_every_rank(c: int) -> None:
    for kind in KINDS:
        round_trip(DcpLayout(dcp_size=c, page_size=2, num_pages=6), kind)


def round_trip(layout: DcpLayout, kind: str) -> None:
    wide, n = 2 * layout.dcp_size, 4 * layout.dcp_size - 1
    old, new = torch.arange(wide, wide + n), torch.arange(4 * wide, 4 * wide + n)
    pools = hybrids(layout, kind)
    full = [pool.full for pool in pools]
    scramble(full, seed=1)
    saved = assemble(full)[:, old]
    backups = []
    for rank, pool in enumerate(pools):
        # Any slot but 1: dividing it by c, or keeping it only on its "owner", must show.
        slots = [taken(pool.state) for _ in range(3)]
        for slot in slots:
            fill(pool.state, slot, rank * 10.0 + slot)
        backups.append(pool.get_cpu_copy(WidenedSlots(old), slots[2]))
        for slot in slots:
            pool.state.free(slot)
    scramble(full, seed=2)
    want = assemble(full)
    want[:, new] = saved
    for rank, (pool, backup) in enumerate(zip(pools, backups, strict=True)):
        others = [taken(pool.state), taken(pool.state)]
        for slot in others:
            fill(pool.state, slot, -1.0 * slot)
        pool.load_cpu_copy(backup, WidenedSlots(new), others[1])
        assert holds(pool.state, others[1], rank * 10.0 + 3)
        assert holds(pool.state, others[0], -1.0 * others[0])
        assert backup.spent
        assert pool.full.host.lent_bytes == 0
        assert pool.audit() == []
    assert torch.equal(bits(assemble(full)), bits(want))


def test_layers_are_named_by_their_global_ids() -> None:
    pools, values = hybrids(), torch.randn(2, 7, 3)
    for pool in pools:
        for layer, part in zip((3, 7), values, strict=True):
            pool.set_mla_kv_buffer(layer, OLD, part[:, :2], part[:, 2:])
        for layer, part in zip((3, 7), values, strict=True):
            rows = pool.full.resolve(OLD)
            nope, rope = pool.get_mla_kv_buffer(layer, rows)
            assert torch.equal(torch.cat([nope, rope], dim=1), part[rows.source])
        with pytest.raises(PoolError, match=r"layer 1 has no KV rows: MLA layers are \[3, 7\]"):
            pool.set_mla_kv_buffer(1, OLD, values[0, :, :2], values[0, :, 2:])
    for layers in ([3], [3, 3], [3, 7, 11]):
        with pytest.raises(PoolError, match=r"must name each of 2 MLA layers once: got \["):
            HybridLinearKVPool(make_pools(LAYOUT)[0], state_pool(), layers)


def test_what_does_not_fit_is_refused_before_rows_or_state_are_written() -> None:
    pool = hybrids()[1]
    scramble([pool.full], seed=1)
    slot, other = taken(pool.state), taken(pool.state)
    fill(pool.state, slot, 7.0)
    fill(pool.state, other, 9.0)
    with_state, without = pool.get_cpu_copy(OLD, slot), pool.get_cpu_copy(OLD)
    other_shape = StatePool(2, layers=3, conv_shape=(4, 1), temporal_shape=(2, 3, 3))
    misfit = HybridLinearKVPool(pool.full, other_shape, [3, 7])
    taken(other_shape)
    short = WidenedSlots(NEW.ids[:6])
    unchanged = untouched([pool.full])
    together = "rows and state of a request are restored together: the backup has {} state, state_"
    for place, backup, slots, state_slot, error, text in (
        (pool, with_state, NEW, None, BackupError, together.format("a") + "slot is None; pass"),
        (pool, without, NEW, other, BackupError, together.format("no") + "slot is 2; pass"),
        (pool, with_state, NEW, 3, PoolError, "a state slot must be in use: got 3"),
        (pool, with_state, short, other, BackupError, "position count is 7, the place's is 6"),
        (misfit, with_state, NEW, 1, BackupError, "a state is restored into a pool of its own sh"),
    ):
        with pytest.raises(error, match=text):
            place.load_cpu_copy(backup, slots, state_slot)
        unchanged()
        assert not other_shape.conv.any()
        assert not backup.spent
    with pytest.raises(PoolError, match="a state slot must be in use: got 4"):
        pool.get_cpu_copy(OLD, 4)
    unchanged()
    with_state.kv[0, 0, 0] += 1
    with pytest.raises(BackupError, match="the host copy changed"):
        pool.load_cpu_copy(with_state, NEW, other)
    assert holds(pool.state, slot, 7.0)
    assert holds(pool.state, other, 9.0)

"""Rows by token beside state by request: neither is the other's index, both come back together."""

import pytest
import torch

from kvlab.errors import BackupError, IndexSpaceError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import HostArena, HybridLinearKVPool, StatePool

from .support import (
    KINDS,
    SIZES,
    assemble,
    bits,
    fill,
    holds,
    ids,
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("c", SIZES)
def test_rows_and_state_come_back_together_on_every_rank(c: int, kind: str) -> None:
    layout = DcpLayout(dcp_size=c, page_size=2, num_pages=6)
    wide, n = 2 * c, 4 * c - 1
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
    pools = hybrids()
    values = torch.randn(2, 7, 3)
    for pool in pools:
        for layer, part in zip((3, 7), values, strict=True):
            pool.set_mla_kv_buffer(layer, OLD, part[:, :2], part[:, 2:])
        for layer, part in zip((3, 7), values, strict=True):
            rows = pool.full.resolve(OLD)
            nope, rope = pool.get_mla_kv_buffer(layer, rows)
            assert torch.equal(torch.cat([nope, rope], dim=1), part[rows.source])
    assert torch.equal(assemble([pool.full for pool in pools])[:, OLD.ids], values)


@pytest.mark.parametrize("layer", [0, 1, 4, -1])
def test_a_layer_without_rows_is_refused(layer: int) -> None:
    pool = hybrids()[0]
    text = rf"layer {layer} has no KV rows: MLA layers are \[3, 7\]; the others keep state"
    with pytest.raises(PoolError, match=text):
        pool.set_mla_kv_buffer(layer, OLD, torch.ones(7, 2), torch.ones(7, 1))
    with pytest.raises(PoolError, match=text):
        pool.get_mla_kv_buffer(layer, pool.full.resolve(OLD))
    assert not pool.full.buffer.any()


@pytest.mark.parametrize("layers", [[3], [3, 3], [3, 7, 11], []])
def test_each_dense_layer_is_named_once(layers: list[int]) -> None:
    text = r"full_layer_ids must name each of the 2 MLA layers once: got \["
    with pytest.raises(PoolError, match=text):
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
    together = "rows and state of a request are restored together: the backup has {} state, sta"
    for place, backup, slots, state_slot, error, text in (
        (pool, with_state, NEW, None, BackupError, together.format("a") + "te_slot is None; noth"),
        (pool, without, NEW, other, BackupError, together.format("no") + "te_slot is 2; nothing"),
        (pool, with_state, NEW, 3, PoolError, "a state slot must be in use: got 3"),
        (pool, with_state, NEW, True, IndexSpaceError, "state slot must be an int"),
        (pool, with_state, short, other, BackupError, "position count is 7, the place's is 6"),
        (misfit, with_state, NEW, 1, BackupError, "a state is restored into a pool of its own sh"),
    ):
        with pytest.raises(error, match=text):
            place.load_cpu_copy(backup, slots, state_slot)
        unchanged()
        assert holds(pool.state, slot, 7.0)
        assert holds(pool.state, other, 9.0)
        assert not other_shape.conv.any()
        assert not backup.spent
    with_state.kv[0, 0, 0] += 1
    with pytest.raises(BackupError, match="the host copy changed"):
        pool.load_cpu_copy(with_state, NEW, other)
    assert holds(pool.state, other, 9.0)


def test_the_inner_pool_does_not_restore_the_rows_alone() -> None:
    pool = hybrids()[0]
    backup = pool.get_cpu_copy(OLD, taken(pool.state))
    with pytest.raises(BackupError, match="has a state, and this pool keeps none"):
        pool.full.load_cpu_copy(backup, NEW)
    pool.load_cpu_copy(backup, NEW, 1)
    text = "was restored; back the request up again"
    with pytest.raises(BackupError, match=text):
        pool.load_cpu_copy(backup, NEW, 1)
    with pytest.raises(BackupError, match=text):
        backup.discard()


def test_an_unused_state_slot_takes_no_host_memory() -> None:
    pool = hybrids()[0]
    unchanged = untouched([pool.full])
    with pytest.raises(PoolError, match="a state slot must be in use: got 2"):
        pool.get_cpu_copy(OLD, 2)
    unchanged()


def test_a_full_arena_declines_rows_and_state() -> None:
    (full, _) = make_pools(LAYOUT, host=HostArena(capacity_bytes=64, grain=64))
    pool = HybridLinearKVPool(full, state_pool(), [0, 1])
    slot = taken(pool.state)
    fill(pool.state, slot, 7.0)
    unchanged = untouched([full])
    with pytest.raises(BackupError, match="a backup must fit the host arena: 96 bytes for 7 posi"):
        pool.get_cpu_copy(OLD, slot)
    unchanged()
    assert holds(pool.state, slot, 7.0)


def test_the_audit_speaks_for_both_pools() -> None:
    pool = hybrids()[0]
    pool.full.buffer[0, 0, 0] = 1
    pool.state.conv[0, 0] = 1
    assert pool.audit() == [
        "the padding page of rank 0 was written",
        "the reserved state slot 0 was written",
    ]


def test_ids_of_tokens_do_not_name_states() -> None:
    pool = hybrids()[0]
    with pytest.raises(IndexSpaceError, match="state slot must be an int"):
        pool.get_cpu_copy(OLD, ids([1, 2]))  # type: ignore[arg-type]

"""Back up, let others have the rows, restore elsewhere: every rank gets its own bytes back.

A round trip onto the same slots hides a wrong row (what was read wrongly is written back where it
was), so all rows are overwritten in between, and the new slots are other ones.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import BackupError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
from kvlab.memory import HostArena, MLATokenToKVPool

from .support import (
    DTYPES,
    KINDS,
    Run,
    assemble,
    bits,
    deal,
    ids,
    make_pools,
    places,
    runs,
    scramble,
    slots_on,
    untouched,
)


def round_trip(run: Run, pools: list[MLATokenToKVPool]) -> list[int]:
    """Back up ``run.old``, overwrite everything, restore to ``run.new``: rows of each backup."""
    scramble(pools, seed=1)
    saved = assemble(pools)[:, run.old].clone()
    before = [bits(pool.buffer).clone() for pool in pools]
    backups = [pool.get_cpu_copy(run.old_slots) for pool in pools]
    for pool, was in zip(pools, before, strict=True):
        assert torch.equal(bits(pool.buffer), was)
        assert pool.host.lent_bytes > 0
    for backup in backups:
        assert (backup.start, backup.positions) == (run.start, len(run.old))
        backup.verify()
    scramble(pools, seed=2)
    want = assemble(pools)
    want[:, run.new] = saved
    counts = []
    for pool, backup in zip(pools, backups, strict=True):
        pool.load_cpu_copy(backup, run.new_slots)
        counts.append(backup.rows)
        assert backup.spent
    assert torch.equal(bits(assemble(pools)), bits(want))
    for pool in pools:
        assert pool.audit() == []
        assert pool.host.lent_bytes == 0
    return counts


@given(run=runs(), kind=st.sampled_from(KINDS), dtype=st.sampled_from(DTYPES))
@settings(max_examples=150)
def test_every_rank_gets_its_rows_back_and_no_other_row_changes(
    run: Run, kind: str, dtype: torch.dtype
) -> None:
    counts = round_trip(run, make_pools(run.layout, kind, dtype=dtype))
    if kind == "replicated":
        assert counts == [len(run.old)] * run.layout.dcp_size
    else:
        dealt = deal(run.layout)
        for rank, count in enumerate(counts):
            assert count == sum(dealt[slot][0] == rank for slot in run.old)
        assert sum(counts) == len(run.old)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 23])
@pytest.mark.parametrize("c", [1, 2, 3, 4, 8])
def test_ragged_lengths_shorter_than_the_ranks_too(c: int, n: int) -> None:
    layout = DcpLayout(dcp_size=c, page_size=3, num_pages=16)
    counts = round_trip(
        Run(
            layout,
            0,
            slots_on(range(2, 10), layout, 0, n),
            slots_on(range(16, 8, -1), layout, 0, n),
        ),
        make_pools(layout),
    )
    assert counts == [n // c + (rank < n % c) for rank in range(c)]


@pytest.mark.parametrize("page", [1, 3, 64])
@pytest.mark.parametrize(
    ("elements", "dtype"), [(3, "e4m3"), (1, "e4m3"), (5, "bf16"), (576, "bf16")]
)
def test_pages_and_rows_of_any_width_in_bytes(page: int, elements: int, dtype: str) -> None:
    kind = {"e4m3": torch.float8_e4m3fn, "bf16": torch.bfloat16}[dtype]
    layout = DcpLayout(dcp_size=2, page_size=page, num_pages=6)
    n = 5 * 2 * page // 2 - 1
    old, new = slots_on([3, 1, 6], layout, 0, n), slots_on([2, 5, 4], layout, 0, n)
    round_trip(Run(layout, 0, old, new), make_pools(layout, nope=elements, rope=0, dtype=kind))


@pytest.mark.parametrize("kind", KINDS)
def test_backups_that_live_at_once_do_not_share_memory(kind: str) -> None:
    layout = DcpLayout(dcp_size=2, page_size=2, num_pages=8)
    arena = HostArena(grain=64)
    pools = make_pools(layout, kind, host=arena)
    scramble(pools, seed=1)
    whole = assemble(pools)
    runs_ = [WidenedSlots(ids(slots_on([page, page + 4], layout, 0, 7))) for page in (1, 2, 3, 4)]
    backups = [[pool.get_cpu_copy(slots) for pool in pools] for slots in runs_]
    spans = sorted((b.block.data_ptr(), b.block.numel()) for of in backups for b in of)
    assert len(spans) == 8
    assert all(at + size <= after for (at, size), (after, _) in pairwise(spans))
    scramble(pools, seed=2)
    for slots, target, of in zip(runs_, reversed(runs_), backups, strict=True):
        for pool, backup in zip(pools, of, strict=True):
            pool.load_cpu_copy(backup, target)
        assert torch.equal(bits(assemble(pools)[:, target.ids]), bits(whole[:, slots.ids]))
    assert arena.lent_bytes == 0
    assert arena.audit() == []


def test_consumed_backups_hand_their_memory_to_the_next_ones() -> None:
    layout = DcpLayout(dcp_size=2, page_size=2, num_pages=4)
    pool = make_pools(layout)[0]
    slots = WidenedSlots(torch.arange(4, 16))
    used = set()
    for round_ in range(20):
        backup = pool.get_cpu_copy(slots)
        used.add(backup.kv.data_ptr())
        if round_ % 3:
            pool.load_cpu_copy(backup, slots)
        else:
            backup.discard()
        assert (pool.host.lent_bytes, pool.host.idle_bytes) == (0, 192)
    assert len(used) == 1


def test_an_empty_run_is_backed_up_and_restored_like_any_other() -> None:
    pools = make_pools(DcpLayout(dcp_size=3, page_size=2, num_pages=2))
    scramble(pools, seed=1)
    before = assemble(pools)
    for pool in pools:
        backup = pool.get_cpu_copy(WidenedSlots(ids([]), start=5))
        assert (backup.rows, backup.positions, backup.nbytes) == (0, 0, 0)
        pool.load_cpu_copy(backup, WidenedSlots(ids([]), start=5))
        assert backup.spent
        assert pool.host.lent_bytes == 0
    assert torch.equal(assemble(pools), before)


def test_a_rank_without_a_row_of_the_run_restores_nothing_and_is_done() -> None:
    pools = make_pools(DcpLayout(dcp_size=8, page_size=1, num_pages=3))
    scramble(pools, seed=1)
    backups = [pool.get_cpu_copy(WidenedSlots(ids([8, 9, 10]))) for pool in pools]
    assert [backup.rows for backup in backups] == [1, 1, 1, 0, 0, 0, 0, 0]
    before = assemble(pools)
    for pool, backup in zip(pools, backups, strict=True):
        pool.load_cpu_copy(backup, WidenedSlots(ids([16, 17, 18])))
    before[:, 16:19] = before[:, 8:11]
    assert torch.equal(bits(assemble(pools)), bits(before))


def test_slots_that_were_localized_once_can_be_handed_over_as_rows() -> None:
    run = Run(DcpLayout(2, 2, 4), 1, [5, 6, 7, 8], [9, 10, 11, 12])
    for kind in KINDS:
        pools = make_pools(run.layout, kind)
        scramble(pools, seed=1)
        want = assemble(pools)
        want[:, run.new] = want[:, run.old]
        for pool in pools:
            backup = pool.get_cpu_copy(pool.resolve(run.old_slots))
            pool.load_cpu_copy(backup, pool.resolve(run.new_slots))
        assert torch.equal(bits(assemble(pools)), bits(want))


def test_a_chunk_of_a_run_is_a_run() -> None:
    layout = DcpLayout(dcp_size=4, page_size=2, num_pages=6)
    old = WidenedSlots(ids(slots_on([3, 1, 5], layout, 0, 21)))
    new = WidenedSlots(ids(slots_on([2, 6, 4], layout, 0, 21)))
    pools = make_pools(layout)
    scramble(pools, seed=1)
    want = assemble(pools)
    want[:, new.ids] = want[:, old.ids]
    for begin in range(0, 21, 3):  # 3 and 4 ranks: no chunk but the first begins at rank 0
        for pool in pools:
            backup = pool.get_cpu_copy(old.chunk(begin, begin + 3))
            assert backup.start == begin
            pool.load_cpu_copy(backup, new.chunk(begin, begin + 3))
    assert torch.equal(bits(assemble(pools)), bits(want))


@given(run=runs(), data=st.data(), kind=st.sampled_from(KINDS))
@settings(max_examples=100)
def test_whatever_the_new_slots_are_a_rank_restores_the_right_rows_or_none(
    run: Run, data: st.DataObject, kind: str
) -> None:
    first, end = run.layout.first_slot, run.layout.slot_end
    new = data.draw(
        st.one_of(
            st.permutations(run.new),
            st.lists(st.integers(first, end - 1), min_size=len(run.old), max_size=len(run.old)),
        )
    )
    pools = make_pools(run.layout, kind)
    scramble(pools, seed=1)
    saved = assemble(pools)[:, run.old].clone()
    backups = [pool.get_cpu_copy(run.old_slots) for pool in pools]
    scramble(pools, seed=2)
    for pool, backup in zip(pools, backups, strict=True):
        unchanged, where = untouched([pool]), places(pool)
        want = pool.buffer.clone()
        try:
            pool.load_cpu_copy(backup, WidenedSlots(ids(new), run.start))
        except BackupError:
            unchanged()
            assert not backup.spent
            continue
        for at, slot in enumerate(new):
            if slot in where:
                want[:, where[slot]] = saved[:, at]
        assert torch.equal(bits(pool.buffer), bits(want))


# --- the bug that the package is about: these show that the laws above can fail -----------------


def raw(pool: MLATokenToKVPool, slots: WidenedSlots) -> PhysicalRows:
    """What upstream did before the fix: slots taken for rows."""
    return PhysicalRows.assume_physical(slots.ids, pool.layout, pool.rank)


def test_a_copy_by_raw_slots_is_silent_on_low_pages_and_restores_other_tokens() -> None:
    layout = DcpLayout(dcp_size=2, page_size=1, num_pages=7)
    pools = make_pools(layout)
    scramble(pools, seed=1)
    old, new = WidenedSlots(ids([2, 3])), WidenedSlots(ids([4, 5]))
    truth = assemble(pools)[:, old.ids]
    for pool in pools:
        backup = pool.get_cpu_copy(raw(pool, old))
        pool.load_cpu_copy(backup, raw(pool, new))
    assert not torch.equal(assemble(pools)[:, new.ids], truth)


def test_a_copy_by_raw_slots_onto_the_same_slots_hides_itself_unless_the_rows_were_reused() -> None:
    layout = DcpLayout(dcp_size=2, page_size=1, num_pages=7)
    slots = WidenedSlots(ids([2, 3]))
    for reused in (False, True):
        pools = make_pools(layout)
        scramble(pools, seed=1)
        truth = assemble(pools)[:, slots.ids]
        backups = [pool.get_cpu_copy(raw(pool, slots)) for pool in pools]
        if reused:
            scramble(pools, seed=2)
        for pool, backup in zip(pools, backups, strict=True):
            pool.load_cpu_copy(backup, raw(pool, slots))
        assert torch.equal(bits(assemble(pools)[:, slots.ids]), bits(truth)) is not reused

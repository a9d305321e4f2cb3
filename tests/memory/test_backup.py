"""Back up, let others have the rows, restore elsewhere: every rank gets its own bytes back.

A round trip onto the same slots hides a wrong row (what was read wrongly is written back where it
was), so all rows are overwritten in between, and the new slots are other ones.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import BackupError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
from kvlab.memory import MLATokenToKVPool

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
    scramble(pools, seed=2)
    want = assemble(pools)
    want[:, run.new] = saved
    for pool, backup in zip(pools, backups, strict=True):
        pool.load_cpu_copy(backup, run.new_slots)
        assert backup.spent
    assert torch.equal(bits(assemble(pools)), bits(want))
    for pool in pools:
        assert pool.audit() == []
        assert pool.host.lent_bytes == 0
    return [backup.rows for backup in backups]


@given(run=runs(), kind=st.sampled_from(KINDS), dtype=st.sampled_from(DTYPES))
@settings(max_examples=60)
def test_every_rank_gets_its_rows_back_and_no_other_row_changes(
    run: Run, kind: str, dtype: torch.dtype
) -> None:
    counts = round_trip(run, make_pools(run.layout, kind, dtype=dtype))
    if kind == "replicated":
        assert counts == [len(run.old)] * run.layout.dcp_size
    else:
        owners = [deal(run.layout)[slot][0] for slot in run.old]
        assert counts == [owners.count(rank) for rank in range(run.layout.dcp_size)]


@pytest.mark.parametrize("page", [1, 3, 64])
def test_pages_and_rows_of_any_width_in_bytes(page: int) -> None:
    layout = DcpLayout(dcp_size=2, page_size=page, num_pages=6)
    n = 5 * page - 1
    old, new = slots_on([3, 1, 6], layout, 0, n), slots_on([2, 5, 4], layout, 0, n)
    for elements, dtype in ((3, DTYPES[3]), (1, DTYPES[3]), (5, DTYPES[1]), (576, DTYPES[1])):
        pools = make_pools(layout, nope=elements, rope=0, dtype=dtype)
        round_trip(Run(layout, 0, old, new), pools)


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


@given(run=runs(), data=st.data(), kind=st.sampled_from(KINDS))
@settings(max_examples=50)
def test_whatever_the_new_slots_are_a_rank_restores_the_right_rows_or_none(
    run: Run, data: st.DataObject, kind: str
) -> None:
    first, end = run.layout.first_slot, run.layout.slot_end
    slots = st.integers(first, end - 1)
    any_slots = st.lists(slots, min_size=len(run.old), max_size=len(run.old))
    new = data.draw(st.one_of(st.permutations(run.new), any_slots))
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


@pytest.mark.parametrize("reused", [False, True])
def test_a_copy_by_raw_slots_restores_other_tokens_and_hides_itself_on_rows_nobody_reused(
    reused: bool,
) -> None:
    """What upstream did before the fix: the laws above can fail, and the easy one does not."""

    def raw(pool: MLATokenToKVPool, slots: WidenedSlots) -> PhysicalRows:
        return PhysicalRows.assume_physical(slots.ids, pool.layout, pool.rank)

    slots, other = WidenedSlots(ids([2, 3])), WidenedSlots(ids([4, 5]))
    for new, right in ((slots, not reused), (other, False)):
        pools = make_pools(DcpLayout(dcp_size=2, page_size=1, num_pages=7))
        scramble(pools, seed=1)
        truth = assemble(pools)[:, slots.ids]
        backups = [pool.get_cpu_copy(raw(pool, slots)) for pool in pools]
        if reused:
            scramble(pools, seed=2)
        for pool, backup in zip(pools, backups, strict=True):
            pool.load_cpu_copy(backup, raw(pool, new))
        assert torch.equal(bits(assemble(pools)[:, new.ids]), bits(truth)) is right

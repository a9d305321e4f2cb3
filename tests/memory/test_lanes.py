"""A lane decides when and by which way rows move, never which bytes arrive."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import BackupError, LayoutError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import (
    CudaLane,
    DeferredLane,
    HostArena,
    ImmediateLane,
    MLATokenToKVPool,
    StagedLane,
    back_up_ranks,
    restore_ranks,
)
from kvlab.memory.lanes import staged_on_cpu
from kvlab.memory.rows import block_rows, checksum, digest
from kvlab.memory.staging import pieces

from .staged import LANES, put_on, rooms, row_bytes, slots_from, whole
from .support import (
    DTYPES,
    KINDS,
    Run,
    assemble,
    bits,
    make_pools,
    runs,
    scramble,
    slots_on,
    state_pool,
    taken,
)


def same_as_at_once(
    run: Run, kind: str, dtype: torch.dtype, lane: str, room: float, wait: bool
) -> None:
    """Backup, overwriting, restore: bytes, checksums and the other rows as without a lane."""
    plain, staged = (make_pools(run.layout, kind, dtype=dtype) for _ in range(2))
    lanes = put_on(staged, lambda: LANES[lane](int(room * row_bytes(staged[0]))))
    for pools in (plain, staged):
        scramble(pools, seed=1)
    want = [pool.get_cpu_copy(run.old_slots) for pool in plain]
    found = [pool.get_cpu_copy(run.old_slots, wait=wait) for pool in staged]
    for pools in (plain, staged):
        for pool in pools:  # rows may be written over: before_write keeps the order
            pool.before_write()
        scramble(pools, seed=2)
    for one, other in zip(want, found, strict=True):
        other.wait()
        assert other.done
        assert one.checksum == other.checksum
        assert whole(one) == whole(other)
        assert torch.equal(one.source, other.source)
    for one, other, here, there in zip(want, found, plain, staged, strict=True):
        here.load_cpu_copy(one, run.new_slots)
        there.load_cpu_copy(other, run.new_slots, wait=wait)
        other.wait()
        assert other.spent
    assert torch.equal(bits(assemble(plain)), bits(assemble(staged)))
    for pool, side in zip(staged, lanes, strict=True):
        assert pool.audit() == []
        assert pool.host.lent_bytes == side.in_flight == 0
        assert side.allocated_bytes <= side.staging_bytes


@given(
    run=runs(),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    lane=st.sampled_from(sorted(LANES)),
    room=rooms,
    wait=st.booleans(),
)
@settings(max_examples=150)
def test_bytes_checksums_and_other_rows_are_those_of_the_immediate_lane(
    run: Run, kind: str, dtype: torch.dtype, lane: str, room: float, wait: bool
) -> None:
    same_as_at_once(run, kind, dtype, lane, room, wait)


@pytest.mark.parametrize("c", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_every_dcp_size_on_ragged_runs_over_several_pages(kind: str, c: int) -> None:
    layout = DcpLayout(c, page_size=3, num_pages=8)
    for start, n in ((0, 3 * c * 3 - 1), (c + 1, c), (0, 0)):
        old, new = (
            slots_on([7, 2, 5, 1], layout, start, n),
            slots_on([3, 8, 4, 6], layout, start, n),
        )
        same_as_at_once(Run(layout, start, old, new), kind, DTYPES[1], "shuffled", 3, wait=False)


@pytest.mark.parametrize("lane", sorted(LANES))
def test_rows_of_many_blocks_have_the_checksum_of_the_host(
    lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvlab.memory.rows._BLOCK_ROWS", 4)
    layout = DcpLayout(2, page_size=2, num_pages=12)
    old, new = slots_on(range(12, 0, -1), layout, 0, 45), slots_on(range(1, 13), layout, 0, 45)
    for room in (1, 5, 7, 500):
        same_as_at_once(Run(layout, 0, old, new), "sharded", DTYPES[3], lane, room, wait=False)


@given(m=st.integers(0, 20), layers=st.integers(1, 4), room=st.integers(1, 90))
def test_pieces_cover_each_flat_row_once_within_staging(m: int, layers: int, room: int) -> None:
    kv, staging = torch.zeros(layers, m, 3), torch.zeros(room, 3)
    cut, total = list(pieces(kv, staging)), layers * m
    assert [row for piece in cut for row in range(piece.begin, piece.end)] == list(range(total))
    first = staging.data_ptr()
    spans = [
        ((p.stage.data_ptr() - first) // 12, (p.stage.data_ptr() - first) // 12 + len(p.stage))
        for p in cut
    ]
    assert all(0 <= begin <= end <= room for begin, end in spans)
    assert all(len(p.stage) == p.end - p.begin for p in cut)
    if total <= room:
        assert len(cut) == min(total, 1)
    elif room > 1:  # neighbours do not share memory: one is filled while the other is copied
        for (begin, end), (other_begin, other_end) in pairwise(spans):
            assert end <= other_begin or other_end <= begin
        assert {p.halves for p in cut} == {2}
    else:
        assert {p.halves for p in cut} == {1}


@given(room=st.integers(12, 400), n=st.integers(1, 32), lane=st.sampled_from(sorted(LANES)))
def test_staging_is_allocated_once_and_never_above_its_parameter(
    room: int, n: int, lane: str
) -> None:
    (pool,) = make_pools(DcpLayout(1, 4, 8))
    (side,) = put_on([pool], lambda: LANES[lane](room))
    allocated: list[int] = []
    allocate, zeros, small = StagedLane._allocate, torch.zeros, 0

    def counted(lane: StagedLane, nbytes: int) -> torch.Tensor:
        allocated.append(nbytes)
        return allocate(lane, nbytes)

    def summed(*size: Any, **options: Any) -> torch.Tensor:
        nonlocal small
        made = zeros(*size, **options)
        small += made.numel() * made.element_size()
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagedLane, "_allocate", counted)
        patch.setattr("kvlab.memory.staging.torch.zeros", summed)
        first = pool.get_cpu_copy(slots_from(4, n), wait=False)
        pool.load_cpu_copy(first, slots_from(4, n), wait=False)
        second = pool.get_cpu_copy(slots_from(4, 1), wait=False)
        second.wait()
        first.wait()
    assert allocated == [room]
    assert small == 3 * pool.layers * 8  # the sums of three copies of one block
    assert side.allocated_bytes == room
    assert pool.audit() == []


def test_the_audit_finds_staging_above_its_parameter() -> None:
    (pool,) = make_pools(DcpLayout(1, 4, 8))
    (side,) = put_on([pool], lambda: staged_on_cpu(64))
    pool.get_cpu_copy(slots_from(4, 3)).discard()
    side.staging_bytes = 63
    assert pool.audit() == ["staging holds 64 bytes, bound 63"]


@pytest.mark.parametrize(("room", "fits"), [(11, False), (12, True)])
def test_staging_below_one_row_is_refused_when_the_pool_is_made(room: int, fits: bool) -> None:
    layout = DcpLayout(2, 2, 4)

    def make() -> MLATokenToKVPool:
        lane = DeferredLane(staging_bytes=room)
        sizes = {"layers": 1, "kv_lora_rank": 2, "qk_rope_head_dim": 1}
        return MLATokenToKVPool(layout, 0, dtype=torch.float32, lane=lane, **sizes)  # type: ignore[arg-type]

    if fits:
        make().get_cpu_copy(slots_from(4, 9)).discard()
        return
    text = (
        r"^staging memory must hold at least one row of one layer: got staging_bytes=11 for rows "
        r"of 12 bytes; raise staging_bytes \(a few MiB keep the copy engine busy\)$"
    )
    with pytest.raises(BackupError, match=text):
        make()


def test_a_lane_serves_pools_of_its_own_device_only() -> None:
    text = r"a lane copies rows of its own device: the lane's is cpu, the pool's meta; make a lane"
    with pytest.raises(PoolError, match=text):
        DeferredLane().require_pool(torch.empty(1, 2, 3, device="meta"))
    ImmediateLane().require_pool(torch.empty(1, 2, 3, device="meta"))
    text = r"a CudaLane is for a CUDA device: got cpu; use ImmediateLane\(\) on the CPU, or Deferre"
    with pytest.raises(PoolError, match=text):
        CudaLane("cpu")
    with pytest.raises(LayoutError, match=r"staging_bytes must be at least 1: bytes of device mem"):
        DeferredLane(staging_bytes=0)


def test_a_pool_of_the_cpu_copies_at_once_unless_told_otherwise() -> None:
    (pool, _) = make_pools(DcpLayout(2, 2, 4))
    assert isinstance(pool.lane, ImmediateLane)
    assert pool.lane.audit() == []
    backup = pool.get_cpu_copy(slots_from(4, 5), wait=False)
    assert backup.done
    assert backup.checksum == checksum(backup.kv, 2)
    pool.load_cpu_copy(backup, slots_from(8, 5), wait=False)
    assert backup.spent


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("lane", sorted(LANES))
def test_all_ranks_and_the_state_come_back_together(lane: str, wait: bool) -> None:
    layout = DcpLayout(3, 2, 8)
    pools, states = make_pools(layout, host=HostArena(grain=64)), state_pool()
    put_on(pools, lambda: LANES[lane](40))
    scramble(pools, seed=1)
    old, new = taken(states), taken(states)
    states.temporal[:, old] = 7.0
    old_slots, new_slots = slots_from(6, 11), slots_from(30, 11)
    truth = assemble(pools)
    truth[:, new_slots.ids] = truth[:, old_slots.ids]
    backups = back_up_ranks(pools, old_slots, states, old, wait=wait)
    assert [backup.state is not None for backup in backups] == [True, False, False]
    assert not wait or all(backup.done for backup in backups)
    restore_ranks(pools, backups, new_slots, states, new, wait=wait)
    for backup in backups:
        backup.wait()
        assert backup.spent
    assert torch.equal(bits(assemble(pools)), bits(truth))
    assert bool((states.temporal[:, new] == 7.0).all())
    assert pools[0].host.lent_bytes == 0
    assert [law for pool in pools for law in pool.audit()] == []


@pytest.mark.parametrize("lane", sorted(LANES))
def test_who_waits_may_name_slots_in_any_order(lane: str) -> None:
    pools = make_pools(DcpLayout(2, 2, 8))
    put_on(pools, lambda: LANES[lane](40))
    scramble(pools, seed=1)
    truth = assemble(pools)
    odd, target = WidenedSlots(torch.tensor([9, 4, 11])), WidenedSlots(torch.tensor([21, 20, 23]))
    truth[:, target.ids] = truth[:, odd.ids]
    restore_ranks(pools, back_up_ranks(pools, odd), target)
    assert torch.equal(bits(assemble(pools)), bits(truth))


def test_a_digest_of_sums_is_the_checksum_of_the_bytes() -> None:
    host = torch.arange(2 * 7 * 3, dtype=torch.float32).view(2, 7, 3)
    step = block_rows(2)
    words = host.view(torch.int32).to(torch.int64)
    sums = torch.stack([words[:, at : at + step].sum((1, 2)) for at in range(0, 7, step)], dim=1)
    assert digest(sums, host) == checksum(host, 2)
    assert digest(sums + 1, host) != checksum(host, 2)

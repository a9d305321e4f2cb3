"""The same pools on a GPU: every row, every host copy, every checksum as on the CPU."""

import pytest
import torch

from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import (
    CudaStreams,
    HostArena,
    MLATokenToKVPool,
    StagedTransfer,
    back_up_ranks,
    restore_ranks,
)

from .support import DTYPES, KINDS, bits, ids, make_pools, rows_like, scramble, slots_on
from .test_transfer import slots_from


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_pool_does_what_a_cpu_pool_does(kind: str) -> None:
    for dtype in DTYPES:
        for page in (1, 64):
            compare(kind, dtype, page)


def compare(kind: str, dtype: torch.dtype, page: int) -> None:
    layout = DcpLayout(dcp_size=4, page_size=page, num_pages=8)
    n = 3 * 4 * page - 1
    old = WidenedSlots(ids(slots_on([5, 2, 7], layout, 0, n)))
    new = WidenedSlots(ids(slots_on([1, 8, 3], layout, 0, n)))
    cpu = make_pools(layout, kind, dtype=dtype)
    gpu = make_pools(layout, kind, dtype=dtype, device="cuda")
    scramble(cpu, seed=1)
    for here, there in zip(cpu, gpu, strict=True):
        there.buffer.copy_(here.buffer)
        values = rows_like(here, n)
        for pool in (here, there):
            for layer in range(2):
                part = values[layer].to(pool.device)
                loc = old.ids.to(pool.device)
                pool.set_mla_kv_buffer(layer, loc, part[:, :2], part[:, 2:])
        backup, twin = here.get_cpu_copy(old), there.get_cpu_copy(WidenedSlots(old.ids.cuda()))
        assert torch.equal(bits(backup.kv), bits(twin.kv))
        assert backup.checksum == twin.checksum
        here.load_cpu_copy(backup, new)
        there.load_cpu_copy(twin, WidenedSlots(new.ids.cuda()))
        assert torch.equal(bits(here.buffer), bits(there.buffer.cpu()))
        assert here.audit() == there.audit() == []


@pytest.mark.gpu
def test_slots_and_values_on_the_cpu_reach_a_gpu_pool() -> None:
    layout = DcpLayout(dcp_size=2, page_size=4, num_pages=8)
    run = WidenedSlots(ids(slots_on([5, 2], layout, 0, 13)))
    for kind in KINDS:
        for pool in make_pools(layout, kind, dtype=torch.float32, device="cuda"):
            values = rows_like(pool, 13)[0]
            pool.set_mla_kv_buffer(0, run.ids, values[:, :2], values[:, 2:])
            rows = pool.resolve(run)
            assert rows.ids.device == rows.source.device == pool.device == pool.buffer.device
            k_nope, _ = pool.get_mla_kv_buffer(0, rows)
            assert torch.equal(k_nope.cpu(), values[rows.source.cpu(), :2])
            backup = pool.get_cpu_copy(run)
            pool.buffer.zero_()
            pool.load_cpu_copy(backup, run)
            assert torch.equal(pool.get_mla_kv_buffer(0, rows)[0].cpu(), k_nope.cpu())


# --- copies in flight -----------------------------------------------------------------------------

LAYOUT = DcpLayout(dcp_size=2, page_size=64, num_pages=40)  # slots 128..5247


def on_streams(room: int) -> StagedTransfer:
    device = torch.device("cuda", torch.cuda.current_device())
    return StagedTransfer(CudaStreams(device), room)


def gpu_pool(room: int, kind: str = "sharded", **sizes: object) -> MLATokenToKVPool:
    options = {"layers": 3, "nope": 30, "rope": 2, "device": "cuda"} | sizes
    pool = make_pools(LAYOUT, kind, host=HostArena(pinned=True), **options)[1]  # type: ignore[arg-type]
    pool.transfer = on_streams(room)
    pool.transfer.require_pool(pool.buffer)
    return pool


def on_gpu(slots: WidenedSlots) -> WidenedSlots:
    return WidenedSlots(slots.ids.cuda(), slots.start)


@pytest.mark.gpu
@pytest.mark.parametrize("room", [1000, 50_000, 2**26])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_in_flight_is_written_over_and_comes_back_bit_for_bit(
    kind: str, room: int
) -> None:
    old, new = slots_from(128, 2301), slots_from(2688, 2301)
    for dtype in DTYPES:
        pool = gpu_pool(room, kind, dtype=dtype)
        twin = make_pools(LAYOUT, kind, layers=3, nope=30, rope=2, dtype=dtype)[1]
        scramble([twin], seed=1)
        pool.buffer.copy_(twin.buffer)
        for _ in range(3):
            want = twin.get_cpu_copy(old)
            backup = pool.get_cpu_copy(on_gpu(old), wait=False)
            for one, slots in ((pool, on_gpu(old)), (twin, old)):
                one.fill(one.resolve(slots), 3.0)
            assert backup.checksum == want.checksum
            assert torch.equal(bits(backup.kv), bits(want.kv))
            pool.load_cpu_copy(backup, on_gpu(new))
            twin.load_cpu_copy(want, new)
            rows = pool.resolve(on_gpu(new))
            there = twin.get_rows(2, twin.resolve(new))
            assert torch.equal(bits(pool.get_rows(2, rows).cpu()), bits(there))
            old, new = new, old
        assert torch.equal(bits(pool.buffer.cpu()), bits(twin.buffer))
        assert pool.audit() == []
        assert pool.host.lent_bytes == 0


@pytest.mark.gpu
def test_waiting_for_a_backup_does_not_wait_for_what_the_caller_queued_after_it() -> None:
    pool, slots = gpu_pool(50_000), on_gpu(slots_from(128, 2301))
    pool.get_cpu_copy(slots).discard()  # compiles, allocates
    torch.cuda.synchronize()
    backup = pool.get_cpu_copy(slots, wait=False)
    torch.cuda._sleep(20_000_000_000)  # type: ignore[no-untyped-call]  # cycles: many seconds
    after = torch.cuda.Event()  # type: ignore[no-untyped-call]
    after.record()
    backup.wait()
    assert backup.done
    assert not after.query()  # type: ignore[no-untyped-call]
    backup.discard()


@pytest.mark.gpu
def test_device_memory_beside_the_pool_stays_within_staging_and_small_terms() -> None:
    room, slots = 2**20, on_gpu(slots_from(128, 4097))
    pool = gpu_pool(room, nope=510, layers=8)
    pool.get_cpu_copy(slots).discard()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()  # staging is part of it already
    backup = pool.get_cpu_copy(slots, wait=False)
    backup.wait()
    pool.load_cpu_copy(backup, slots)
    peak = torch.cuda.max_memory_allocated() - before
    ids_and_checks = 40 * 8 * 4097  # ids, elements, what the checks of a restore make of them
    assert peak <= ids_and_checks
    assert isinstance(pool.transfer, StagedTransfer)
    assert pool.transfer._staging is not None
    assert pool.transfer._staging.numel() == room
    assert backup.kv.numel() * backup.kv.element_size() > 8 * room


@pytest.mark.gpu
def test_a_pool_on_a_gpu_copies_beside_the_caller_and_has_a_bounded_pinned_arena() -> None:
    sizes = {"layers": 3, "kv_lora_rank": 30, "qk_rope_head_dim": 2, "device": "cuda"}
    pools = [MLATokenToKVPool(LAYOUT, rank, **sizes) for rank in (0, 1)]  # type: ignore[arg-type]
    assert all(isinstance(pool.transfer, StagedTransfer) for pool in pools)
    assert all(pool.host.pinned and pool.host.capacity_bytes is not None for pool in pools)
    scramble(pools, seed=1)
    want = [pool.buffer.clone() for pool in pools]
    slots = on_gpu(slots_from(128, 1301))
    restore_ranks(pools, back_up_ranks(pools, slots), slots)
    for pool, was in zip(pools, want, strict=True):
        assert torch.equal(bits(pool.buffer), bits(was))


@pytest.mark.gpu
def test_memory_that_is_dropped_in_flight_is_nobody_elses_yet() -> None:
    want = torch.arange(2**18, device="cuda")
    for _ in range(20):
        pool, slots = gpu_pool(4096), on_gpu(slots_from(128, 2301))
        scramble([pool], seed=1)
        flying = pool.get_cpu_copy(slots, wait=False)
        del pool
        # Of the sizes of what was dropped: staging, ids, the buffer.
        mine = [torch.arange(2**18, device="cuda") for _ in range(4)]
        small = [torch.zeros(4096, dtype=torch.uint8, device="cuda") for _ in range(8)]
        flying.wait()
        torch.cuda.synchronize()
        assert all(torch.equal(one, want) for one in mine)
        assert not any(bool(one.any()) for one in small)
        flying.discard()

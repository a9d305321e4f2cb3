"""The same pools on a GPU: every row, every host copy, every checksum as on the CPU."""

import pytest
import torch

from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import PagedTokenToKVPoolAllocator

from .support import DTYPES, KINDS, bits, ids, make_pools, rows_like, scramble, slots_on


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
def test_a_gpu_allocator_hands_out_the_same_slots() -> None:
    layout = DcpLayout(dcp_size=2, page_size=2, num_pages=4)
    for device in ("cpu", "cuda"):
        allocator = PagedTokenToKVPoolAllocator(layout, device=device)
        slots = allocator.alloc_extend(0, 6)
        assert slots is not None
        assert slots.device.type == device
        assert slots.tolist() == [4, 5, 6, 7, 8, 9]
        allocator.free(slots)
        assert allocator.available_size() == layout.capacity_tokens


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

"""On a GPU: graphs between copies, how often a restore waits, memory that is dropped too soon."""

import warnings

import pytest
import torch

from kvlab.errors import PoolError

from .staged import slots_from
from .support import scramble
from .test_cuda import gpu_pool, on_gpu

pytestmark = pytest.mark.gpu


def test_a_graph_of_writes_is_captured_after_a_wait_and_replayed_between_copies() -> None:
    pool, slots = gpu_pool(50_000), on_gpu(slots_from(128, 301))
    values = torch.randn(301, 32, device="cuda")

    def write() -> None:
        pool.set_mla_kv_buffer(0, slots, values[:, :30], values[:, 30:])

    write()  # compiled before the capture
    backup = pool.get_cpu_copy(slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write()
    values.fill_(2.0)
    flying = pool.get_cpu_copy(slots, wait=False)
    pool.before_write()
    graph.replay()
    assert flying.checksum == backup.checksum
    assert bool((pool.get_rows(0, pool.resolve(slots)) == 2.0).all())
    flying.discard()
    backup.discard()
    assert pool.audit() == []


def test_a_capture_with_a_copy_in_flight_is_refused_and_can_be_made_later() -> None:
    pool, slots = gpu_pool(50_000), on_gpu(slots_from(128, 2301))
    backup = pool.get_cpu_copy(slots, wait=False)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for refused in (True, False):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            if refused:
                with pytest.raises(PoolError, match="a CUDA graph that reads or writes a pool"):
                    pool.before_write()
            else:
                pool.before_write()
            torch.zeros(1, device="cuda")
        backup.wait()
    backup.discard()


def test_a_restore_waits_for_the_flag_and_once_for_the_ids() -> None:
    pool, new = gpu_pool(50_000), on_gpu(slots_from(2688, 2301))
    scramble([pool], seed=1)
    backup = pool.get_cpu_copy(on_gpu(slots_from(128, 2301)), wait=False)
    backup.wait()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            pool.load_cpu_copy(backup, new, wait=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    backup.wait()
    waits = [w for w in seen if "called a synchronizing CUDA operation" in str(w.message)]
    assert len(waits) <= 2


def test_memory_that_is_dropped_in_flight_is_nobody_elses_yet() -> None:
    want = torch.arange(2**18, device="cuda")
    for _ in range(20):
        pool, slots = gpu_pool(4096), on_gpu(slots_from(128, 2301))
        scramble([pool], seed=1)
        kept = pool.get_cpu_copy(slots)
        pool.load_cpu_copy(kept, on_gpu(slots_from(2688, 2301)), wait=False)
        flying = pool.get_cpu_copy(slots, wait=False)
        del pool, kept
        # Of the sizes of what was dropped: staging, ids, the buffer.
        mine = [torch.arange(2**18, device="cuda") for _ in range(4)]
        small = [torch.zeros(4096, dtype=torch.uint8, device="cuda") for _ in range(8)]
        flying.wait()
        torch.cuda.synchronize()
        assert all(torch.equal(one, want) for one in mine)
        assert not any(bool(one.any()) for one in small)
        flying.discard()

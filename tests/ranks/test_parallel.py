"""Which rank am I: the context nests, restores, stays in its thread, and binds the pools."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
import torch

from kvlab.errors import LayoutError, RankMismatchError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
from kvlab.memory import MLATokenToKVPool, PageTable, ReplicatedKVPool, UnifiedKVPool
from kvlab.ranks import Parallel, get_parallel, require_rank_here

LAYOUT = DcpLayout(dcp_size=4, page_size=2, num_pages=2)


def here() -> tuple[int, int]:
    return get_parallel().dcp_size, get_parallel().dcp_rank


def test_outside_any_override_nothing_is_claimed() -> None:
    assert get_parallel().current is None
    assert here() == (1, 0)
    require_rank_here("a pool", 4, 3)


def test_overrides_nest_and_end_in_reverse() -> None:
    with get_parallel().override(dcp_size=4, dcp_rank=1) as outer:
        assert outer == get_parallel().current == Parallel(4, 1)
        with get_parallel().override(dcp_size=2, dcp_rank=0):
            assert here() == (2, 0)
            with get_parallel().override(dcp_size=4, dcp_rank=1):
                assert here() == (4, 1)
            assert here() == (2, 0)
        assert here() == (4, 1)
    assert get_parallel().current is None


def test_an_error_ends_the_override_too() -> None:
    with get_parallel().override(dcp_size=4, dcp_rank=1):
        inner = get_parallel().override(dcp_size=4, dcp_rank=2)
        with pytest.raises(RuntimeError, match="stop"), inner:
            assert here() == (4, 2)
            raise RuntimeError("stop")
        assert here() == (4, 1)
    assert get_parallel().current is None


def test_a_claim_is_not_changed_in_place() -> None:
    with get_parallel().override(dcp_size=4, dcp_rank=1) as claim:
        with pytest.raises(AttributeError):
            claim.dcp_rank = 2  # type: ignore[misc]
        with pytest.raises(AttributeError):
            get_parallel().dcp_rank = 2  # type: ignore[misc]
        assert here() == (4, 1)


@pytest.mark.parametrize(
    ("size", "rank", "text"),
    [
        (0, 0, r"dcp_size must be at least 1: .* got dcp_size=0"),
        (2, 2, r"dcp_rank must lie in \[0, 2\): got dcp_rank=2 with dcp_size=2"),
        (2, -1, r"dcp_rank must be at least 0: ranks are numbered from 0; got dcp_rank=-1"),
        (True, 0, r"dcp_size must be an int: .* got True \(bool\)"),
        (2, 1.0, r"dcp_rank must be an int: .* got 1\.0 \(float\)"),
        ("2", 0, r"dcp_size must be an int"),
    ],
)
def test_a_rank_that_cannot_be_is_refused_before_the_block(size: int, rank: int, text: str) -> None:
    with get_parallel().override(dcp_size=4, dcp_rank=1):
        inner = get_parallel().override(dcp_size=size, dcp_rank=rank)
        with pytest.raises(LayoutError, match=text), inner:
            raise AssertionError("the block must not run")
        assert here() == (4, 1)


def test_threads_do_not_see_each_other() -> None:
    barrier = threading.Barrier(8, timeout=60)

    def play(rank: int) -> list[tuple[int, int]]:
        seen = [here()]
        with get_parallel().override(dcp_size=8, dcp_rank=rank):
            for _ in range(20):
                barrier.wait()  # all threads are inside their overrides now
                seen.append(here())
        return [*seen, here()]

    with (
        get_parallel().override(dcp_size=4, dcp_rank=3),
        ThreadPoolExecutor(max_workers=8) as threads,
    ):
        for rank, seen in enumerate(threads.map(play, range(8))):
            assert seen == [(1, 0), *[(8, rank)] * 20, (1, 0)]
        assert here() == (4, 3)


def test_a_thread_that_is_given_the_context_has_the_claim() -> None:
    with get_parallel().override(dcp_size=4, dcp_rank=3):
        context = copy_context()
    with ThreadPoolExecutor(max_workers=1) as threads:
        assert threads.submit(context.run, here).result() == (4, 3)


def test_tasks_of_one_loop_do_not_see_each_other() -> None:
    async def play(rank: int) -> list[tuple[int, int]]:
        seen = []
        with get_parallel().override(dcp_size=4, dcp_rank=rank):
            for _ in range(5):
                await asyncio.sleep(0)
                seen.append(here())
        return seen

    async def all_ranks() -> list[list[tuple[int, int]]]:
        return await asyncio.gather(*(play(rank) for rank in range(4)))

    assert asyncio.run(all_ranks()) == [[(4, rank)] * 5 for rank in range(4)]


def pools_of(rank: int) -> list[MLATokenToKVPool]:
    table = PageTable(LAYOUT, physical_pages=2)
    assert table.map_pages([1, 2])
    return [
        MLATokenToKVPool(LAYOUT, rank, layers=1, kv_lora_rank=2, qk_rope_head_dim=1),
        ReplicatedKVPool(LAYOUT, rank, layers=1, kv_lora_rank=2, qk_rope_head_dim=1),
        UnifiedKVPool(table, rank, layers=1, kv_lora_rank=2, qk_rope_head_dim=1),
    ]


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["sharded", "replicated", "resolved"])
@pytest.mark.parametrize(("size", "rank"), [(4, 0), (4, 3), (2, 1), (1, 0)])
def test_a_pool_of_another_rank_refuses_every_call(kind: int, size: int, rank: int) -> None:
    pool = pools_of(1)[kind]
    loc, slots = torch.arange(8, 12), WidenedSlots(torch.arange(8, 12))
    nope, rope = torch.ones(4, 2), torch.ones(4, 1)
    rows = pool.resolve(slots)
    backup = pool.get_cpu_copy(slots)
    name = type(pool).__name__
    text = (
        rf"^{name} of rank 1 of 4 cannot serve the context, which is rank {rank} of {size}: its "
        r"rows are another rank's; use this rank's own pool, or "
        r"get_parallel\(\)\.override\(dcp_size=4, dcp_rank=1\)$"
    )
    with get_parallel().override(dcp_size=size, dcp_rank=rank):
        for call in (
            lambda: pool.set_mla_kv_buffer(0, loc, nope, rope),
            lambda: pool.get_mla_kv_buffer(0, rows),
            lambda: pool.move_kv_cache(loc[:1], loc[:1]),
            lambda: pool.resolve(slots),
            lambda: pool.get_cpu_copy(slots),
            lambda: pool.get_cpu_copy(rows),
            lambda: pool.load_cpu_copy(backup, slots),
            lambda: pool.load_cpu_copy(backup, rows),
            lambda: pool.check_load(backup, slots),
        ):
            with pytest.raises(RankMismatchError, match=text):
                call()
        if isinstance(pool, UnifiedKVPool):
            with pytest.raises(RankMismatchError, match=text):
                pool.apply_moves([])
    assert not pool.buffer.any()
    assert not backup.spent
    with get_parallel().override(dcp_size=4, dcp_rank=1):
        pool.set_mla_kv_buffer(0, loc, nope, rope)
        pool.load_cpu_copy(backup, slots)
    assert not pool.buffer.any()  # the backup was made before the write


def test_each_rank_of_one_process_serves_its_own_block_and_all_serve_outside() -> None:
    pools = [pools_of(rank)[0] for rank in range(4)]
    loc, nope, rope = torch.arange(8, 16), torch.ones(8, 2), torch.ones(8, 1)
    for rank, pool in enumerate(pools):
        with get_parallel().override(dcp_size=4, dcp_rank=rank):
            pool.set_mla_kv_buffer(0, loc, nope, rope)
    for pool in pools:
        rows: PhysicalRows = pool.resolve(WidenedSlots(loc))
        assert rows.ids.tolist() == [2, 3]
        assert bool((pool.get_mla_kv_buffer(0, rows)[0] == 1).all())

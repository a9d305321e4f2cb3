"""Host memory for backups: bounded, reused, and never lent twice."""

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import BackupError, HostFullError, LayoutError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import HostArena
from kvlab.memory.backup import default_arena

from .support import make_pools


def taken(arena: HostArena, nbytes: int) -> torch.Tensor:
    block = arena.take(nbytes)
    assert block is not None
    return block


@given(data=st.data(), bound=st.one_of(st.none(), st.integers(0, 1000)))
@settings(max_examples=60)
def test_live_blocks_never_overlap_and_memory_keeps_under_the_bound(
    data: st.DataObject, bound: int | None
) -> None:
    arena = HostArena(bound, grain=64)
    live: list[tuple[torch.Tensor, int]] = []
    for mark in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()) and live:
            block, was = live.pop(data.draw(st.integers(0, len(live) - 1)))
            assert bool((block == was).all())  # nobody wrote to it meanwhile
            arena.give(block)
            continue
        nbytes = data.draw(st.integers(0, 300))
        size = max(1, -(-nbytes // 64)) * 64
        new = arena.take(nbytes)
        if new is None:
            assert bound is not None
            assert arena.lent_bytes + size > bound
            continue
        assert size <= new.numel() <= 2 * size
        new.fill_(mark)
        live.append((new, mark))
        assert arena.audit() == []
        assert arena.lent_bytes == sum(block.numel() for block, _ in live)
        assert bound is None or arena.lent_bytes + arena.idle_bytes <= bound
    spans = sorted((block.data_ptr(), block.numel()) for block, _ in live)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))


def test_a_block_comes_back_to_the_next_that_fits_and_not_to_a_far_smaller_backup() -> None:
    arena = HostArena(grain=64)
    small, large = taken(arena, 64), taken(arena, 256)
    arena.give(large)
    arena.give(small)
    assert taken(arena, 1) is small
    assert taken(arena, 64) is not large
    assert taken(arena, 129) is large


def test_idle_blocks_make_room_and_lent_ones_do_not() -> None:
    arena = HostArena(capacity_bytes=256, grain=64)
    first, second = taken(arena, 64), taken(arena, 128)
    assert arena.take(65) is None
    arena.give(first)
    arena.give(second)
    taken(arena, 193)  # the oldest first, and both must go
    assert (arena.lent_bytes, arena.idle_bytes) == (256, 0)
    assert HostArena(capacity_bytes=0).take(0) is None


def test_memory_that_the_system_refuses_is_an_error_and_takes_nothing() -> None:
    arena = HostArena(grain=64)
    taken(arena, 10)
    with pytest.raises(BackupError, match=r"a block of host memory must fit the machine: \d+ byte"):
        arena.take(2**60)
    assert (arena.lent_bytes, arena.idle_bytes, arena.audit()) == (64, 0, [])


def test_only_a_lent_block_itself_is_taken_back() -> None:
    arena = HostArena(grain=64)
    block = taken(arena, 100)
    text = r"only a lent block can be given back: got a block of {} bytes that is not among the {} "
    for stranger in (torch.empty(64, dtype=torch.uint8), block[:10], block[64:]):
        with pytest.raises(BackupError, match=text.format(stranger.numel(), 1)):
            arena.give(stranger)
    arena.give(block)
    with pytest.raises(BackupError, match=text.format(128, 0)):
        arena.give(block)
    assert (arena.lent_bytes, arena.idle_bytes) == (0, 128)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity_bytes": -1}, r"capacity_bytes must be at least 0: bytes of host memory; got"),
        ({"capacity_bytes": 1e9}, r"capacity_bytes must be an int: .* got 1000000000\.0 \(float\)"),
        ({"grain": 0}, r"grain must be at least 1: bytes that block sizes are rounded up to"),
    ],
)
def test_a_bound_is_a_number_of_bytes(options: dict[str, Any], text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        HostArena(**options)


def test_the_audit_finds_a_block_on_both_sides_and_a_bound_that_is_passed() -> None:
    arena = HostArena(capacity_bytes=128, grain=64)
    arena._idle.append(taken(arena, 64))
    assert arena.audit() == ["1 host blocks are lent and idle at once"]
    arena._idle = [torch.empty(128, dtype=torch.uint8)]
    assert arena.audit() == ["the arena holds 192 bytes, bound 128"]


# --- pinned memory, as torch takes it -------------------------------------------------------------


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pinned blocks that are plain ones; what was said to torch about those it keeps."""
    said: list[str] = []
    real: Callable[..., torch.Tensor] = torch.empty

    def empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return real(*size, **options)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("kvlab.memory.backup.torch.empty", empty)
    monkeypatch.setattr(
        torch.accelerator, "empty_host_cache", lambda: said.append("release"), raising=False
    )
    return said


def test_the_bound_counts_pinned_blocks_as_torch_takes_them(released: list[str]) -> None:
    arena = HostArena(capacity_bytes=600, pinned=True, grain=64)
    first = taken(arena, 300)
    assert (first.numel(), arena.lent_bytes) == (512, 512)
    assert arena.take(65) is None  # 128 beside 512
    arena.give(taken(arena, 1))
    arena.give(first)
    assert released == []
    taken(arena, 65)
    assert released == ["release"]  # torch lets go of what was dropped


def test_an_older_torch_has_another_name_for_letting_go(
    released: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.accelerator, "empty_host_cache")
    older = lambda: released.append("older")  # noqa: E731
    monkeypatch.setattr(torch._C, "_host_emptyCache", older, raising=False)
    arena = HostArena(capacity_bytes=512, pinned=True, grain=64)
    arena.give(taken(arena, 64))
    taken(arena, 512)
    assert released == ["older"]


def test_a_full_pinned_arena_says_in_which_sizes_it_lends(released: list[str]) -> None:
    (pool, *_) = make_pools(DcpLayout(2, 2, 8))
    pool.host = HostArena(capacity_bytes=128, pinned=True, grain=64)
    text = r"144 bytes for 11 positions of rank 0, in blocks of 64 and powers of two; 0 of 128 byte"
    with pytest.raises(HostFullError, match=text):
        pool.get_cpu_copy(WidenedSlots(torch.arange(4, 15)))


def test_pinned_memory_is_bounded_by_the_pool_and_the_machine(
    released: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grain = 2 * 2**20
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**22}.__getitem__)
    for pool, bound in ((10 * 2**30, 4 * 2**30), (3 * 2**30 + 5, 3 * 2**30), (1, grain)):
        buffer: Any = SimpleNamespace(device=torch.device("cuda"), nbytes=pool)
        arena = default_arena(buffer)
        assert (arena.capacity_bytes, arena.pinned) == (bound, True)
    assert default_arena(torch.zeros(1, 2, 3)).capacity_bytes is None

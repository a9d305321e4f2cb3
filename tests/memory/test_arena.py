"""The host arena: bounded, reused, and never the same memory twice."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import BackupError, HostFullError, LayoutError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import HostArena
from kvlab.memory.arena import default_arena, pinned_bound

from .support import make_pools


def taken(arena: HostArena, nbytes: int) -> torch.Tensor:
    block = arena.take(nbytes)
    assert block is not None
    assert block.numel() >= nbytes
    assert block.dtype == torch.uint8
    return block


@given(data=st.data(), capacity=st.sampled_from((None, 0, 100, 256, 1000)))
@settings(max_examples=100)
def test_any_order_of_take_and_give_keeps_the_bound_and_the_blocks_apart(
    data: st.DataObject, capacity: int | None
) -> None:
    arena = HostArena(capacity_bytes=capacity, grain=64)
    held: dict[int, torch.Tensor] = {}
    for number in range(data.draw(st.integers(1, 25))):
        give_back = data.draw(st.booleans())
        if held and give_back:
            mark = data.draw(st.sampled_from(sorted(held)))
            arena.give(held.pop(mark))
        else:
            nbytes = data.draw(st.integers(0, 400))
            lent, idle = arena.lent_bytes, arena.idle_bytes
            block = arena.take(nbytes)
            size = max(64, -(-nbytes // 64) * 64)
            if block is None:
                # Declined only where the bound would be passed; then nothing changed.
                assert capacity is not None
                assert lent + size > capacity
                assert (arena.lent_bytes, arena.idle_bytes) == (lent, idle)
            else:
                assert size <= block.numel() <= 2 * size
                held[number] = block.fill_(number)
        assert arena.audit() == []
        assert arena.lent_bytes == sum(block.numel() for block in held.values())
        for mark, block in held.items():  # nobody wrote into a block that is lent
            assert bool((block == mark).all())


def test_pinned_memory_without_cuda_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = (
        r"^pinned host memory needs a CUDA device: got pinned=True and \d+ devices .*use HostAren"
    )
    with pytest.raises(BackupError, match=text):
        HostArena(pinned=True)


def test_memory_that_the_machine_does_not_have_is_refused_and_nothing_is_lent() -> None:
    arena = HostArena(grain=64)
    kept = taken(arena, 64)
    text = r"must fit the machine: got 1152921504606846976 bytes of memory beside 64 in the arena"
    with pytest.raises(BackupError, match=text):
        arena.take(2**60)
    assert (arena.lent_bytes, arena.idle_bytes, arena.audit()) == (64, 0, [])
    arena.give(kept)


def test_a_block_comes_back_to_the_next_that_fits() -> None:
    arena = HostArena(grain=64)
    small, large = taken(arena, 64), taken(arena, 256)
    arena.give(large)
    arena.give(small)
    assert taken(arena, 1) is small
    assert taken(arena, 129) is large
    assert (arena.lent_bytes, arena.idle_bytes) == (320, 0)


def test_a_far_larger_block_is_not_spent_on_a_small_backup() -> None:
    arena = HostArena(grain=64)
    large = taken(arena, 192)
    arena.give(large)
    assert taken(arena, 64) is not large
    assert arena.idle_bytes == 192


def test_idle_blocks_make_room_and_lent_ones_do_not() -> None:
    arena = HostArena(capacity_bytes=256, grain=64)
    first, second = taken(arena, 128), taken(arena, 128)
    assert arena.take(1) is None
    arena.give(first)
    assert taken(arena, 1).numel() == 128  # at most twice the size: reused
    arena.give(second)
    assert (arena.lent_bytes, arena.idle_bytes) == (128, 128)
    third = arena.take(65)
    assert third is second


def test_a_bound_of_nothing_lends_nothing() -> None:
    arena = HostArena(capacity_bytes=0)
    assert arena.take(0) is None
    assert HostArena(capacity_bytes=63, grain=64).take(1) is None


def test_only_a_lent_block_itself_is_taken_back() -> None:
    arena = HostArena(grain=64)
    block, kept = taken(arena, 100), taken(arena, 10)
    text = (
        r"only a lent block can be given back: got a block of {} bytes that is not among the {} "
        r"lent ones; a backup gives its block back once"
    )
    for stranger in (torch.empty(64, dtype=torch.uint8), block[:10], block[64:], block.view(2, -1)):
        with pytest.raises(BackupError, match=text.format(stranger.numel(), 2)):
            arena.give(stranger)
    assert (arena.lent_bytes, arena.idle_bytes) == (192, 0)
    arena.give(block)
    with pytest.raises(BackupError, match=text.format(128, 1)):
        arena.give(block)
    arena.give(kept)
    assert (arena.lent_bytes, arena.idle_bytes) == (0, 192)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity_bytes": -1}, r"capacity_bytes must be at least 0: bytes of host memory; got"),
        ({"capacity_bytes": 1e9}, r"capacity_bytes must be an int: .* got 1000000000\.0 \(float\)"),
        ({"capacity_bytes": True}, r"capacity_bytes must be an int"),
        ({"grain": 0}, r"grain must be at least 1: bytes that block sizes are rounded up to"),
    ],
)
def test_a_bound_is_a_number_of_bytes(options: dict[str, int], text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        HostArena(**options)  # type: ignore[arg-type]


def test_the_audit_finds_a_block_on_both_sides_and_a_bound_that_is_passed() -> None:
    arena = HostArena(capacity_bytes=128, grain=64)
    block = taken(arena, 64)
    arena._idle.append(block)
    assert arena.audit() == ["1 host blocks are lent and idle at once"]
    arena._idle = [torch.empty(128, dtype=torch.uint8)]
    assert arena.audit() == ["the arena holds 192 bytes, bound 128"]


# --- pinned memory, as torch takes it -------------------------------------------------------------


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pinned blocks that are plain ones; what was said to torch about those it keeps."""
    said: list[str] = []
    real = torch.empty

    def empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        assert pin_memory
        return real(*size, **options)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("kvlab.memory.arena.torch.empty", empty)
    monkeypatch.setattr(
        torch.accelerator, "empty_host_cache", lambda: said.append("release"), raising=False
    )
    return said


def test_the_bound_counts_pinned_blocks_as_torch_takes_them(released: list[str]) -> None:
    arena = HostArena(capacity_bytes=600, pinned=True, grain=64)
    first = taken(arena, 300)
    assert (first.numel(), arena.lent_bytes) == (512, 512)
    assert arena.take(65) is None  # 128 beside 512
    taken(arena, 1)
    assert released == []


def test_torch_is_told_to_let_go_of_pinned_blocks_that_are_dropped(released: list[str]) -> None:
    arena = HostArena(capacity_bytes=512, pinned=True, grain=64)
    arena.give(taken(arena, 64))
    arena.give(taken(arena, 64))  # the same block
    assert released == []
    taken(arena, 512)
    assert released == ["release"]
    assert arena.idle_bytes == 0


def test_an_older_torch_has_another_name_for_letting_go(
    released: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.accelerator, "empty_host_cache")
    monkeypatch.setattr(
        torch._C, "_host_emptyCache", lambda: released.append("older"), raising=False
    )
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


def test_pinned_memory_is_bounded_by_the_pool_and_the_machine() -> None:
    grain = 2 * 2**20
    assert pinned_bound(10 * 2**30, 16 * 2**30) == 4 * 2**30
    assert pinned_bound(3 * 2**30 + 5, 16 * 2**30) == 3 * 2**30
    assert pinned_bound(1, 16 * 2**30) == grain  # at least one block
    arena = default_arena(torch.empty(1, 2, 3))
    assert (arena.capacity_bytes, arena.pinned) == (None, False)

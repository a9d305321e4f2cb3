"""The suspects have one bug each: without it, no answer whatever exposes them."""

from hypothesis import given
from hypothesis import strategies as st

from kvlab.teach import suspects
from kvlab.teach.suspects import DecodeBatch, HostCopyPool, PageAllocator
from tests.teach.repaired import (
    GoodAllocator,
    GoodArena,
    GoodBackups,
    GoodBatch,
    GoodMerge,
    GoodPool,
)

few, ranks = st.integers(1, 6), st.integers(2, 5)
requests = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)).map(list), min_size=2)
lse = st.one_of(st.just(float("-inf")), st.floats(-50, 50))


@given(c=ranks, P=few, running=requests, free=st.integers(0, 4))
def test_a_scheduler_that_gives_back_what_a_victim_holds_keeps_its_books(
    c: int, P: int, running: list[list[int]], free: int
) -> None:
    assert not suspects.batch_exposes([running, free], c, P, suspect=GoodBatch).right


@given(c=ranks, P=few, running=requests, free=st.integers(0, 4))
def test_the_scheduler_is_off_exactly_when_a_victims_next_token_opens_a_page(
    c: int, P: int, running: list[list[int]], free: int
) -> None:
    batch = DecodeBatch(P * c, [[*request] for request in running], free)
    opens = [(sum(victim) - 1) % (P * c) == 0 for victim in batch.retract()]
    if batch.audit():
        assert not any(opens)


@given(c=ranks, P=few, kept=st.integers(0, 3), length=st.integers(1, 60), cut=st.integers(1, 60))
def test_an_allocator_that_merges_touching_ranges_frees_each_page_once(
    c: int, P: int, kept: int, length: int, cut: int
) -> None:
    kept *= P * c
    arguments = (kept + cut, c, P, kept, kept + length)
    assert not suspects.seam_exposes(*arguments, suspect=GoodAllocator).right
    legal = cut < length and cut % P == 0
    assert suspects.seam_exposes(*arguments).right == (legal and cut % (P * c) != 0)


def test_the_allocator_frees_what_begins_on_a_page_as_it_should() -> None:
    allocator = PageAllocator(8, 5)
    pages = allocator.alloc(24)
    allocator.free(pages, [(8, 16), (16, 24)])
    assert (pages, allocator.free_pages) == ([1, 2, 3], [4, 5, 2, 3])


@given(st.lists(st.tuples(st.floats(-9, 9), lse), min_size=2))
def test_a_merge_that_adds_the_exponentials_up_is_right_for_any_shards(
    shards: list[tuple[float, float]],
) -> None:
    outs, lses = [o for o, _ in shards], [x for _, x in shards]
    assert not suspects.merge_exposes(lses, outs, suspect=GoodMerge).right


@given(st.lists(lse, min_size=2, max_size=2))
def test_the_merge_is_right_for_two_ranks_as_the_exercise_says(lses: list[float]) -> None:
    assert not suspects.merge_exposes(lses, [3.0, -7.0]).right


@given(capacity=few, sizes=st.lists(st.integers(0, 7), min_size=4, max_size=4))
def test_a_host_that_takes_all_or_nothing_leaves_nothing_behind(
    capacity: int, sizes: list[int]
) -> None:
    answer = [sizes[:2], sizes[2:]]
    assert not suspects.leak_exposes(answer, capacity, 2, suspect=GoodBackups).right


@given(capacity=st.integers(1, 12), ops=st.lists(st.integers(-4, 12)))
def test_an_arena_that_drops_what_waits_keeps_its_bound(capacity: int, ops: list[int]) -> None:
    assert not suspects.arena_exposes(ops, capacity, suspect=GoodArena).right


@given(c=ranks, P=few, old=few, new=few, length=st.integers(1, 30))
def test_a_pool_that_localizes_both_ends_passes_every_test(
    c: int, P: int, old: int, new: int, length: int
) -> None:
    W = P * c
    runs = [list(range(page * W, page * W + min(length, W))) for page in (old, new)]
    assert not suspects.restore_exposes(runs, c, P, 7, suspect=GoodPool).right


def test_the_backup_of_the_pool_to_repair_is_right_on_every_rank() -> None:
    pool = HostCopyPool(2, 2, 2)
    pool.write([4, 5, 6], [7, 8, 9])
    assert pool.back_up([4, 5, 6]) == [[(2, 7), (3, 9)], [(2, 8)]]

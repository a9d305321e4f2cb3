"""Laws of localization: the stride is the mask where its check passes, and nowhere else."""

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvlab.errors import IndexSpaceError
from kvlab.index import (
    DcpLayout,
    Shard,
    WidenedSlots,
    localize,
    localize_masked,
    localize_strided,
    maybe_dcp_kernel_indices,
    owned_elements,
    run_is_aligned,
)

from . import oracle
from .oracle import SIZES, ids, runs

Run = tuple[list[int], int, int, int]
# Around the 1024 ids that the check views as one line, and what is left over after lines.
LENGTHS = (1, 2, 3, 5, 63, 1023, 1024, 1025, 1027, 2047, 2048, 2049, 3079)


@given(runs())
@settings(max_examples=100)
def test_stride_equals_mask_for_any_run_from_any_start_on_shuffled_pages(run: Run) -> None:
    slots, start, c, _ = run
    for rank in range(c):
        found = localize_strided(ids(slots), Shard(c, rank), start)
        assert torch.equal(found, localize_masked(ids(slots), Shard(c, rank)))
        assert found.tolist() == [row for _, row in oracle.held(slots, c, rank)]


@given(runs())
@settings(max_examples=60)
def test_the_ranks_share_a_run_among_them_without_rest(run: Run) -> None:
    slots, _, c, _ = run
    parts = [owned_elements(ids(slots), Shard(c, rank)).tolist() for rank in range(c)]
    assert sorted(at for part in parts for at in part) == list(range(len(slots)))
    assert all(part == sorted(part) for part in parts)


@given(st.lists(st.integers(0, 60), max_size=12), st.sampled_from(SIZES), st.integers(0, 9))
@settings(max_examples=100)
def test_the_check_refuses_exactly_what_stride_and_mask_tell_apart_on_some_rank(
    slots: list[int], c: int, start: int
) -> None:
    differ = any(
        oracle.strided(slots, c, rank, start) != oracle.held(slots, c, rank) for rank in range(c)
    )
    assert run_is_aligned(ids(slots), c, start) == (not differ)
    for rank in range(c):
        if differ:
            with pytest.raises(IndexSpaceError, match="slot and position must agree"):
                localize_strided(ids(slots), Shard(c, rank), start)
        else:
            rows = localize_strided(ids(slots), Shard(c, rank), start)
            assert rows.tolist() == [row for _, row in oracle.held(slots, c, rank)]


def test_rows_that_are_equal_by_luck_but_of_swapped_tokens_are_refused() -> None:
    # Slots 5 and 4 are row 2 of either rank, so both formulations give the same rows, but the
    # stride takes them for each other's tokens.
    swapped = ids([5, 4])
    for rank in range(2):
        by_luck = localize_strided(swapped, Shard(2, rank), check=False)
        assert torch.equal(by_luck, localize_masked(swapped, Shard(2, rank)))
        with pytest.raises(IndexSpaceError, match="slot 5 at index 0 has owner 1"):
            localize_strided(swapped, Shard(2, rank))


@given(
    n=st.sampled_from(LENGTHS),
    c=st.sampled_from((*SIZES, 512, 1024, 2048, 4096, 3000)),
    start=st.integers(0, 5000),
    first=st.sampled_from((0, 2**31 - 1500, 2**53, 2**62)),
    damage=st.lists(
        st.tuples(st.integers(0, 4000), st.sampled_from((-1, 0, 1, 7, -(2**62), "page", "hole"))),
        max_size=2,
    ),
)
@example(n=2048, c=8, start=0, first=0, damage=[(1025, -1)])  # only the AND sees it
@example(n=2048, c=8, start=0, first=0, damage=[(1024, 1)])  # only the OR sees it
@settings(max_examples=100)
def test_the_check_is_its_definition_on_long_runs_with_an_id_damaged_anywhere(
    n: int, c: int, start: int, first: int, damage: list[tuple[int, int | str]]
) -> None:
    slots = [first - first % c + start % c + i for i in range(n)]
    for at, by in damage:
        if by == "page":
            slots[at % n :] = [v + 5 * c for v in slots[at % n :]]
        elif by == "hole":
            slots[at % n] = -1
        elif isinstance(by, int):
            slots[at % n] += by
    right = all(v >= 0 and v % c == (start + i) % c for i, v in enumerate(slots))
    assert run_is_aligned(ids(slots), c, start) == right


@pytest.mark.parametrize("c", [3, 8])
@pytest.mark.parametrize("n", [2**15, 2**15 + 1, 2**16 + 777])
def test_a_run_of_several_pieces_is_checked_and_taken_as_one(n: int, c: int) -> None:
    run, start = torch.arange(n) + 7 * c + 5 % c, 5
    for rank in range(c):
        found = localize_strided(run, Shard(c, rank), start)
        assert torch.equal(found, localize_masked(run, Shard(c, rank)))
    for at in (0, 2**15 - 1, n - 1):
        damaged = run.clone()
        damaged[at] += 1
        with pytest.raises(IndexSpaceError, match=f"at index {at} has owner"):
            localize_strided(damaged, Shard(c, 0), start)


@pytest.mark.parametrize("c", [2, 3])
def test_an_id_that_wraps_into_the_negative_is_seen(c: int) -> None:
    top = 2**63 - 1
    for slots in ([top, -(2**63)], [top - 1, top, -(2**63)], [top, -(2**63), -(2**63) + 1, 4]):
        assert not run_is_aligned(ids(slots), c, slots[0] % c)
    assert run_is_aligned(ids([top - 1, top]), c, (top - 1) % c)


@given(runs(), st.integers(1, 4))
@settings(max_examples=60)
def test_localize_gives_rows_and_their_elements_for_any_run(run: Run, turn: int) -> None:
    slots, start, c, page = run
    layout = DcpLayout(c, page * turn, num_pages=max(slots, default=1) // c + 1, interleave=turn)
    slots = [v + layout.first_slot for v in slots]
    for rank in range(c):
        rows = localize(WidenedSlots(ids(slots), start), layout, rank)
        pairs = list(zip(rows.source.tolist(), rows.ids.tolist(), strict=True))
        assert pairs == oracle.held(slots, c, rank, turn)
        assert (rows.rank, rows.layout) == (rank, layout)


@given(st.lists(st.integers(8, 63), max_size=30), st.integers(0, 9), st.sampled_from((1, 2, 4)))
@settings(max_examples=60)
def test_localize_is_right_for_ids_in_no_order_and_a_start_that_is_a_lie(
    slots: list[int], start: int, c: int
) -> None:
    layout = DcpLayout(c, 2, num_pages=31)
    for rank in range(c):
        rows = localize(WidenedSlots(ids(slots), start), layout, rank)
        pairs = list(zip(rows.source.tolist(), rows.ids.tolist(), strict=True))
        assert pairs == oracle.held(slots, c, rank)


@given(runs(), st.data())
@settings(max_examples=60)
def test_localizing_chunk_by_chunk_is_localizing_once(run: Run, data: st.DataObject) -> None:
    slots, start, c, page = run
    layout = DcpLayout(c, page, num_pages=max(slots, default=1) // c + 1)
    whole = WidenedSlots(ids([v + layout.first_slot for v in slots]), start)
    size = data.draw(st.integers(1, 9))
    cuts = [*range(0, len(whole), size), len(whole)]
    for rank in range(c):
        rows = localize(whole, layout, rank)
        parts = [(a, localize(whole.chunk(a, b), layout, rank)) for a, b in pairwise(cuts)]
        joined = [row for _, part in parts for row in part.ids.tolist()]
        assert joined == rows.ids.tolist()
        at = [a + s for a, part in parts for s in part.source.tolist()]
        assert at == rows.source.tolist()


@given(runs())
@settings(max_examples=50)
def test_the_upstream_name_is_the_stride_from_a_page_start(run: Run) -> None:
    slots, start, c, page = run
    slots = slots[-start % (c * page) :]  # from the first slot of a page on
    for rank in range(c):
        rows = maybe_dcp_kernel_indices(ids(slots), Shard(c, rank))
        assert rows.tolist() == [row for _, row in oracle.held(slots, c, rank)]
    given_ids = ids(slots)
    assert maybe_dcp_kernel_indices(given_ids, Shard(1, 0)) is given_ids


@pytest.mark.parametrize("c", [2, 3, 8])
def test_views_with_a_stride_of_their_own_are_read_as_they_are(c: int) -> None:
    table = torch.arange(8 * c, 8 * c + 120).reshape(60, 2)
    column = table[:, 0]
    assert not column.is_contiguous()
    layout = DcpLayout(c, 1, num_pages=200)
    for rank in range(c):
        rows = localize(WidenedSlots(column), layout, rank)
        assert torch.equal(rows.ids, localize(WidenedSlots(column.clone()), layout, rank).ids)
        assert rows.ids.tolist() == [row for _, row in oracle.held(column.tolist(), c, rank)]
    assert not run_is_aligned(column, c)
    expanded = ids([8 * c]).expand(5)
    assert localize(WidenedSlots(expanded), layout, 0).ids.tolist() == [8] * 5


@pytest.mark.parametrize("c", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [0, 1])
def test_no_ids_or_fewer_than_ranks_leave_ranks_without_rows(n: int, c: int) -> None:
    layout = DcpLayout(c, 2, 2)
    run = WidenedSlots(torch.arange(layout.first_slot, layout.first_slot + n))
    found = [localize(run, layout, rank) for rank in range(c)]
    assert [len(rows) for rows in found] == [n, *[0] * (c - 1)]
    for rank in range(c):
        assert len(localize_strided(run.ids, Shard(c, rank))) == len(found[rank])
        assert found[rank].ids.dtype == found[rank].source.dtype == torch.int64

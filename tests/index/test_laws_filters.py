"""Laws of the filters and of the tables: what is read is the mask, page by page and run by run."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import IndexSpaceError
from kvlab.index import (
    DcpLayout,
    Shard,
    WidenedSlots,
    dcp_local_kv_block_table,
    filter_dcp_local_chunk_kv_indices,
    localize,
    localize_masked,
    localize_move,
    localize_virtual,
    look_up_rows,
    slots_of_blocks,
)

from .oracle import SIZES, held, ids, runs

Run = tuple[list[int], int, int, int]
slot_lists = st.lists(st.integers(0, 900), max_size=40)


@given(st.lists(runs(longest=30), max_size=5), st.sampled_from(SIZES))
@settings(max_examples=60)
def test_the_chunk_filter_is_the_mask_of_each_run(drawn: list[Run], c: int) -> None:
    # Slots of another c than they were drawn for, moved into the phase of their start.
    pieces = [
        (start, [v * c + (start + i) % c for i, v in enumerate(s)]) for s, start, _, _ in drawn
    ]
    joined = [v for _, piece in pieces for v in piece]
    starts, lens = [start for start, _ in pieces], [len(piece) for _, piece in pieces]
    for rank in range(c):
        kept = filter_dcp_local_chunk_kv_indices(ids(joined), starts, lens, Shard(c, rank))
        assert kept.tolist() == [v for v in joined if v % c == rank]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True), st.data())
@settings(max_examples=60)
def test_block_tables_name_the_pages_that_localization_reads(
    pages: list[int], data: st.DataObject
) -> None:
    c, page = data.draw(st.sampled_from(SIZES)), data.draw(st.integers(1, 5))
    tokens = data.draw(st.integers(1, len(pages) * c * page))
    layout = DcpLayout(c, page, num_pages=30)
    slots = slots_of_blocks(ids(pages), layout.widened_page_size, tokens)
    latent = dcp_local_kv_block_table(slots[None], page, c)
    used = -(-tokens // layout.widened_page_size)
    assert latent.tolist() == [pages[:used]]
    for rank in range(c):
        # A kernel reads row j of the shard at table[j // P] * P + j % P.
        rows = localize(WidenedSlots(slots), layout, rank).ids
        j = torch.arange(len(rows))
        assert torch.equal(latent[0, j // page] * page + j % page, rows)
    indexer = dcp_local_kv_block_table(slots[None], page, 1)  # replicated: every slot on every rank
    at = torch.arange(tokens)
    assert torch.equal(indexer[0, at // page] * page + at % page, slots)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(-9, 9)), max_size=20),
    st.sampled_from(SIZES),
)
@settings(max_examples=60)
def test_a_move_gives_each_pair_to_the_rank_that_stores_both(
    pairs: list[tuple[int, int]], c: int
) -> None:
    source = [v + 9 * c for v, _ in pairs]
    target = [v + 9 * c + hop * c for v, hop in pairs]
    moved = []
    for rank in range(c):
        to, from_ = localize_move(ids(target), ids(source), Shard(c, rank))
        assert to.tolist() == [row for _, row in held_large(target, c, rank)]
        assert from_.tolist() == [row for _, row in held_large(source, c, rank)]
        moved.append(len(to))
    assert sum(moved) == len(pairs)


@given(st.data(), st.sampled_from(SIZES), st.integers(1, 4))
@settings(max_examples=60)
def test_virtual_ids_are_sharded_first_and_looked_up_second(
    data: st.DataObject, c: int, page: int
) -> None:
    order = data.draw(st.permutations(range(1, 6)))
    v2p = [0, *order]
    slots = data.draw(st.lists(st.integers(0, 6 * c * page - 1), max_size=20))
    for rank in range(c):
        elements, rows = localize_virtual(ids(slots), ids(v2p), page, Shard(c, rank))
        pairs = list(zip(elements.tolist(), rows.tolist(), strict=True))
        assert pairs == [
            (at, v2p[row // page] * page + row % page) for at, row in held(slots, c, rank)
        ]
    identity = ids(list(range(6)))
    virtual = localize_virtual(ids(slots), identity, page, Shard(c, 0))[1]
    assert torch.equal(virtual, localize_masked(ids(slots), Shard(c, 0)))


def test_a_page_table_of_int32_gives_rows_of_int64() -> None:
    rows = look_up_rows(
        torch.tensor([4], dtype=torch.int32), torch.tensor([0, 1, 2**31 - 1]).int(), 2
    )
    assert (rows.dtype, rows.tolist()) == (torch.int64, [2 * (2**31 - 1)])


def held_large(slots: list[int], c: int, rank: int) -> list[tuple[int, int]]:
    return [(at, v // c) for at, v in enumerate(slots) if v % c == rank]


def test_holes_of_a_table_stay_holes() -> None:
    rows = ids([8, 9, 10, 11, 20, 21, 22, 23, -1, -1, -1, -1])[None]
    blocks = dcp_local_kv_block_table(rows, page_size=2, dcp_size=2)
    assert blocks.tolist() == [[2, 5, -1]]
    assert dcp_local_kv_block_table(rows - 8 * (rows < 0), 2, 2).tolist() == [[2, 5, -1]]
    assert slots_of_blocks(blocks[0], 4, tokens=8).tolist() == rows[0, :8].tolist()


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=8),
    st.sampled_from(SIZES),
)
def test_a_move_is_refused_for_two_owners_and_for_nothing_else(
    pairs: list[tuple[int, int]], c: int
) -> None:
    one, two = ids([a for a, _ in pairs]), ids([b for _, b in pairs])
    if any(a % c != b % c for a, b in pairs):
        with pytest.raises(IndexSpaceError, match="different owners"):
            localize_move(one, two, Shard(c, 0))
    else:
        localize_move(one, two, Shard(c, 0))

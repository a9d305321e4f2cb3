"""Worked tables that were computed by hand or by other engines' rules, number for number.

The rule with an interleave is vLLM's (``cp_kv_cache_interleave_size``), TensorRT-LLM's V2 ledger's
and SGLang's kv-shard placement's; with interleave 1 all of them are SGLang's rule.
"""

import pytest
import torch

from kvlab.errors import IndexSpaceError
from kvlab.index import (
    DcpLayout,
    RawUse,
    Shard,
    WidenedSlots,
    get_dcp_chunk_lens,
    get_dcp_lens,
    localize,
    localize_fixed_shape,
    localize_masked,
    localize_strided,
    owner_of,
    raw_use_census,
    raw_use_of_page,
    row_of,
    slots_of_blocks,
)

from .oracle import ids

# Block table [5, 2], 4 rows a block, 2 ranks, 11 tokens: (owner, row) of each position.
SLOTS = [*range(40, 48), 16, 17, 18]
TABLE = {
    1: [(r, x) for x in (20, 21, 22, 23) for r in (0, 1)] + [(0, 8), (1, 8), (0, 9)],
    2: [(r, x) for p in (20, 22) for r in (0, 1) for x in (p, p + 1)] + [(0, 8), (0, 9), (1, 8)],
    4: [(r, x) for r in (0, 1) for x in (20, 21, 22, 23)] + [(0, 8), (0, 9), (0, 10)],
}
LENS = {1: [6, 5], 2: [6, 5], 4: [7, 4]}


@pytest.mark.parametrize("interleave", TABLE)
def test_the_worked_table_of_vllm(interleave: int) -> None:
    slots = slots_of_blocks(ids([5, 2]), widened_page_size=8, tokens=11)
    assert slots.tolist() == SLOTS
    owners, rows = owner_of(slots, 2, interleave), row_of(slots, 2, interleave)
    assert list(zip(owners.tolist(), rows.tolist(), strict=True)) == TABLE[interleave]
    lens = [int(get_dcp_lens(ids([11]), Shard(2, r, interleave))) for r in (0, 1)]
    assert lens == LENS[interleave]
    layout = DcpLayout(2, page_size=4, num_pages=5, interleave=interleave)
    for rank in (0, 1):
        found = localize(WidenedSlots(slots), layout, rank)
        assert found.ids.tolist() == [row for owner, row in TABLE[interleave] if owner == rank]
        assert len(found) == LENS[interleave][rank]
        assert Shard(2, rank, interleave).slot(found.ids).tolist() == slots[found.source].tolist()


def test_with_a_turn_of_one_block_the_rule_is_the_kv_shard_placement() -> None:
    slots, block, c = torch.arange(500), 4, 3
    wide = block * c
    assert torch.equal(owner_of(slots, c, block), slots % wide // block)
    assert torch.equal(row_of(slots, c, block), slots // wide * block + slots % block)


@pytest.mark.parametrize(
    ("pages", "page", "c", "rows", "last_slot", "use"),
    [
        (3, 1, 2, 4, 7, (1, 0, 2)),
        (16, 64, 4, 1088, 4351, (3, 1, 12)),
        (128, 64, 4, 8256, 33023, (31, 1, 96)),
        (1024, 64, 8, 65600, 524799, (127, 1, 896)),
    ],
)
def test_the_derived_table_of_raw_use(
    pages: int, page: int, c: int, rows: int, last_slot: int, use: tuple[int, int, int]
) -> None:
    layout = DcpLayout(c, page, pages)
    assert (layout.rows_per_rank, layout.slot_end - 1) == (rows, last_slot)
    assert raw_use_census(layout) == RawUse(*use)
    kinds = [raw_use_of_page(layout, q) for q in range(1, pages + 1)]
    assert kinds == sorted(kinds, key=["silent", "straddling", "out_of_range"].index)
    # In order: the lowest pages are silent. Counted, they are the census.
    assert tuple(map(kinds.count, ("silent", "straddling", "out_of_range"))) == use


def test_mode_a_two_ragged_runs_joined_lose_a_row_of_one_rank_to_another() -> None:
    joined = ids([8, 9, 10, 11, 12, 16, 17, 18, 19, 20])
    assert localize_masked(joined, Shard(4, 0)).tolist() == [2, 3, 4, 5]
    assert localize_strided(joined, Shard(4, 0), check=False).tolist() == [2, 3, 4]
    assert localize_masked(joined, Shard(4, 1)).tolist() == [2, 4]
    assert localize_strided(joined, Shard(4, 1), check=False).tolist() == [2, 4, 5]
    with pytest.raises(IndexSpaceError, match=r"slot 16 at index 5 has owner 0, position 5 has 1"):
        localize_strided(joined, Shard(4, 0))
    layout = DcpLayout(4, page_size=2, num_pages=2)
    rows = [localize(WidenedSlots(joined), layout, r).ids.tolist() for r in range(4)]
    assert rows == [[2, 3, 4, 5], [2, 4], [2, 4], [2, 4]]


def test_mode_b_a_run_from_the_middle_of_a_page_needs_its_start() -> None:
    run = torch.arange(5, 12)
    assert localize_masked(run, Shard(4, 0)).tolist() == [2]
    assert localize_strided(run, Shard(4, 0), check=False).tolist() == [1, 2]
    assert localize_strided(run, Shard(4, 0), start=5).tolist() == [2]
    with pytest.raises(IndexSpaceError, match=r"slot 5 at index 0 has owner 1, position 0 has 0"):
        localize_strided(run, Shard(4, 0))


def test_mode_c_localizing_after_chunking_needs_the_start_of_each_chunk() -> None:
    slots, layout = WidenedSlots(torch.arange(4, 16)), DcpLayout(4, 1, 3)
    bare = [localize_strided(p, Shard(4, 1), check=False) for p in torch.arange(12).chunk(4)]
    assert torch.cat(bare).tolist() == [0, 1, 1, 2]
    chunks = [localize(slots.chunk(at, at + 3), layout, 1) for at in range(0, 12, 3)]
    assert torch.cat([rows.ids for rows in chunks]).tolist() == [1, 2, 3]
    with pytest.raises(IndexSpaceError, match="slot and position must agree"):
        localize_strided(torch.arange(3, 6), Shard(4, 1))


def test_mode_d_rows_localized_again_are_one_in_c() -> None:
    assert localize_masked(torch.arange(8), Shard(4, 1)).tolist() == [0, 1]
    rows = localize(WidenedSlots(torch.arange(4, 36)), DcpLayout(4, 1, 8), 1)
    assert rows.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(IndexSpaceError, match="would keep 2 of 8 rows"):
        localize_masked(rows, Shard(4, 1))  # type: ignore[arg-type]


def test_a_short_prompt_leaves_shards_empty() -> None:
    assert [int(get_dcp_lens(ids([3]), Shard(8, r))) for r in range(8)] == [1, 1, 1, 0, 0, 0, 0, 0]
    assert [int(get_dcp_lens(ids([3]), Shard(2, r, 4))) for r in (0, 1)] == [3, 0]


def test_chunks_that_are_no_multiple_of_a_turn_load_the_ranks_unevenly() -> None:
    assert get_dcp_chunk_lens(24, 12, 2, interleave=4).tolist() == [[8, 4], [4, 8]]
    assert get_dcp_chunk_lens(24, 8, 2, interleave=4).tolist() == [[4, 4], [4, 4], [4, 4]]


def test_lengths_do_not_shrink_evenly_when_tokens_are_rejected() -> None:
    lens = {n: [int(get_dcp_lens(ids([n]), Shard(2, r))) for r in (0, 1)] for n in (7, 6, 5)}
    assert lens == {7: [4, 3], 6: [3, 3], 5: [3, 2]}


def test_a_round_robin_ledger_of_800_tokens_is_even() -> None:
    lens = [int(get_dcp_lens(ids([800]), Shard(4, r, 100))) for r in range(4)]
    assert lens == [200] * 4


def test_a_sentinel_is_tested_before_it_is_divided() -> None:
    hole = ids([-1])
    assert (hole % 2).tolist() == [1]  # what makes it look owned by the last rank
    assert (hole // 8).tolist() == [-1]
    for c in (2, 3, 8):
        for marks in (hole, ids([-7]), ids([-(2**63)])):
            assert owner_of(marks, c).tolist() == row_of(marks, c).tolist() == [-1]
            assert [localize_fixed_shape(marks, Shard(c, r)).tolist() for r in range(c)] == [
                [-1]
            ] * c

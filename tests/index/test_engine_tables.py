"""Worked tables that were computed by hand or by other engines' rules, number for number.

The rule with an interleave is vLLM's (``cp_kv_cache_interleave_size``), TensorRT-LLM's V2 ledger's
and SGLang's kv-shard placement's; with interleave 1 all of them are SGLang's rule.
"""

import pytest
import torch

from kvlab.index import (
    DcpLayout,
    RawUse,
    Shard,
    WidenedSlots,
    get_dcp_lens,
    localize,
    localize_fixed_shape,
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

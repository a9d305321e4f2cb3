"""The inputs of SGLang's public tests, as far as they concern indices, against our functions.

Sources, all under ``test/registered``: ``dcp/test_dcp_layout_unit.py`` (items 1-6 and 8-10),
``unit/mem_cache/test_decode_retraction_backup.py``, ``test_hicache_dcp_host_pool.py`` and
``test_free_kv_row_coalesce.py``. The inputs are facts; the tests are ours.
"""

import pytest
import torch
from torch import Tensor

from kvlab.errors import LayoutError
from kvlab.index import (
    DcpLayout,
    Shard,
    WidenedSlots,
    filter_dcp_local_chunk_kv_indices,
    get_dcp_lens,
    localize,
    localize_strided,
    maybe_dcp_kernel_indices,
    owned_elements,
    pages_of_free,
    remap_dcp_write_locations_fixed_shape,
)

from .oracle import ids

P = 64
C = (2, 3, 4, 8)
CHUNKS = [
    ([0], [1]),
    ([0, 0], [2048, 2048]),
    ([8192], [3]),
    ([5, 13, 31], [7, 0, 19]),
    ([1365] * 3, [1365] * 3),
    ([43690] * 2, [43690, 17]),
    ([7] * 5, [11, 13, 0, 1, 40]),
]


def joined_runs(starts: list[int], lens: list[int], c: int) -> Tensor:
    """The slots of each run from its own shuffled pages, joined."""
    wide, runs = P * c, []
    shuffle = torch.Generator().manual_seed(len(starts) * 97 + c)
    for start, n in zip(starts, lens, strict=True):
        pages = torch.randperm((start + n) // wide + 2, generator=shuffle) + 1
        at = torch.arange(start, start + n)
        runs.append(pages[at // wide] * wide + at % wide)
    return torch.cat(runs)


@pytest.mark.parametrize("c", C)
@pytest.mark.parametrize(("starts", "lens"), CHUNKS)
def test_chunk_filter_keeps_what_the_owner_mask_keeps(
    starts: list[int], lens: list[int], c: int
) -> None:
    run = joined_runs(starts, lens, c)
    for rank in range(c):
        kept = filter_dcp_local_chunk_kv_indices(run, starts, lens, Shard(c, rank))
        assert torch.equal(kept, run[run % c == rank])


def test_a_stride_without_phase_has_the_wrong_count_on_every_rank_of_a_second_chunk() -> None:
    starts, lens, c = [2730] * 3, [1365] * 3, 8
    run = joined_runs(starts, lens, c)
    for rank in range(c):
        kept = filter_dcp_local_chunk_kv_indices(run, starts, lens, Shard(c, rank))
        assert torch.equal(kept, run[run % c == rank])
        assert len(run[rank::c]) != len(kept)


def test_without_dcp_the_same_object_comes_back() -> None:
    run = torch.arange(5)
    assert filter_dcp_local_chunk_kv_indices(run, [0], [5], Shard(1, 0)) is run
    assert maybe_dcp_kernel_indices(run, Shard(1, 0)) is run
    assert get_dcp_lens(run, Shard(1, 0)) is run


def test_writes_of_fixed_shape_send_what_is_not_owned_to_row_zero() -> None:
    run = ids([256, 257, 258, 259, 512, 513])
    rows = [
        remap_dcp_write_locations_fixed_shape(run, Shard(2, rank)).tolist() for rank in range(2)
    ]
    assert rows == [[128, 0, 129, 0, 256, 0], [0, 128, 0, 129, 0, 256]]
    for c, rank in [(0, 0), (2, 2)]:
        with pytest.raises(LayoutError):
            remap_dcp_write_locations_fixed_shape(run, Shard(c, rank))


@pytest.mark.parametrize("prefixes", [[4, 8], [0, 4], [0, 0]])
def test_a_planned_prefix_is_each_requests_own_rows_one_after_the_other(
    prefixes: list[int],
) -> None:
    table = torch.arange(40, 64).reshape(3, 8)
    runs = [table[request, :n] for request, n in zip([2, 0], prefixes, strict=True)]
    for rank in range(4):
        rows = torch.cat([localize_strided(run, Shard(4, rank)) for run in runs])
        assert torch.equal(rows, torch.cat(runs)[rank::4] // 4)


def test_four_allocations_of_a_widened_pool_stay_inside_the_buffer_of_a_rank() -> None:
    layout = DcpLayout(4, P, 1024 // P)
    assert (layout.capacity_tokens, layout.widened_page_size, layout.num_pages) == (4096, 256, 16)
    assert layout.rows_per_rank == 1024 + P
    for allocation in torch.arange(layout.first_slot, layout.slot_end).chunk(4):
        rows = torch.unique(allocation // 4)
        assert len(rows) * 4 == len(allocation)
        assert int(rows.max()) < 1024 + P


def test_live_rows_and_pages_of_a_batch_add_up() -> None:
    lens = ids([0, 1, 2, 3, 4, 63, 64, 65, 255, 256, 257, 515])
    layout = DcpLayout(4, P, num_pages=16)
    local = torch.stack([get_dcp_lens(lens, Shard(4, rank)) for rank in range(4)])
    assert torch.equal(local.sum(0), lens)
    for tokens, held in zip(lens.tolist(), local.T.tolist(), strict=True):
        allocated = layout.pages_for(tokens)
        assert {allocated - -(-rows // P) for rows in held} <= {0, 1}
    aligned = ids([256, 512, 768, 1024])
    for rank in range(4):
        assert torch.equal(get_dcp_lens(aligned, Shard(4, rank)) * 4, aligned)


def test_a_backup_in_chunks_of_three_restores_the_rows_of_rank_one_and_no_others() -> None:
    rows, c, rank, chunk = 8, 4, 1, 3
    layers = [torch.arange(rows).double() + 100 * layer for layer in range(2)]
    before = [layer.clone() for layer in layers]
    old, new = torch.arange(12), torch.arange(12, 24)
    saved = localize_strided(old, Shard(c, rank))
    target = localize_strided(new, Shard(c, rank))
    for layer in layers:
        pieces = [layer[saved[at : at + chunk]].clone() for at in range(0, len(saved), chunk)]
        layer[target] = torch.cat(pieces)
    for layer, was in zip(layers, before, strict=True):
        assert layer[3:6].tolist() == was[0:3].tolist()
        others = [0, 1, 2, 6, 7]
        assert layer[others].tolist() == was[others].tolist()
    with pytest.raises(IndexError):
        layers[0][old]  # what a backup did that took the slots for rows


@pytest.mark.parametrize("rank", range(8))
def test_host_pool_page_one_is_rows_64_to_127_on_every_rank(rank: int) -> None:
    assert maybe_dcp_kernel_indices(torch.arange(512, 1024), Shard(8, rank)).tolist() == [
        *range(64, 128)
    ]
    # What the backup kernel sees of two pages.
    assert maybe_dcp_kernel_indices(torch.arange(1024), Shard(8, rank)).tolist() == [*range(128)]
    layout = DcpLayout(8, P, num_pages=16)
    rows = localize(WidenedSlots(torch.arange(512, 1024)), layout, rank)
    assert rows.ids.tolist() == [*range(64, 128)]


@pytest.mark.parametrize("rank", range(8))
def test_shuffled_whole_pages_give_each_rank_its_mask_and_an_eighth(rank: int) -> None:
    pages = torch.cat([torch.arange(page * 512, (page + 1) * 512) for page in (3, 0, 5)])
    rows = maybe_dcp_kernel_indices(pages, Shard(8, rank))
    assert torch.equal(rows, pages[pages % 8 == rank] // 8)
    assert len(rows) * 8 == len(pages)


def test_tokens_stay_paired_when_both_lists_are_shuffled_and_sorted_by_host() -> None:
    host = torch.cat([torch.arange(page * 512, (page + 1) * 512) for page in (7, 2)])
    device = torch.cat([torch.arange(page * 512, (page + 1) * 512) for page in (1, 4)])
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(0))
    host, device = host[order], device[order]
    by_host = torch.argsort(host)
    host, device = host[by_host], device[by_host]
    for rank in range(8):
        assert torch.equal(
            owned_elements(host, Shard(8, rank)), owned_elements(device, Shard(8, rank))
        )


def test_touching_ranges_on_the_physical_grid_are_freed_once_on_the_widened_one() -> None:
    # 576 = 9 * 64 is no multiple of 512; 32704 = 511 * 64 neither.
    assert pages_of_free([(512, 576), (576, 1100)], page=512) == [1, 2]
    assert pages_of_free([(0, 32704), (32704, 33000)], page=512) == list(range(65))

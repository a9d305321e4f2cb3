"""Upstream's functions over ids: filters, block tables, writes, moves, virtual pages.

The filters stay in the widened space, the block tables name pages; the division into rows happens
once, later. A unified pool has a page table between allocator and buffer: ids are sharded first and
looked up second; in the other order the owner comes from the wrong number.

Worked example, c=2, page_size=2 (W = 4): the row [8, 9, 10, 11, 20, 21, 22, 23] of ``req_to_token``
gives the block table [2, 5], one page of 2 rows for 4 slots. A replicated indexer cache holds every
slot on every rank: its table is that of dcp_size 1, [4, 5, 10, 11].

Source: SGLang ``layers/dcp/layout.py`` where no other is named.
"""

import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError, LayoutError
from kvlab.index.layout import Shard, require_int
from kvlab.index.localize import localize_fixed_shape, localize_strided, owned_elements
from kvlab.index.spaces import as_id_tensor, as_ids, require_within


def maybe_dcp_kernel_indices(ids: Tensor, shard: Shard) -> Tensor:
    """``localize_strided`` of a run from position 0; dcp_size 1 returns the same object.

    Unlike upstream, a list that is not a sequence of pages from their first slot is refused.
    Source: SGLang PR 39487.
    """
    as_ids(ids, "ids")  # at dcp_size 1 too, where rows given for slots would do no harm yet
    return ids if shard.dcp_size == 1 else localize_strided(ids, shard)


def filter_dcp_local_chunk_kv_indices(
    ids: Tensor, starts: list[int], lens: list[int], shard: Shard
) -> Tensor:
    """The owned ids of joined per-request chunks, still widened: int64 ``(m,)``.

    Run i covers positions ``starts[i] .. starts[i]+lens[i]-1``, and is refused when it disagrees
    with them. Chunk starts are seldom multiples of c, so each run has its own phase.
    """
    ids = as_ids(ids, "ids")
    if len(starts) != len(lens):
        raise LayoutError(
            f"starts and lens must name the same runs: got {len(starts)} starts, {len(lens)} lens"
        )
    if sum(lens) != len(ids) or any(n < 0 for n in lens):
        raise LayoutError(
            f"lens must be at least 0 and add up to the ids: got sum {sum(lens)} of "
            f"{lens[:8]}{'...' if len(lens) > 8 else ''} for {len(ids)} ids"
        )
    if shard.dcp_size == 1:
        return ids
    for run, start in zip(ids.split(lens), starts, strict=True):  # type: ignore[no-untyped-call]
        localize_strided(run, shard, start)  # refuses a run out of phase
    return ids[shard.owns(ids)]


def dcp_local_kv_block_table(loc_rows: Tensor, page_size: int, dcp_size: int) -> Tensor:
    """Physical page of each widened page, for the *sharded* latent: int64 ``(batch, pages)``.

    ``loc_rows`` int64 or int32 ``(batch, columns)``, the rows of ``req_to_token`` from position 0.
    The same on every rank. Holes (-1) stay -1.
    """
    require_int("dcp_size", dcp_size, 1, "the number of ranks that share one request's KV")
    require_int("page_size", page_size, 1, "rows of one page in one rank's buffer")
    width = require_int("page_size * dcp_size", page_size * dcp_size, 1, "slots of one block")
    loc_rows = as_id_tensor(loc_rows, "loc_rows")
    if loc_rows.dim() != 2:
        raise IndexSpaceError(
            f"loc_rows must have shape (batch, columns), got {tuple(loc_rows.shape)}"
        )
    heads = loc_rows[:, ::width]
    bad = torch.nonzero((heads >= 0) & (heads % width != 0))
    if len(bad):
        i, j = (int(x) for x in bad[0])
        raise IndexSpaceError(
            f"a page must begin on a multiple of {width}: got slot {int(heads[i, j])} in row {i}, "
            f"column {j * width}; pass rows from position 0"
        )
    return torch.where(heads < 0, -1, heads // width)


def slots_of_blocks(blocks: Tensor, widened_page_size: int, tokens: int) -> Tensor:
    """The slots of positions ``0 .. tokens-1`` of a block table: int64 ``(tokens,)``."""
    require_int("widened_page_size", widened_page_size, 1, "slots of one block over all ranks")
    require_int("tokens", tokens, 0, "a token count")
    blocks = as_ids(blocks, "blocks")
    if tokens > len(blocks) * widened_page_size:
        raise LayoutError(
            f"tokens must fit the table: got {tokens} for {len(blocks)} blocks of "
            f"{widened_page_size}"
        )
    used = blocks[: -(-tokens // widened_page_size)]
    require_within(used, 0, 2**63 // widened_page_size, "block", "a hole (-1) holds no token")
    at = torch.arange(tokens, device=blocks.device)
    return blocks[at // widened_page_size] * widened_page_size + at % widened_page_size


def remap_dcp_write_locations_fixed_shape(ids: Tensor, shard: Shard) -> Tensor:
    """Write rows of a captured step: owned ids divided, all others row 0 of the padding page."""
    return localize_fixed_shape(ids, shard, hole=0)


def plan_dcp_owner_write(ids: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """Which elements of ``ids`` this rank writes, and into which rows: two int64 ``(m,)``. Over all
    ranks the elements partition ``range(n)``."""
    elements = owned_elements(ids, shard)
    return elements, shard.row(as_ids(ids, "ids")[elements])


def remap_dcp_local_topk_indices(topk: Tensor, shard: Shard) -> Tensor:
    """Global top-k ids to this rank's rows, survivors in front in their order, then -1.

    ``topk`` int64 or int32 ``(..., k)``; same shape out, int64. Compaction is by a stable integer
    sort: the float32 key used elsewhere is exact only below 2**24 ids.
    """
    topk = as_id_tensor(topk, "topk")
    rows = localize_fixed_shape(topk.reshape(-1), shard).reshape(topk.shape)
    order = torch.sort((rows < 0).to(torch.int8), dim=-1, stable=True).indices
    return torch.gather(rows, -1, order)


def localize_move(target: Tensor, source: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """The rows that the rank moves: (to, from), int64 ``(m,)`` each; a pair has one owner.

    Source: ``move_kv_cache`` upstream, which indexes raw (issue 31218).
    """
    target, source = as_ids(target, "target"), as_ids(source, "source")
    if len(target) != len(source):
        raise IndexSpaceError(
            f"a move pairs each source with one target: got {len(target)} targets and "
            f"{len(source)} sources"
        )
    mine = owned_elements(source, shard)
    owned_elements(target, shard)  # refuses holes among the targets too
    owner, wanted = shard.owner(source), shard.owner(target)
    bad = torch.nonzero(owner != wanted).flatten()
    if len(bad):
        at = int(bad[0])
        raise IndexSpaceError(
            f"a move is local to one rank: source slot {int(source[at])} (rank {int(owner[at])}) "
            f"and target slot {int(target[at])} (rank {int(wanted[at])}) at index {at} have "
            f"different owners; choose a target of rank {int(owner[at])}, or transfer between "
            f"the ranks"
        )
    return shard.row(target[mine]), shard.row(source[mine])


def require_targets_once(target: Tensor) -> None:
    """Refuse a slot that is named twice among the targets of a move: which of its two sources it
    would hold is not defined."""
    ordered, at = torch.sort(target, stable=True)
    twice = torch.nonzero(ordered[1:] == ordered[:-1]).flatten()
    if len(twice):
        first, second = (int(at[int(twice[0]) + i]) for i in (0, 1))
        raise IndexSpaceError(
            f"a move names each target slot once: got slot {int(target[second])} at index {first} "
            f"and at index {second} of {len(target)} targets; give each source a target of its own"
        )


def localize_virtual(
    ids: Tensor, v2p: Tensor, page_size: int, shard: Shard
) -> tuple[Tensor, Tensor]:
    """(elements, physical rows) of widened virtual ids: shard first, then look the page up.

    ``v2p`` int64 ``(pages,)`` maps virtual page to physical page, entry 0 is the padding page, -1 a
    page that is not mapped. Source: SGLang PR 36890 (the other order reads wrong rows).
    """
    elements, rows = plan_dcp_owner_write(ids, shard)
    return elements, look_up_rows(rows, v2p, page_size)


def look_up_rows(rows: Tensor, v2p: Tensor, page_size: int) -> Tensor:
    """Physical rows of virtual rows (already sharded): ``v2p[row // P] * P + row % P``."""
    require_int("page_size", page_size, 1, "rows of one page")
    rows, v2p = as_ids(rows, "virtual rows"), as_ids(v2p, "v2p")
    end = len(v2p) * page_size
    require_within(rows, 0, end, "virtual row", "its page is not in the page table")
    page = v2p[rows // page_size]
    if page.numel() and int(page.min()) < 0:
        at = int(torch.nonzero(page < 0)[0])
        raise IndexSpaceError(
            f"a virtual page must be mapped: virtual row {int(rows[at])} at index {at} is in page "
            f"{int(rows[at]) // page_size}, which has no physical page; it was freed, or never "
            f"handed out"
        )
    require_within(page, 0, 2**63 // page_size, "physical page", "its rows exceed int64")
    return page * page_size + rows % page_size

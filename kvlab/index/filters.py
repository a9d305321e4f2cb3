"""Filters over what a step reads: kv index lists, chunks of prefixes, block tables.

These stay in the widened space (``filter_*``) or name pages (``*_block_table``); the division into
rows happens once, later, in ``localize``. That is how upstream splits the work, and where a second
division can slip in.

Worked example, c=2, page_size=2 (W = 4): the row [8, 9, 10, 11, 20, 21, 22, 23] of ``req_to_token``
gives the latent's block table [2, 5] (one page of 2 rows for 4 slots) and the replicated indexer's
[4, 5, 10, 11] (its buffer holds every slot, so 2 slots a page).
"""

import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError, LayoutError
from kvlab.index.layout import require_int, require_rank
from kvlab.index.localize import localize_strided, owned_elements, refuse_negative
from kvlab.index.spaces import as_id_tensor, as_ids, require_within


def maybe_dcp_kernel_indices(ids: Tensor, dcp_size: int, dcp_rank: int) -> Tensor:
    """``localize_strided`` of a run from position 0, under the upstream name.

    dcp_size 1 returns the same object, holes and all. Unlike upstream, a list that is not a
    sequence of pages from their first slot is refused. Source: ``layers/dcp/layout.py``, SGLang
    PR 39487.
    """
    require_rank(dcp_size, dcp_rank)
    as_ids(ids, "ids")  # at dcp_size 1 too, where rows given for slots would do no harm yet
    return ids if dcp_size == 1 else localize_strided(ids, dcp_size, dcp_rank)


def filter_dcp_local_kv_indices(ids: Tensor, dcp_size: int, dcp_rank: int) -> Tensor:
    """The ids that this rank owns, still widened, in order: int64 ``(m,)``."""
    return as_ids(ids, "ids")[owned_elements(ids, dcp_size, dcp_rank)]


def filter_dcp_local_chunk_kv_indices(
    ids: Tensor, starts: list[int], lens: list[int], dcp_size: int, dcp_rank: int
) -> Tensor:
    """The owned ids of joined per-request chunks, still widened: int64 ``(m,)``.

    ``ids`` joins one run a request; run i covers positions ``starts[i] .. starts[i]+lens[i]-1``.
    Chunk starts are seldom multiples of c, so each run has its own phase. Errors: LayoutError when
    the lengths do not add up to the ids, IndexSpaceError when a run disagrees with its positions.
    Source: upstream function of this name.
    """
    require_rank(dcp_size, dcp_rank)
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
    if dcp_size == 1:
        return ids
    kept, at = [], 0
    for start, n in zip(starts, lens, strict=True):
        run = ids[at : at + n]
        localize_strided(run, dcp_size, dcp_rank, start)  # refuses a run out of phase
        kept.append(run[(dcp_rank - start) % dcp_size :: dcp_size])
        at += n
    return torch.cat(kept) if kept else ids


def dcp_local_kv_block_table(loc_rows: Tensor, page_size: int, dcp_size: int) -> Tensor:
    """Physical page of each widened page, for the *sharded* latent: int64 ``(batch, pages)``.

    ``loc_rows`` int64 or int32 ``(batch, columns)``, the rows of ``req_to_token`` from position 0.
    The same on every rank. Holes (-1) stay -1. Source: upstream function of this name.
    """
    require_int("dcp_size", dcp_size, 1, "the number of ranks that share one request's KV")
    require_int("page_size", page_size, 1, "rows of one page in one rank's buffer")
    return _page_heads(loc_rows, page_size * dcp_size)


def dcp_indexer_block_table(loc_rows: Tensor, page_size: int) -> Tensor:
    """Page table of the *replicated* indexer cache over the same rows: int64 ``(batch, pages)``.

    Its buffer holds every slot on every rank, so a page is ``page_size`` slots, not W.
    """
    require_int("page_size", page_size, 1, "rows of one page in one rank's buffer")
    return _page_heads(loc_rows, page_size)


def expand_kernel_blocks(blocks: Tensor, block_size: int, kernel_block: int) -> Tensor:
    """Block ids for a kernel with smaller blocks: block b becomes ``b*k .. b*k+k-1``.

    Ownership is decided with the manager's block *before* this expansion (vLLM PR 51031); only the
    division of a row into kernel block and offset may come after it. A hole (-1) becomes k holes.
    Errors: LayoutError when the kernel's block does not divide the manager's.
    """
    require_int("block_size", block_size, 1, "rows of one block of the manager")
    require_int("kernel_block", kernel_block, 1, "rows of one kernel block")
    if block_size % kernel_block:
        raise LayoutError(
            f"kernel_block must divide block_size: got kernel_block={kernel_block}, "
            f"block_size={block_size}"
        )
    per = block_size // kernel_block
    wide = as_ids(blocks, "blocks")[:, None]
    inner = torch.arange(per, device=wide.device)
    return torch.where(wide < 0, -1, wide * per + inner).reshape(-1)


def slots_of_blocks(blocks: Tensor, widened_page_size: int, tokens: int) -> Tensor:
    """The slots of positions ``0 .. tokens-1`` of a block table: int64 ``(tokens,)``.

    Errors: LayoutError for more tokens than the table has room for; IndexSpaceError for a hole (-1)
    among the blocks that hold them.
    """
    require_int("widened_page_size", widened_page_size, 1, "slots of one block over all ranks")
    require_int("tokens", tokens, 0, "a token count")
    blocks = as_ids(blocks, "blocks")
    if not 0 <= tokens <= len(blocks) * widened_page_size:
        raise LayoutError(
            f"tokens must fit the table: got {tokens} for {len(blocks)} blocks of "
            f"{widened_page_size}"
        )
    used = blocks[: -(-tokens // widened_page_size)]
    require_within(used, 0, 2**63 // widened_page_size, "block", "a hole (-1) holds no token")
    at = torch.arange(tokens, device=blocks.device)
    return blocks[at // widened_page_size] * widened_page_size + at % widened_page_size


def require_paired(device_ids: Tensor, host_ids: Tensor, dcp_size: int) -> None:
    """Raise unless two slot lists of one run have equal owners element by element.

    Host and device choose their rows independently; a token's two rows are on one rank only if
    both slots have the same residue. Errors: IndexSpaceError with the first pair that differs, and
    for a hole (-1), which would pair with the last rank.
    """
    require_int("dcp_size", dcp_size, 1, "the number of ranks that share one request's KV")
    device, host = as_ids(device_ids, "device_ids"), as_ids(host_ids, "host_ids")
    if len(device) != len(host):
        raise IndexSpaceError(
            f"both lists must name the same tokens: got {len(device)} device ids and "
            f"{len(host)} host ids"
        )
    refuse_negative(device)
    refuse_negative(host)
    bad = torch.nonzero(device % dcp_size != host % dcp_size).flatten()
    if len(bad):
        at = int(bad[0])
        raise IndexSpaceError(
            f"device and host slot of a token must have the same owner: slot {int(device[at])} "
            f"(rank {int(device[at]) % dcp_size}) and host slot {int(host[at])} "
            f"(rank {int(host[at]) % dcp_size}) at index {at}; {len(bad)} of {len(device)} pairs "
            f"differ; allocate host slots from a page start"
        )


def _page_heads(loc_rows: Tensor, slots_per_page: int) -> Tensor:
    loc_rows = as_id_tensor(loc_rows, "loc_rows")
    if loc_rows.dim() != 2:
        raise IndexSpaceError(
            f"loc_rows must have shape (batch, columns), got {tuple(loc_rows.shape)}"
        )
    heads = loc_rows[:, ::slots_per_page]
    bad = torch.nonzero((heads >= 0) & (heads % slots_per_page != 0))
    if len(bad):
        i, j = (int(x) for x in bad[0])
        raise IndexSpaceError(
            f"a page must begin on a multiple of {slots_per_page}: got slot {int(heads[i, j])} in "
            f"row {i}, column {j * slots_per_page}; pass rows from position 0"
        )
    return torch.where(heads < 0, -1, torch.div(heads, slots_per_page, rounding_mode="floor"))

"""Rules of the two places where an id is translated in two steps: moves and virtual pages.

A move of a token's row stays on its rank only if source and target slot have the same owner. A
unified pool has a page table between allocator and buffer: ids are sharded first, on the virtual
ids, and looked up second; in the other order the owner comes from the wrong number.
"""

import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError
from kvlab.index.layout import require_int, require_rank
from kvlab.index.localize import owned_elements, owner_of, row_of
from kvlab.index.spaces import as_ids, require_within


def localize_move(
    target: Tensor, source: Tensor, dcp_size: int, dcp_rank: int, interleave: int = 1
) -> tuple[Tensor, Tensor]:
    """The rows that ``dcp_rank`` moves: (to, from), int64 ``(m,)`` each.

    Errors: IndexSpaceError when a pair has two owners: that would be a transfer between ranks.
    Source: ``move_kv_cache`` upstream, which indexes raw (issue 31218).
    """
    require_rank(dcp_size, dcp_rank)
    target, source = as_ids(target, "target"), as_ids(source, "source")
    if len(target) != len(source):
        raise IndexSpaceError(
            f"a move pairs each source with one target: got {len(target)} targets and "
            f"{len(source)} sources"
        )
    mine = owned_elements(source, dcp_size, dcp_rank, interleave)
    owned_elements(target, dcp_size, dcp_rank, interleave)  # refuses holes among the targets too
    owner, wanted = (owner_of(ids, dcp_size, interleave) for ids in (source, target))
    bad = torch.nonzero(owner != wanted).flatten()
    if len(bad):
        at = int(bad[0])
        mate = int(owner[at])
        rule = f"with target % {dcp_size} == {mate}"
        raise IndexSpaceError(
            f"a move is local to one rank: source slot {int(source[at])} (rank {mate}) and target "
            f"slot {int(target[at])} (rank {int(wanted[at])}) at index {at} have different owners; "
            f"choose a target {rule if interleave == 1 else f'of rank {mate}'}, or transfer "
            f"between the ranks"
        )
    to, at_rows = (row_of(ids[mine], dcp_size, interleave) for ids in (target, source))
    return to, at_rows


def require_targets_once(target: Tensor) -> None:
    """Raise IndexSpaceError when a slot is named twice among the targets of a move, int64 ``(n,)``.

    Which of its two sources the slot would hold afterwards is not defined.
    """
    ordered, at = torch.sort(target, stable=True)
    twice = torch.nonzero(ordered[1:] == ordered[:-1]).flatten()
    if len(twice):
        first, second = (int(at[int(twice[0]) + i]) for i in (0, 1))
        raise IndexSpaceError(
            f"a move names each target slot once: got slot {int(target[second])} at index {first} "
            f"and at index {second} of {len(target)} targets; give each source a target of its own"
        )


def localize_virtual(
    ids: Tensor, v2p: Tensor, page_size: int, dcp_size: int, dcp_rank: int
) -> tuple[Tensor, Tensor]:
    """(elements, physical rows) of widened virtual ids: shard first, then look the page up.

    ``v2p`` int64 ``(pages,)`` maps virtual page to physical page, entry 0 is the padding page, -1 a
    page that is not mapped. Errors: IndexSpaceError for an id whose page lies outside the table or
    is not mapped. Source: SGLang PR 36890 (the other order reads wrong rows).
    """
    require_int("page_size", page_size, 1, "rows of one page")
    elements = owned_elements(ids, dcp_size, dcp_rank)
    rows = torch.div(ids.to(torch.int64)[elements], dcp_size, rounding_mode="floor")
    return elements, look_up_rows(rows, v2p, page_size)


def look_up_rows(rows: Tensor, v2p: Tensor, page_size: int) -> Tensor:
    """Physical rows of virtual rows (already sharded): ``v2p[row // P] * P + row % P``."""
    require_int("page_size", page_size, 1, "rows of one page")
    rows, v2p = as_ids(rows, "virtual rows"), as_ids(v2p, "v2p")
    end = len(v2p) * page_size
    require_within(rows, 0, end, "virtual row", "its page is not in the page table")
    page = v2p[torch.div(rows, page_size, rounding_mode="floor")]
    if page.numel() and int(page.min()) < 0:
        at = int(torch.nonzero(page < 0)[0])
        raise IndexSpaceError(
            f"a virtual page must be mapped: virtual row {int(rows[at])} at index {at} is in page "
            f"{int(rows[at]) // page_size}, which has no physical page; it was freed, or never "
            f"handed out"
        )
    return page * page_size + rows % page_size

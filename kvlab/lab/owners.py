"""Who owns which slot: the tables behind the owner pictures, and the facts of one slot.

Worked example, c=2, P=2, pages [2]: positions 0..3 are slots 8..11, owned by ranks 0, 1, 0, 1, in
rows 4, 4, 5, 5. Used raw, slot 8 on rank 0 would be row 8, where rank 0 keeps slot 16: no error,
another token.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.index import (
    DcpLayout,
    WidenedSlots,
    localize,
    localize_masked,
    localize_strided,
    slots_of_blocks,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class OwnerStudy:
    """One request's run of positions over the pages it was given.

    Args:
        layout: the two index spaces.
        pages: allocator pages of the request, in position order; None takes 1, 2, 3, ...
        start: first position of the run; length: how many positions.

    Errors: StudyError when pages are unknown, repeated, or too few.
    """

    layout: DcpLayout
    length: int
    start: int = 0
    pages: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or self.length < 1:
            raise StudyError(
                f"a run has start >= 0 and length >= 1: got start={self.start}, "
                f"length={self.length}"
            )
        need, pages = self.layout.pages_for(self.start + self.length), self.page_list
        if len(pages) < need or len(set(pages)) != len(pages):
            more = "raise num_pages" if self.pages is None else "name more pages, none twice,"
            shown = ", ".join(map(str, pages[:12])) + ", ..." * (len(pages) > 12)
            raise StudyError(
                f"positions 0..{self.start + self.length - 1} need {need} different pages of "
                f"{self.layout.widened_page_size} slots: got [{shown}] (num_pages="
                f"{self.layout.num_pages}); {more} or shorten the run"
            )
        bad = [p for p in pages if not 1 <= p <= self.layout.num_pages]
        if bad:
            raise StudyError(
                f"a page must lie in [1, {self.layout.num_pages}]: got {bad[0]}; page 0 is the "
                f"padding page"
            )

    @property
    def page_list(self) -> tuple[int, ...]:
        """The pages, 1, 2, ... when none were given."""
        if self.pages is not None:
            return self.pages
        need = self.layout.pages_for(self.start + self.length)
        return tuple(range(1, min(need, self.layout.num_pages) + 1))

    def table(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(self.columns())

    def columns(self) -> dict[str, list[Any]]:
        """Of each position: position, slot, page, owner, row, and what raw use would hit.

        ``raw``: 'right' (slot and row are one number on the owner), 'another slot' or 'out of
        range'; ``raw_slot``: the slot that the owner keeps in row number ``slot`` (-1: none).
        """
        lay, end = self.layout, self.start + self.length
        slots = slots_of_blocks(torch.tensor(self.page_list), lay.widened_page_size, end)
        slots, shard = slots[self.start :], lay.shard(0)
        owner = shard.owner(slots)
        # What a rank stores in a row lies its turn behind what rank 0 stores there.
        hit = shard.slot(slots) + owner * lay.interleave
        hit[slots >= lay.row_end] = -1
        kinds = torch.where(hit < 0, 2, (hit != slots).long()).tolist()
        return {
            "position": list(range(self.start, end)),
            "slot": slots.tolist(),
            "page": (slots // lay.widened_page_size).tolist(),
            "owner": owner.tolist(),
            "row": shard.row(slots).tolist(),
            "raw": [("right", "another slot", "out of range")[kind] for kind in kinds],
            "raw_slot": hit.tolist(),
        }

    def lens(self) -> "pd.DataFrame":
        """One row a rank: how many of the run's positions it holds."""
        import pandas as pd

        return pd.DataFrame({"rank": range(self.layout.dcp_size), "positions": self.held()})

    def held(self) -> list[int]:
        """How many of the run's positions each rank holds."""
        shards = map(self.layout.shard, range(self.layout.dcp_size))
        return [x.held(self.start + self.length) - x.held(self.start) for x in shards]

    def position_of(self, slot: int) -> int | None:
        """The position of the run that lies in ``slot``, None where none does."""
        page, offset = divmod(slot, self.layout.widened_page_size)
        if page not in self.page_list:
            return None
        position = self.page_list.index(page) * self.layout.widened_page_size + offset
        return position if self.start <= position < self.start + self.length else None


def localize_ways(ids: Tensor, dcp_size: int, chunk: int) -> "pd.DataFrame":
    """One row a rank: the rows that four ways of localizing a run from position 0 give it.

    Args:
        ids: int64 ``(n,)`` slots, one run or several joined.
        chunk: ids of a chunk, for the way that cuts first.

    Columns: ``rank``; lists of rows: ``mask`` (always right), ``localize``, ``stride`` (unchecked),
    ``cut_first`` (unchecked stride in each chunk). The layout only has to hold the ids.
    """
    import pandas as pd

    layout = DcpLayout(dcp_size, 1, int(ids.max()) // dcp_size + 1)
    table = []
    for rank in range(dcp_size):
        shard = layout.shard(rank)
        cut = [localize_strided(part, shard, check=False) for part in torch.split(ids, chunk)]
        ways = {
            "mask": localize_masked(ids, shard),
            "localize": localize(WidenedSlots(ids), layout, rank).ids,
            "stride": localize_strided(ids, shard, check=False),
            "cut_first": torch.cat(cut),
        }
        table.append({"rank": rank} | {way: rows.tolist() for way, rows in ways.items()})
    return pd.DataFrame(table)


#: The ownership rules of other engines as the interleave that gives them, for page size P.
ENGINE_RULES: dict[str, str] = {
    "SGLang; vLLM with interleave 1; tokenspeed; FlashInfer": "1",
    "vLLM with interleave = block; TensorRT-LLM V2 ledger; Neuron; SGLang kv-shard": "P",
}


def rule_interleave(rule: str, page_size: int) -> int:
    """The interleave of an engine's rule. Errors: StudyError for an unknown rule."""
    if rule not in ENGINE_RULES:
        raise StudyError(f"rule must be one of {list(ENGINE_RULES)}: got {rule!r}")
    return 1 if ENGINE_RULES[rule] == "1" else page_size


def parse_sizes(text: str, name: str) -> tuple[int, ...]:
    """Comma-separated sizes as a tuple. Errors: StudyError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise StudyError(f"{name} must be whole numbers joined by commas: got {text!r}")
    return tuple(map(int, parts))


def slot_sentence(study: OwnerStudy, slot: int) -> str:
    """Where ``slot`` lies in the pool of ``study``, and what it would hit if its owner used it as a
    row. Errors: StudyError for a slot outside the pool."""
    lay, page = study.layout, slot // study.layout.widened_page_size
    if not 0 <= slot < lay.slot_end:
        raise StudyError(f"a slot of this pool lies in [0, {lay.slot_end}): got {slot}")
    owner, place = lay.owner(slot), study.position_of(slot)
    where = f", position {place}"
    if place is None:
        where = ", not of this run" if page else ", padding, never handed out"
    if slot < lay.first_row:
        hit = "hits the padding page, silently"
    elif slot >= lay.row_end:
        hit = f"is out of range, the buffer ends at row {lay.row_end - 1}"
    elif (other := lay.slot(owner, slot)) == slot:
        hit = "is right, slot and row are one number"
    else:
        hit = f"silently hits the row of slot {other}"
        if (place := study.position_of(other)) is not None:
            hit += f", position {place} of the same run"
    return (
        f"Slot {slot}: page {page}, rank {owner}, row {lay.row(slot)}{where}. Used raw as row "
        f"{slot} it {hit}."
    )


def describe(study: OwnerStudy) -> str:
    """The numbers of a study in words: slots, positions by rank, rows, raw use."""
    table = study.columns()
    pages: dict[int, list[int]] = {}
    for page, slot in zip(table["page"], table["slot"], strict=True):
        pages.setdefault(page, []).append(slot)
    slots = [f"{x[0]}" if len(x) == 1 else f"{x[0]}..{x[-1]}" for x in pages.values()]
    held = ", ".join(map(str, study.held()))
    words = {
        "right": "hit the right row",
        "another slot": "hit another slot's row",
        "out of range": "lie past the buffer",
    }
    hits = [f"{n} would {words[raw]}" for raw, n in Counter(table["raw"]).most_common()]
    return (
        f"{study.length} positions from {study.start} on are slots {', '.join(slots[:6])}"
        f"{', ...' if len(slots) > 6 else ''}. Ranks 0..{study.layout.dcp_size - 1} hold {held} of "
        f"them. Used as row numbers, {', '.join(hits)}."
    )

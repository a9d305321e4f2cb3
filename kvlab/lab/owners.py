"""Who owns which slot: the tables behind the owner pictures, and the facts of one slot.

Worked example, c=2, P=2, pages [2]: positions 0..3 are slots 8..11, owned by ranks 0, 1, 0, 1, in
rows 4, 4, 5, 5. Used raw, slot 8 on rank 0 would be row 8, where rank 0 keeps slot 16: no error,
another token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.index import (
    DcpLayout,
    WidenedSlots,
    get_dcp_lens,
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
        need = self.layout.pages_for(self.start + self.length)
        pages = self.page_list
        if len(pages) < need or len(set(pages)) != len(pages):
            more = "raise num_pages" if self.pages is None else "name more pages, none twice,"
            raise StudyError(
                f"positions 0..{self.start + self.length - 1} need {need} different pages of "
                f"{self.layout.widened_page_size} slots: got {_shown(pages)} (num_pages="
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
        """The columns as a frame, one row a position."""
        import pandas as pd

        return pd.DataFrame(self.columns())

    def columns(self) -> dict[str, list[Any]]:
        """Of each position: position, slot, page, owner, row, and what raw use would hit.

        ``raw``: 'right' (slot and row are one number on the owner), 'another slot' or 'out of
        range'; ``raw_slot``: the slot that the owner keeps in row number ``slot`` (-1: none).
        """
        lay = self.layout
        end = self.start + self.length
        slots = slots_of_blocks(torch.tensor(self.page_list), lay.widened_page_size, end)
        slots = slots[self.start :]
        owner, row = lay.shard(0).owner(slots), lay.shard(0).row(slots)
        inside = slots < lay.row_end
        hit = torch.full_like(slots, -1)
        # Sorted by owner once: a mask a rank would read the whole run c times.
        ends = torch.bincount(owner, minlength=lay.dcp_size).cumsum(0).tolist()
        for rank, elements in enumerate(torch.argsort(owner).tensor_split(ends[:-1])):
            mine = elements[inside[elements]]
            hit[mine] = lay.shard(rank).slot(slots[mine])
        raw = [
            "out of range" if h < 0 else "right" if h == s else "another slot"
            for h, s in zip(hit.tolist(), slots.tolist(), strict=True)
        ]
        return {
            "position": list(range(self.start, end)),
            "slot": slots.tolist(),
            "page": (slots // lay.widened_page_size).tolist(),
            "owner": owner.tolist(),
            "row": row.tolist(),
            "raw": raw,
            "raw_slot": hit.tolist(),
        }

    def lens(self) -> "pd.DataFrame":
        """One row a rank: how many of the run's positions it holds."""
        import pandas as pd

        return pd.DataFrame({"rank": range(self.layout.dcp_size), "positions": self.held()})

    def held(self) -> list[int]:
        """How many of the run's positions each rank holds."""
        lay = self.layout
        run, start = torch.tensor([self.length]), torch.tensor([self.start])
        return [int(get_dcp_lens(run, lay.shard(r), start)) for r in range(lay.dcp_size)]


def _shown(pages: Sequence[int], most: int = 12) -> str:
    more = f", ... {len(pages)} in all" if len(pages) > most else ""
    return f"[{', '.join(map(str, pages[:most]))}{more}]"


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
    parts = [ids[at : at + chunk] for at in range(0, len(ids), chunk)]
    return pd.DataFrame(
        [
            {
                "rank": rank,
                "mask": localize_masked(ids, layout.shard(rank)).tolist(),
                "localize": localize(WidenedSlots(ids), layout, rank).ids.tolist(),
                "stride": localize_strided(ids, layout.shard(rank), check=False).tolist(),
                "cut_first": torch.cat(
                    [localize_strided(part, layout.shard(rank), check=False) for part in parts]
                ).tolist(),
            }
            for rank in range(dcp_size)
        ]
    )


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
    """Comma-separated sizes of a command line, as a tuple. Errors: StudyError."""
    try:
        sizes: Sequence[int] = [int(part) for part in text.split(",")]
    except ValueError:
        raise StudyError(f"{name} must be whole numbers joined by commas: got {text!r}") from None
    if not sizes or min(sizes) < 1:
        raise StudyError(f"{name} must be at least 1 each: got {text!r}")
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """``position``: of the run, None for a slot outside it; ``raw``: what the slot as a row of its
    owner would hit ("right", "another token", "padding", "out of range"); ``raw_slot``: the slot
    that this row stores, None for padding and out of range."""

    slot: int
    page: int
    owner: int
    row: int
    position: int | None
    raw: str
    raw_slot: int | None
    raw_position: int | None
    rows: int

    def sentence(self) -> str:
        """The facts in words."""
        where = f"Slot {self.slot}: page {self.page}, rank {self.owner}, row {self.row}"
        if self.page == 0:
            where += ", padding, never handed out"
        elif self.position is None:
            where += ", not of this run"
        else:
            where += f", position {self.position}"
        what = {
            "right": "is right, slot and row are one number",
            "padding": "hits the padding page, silently",
            "out of range": f"is out of range, the buffer ends at row {self.rows - 1}",
        }
        hit = what.get(self.raw, f"silently hits the row of slot {self.raw_slot}")
        if self.raw == "another token" and self.raw_position is not None:
            hit += f", position {self.raw_position} of the same run"
        return f"{where}. Used raw as row {self.slot} it {hit}."


def slot_facts(study: OwnerStudy, slot: int) -> SlotFacts:
    """The facts of ``slot`` in the pool of ``study``.

    Errors: StudyError for a slot that the pool does not have.
    """
    lay = study.layout
    if not 0 <= slot < lay.slot_end:
        raise StudyError(
            f"a slot of this pool lies in [0, {lay.slot_end}): got {slot}; pages 0 (padding) to "
            f"{lay.num_pages} have {lay.widened_page_size} slots each"
        )
    owner, row = lay.owner(slot), lay.row(slot)
    raw, hit = "out of range", None
    if slot < lay.first_row:
        raw = "padding"
    elif slot < lay.row_end:
        hit = lay.slot(owner, slot)
        raw = "right" if hit == slot else "another token"
    hit_position = None if hit is None else position_of(study, hit)
    page, place = slot // lay.widened_page_size, position_of(study, slot)
    return SlotFacts(slot, page, owner, row, place, raw, hit, hit_position, lay.row_end)


def position_of(study: OwnerStudy, slot: int) -> int | None:
    """The position of the run that lies in ``slot``, None where none does."""
    page, offset = divmod(slot, study.layout.widened_page_size)
    if page not in study.page_list:
        return None
    position = study.page_list.index(page) * study.layout.widened_page_size + offset
    return position if study.start <= position < study.start + study.length else None


def describe(study: OwnerStudy) -> str:
    """The numbers of a study in words: slots, positions by rank, rows, raw use."""
    table = study.table()
    ranges = table.groupby("page", sort=False)["slot"].agg(["min", "max"])
    slots = [f"{low}" if low == high else f"{low}..{high}" for low, high in ranges.to_numpy()]
    held = ", ".join(map(str, study.lens()["positions"]))
    words = {
        "right": "hit the right row",
        "another slot": "hit another slot's row",
        "out of range": "lie past the buffer",
    }
    hits = [f"{n} would {words[str(raw)]}" for raw, n in table["raw"].value_counts().items()]
    return (
        f"{study.length} positions from {study.start} on are slots {', '.join(slots[:6])}"
        f"{', ...' if len(slots) > 6 else ''}. Ranks 0..{study.layout.dcp_size - 1} hold {held} of "
        f"them. Used as row numbers, {', '.join(hits)}."
    )

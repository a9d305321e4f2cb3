"""All that is to be said of one widened slot: who owns it, in which row, and what raw use hits.

Worked example, c=4, P=4, N=12, pages (3, 1): slot 21 is position 21 of the run, on rank 1 in row 5.
Used raw, 21 is a row of rank 1 too, the one that stores slot 85: no error, another token.
"""

from dataclasses import dataclass

from kvlab.errors import StudyError
from kvlab.lab.owners import OwnerStudy

#: What a raw use of a slot's id, as a row number on its owner, would hit.
RAW = ("right", "another token", "padding", "out of range")


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """``position``: of the run, None for a slot outside it; ``raw``: of ``RAW``; ``raw_slot``: what
    the row that is hit stores, None for padding and out of range."""

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

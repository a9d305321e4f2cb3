"""Who owns which slot: the tables behind the owner pictures.

Worked example, c=2, P=2, pages [2]: positions 0..3 are slots 8..11, owned by ranks 0, 1, 0, 1, in
rows 4, 4, 5, 5. Used raw, slot 8 on rank 0 would be row 8, where rank 0 keeps slot 16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvlab.errors import StudyError
from kvlab.index import DcpLayout, get_dcp_lens, slots_of_blocks

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


def buffer_map(layout: DcpLayout, first_page: int = 0, pages: int = 4) -> "pd.DataFrame":
    """Every row of the first pages of every rank's buffer and the slot that it stores.

    Columns rank, row, page, slot. Page 0 is the padding page. Errors: StudyError.
    """
    if not 0 <= first_page <= layout.num_pages or pages < 1:
        raise StudyError(
            f"a buffer map has first_page in [0, {layout.num_pages}] and pages >= 1: got "
            f"first_page={first_page}, pages={pages}"
        )
    import pandas as pd

    last = min(first_page + pages, layout.num_pages + 1)
    rows = torch.arange(first_page * layout.page_size, last * layout.page_size)
    parts = [
        pd.DataFrame(
            {
                "rank": rank,
                "row": rows.tolist(),
                "page": (rows // layout.page_size).tolist(),
                "slot": layout.shard(rank).slot(rows).tolist(),
            }
        )
        for rank in range(layout.dcp_size)
    ]
    return pd.concat(parts, ignore_index=True)


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

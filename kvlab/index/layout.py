"""The layout: how one allocator page becomes one physical page on every rank.

The allocator hands out *widened* pages of ``W = page_size * dcp_size`` slots. Page ``q`` of the
allocator is page ``q`` of every rank's buffer. Page 0 is padding and is never handed out.

Worked example, dcp_size=2, page_size=2, num_pages=2 (W = 4):

    slot   0 1 2 3 | 4 5 6 7 | 8 9 10 11
    rank   0 1 0 1 | 0 1 0 1 | 0 1  0  1      slot % 2
    row    0 0 1 1 | 2 2 3 3 | 4 4  5  5      slot // 2
    page   padding |    1    |     2

Source: SGLang's paged allocator under DCP, whose page is ``page_size * dcp_size``;
``interleave`` > 1 is the rule of vLLM (``cp_kv_cache_interleave_size``), TensorRT-LLM's V2 ledger
and SGLang's kv-shard placement (``interleave = page_size``).
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError, LayoutError
from kvlab.show import Cell, Table, cut, facts, html, many, span, strip

Ids = TypeVar("Ids", int, Tensor, npt.NDArray[np.int64])


def require_int(name: str, value: object, low: int, rule: str) -> int:
    """Return ``value``, a Python int of at least ``low`` that fits int64, or raise LayoutError."""
    if isinstance(value, bool) or not isinstance(value, int):  # NumPy's would wrap in a product
        raise LayoutError(
            f"{name} must be an int: {rule}; got {value!r} ({type(value).__name__}); "
            f"pass a Python int"
        )
    if value < low:
        raise LayoutError(f"{name} must be at least {low}: {rule}; got {name}={value}")
    if value >= 2**63:
        raise LayoutError(f"{name} must fit int64, at most {2**63 - 1}: {rule}; got {name}={value}")
    return value


def require_index(name: str, value: object) -> int:
    """Return one id, position or page number as a Python int, from NumPy's or a 0-d tensor too."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise IndexSpaceError(
            f"{name} must be an int: got {value!r} ({type(value).__name__}); pass a whole number"
        ) from None


def require_layout(layout: object) -> None:
    """Raise LayoutError unless ``layout`` is a DcpLayout: for constructors that keep one."""
    if not isinstance(layout, DcpLayout):
        raise LayoutError(
            f"layout must be a DcpLayout: got {layout!r} ({type(layout).__name__}); make one with "
            f"DcpLayout(dcp_size, page_size, num_pages)"
        )


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank holds: the one formula each for owner, row and count.

    Ids are slots, or positions of a request; Python ints, or int64 tensors or arrays. ``dcp_size``
    ranks (c) take turns, each stores ``interleave`` ids (I) in a row. Worked example: ``Shard(2,
    rank=1)`` owns the ids 1, 3, 5, in rows 0, 1, 2, and holds 2 of the 5 ids below 5.
    """

    dcp_size: int
    rank: int
    interleave: int = 1

    def __post_init__(self) -> None:
        require_int("dcp_size", self.dcp_size, 1, "the number of ranks that share one request's KV")
        require_int("rank", self.rank, 0, "ranks are numbered from 0")
        require_int("interleave", self.interleave, 1, "slots stored in turn by one rank")
        require_int("dcp_size * interleave", self.turn, 1, "the slots of one turn over all ranks")
        if self.rank >= self.dcp_size:
            raise LayoutError(
                f"rank must lie in [0, {self.dcp_size}): got rank={self.rank} with dcp_size="
                f"{self.dcp_size}; ranks are numbered from 0"
            )

    @property
    def turn(self) -> int:
        """Ids of one turn over all ranks."""
        return self.dcp_size * self.interleave

    def owner(self, ids: Ids) -> Ids:
        """The rank that stores each id (at least 0); the same for every rank."""
        if self.interleave == 1:  # a division by one is a pass over the ids all the same
            return ids % self.dcp_size
        return ids // self.interleave % self.dcp_size

    def owns(self, ids: Ids) -> Ids:
        """Whether this rank stores each id: bools. A hole is nobody's, though -1 % c == c - 1."""
        return (ids >= 0) & (self.owner(ids) == self.rank)  # type: ignore[no-any-return]

    def row(self, ids: Ids) -> Ids:
        """The row of each id (at least 0) in its owner's buffer; the same for every rank."""
        if self.interleave > 1:
            return ids // self.turn * self.interleave + ids % self.interleave
        if self.dcp_size & (self.dcp_size - 1):
            return ids // self.dcp_size
        return ids >> (self.dcp_size.bit_length() - 1)  # int64 division is not vectorized

    def slot(self, rows: Ids) -> Ids:
        """The id that this rank stores in each row: the inverse of ``row``."""
        turn, within = rows // self.interleave, rows % self.interleave
        return (turn * self.dcp_size + self.rank) * self.interleave + within

    def held(self, end: Ids) -> Ids:
        """How many ids below ``end`` this rank holds: I of each whole turn, and of the broken turn
        what is left after the ranks before it."""
        broken = end % self.turn - self.rank * self.interleave
        past = broken - self.interleave
        return end // self.turn * self.interleave + broken * (broken > 0) - past * (past > 0)

    def elements(self, n: int, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
        """The elements of a run of n positions from ``start`` that are this rank's: int64 ``(m,)``,
        ascending. c=2, I=2, positions 3 .. 7: rank 1 holds 3, 6, 7, elements [0, 3, 4].
        """
        phase = start % self.turn  # only the phase matters, and it keeps the numbers small
        skipped, end = self.held(phase), self.held(phase + n)
        if self.interleave > 1:
            return self.slot(torch.arange(skipped, end, device=device)) - phase
        first = self.slot(skipped) - phase
        return torch.arange(first, max(first, n), self.dcp_size, device=device)


@dataclass(frozen=True, slots=True)
class DcpLayout:
    """Geometry of the two index spaces. Slots above, rows below, both hold one token each.

    Args:
        dcp_size: ranks that share one request's KV (symbol c).
        page_size: rows of one page in one rank's buffer (symbol P).
        num_pages: pages that can be handed out (symbol N); the padding page comes on top.
        interleave: slots that one rank stores in turn (symbol I); divides the page. SGLang has 1.
    """

    dcp_size: int
    page_size: int
    num_pages: int
    interleave: int = 1

    def __post_init__(self) -> None:
        Shard(self.dcp_size, 0, self.interleave)  # looks at both
        require_int("page_size", self.page_size, 1, "rows of one page in one rank's buffer")
        require_int("num_pages", self.num_pages, 1, "pages beside the padding page")
        if self.page_size % self.interleave:
            raise LayoutError(
                f"interleave must divide page_size, so that a page holds whole turns: got "
                f"interleave={self.interleave}, page_size={self.page_size}; "
                f"use 1 or {self.page_size}"
            )
        if self.slot_end > 2**63:
            raise LayoutError(
                f"the largest slot must fit int64: num_pages={self.num_pages} gives slots up to "
                f"{self.slot_end - 1}, bound {2**63 - 1}; use fewer pages"
            )

    @property
    def widened_page_size(self) -> int:
        """Slots of one allocator page (symbol W)."""
        return self.page_size * self.dcp_size

    @property
    def first_slot(self) -> int:
        """The lowest slot that can be handed out; below it lies the padding page."""
        return self.widened_page_size

    @property
    def slot_end(self) -> int:
        """One past the highest slot: the bound of an id in the widened space."""
        return (self.num_pages + 1) * self.widened_page_size

    @property
    def first_row(self) -> int:
        """The lowest row that holds a token; rows below it are the padding page."""
        return self.page_size

    @property
    def row_end(self) -> int:
        """One past the highest row: the bound of an id in one rank's buffer."""
        return (self.num_pages + 1) * self.page_size

    @property
    def rows_per_rank(self) -> int:
        """Rows of one rank's buffer, padding page included."""
        return self.row_end

    @property
    def capacity_tokens(self) -> int:
        """Tokens that all ranks together can hold (padding page not counted)."""
        return self.num_pages * self.widened_page_size

    def shard(self, rank: int) -> Shard:
        """What ``rank`` holds of both spaces."""
        return _shard(self.dcp_size, rank, self.interleave)

    def owner(self, slot: int) -> int:
        """The rank that stores ``slot``."""
        return self.shard(0).owner(self._checked_slot(slot))

    def row(self, slot: int) -> int:
        """The row of ``slot`` in its owner's buffer."""
        return self.shard(0).row(self._checked_slot(slot))

    def slot(self, rank: int, row: int) -> int:
        """The slot that ``rank`` stores in ``row``."""
        shard, row = self.shard(rank), require_index("row", row)
        if not 0 <= row < self.row_end:
            raise IndexSpaceError(
                f"row must lie in [0, {self.row_end}): got row {row}; "
                f"{self.slot_end} is the bound of a widened slot, not of a row"
            )
        return shard.slot(row)

    def pages_for(self, tokens: int) -> int:
        """Allocator pages of ``tokens`` positions."""
        require_int("tokens", tokens, 0, "a token count")
        return -(-tokens // self.widened_page_size)

    def in_words(self) -> str:
        """The four numbers, as in "2 ranks, 3 pages of 2 rows"."""
        turn = "" if self.interleave == 1 else f", {self.interleave:,} slots in turn"
        pages = f"{many(self.num_pages, 'page')} of {many(self.page_size, 'row')}"
        return f"{many(self.dcp_size, 'rank')}, {pages}{turn}"

    def _repr_html_(self) -> str:
        wide = self.widened_page_size
        told = facts(
            f"Layout: {self.in_words()}",
            [
                ("slots of a page (W)", f"{wide:,}"),
                ("slots handed out", span(self.first_slot, self.slot_end)),
                ("rows of each rank", span(self.first_row, self.row_end)),
                ("tokens, all ranks", f"{self.capacity_tokens:,}"),
            ],
        )
        sizes = {"slots": wide, "rows of each rank": self.page_size}
        turns: list[tuple[object, ...] | None] = []
        for slot in cut(range(self.first_slot, self.first_slot + wide, self.interleave)):
            if slot is None:
                turns.append(None)
                continue
            owner, row = self.owner(slot), self.row(slot)
            slots, rows = (span(at, at + self.interleave) for at in (slot, row))
            turns.append((slots, Cell(owner, color=owner), rows))
        owners = strip(f"Owners of page 1 ({many(wide, 'slot')})", ("slot", "owner", "row"), turns)
        return html(told, pages_strip("Both ranges", self.num_pages, sizes), owners)

    def _checked_slot(self, slot: int) -> int:
        slot = require_index("widened slot", slot)
        if not 0 <= slot < self.slot_end:
            raise IndexSpaceError(
                f"widened slot must lie in [0, {self.slot_end}): got {slot} "
                f"(num_pages={self.num_pages}, W={self.widened_page_size})"
            )
        return slot


@lru_cache(maxsize=256, typed=True)
def _shard(dcp_size: int, rank: int, interleave: int) -> Shard:
    """Shards are values: one is made, and checked, once."""
    return Shard(dcp_size, rank, interleave)


def pages_strip(caption: str, num_pages: int, sizes: Mapping[str, int]) -> Table:
    """Pages 0 (padding, hatched) to ``num_pages``, with what each holds of every named space, whose
    pages are ``size`` long."""
    columns: list[tuple[object, ...] | str] = []
    for page in cut(range(num_pages + 1), 3, 1):
        if page is None:
            columns.append(f"... ({num_pages - 3:,} more)")
            continue
        ranges = [span(page * size, (page + 1) * size) for size in sizes.values()]
        cells = [Cell(told, hatched=page == 0, edge=True) for told in ranges]
        columns.append((page or Cell("0 (padding)", edge=True), *cells))
    return strip(caption, ("page", *sizes), columns)

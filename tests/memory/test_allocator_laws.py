"""The allocator beside a model of plain lists, under any order of calls.

The model knows pages only: a queue of free ones, and for each request the list of its slots.
Whatever is called next, the slots handed out, their order, and what
is left must be the model's.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlab.index import DcpLayout
from kvlab.memory import PagedTokenToKVPoolAllocator

from .support import ids


class AllocatorMachine(RuleBasedStateMachine):
    @initialize(c=st.sampled_from((1, 2, 3, 4)), page=st.integers(1, 3), pages=st.integers(1, 9))
    def start(self, c: int, page: int, pages: int) -> None:
        self.a = PagedTokenToKVPoolAllocator(DcpLayout(c, page, pages))
        self.w, self.pages = c * page, pages
        self.queue = list(range(1, pages + 1))
        self.rows: dict[int, list[int]] = {}
        self.names = 0

    # --- the model -------------------------------------------------------------------------------

    def take(self, count: int) -> list[int] | None:
        if count > len(self.queue):
            return None
        out, self.queue = self.queue[:count], self.queue[count:]
        return out

    def put(self, pages: Sequence[int]) -> None:
        self.queue = [*pages, *self.queue]

    def grow(self, row: list[int], count: int) -> list[int] | None:
        """The next ``count`` slots of a row, taking pages where it crosses."""
        at = range(len(row), len(row) + count)
        pages = self.take(sum(position % self.w == 0 for position in at))
        if pages is None:
            return None
        more = list(row)
        for position in at:
            more.append(pages.pop(0) * self.w if position % self.w == 0 else more[-1] + 1)
        return more[len(row) :]

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.rows)))

    def same(self, found: torch.Tensor | None, want: list[int] | None) -> None:
        assert (None if found is None else found.tolist()) == want

    # --- what can be called ----------------------------------------------------------------------

    @rule(tokens=st.integers(1, 20))
    def admit(self, tokens: int) -> None:
        slots = self.grow([], tokens)
        self.same(self.a.alloc_extend(0, tokens), slots)
        if slots is not None:
            self.names += 1
            self.rows[self.names] = slots

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), tokens=st.integers(0, 20))
    def extend(self, data: st.DataObject, tokens: int) -> None:
        row = self.rows[self.pick(data)]
        slots = self.grow(row, tokens)
        self.same(self.a.alloc_extend(len(row), len(row) + tokens, row[-1]), slots)
        row += slots or []

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.rows)), unique=True))
        rows = [self.rows[name] for name in names]
        pages = self.take(sum(len(row) % self.w == 0 for row in rows))
        found = self.a.alloc_decode([len(row) + 1 for row in rows], [row[-1] for row in rows])
        if pages is None:
            assert found is None
            return
        for row in rows:
            row.append(pages.pop(0) * self.w if len(row) % self.w == 0 else row[-1] + 1)
        self.same(found, [row[-1] for row in rows])

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), every=st.booleans())
    def free(self, data: st.DataObject, every: bool) -> None:
        row = self.rows.pop(self.pick(data))
        self.a.free(ids(row if every else row[:: self.w]))
        self.put(sorted({slot // self.w for slot in row}))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """Free positions from a page on, in ranges that touch at arbitrary places."""
        name = self.pick(data)
        row = self.rows[name]
        begin = data.draw(st.integers(0, len(row) // self.w)) * self.w
        seams = data.draw(st.lists(st.integers(begin, len(row)), max_size=3))
        edges = [begin, *sorted(seams), len(row)]
        ranges = data.draw(st.permutations(list(pairwise(edges))))
        self.a.free_segments(ids(row), ranges)
        self.put([slot // self.w for slot in row[begin :: self.w]])
        if begin:
            self.rows[name] = row[:begin]
        else:
            del self.rows[name]

    # --- the laws --------------------------------------------------------------------------------

    @invariant()
    def pages_are_conserved(self) -> None:
        if not hasattr(self, "a"):
            return
        used = {slot // self.w for row in self.rows.values() for slot in row}
        assert self.a.audit() == []
        assert self.a.used_pages == len(used)
        assert self.a.available_size() == (self.pages - len(used)) * self.w
        assert sorted([*used, *self.queue]) == list(range(1, self.pages + 1))

    @invariant()
    def a_slot_belongs_to_one_position_and_never_to_the_padding_page(self) -> None:
        if not hasattr(self, "a"):
            return
        slots = [slot for row in self.rows.values() for slot in row]
        assert len(set(slots)) == len(slots)
        assert all(self.w <= slot < (self.pages + 1) * self.w for slot in slots)

    @invariant()
    def slot_and_position_agree_about_the_offset_in_the_page(self) -> None:
        if not hasattr(self, "a"):
            return
        for row in self.rows.values():
            assert all(slot % self.w == at % self.w for at, slot in enumerate(row))


AllocatorMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=25)
test_any_order_of_calls_hands_out_what_the_model_does = AllocatorMachine.TestCase

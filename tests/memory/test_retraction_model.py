"""No order of admit, extend, decode, retract, resume and finish loses or mixes up a token.

After every step each position of each running request must lie where the cards were dealt, on every
rank; what was given back is overwritten at once.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
from kvlab.memory import KvBackup, MLATokenToKVPool

from .node import REQUESTS, Node
from .support import SIZES


class Retraction(RuleBasedStateMachine):
    @initialize(c=st.sampled_from(SIZES), page=st.integers(1, 3), pages=st.integers(2, 7))
    def start(self, c: int, page: int, pages: int) -> None:
        turn = page if (c + pages) % 3 == 0 else 1
        self.node = Node(DcpLayout(c, page, pages, turn))
        self.next = 1

    def running(self) -> bool:
        return bool(self.node.rows)

    def room(self) -> bool:
        return len(self.node.rows) < REQUESTS

    @precondition(room)
    @rule(tokens=st.integers(1, 30))
    def admit(self, tokens: int) -> None:
        room = self.node.layout.capacity_tokens
        if self.node.admit(self.next, 1 + tokens % room):
            self.next += 1

    @precondition(running)
    @rule(data=st.data(), tokens=st.integers(0, 12))
    def extend(self, data: st.DataObject, tokens: int) -> None:
        self.node.extend(data.draw(st.sampled_from(sorted(self.node.rows))), tokens)

    @precondition(running)
    @rule()
    def decode(self) -> None:
        self.node.decode()

    @precondition(running)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        assert self.node.retract(data.draw(st.sampled_from(sorted(self.node.rows))))

    @precondition(lambda self: self.node.away and self.room())
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.node.resume(data.draw(st.sampled_from(sorted(self.node.away))))

    @precondition(running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.node.leave(data.draw(st.sampled_from(sorted(self.node.rows))))

    @precondition(lambda self: self.node.away)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """A retracted request is given up: its backups go, its slots are gone already."""
        backups, _, _ = self.node.away.pop(data.draw(st.sampled_from(sorted(self.node.away))))
        for backup in backups:
            backup.discard()

    @precondition(lambda self: hasattr(self, "node"))
    @rule()
    def compact(self) -> None:
        self.node.compact()

    @invariant()
    def every_position_is_where_it_must_be_on_every_rank(self) -> None:
        if hasattr(self, "node"):
            assert self.node.wrong() == []

    def teardown(self) -> None:
        if hasattr(self, "node"):
            while self.node.rows:
                self.node.leave(next(iter(self.node.rows)))
            assert self.node.allocator.available_size() == self.node.layout.capacity_tokens


Retraction.TestCase.settings = settings(max_examples=20, stateful_step_count=20)
test_no_order_of_steps_loses_or_mixes_up_a_token = Retraction.TestCase


@pytest.mark.parametrize("c", [1, 3])
def test_retraction_under_natural_pressure(c: int) -> None:
    """Four requests outgrow the pool; the youngest leaves, and resumes when there is room."""
    layout = DcpLayout(dcp_size=c, page_size=2, num_pages=12)
    node = Node(layout)
    for rid in (1, 2, 3, 4):
        assert node.admit(rid, 3 * c + rid)
    retractions, finished = 0, 0
    for _ in range(60 * c):
        if not node.decode():
            victim = max(node.rows)
            assert node.retract(victim)
            retractions += 1
        for rid in [rid for rid, (row, _) in node.rows.items() if node.table.length(row) > 8 * c]:
            node.leave(rid)
            finished += 1
        if node.away and node.allocator.available_size() >= 10 * c:
            node.resume(min(node.away))
        if finished % 2:
            node.compact()
        assert node.wrong() == []
        if not node.rows and not node.away:
            break
    assert finished == 4
    assert retractions > 0
    assert node.pages.compactions


class RawPool(MLATokenToKVPool):
    """The pool before the fix: the CPU copy takes widened slots for rows."""

    def raw(self, slots: WidenedSlots | PhysicalRows) -> PhysicalRows:
        if isinstance(slots, PhysicalRows):
            return slots
        return PhysicalRows.assume_physical(slots.ids, self.layout, self.rank)

    def get_cpu_copy(self, slots: WidenedSlots | PhysicalRows, wait: bool = True) -> KvBackup:
        return super().get_cpu_copy(self.raw(slots), wait)

    def check_load(self, backup: KvBackup, slots: WidenedSlots | PhysicalRows) -> PhysicalRows:
        return super().check_load(backup, self.raw(slots))


def test_the_model_sees_the_bug_when_it_is_silent() -> None:
    node = Node(DcpLayout(dcp_size=3, page_size=1, num_pages=17), RawPool)
    assert node.admit(1, 5)  # pages 1 and 2: slots 3..7, all below the 18 rows
    assert node.admit(2, 3)
    assert node.wrong() == []
    assert node.retract(1)
    assert node.resume(1)
    assert any("RawPool: position" in law and "of request 1 holds" in law for law in node.wrong())
    assert not any("UnifiedKVPool" in law or "ReplicatedKVPool" in law for law in node.wrong())


def test_the_bug_is_loud_at_once_on_a_high_page() -> None:
    node = Node(DcpLayout(dcp_size=2, page_size=1, num_pages=15), RawPool)
    assert node.admit(1, 16)
    assert node.admit(2, 4)  # slots from 18 on, past the 16 rows
    with pytest.raises(IndexSpaceError, match=r"row must lie in \[0, 16\): got 18 at index 0"):
        node.retract(2)

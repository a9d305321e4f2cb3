"""Ids that are localized without a wait: right ones give the rows of resolve, wrong ones are found
when the copy lands."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import MLATokenToKVPool
from kvlab.memory.found import localize_unwaited

from .staged import every_lane, slots_from, staged
from .support import KINDS, ids, layouts, make_pools, untouched

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=8)  # slots 4..35
OLD = slots_from(4, 11)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([4, 5, 6, 36], r"got slot 36 at index 3, position 3 \(of 4 ids; DcpLayout"),
        (
            [4, 5, 3, 7],
            r"slots in \[4, 36\) whose owners are those of its positions: got slot 3",
        ),
        ([4, -1, 6, 7], r"got slot -1 at index 1"),
        (
            [4, 6, 5, 7],
            r"got slot 6 at index 1, .*; pass its true start, or use wait=True, whic",
        ),
        ([2**62, 5, 6, 7], r"got slot 4611686018427387904 at index 0"),
    ],
)
@every_lane
def test_ids_that_break_a_rule_are_found_when_the_copy_lands(
    lane: str, values: list[int], text: str
) -> None:
    for pool in staged(lane):
        pool.get_cpu_copy(slots_from(4, 4)).discard()  # an idle block of this size
        unchanged = untouched([pool])
        backup = pool.get_cpu_copy(WidenedSlots(ids(values)), wait=False)
        for _ in range(2):
            with pytest.raises(IndexSpaceError, match=text):
                backup.wait()
        assert backup.spent
        unchanged()
        assert pool.audit() == []


@every_lane
def test_pools_that_are_no_shards_say_so_too(lane: str) -> None:
    for kind, text in (("replicated", "got slot 3 at index 1"), ("resolved", "got 3 at index 1")):
        for pool in staged(lane, kind):

            def attempt(pool: MLATokenToKVPool = pool) -> None:
                pool.get_cpu_copy(WidenedSlots(ids([4, 3, 6])), wait=False).wait()

            if kind == "resolved" and pool.rank == 0:
                attempt()  # rank 1's slot: each rank looks at its own
            else:
                with pytest.raises(IndexSpaceError, match=text):
                    attempt()


@given(layout=layouts(), data=st.data())
def test_rows_found_without_a_wait_are_those_of_resolve(
    layout: DcpLayout, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, 9))
    wide = layout.widened_page_size
    first = layout.first_slot + start % wide
    n = data.draw(st.integers(0, max(layout.slot_end - first, 0)))
    slots = slots_from(first, n, start)
    for pool in make_pools(layout):
        rows, found = localize_unwaited(slots, layout, pool.rank)
        found.require(found.read())
        want = pool.resolve(slots)
        for name in ("ids", "source"):
            assert torch.equal(getattr(rows, name), getattr(want, name))
        assert (rows.rank, rows.layout, rows.start) == (want.rank, want.layout, want.start)
        assert rows.positions == want.positions


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_run_at_all_is_refused_at_once(kind: str) -> None:
    (pool, _) = staged("late", kind)
    unchanged = untouched([pool])
    calls: list[Callable[[], object]] = [
        lambda: pool.get_cpu_copy(OLD.ids, wait=False),  # type: ignore[arg-type]
        lambda: pool.get_cpu_copy(None, wait=False),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(IndexSpaceError, match="localize takes WidenedSlots"):
            call()
    unchanged()

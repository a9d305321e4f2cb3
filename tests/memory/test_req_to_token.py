"""The request table: positions to widened slots, and the audit that finds what should not be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import IndexSpaceError, LayoutError, PoolError
from kvlab.index import DcpLayout, PhysicalRows
from kvlab.memory import ReqToTokenPool

from .support import ids

SMALL = DcpLayout(dcp_size=2, page_size=2, num_pages=3)  # W = 4, slots 4..15


def table(size: int = 2, max_context: int = 8, layout: DcpLayout = SMALL) -> ReqToTokenPool:
    return ReqToTokenPool(size, max_context, layout)


def row_of(pool: ReqToTokenPool) -> int:
    req = pool.alloc()
    assert req is not None
    return req


def test_slots_come_back_by_position() -> None:
    pool = table()
    req = row_of(pool)
    assert (pool.length(req), pool.last_slot(req)) == (0, -1)
    pool.append(req, ids([8, 9, 10]))
    pool.append(req, torch.tensor([11], dtype=torch.int32))
    pool.append(req, ids([]))
    pool.append(req, ids([4]))
    assert (pool.length(req), pool.last_slot(req)) == (5, 4)
    for start, end, want in ((0, None, [8, 9, 10, 11, 4]), (1, 4, [9, 10, 11]), (5, 5, [])):
        slots = pool.slots(req, start, end)
        assert (slots.ids.tolist(), slots.start) == (want, start)
        assert slots.ids.dtype == torch.int64
    assert pool.req_to_token[req].tolist() == [8, 9, 10, 11, 4, -1, -1, -1]
    assert pool.audit() == []


@pytest.mark.parametrize(
    ("pages", "kind"),
    [(2**31 // 256 - 1, torch.int32), (2**31 // 256, torch.int64), (2**40, torch.int64)],
)
def test_cells_are_as_wide_as_the_highest_slot_needs(pages: int, kind: torch.dtype) -> None:
    layout = DcpLayout(dcp_size=4, page_size=64, num_pages=pages)
    pool = table(layout=layout)
    assert pool.req_to_token.dtype == kind
    req = row_of(pool)
    turn = range(layout.slot_end - 4, layout.slot_end)
    pool.append(req, ids(turn))
    assert pool.last_slot(req) == layout.slot_end - 1
    slots = pool.slots(req)
    assert pool.audit() == []
    pool.free(req)  # int64 cells would otherwise be a view, and turn into holes
    assert slots.ids.tolist() == list(turn)


@given(st.data())
@settings(max_examples=40)
def test_any_order_of_calls_keeps_each_request_its_own_slots(data: st.DataObject) -> None:
    pool = table(size=3, max_context=6, layout=DcpLayout(2, 2, 40))
    fresh = [iter(range(4, 164, 2)), iter(range(5, 164, 2))]  # of each owner
    live: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 20))):
        what = data.draw(st.sampled_from(("alloc", "append", "free")))
        if what == "alloc":
            req = pool.alloc()
            assert (req is None) == (len(live) == 3)
            if req is not None:
                assert req not in live
                live[req] = []
        elif live:
            req = data.draw(st.sampled_from(sorted(live)))
            if what == "free":
                pool.free(req)
                del live[req]
            else:
                have = len(live[req])
                end = data.draw(st.integers(have, 6))
                more = [next(fresh[position % 2]) for position in range(have, end)]
                pool.append(req, ids(more))
                live[req] += more
        assert pool.audit() == []
        for req, slots in live.items():
            assert pool.slots(req).ids.tolist() == slots
            assert pool.last_slot(req) == (slots[-1] if slots else -1)


@pytest.mark.parametrize(
    ("slots", "error", "text"),
    [
        (ids([4, 3]), IndexSpaceError, r"widened slot must lie in \[4, 16\): got 3 at index 1"),
        (ids([16]), IndexSpaceError, r"\[4, 16\): got 16 at index 0"),
        (ids([-1]), IndexSpaceError, r"got -1 at index 0; 1 of 1 ids are outside"),
        (ids([5]), IndexSpaceError, r"slot and position must agree about the owner"),
        (ids([4, 5, 6, 7]), PoolError, r"at most 5 positions: request 0 has 2, 4 more do not fit"),
        (torch.tensor([4.0]), IndexSpaceError, r"slots must be int64 or int32, got torch\.float32"),
        (
            PhysicalRows.assume_physical(ids([2]), SMALL, 0),
            IndexSpaceError,
            r"slots must be raw ids, got PhysicalRows of rank 0: they are localized already",
        ),
    ],
)
def test_what_is_no_slot_is_not_written(
    slots: torch.Tensor, error: type[Exception], text: str
) -> None:
    pool = table(max_context=5)
    req = row_of(pool)
    pool.append(req, ids([8, 9]))
    with pytest.raises(error, match=text):
        pool.append(req, slots)
    assert pool.req_to_token[req].tolist() == [8, 9, -1, -1, -1]
    assert pool.length(req) == 2


@pytest.mark.parametrize(
    ("req", "error", "text"),
    [
        (1, PoolError, r"request row 1 is not in use \(1 of 2 are\); call alloc\(\) first"),
        (-1, PoolError, r"request row -1 is not in use"),
        (False, IndexSpaceError, r"request row must be an int: got False \(bool\)"),
    ],
)
def test_a_row_that_is_not_in_use_is_refused_by_every_call(
    req: int, error: type[Exception], text: str
) -> None:
    pool = table()
    row_of(pool)
    before = pool.req_to_token.clone()
    for call in (
        lambda: pool.append(req, ids([4])),
        lambda: pool.slots(req),
        lambda: pool.length(req),
        lambda: pool.last_slot(req),
        lambda: pool.free(req),
    ):
        with pytest.raises(error, match=text):
            call()
    assert torch.equal(pool.req_to_token, before)
    assert pool.audit() == []


def test_positions_that_are_not_written_have_no_slots() -> None:
    pool = table()
    pool.append(row_of(pool), ids([4, 5, 6]))
    for start, end in ((0, 4), (-1, 2), (2, 1), (4, None), (0, -1)):
        with pytest.raises(
            IndexSpaceError, match=r"positions must be written ones: got \[.*, which"
        ):
            pool.slots(0, start, end)
    with pytest.raises(IndexSpaceError, match=r"start must be an int: got 0\.5 \(float\)"):
        pool.slots(0, 0.5)  # type: ignore[arg-type]


def test_a_table_has_at_least_one_cell() -> None:
    for size, context in ((0, 8), (1, 0)):
        with pytest.raises(LayoutError, match=r"(size|max_context) must be at least 1"):
            ReqToTokenPool(size, context, SMALL)


@pytest.mark.parametrize(
    ("cell", "value", "text"),
    [
        ((0, 1), -1, "request 0 has a hole among its 3 positions"),
        ((0, 1), 3, "request 0 has a hole among its 3 positions"),
        ((0, 1), 16, "request 0 has a slot past the layout's 16"),
        ((0, 1), 8, "a slot stands at two positions of the table"),
        ((0, 1), 13, "a slot stands at two positions of the table"),
        ((0, 3), 11, "request row 0 has cells written past its 3 positions"),
        ((2, 0), 11, "request row 2 has cells written past its 0 positions"),
    ],
)
def test_the_audit_finds_a_wrong_cell(cell: tuple[int, int], value: int, text: str) -> None:
    pool = table(size=3)
    pool.append(row_of(pool), ids([8, 9, 10]))
    pool.append(row_of(pool), ids([12, 13]))
    assert pool.audit() == []
    pool.req_to_token[cell] = value
    assert pool.audit() == [text]

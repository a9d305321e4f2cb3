"""What a layout, slots and rows show of themselves is true, well formed, and costs no wait."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.index import DcpLayout, WidenedSlots, localize
from tests.index.cells import facts as read_facts
from tests.index.cells import numbers, read, span


@st.composite
def layouts(draw: st.DrawFn, most_pages: int = 2**40) -> DcpLayout:
    interleave = draw(st.sampled_from((1, 1, 2, 4, 16)))
    page_size = interleave * draw(st.sampled_from((1, 2, 3, 64)))
    pages = draw(st.one_of(st.integers(1, 9), st.integers(1, most_pages)))
    return DcpLayout(draw(st.integers(1, 9)), page_size, pages, interleave)


@st.composite
def runs(draw: st.DrawFn) -> tuple[DcpLayout, WidenedSlots]:
    """A ragged run on pages in any order, from any position."""
    lay = draw(layouts(most_pages=64))
    wide = lay.widened_page_size
    pages = draw(st.permutations(range(1, lay.num_pages + 1)))[:4]
    slots = [page * wide + i for page in pages for i in range(wide)]
    first = draw(st.integers(0, min(len(slots), wide) - 1))
    end = draw(st.integers(first, len(slots)))
    return lay, WidenedSlots(torch.tensor(slots[first:end], dtype=torch.int64), first)


@settings(max_examples=25)
@given(layouts())
def test_every_range_that_a_layout_shows_is_that_of_its_laws(lay: DcpLayout) -> None:
    told, pages, owners = read(lay._repr_html_())
    found = read_facts(told)
    assert span(found["slots handed out"]) == range(lay.first_slot, lay.slot_end)
    assert span(found["rows of each rank"]) == range(lay.first_row, lay.row_end)
    assert numbers(found["slots of a page (W)"]) == [lay.widened_page_size]
    assert numbers(found["tokens, all ranks"]) == [lay.capacity_tokens]
    want = [lay.dcp_size, lay.num_pages, lay.page_size]
    assert numbers(told.caption) == [*want, *([lay.interleave] if lay.interleave > 1 else [])]
    for column in pages.columns():
        (page,) = numbers(column["page"])
        for name, size in (("slots", lay.widened_page_size), ("rows of each rank", lay.page_size)):
            assert span(column[name]) == range(page * size, (page + 1) * size)
    for column in owners.columns():
        slots = span(column["slot"])
        assert len(slots) == lay.interleave
        for slot, row in zip(slots, span(column["row"]), strict=True):
            assert lay.first_slot <= slot < 2 * lay.widened_page_size
            assert (int(column["owner"]), row) == (lay.owner(slot), lay.row(slot))


@settings(max_examples=25)
@given(runs())
def test_slots_show_their_ids_at_their_positions(
    case: tuple[DcpLayout, WidenedSlots],
) -> None:
    _, slots = case
    told, *rest = read(slots._repr_html_())
    ids = slots.ids.tolist()
    assert numbers(read_facts(told)["slots"]) == [len(ids)]
    assert span(read_facts(told)["positions"]) == (
        range(slots.start, slots.start + len(ids)) if ids else range(0)
    )
    assert bool(rest) == bool(ids)
    for table in rest:
        for column in table.columns():
            assert int(column["slot"]) == ids[int(column["position"]) - slots.start]


@settings(max_examples=25)
@given(runs(), st.data())
def test_rows_show_the_row_page_and_position_of_each_slot(
    case: tuple[DcpLayout, WidenedSlots], data: st.DataObject
) -> None:
    lay, slots = case
    rank = data.draw(st.integers(0, lay.dcp_size - 1))
    rows = localize(slots, lay, rank)
    told, *rest = read(rows._repr_html_())
    assert numbers(told.caption) == [rank, lay.dcp_size]
    assert numbers(read_facts(told)["rows"]) == [len(rows), len(slots)]
    assert bool(rest) == bool(len(rows))
    for table in rest:
        for column in table.columns():
            slot = int(slots.ids[int(column["position"]) - slots.start])
            row = int(column[f"r{rank} row"])
            assert (lay.owner(slot), lay.row(slot)) == (rank, row)
            assert int(column["page"]) == row // lay.page_size


def test_a_repr_is_one_short_line_of_any_run() -> None:
    lay = DcpLayout(2, 2, 600)
    assert repr(WidenedSlots(torch.tensor([8, 9]), 4)) == "WidenedSlots([8, 9], start=4)"
    assert repr(WidenedSlots(torch.arange(0))) == "WidenedSlots([], start=0)"
    slots = WidenedSlots(torch.arange(4, 2004))
    assert repr(slots) == "WidenedSlots([4, 5, 6, 7, ..., 2002, 2003] (2,000), start=0)"
    assert repr(localize(slots.chunk(4, 7), lay, 1)) == (
        "PhysicalRows([4], rank 1 of 2, positions 4 .. 6)"
    )


def test_ids_that_are_not_at_hand_are_shown_by_count() -> None:
    slots = WidenedSlots(torch.empty(5, dtype=torch.int64, device="meta"), 3)
    assert repr(slots) == "WidenedSlots(5 ids on meta, start=3)"
    (told,) = read(slots._repr_html_())
    assert "not read" in read_facts(told)["device"]
    assert read_facts(told)["positions"] == "3 .. 7"

"""Laws of the layout: two spaces, one map between them, and its inverse."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.index import DcpLayout, Shard, owner_of, row_of

from . import oracle


@st.composite
def layouts(draw: st.DrawFn) -> DcpLayout:
    interleave = draw(st.integers(1, 6))
    page = interleave * draw(st.integers(1, 4))
    return DcpLayout(draw(st.integers(1, 9)), page, draw(st.integers(1, 4)), interleave)


@given(layouts())
@settings(max_examples=60)
def test_owner_and_row_name_every_row_of_every_rank_once(layout: DcpLayout) -> None:
    places = [(layout.owner(v), layout.row(v)) for v in range(layout.slot_end)]
    everywhere = [(r, x) for r in range(layout.dcp_size) for x in range(layout.row_end)]
    assert sorted(places) == everywhere
    assert places == oracle.deal(layout.dcp_size, layout.interleave)[: layout.slot_end]


@given(layouts())
@settings(max_examples=60)
def test_slot_is_the_inverse_of_owner_and_row(layout: DcpLayout) -> None:
    for v in range(layout.slot_end):
        assert layout.slot(layout.owner(v), layout.row(v)) == v


@given(layouts())
@settings(max_examples=60)
def test_page_q_of_the_allocator_is_page_q_of_every_rank(layout: DcpLayout) -> None:
    wide, page = layout.widened_page_size, layout.page_size
    for v in range(layout.slot_end):
        assert layout.row(v) // page == v // wide
    # So the padding page of one space is the padding page of the other, and the bounds agree.
    assert {layout.row(v) // page for v in range(layout.first_slot)} == {0}
    assert layout.row(layout.first_slot) == layout.first_row
    assert layout.row(layout.slot_end - 1) == layout.row_end - 1


@given(layouts())
@settings(max_examples=60)
def test_slots_that_can_be_handed_out_are_the_capacity(layout: DcpLayout) -> None:
    assert layout.slot_end - layout.first_slot == layout.capacity_tokens
    rows = layout.row_end - layout.first_row
    assert rows * layout.dcp_size == layout.capacity_tokens
    assert layout.rows_per_rank == layout.row_end
    assert layout.slot_end == layout.rows_per_rank * layout.dcp_size


@given(layouts())
@settings(max_examples=60)
def test_slot_and_position_agree_about_the_owner_as_pages_hold_whole_turns(
    layout: DcpLayout,
) -> None:
    for v in range(layout.first_slot, layout.slot_end):
        position = v - layout.first_slot  # of a request whose pages come in order
        assert layout.owner(v) == layout.owner(position)


@given(layouts())
@settings(max_examples=60)
def test_the_functions_on_tensors_say_what_the_layout_says(layout: DcpLayout) -> None:
    c, turn = layout.dcp_size, layout.interleave
    slots = torch.arange(layout.slot_end)
    owners, rows = owner_of(slots, c, turn), row_of(slots, c, turn)
    assert owners.tolist() == [layout.owner(v) for v in range(layout.slot_end)]
    assert rows.tolist() == [layout.row(v) for v in range(layout.slot_end)]
    for rank in range(c):
        mine = slots[owners == rank]
        assert torch.equal(Shard(c, rank, turn).slot(rows[owners == rank]), mine)
        assert len(mine) * c == layout.slot_end


@given(layouts(), st.integers(0, 400))
def test_pages_for_is_the_fewest_pages_with_room(layout: DcpLayout, tokens: int) -> None:
    pages = layout.pages_for(tokens)
    assert pages * layout.widened_page_size >= tokens
    assert (pages - 1) * layout.widened_page_size < tokens or pages == 0


def test_one_id_may_come_from_numpy_or_a_tensor_and_leaves_as_an_int() -> None:
    layout = DcpLayout(2, page_size=2, num_pages=2)
    numpy_id = torch.tensor([9]).numpy()[0]
    for slot in (9, numpy_id, torch.tensor(9)):
        assert (layout.owner(slot), layout.row(slot)) == (1, 4)  # type: ignore[arg-type]
        assert type(layout.owner(slot)) is type(layout.row(slot)) is int  # type: ignore[arg-type]
    assert type(layout.slot(1, numpy_id - 4)) is int


def test_the_largest_layout_still_names_its_last_slot() -> None:
    layout = DcpLayout(2**20, 2**20, 2**23 - 1)
    assert layout.slot_end == 2**63
    assert layout.owner(2**63 - 1) == 2**20 - 1
    assert layout.slot(layout.owner(2**63 - 1), layout.row(2**63 - 1)) == 2**63 - 1

"""Owner figures and the explorer say what the tables say, in cells that fit, never by hue alone."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from kvlab.errors import KvlabError, StudyError
from kvlab.index import DcpLayout
from kvlab.lab.owners import ENGINE_RULES, OwnerStudy, describe, slot_sentence
from kvlab.viz.canvas import Box, font_size, ink_on
from kvlab.viz.owners import (
    BY_HAND,
    NUM_PAGES,
    SIZES,
    draw_owner,
    fields,
    line_slots,
    owner_atlas,
    owner_map,
    page_map,
    rank_buffers,
    raw_use_map,
)
from kvlab.viz.save import figure_title
from kvlab.viz.style import OTHER, OWNED, PADDING, Role, caption
from kvlab.viz.widgets import owner_explorer
from tests.viz.figure_checks import cells, nothing_overlaps, told
from tests.viz.figures import ORIGIN, RUN
from tests.viz.test_style import contrast

FIGURES = {"map": owner_map, "rows": rank_buffers, "pages": page_map, "raw": raw_use_map}
START = OwnerStudy(DcpLayout(4, 4, NUM_PAGES), 27, 0, (3, 1))  # that of the explorer


@st.composite
def studies(draw: st.DrawFn) -> OwnerStudy:
    """Runs of at most three pages, small enough that every number fits its cell."""
    size = draw(st.integers(1, 4))
    interleave = draw(st.sampled_from([i for i in range(1, size + 1) if size % i == 0]))
    layout = DcpLayout(draw(st.integers(1, 6)), size, 9, interleave)
    pages = draw(st.permutations(range(1, 10)))[:3]
    start = draw(st.integers(0, layout.widened_page_size - 1))
    length = draw(st.integers(1, 3 * layout.widened_page_size - start))
    return OwnerStudy(layout, length, start, tuple(pages))


def drawn(draw: Callable[[], Figure]) -> tuple[Figure, list[tuple[Box, Role, str]]]:
    """The figure and its cells, in the order in which they are put there."""
    with cells() as found:
        fig = draw()
    return fig, found


def named(draw: Callable[[], Figure]) -> list[str]:
    """What each cell names: the last line of its text."""
    return [text.split("\n")[-1].lstrip("r→ ") for _, _, text in drawn(draw)[1] if text]


@settings(max_examples=25)
@given(studies())
def test_the_owner_map_names_the_owner_of_each_position_in_order(study: OwnerStudy) -> None:
    assert named(lambda: owner_map(study)) == [str(owner) for owner in study.table()["owner"]]


@settings(max_examples=25)
@given(studies())
def test_rank_buffers_name_the_slot_of_each_row_of_each_rank(study: OwnerStudy) -> None:
    layout = study.layout
    wanted = [
        str(layout.slot(rank, page * layout.page_size + line))
        for page in sorted(study.table()["page"].unique())
        for line in range(layout.page_size)
        for rank in range(layout.dcp_size)
    ]
    assert named(lambda: rank_buffers(study)) == wanted


@settings(max_examples=25)
@given(studies())
def test_the_raw_map_names_the_slot_that_the_owner_keeps_in_that_row(study: OwnerStudy) -> None:
    layout = study.layout
    wanted = []
    for slot in study.table()["slot"]:
        inside = slot < layout.row_end
        wanted.append(str(layout.slot(layout.owner(slot), slot)) if inside else "none")
    found = named(lambda: raw_use_map(study))
    assert found in (wanted, [text for text in wanted if text != "none"])


def test_the_page_map_shows_each_page_on_every_rank_beside_its_slots_and_rows() -> None:
    fig, found = drawn(lambda: page_map(RUN))
    assert [text for _, _, text in found if text] == [q for q in "0135" for _ in range(4)]
    words = told(fig)
    for line in ("slots 16..31", "positions 32..37", "rows 12..15", "slots 0..15", "rows 0..3"):
        assert line in words


def test_a_rank_in_front_alone_has_the_color_of_what_is_owned() -> None:
    fig, found = drawn(lambda: rank_buffers(RUN, rank=2))
    assert {role for _, role, _ in found} >= {OWNED, OTHER, PADDING}
    assert "slot of rank 2" in told(fig)
    assert OWNED not in {role for _, role, _ in drawn(lambda: rank_buffers(RUN))[1]}


def test_raw_use_frames_each_row_whose_number_is_a_slot_of_the_run_on_every_rank() -> None:
    study = OwnerStudy(DcpLayout(2, 2, 3), 12)  # slots 4..15, rows below 8
    frames = [c for c in rank_buffers(study, raw=True).axes[0].collections if c.get_zorder() == 5]
    assert [len(c.get_paths()) for c in frames] == [4 * 2]
    assert [c for c in rank_buffers(study).axes[0].collections if c.get_zorder() == 5] == []
    reached = told(rank_buffers(OwnerStudy(DcpLayout(2, 2, 7), 4), raw=True))
    assert [w for w in reached if "pa" in w] == ["padding", "page 1", "page 2", "page 3"]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize(
    ("dcp_size", "page_size"), [(1, 1), (2, 4), (3, 1), (8, 64), (16, 4), (16, 64)]
)
def test_nothing_overlaps_whatever_the_layout(name: str, dcp_size: int, page_size: int) -> None:
    layout = DcpLayout(dcp_size, page_size, 40)
    length = min(2 * layout.widened_page_size + 1, 600)
    study = OwnerStudy(layout, length, 0, (31, 2, 17))
    fig, found = drawn(lambda: FIGURES[name](study))
    assert len({box[:2] for box, _, _ in found}) == len(found)
    assert nothing_overlaps(caption(fig, "A sentence that says what is shown. " * 4, ORIGIN))


def test_an_atlas_has_cells_of_one_size_and_a_title_each() -> None:
    runs = {f"c = {c}": OwnerStudy(DcpLayout(c, 8, 30), 38) for c in (1, 2, 16)}
    fig, found = drawn(lambda: owner_atlas(runs, "Owners by DCP size"))
    assert figure_title(fig) == "Owners by DCP size" and set(runs) <= set(told(fig))
    assert len({box[2:] for box, _, _ in found}) == 1 and nothing_overlaps(fig)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_a_line_holds_whole_turns_and_a_page_whole_lines(c: int, size: int, most: int) -> None:
    columns = line_slots(DcpLayout(c, size, 1), most)
    assert columns % c == 0 and (size * c) % columns == 0
    assert columns <= max(most, c)


@given(st.integers(0, 2**24 - 1))
def test_text_on_any_color_has_a_contrast_of_4_5(color: int) -> None:
    assert contrast(ink_on(f"#{color:06x}"), f"#{color:06x}") > 4.5


def test_a_text_that_would_be_too_small_is_not_drawn() -> None:
    assert font_size("21", 0.2, 0.165) == 7.5 and font_size("21\nr0", 0.28, 0.28) == 7.5
    assert font_size("24575", 0.2, 0.16) is None
    assert font_size("1", 0.2, 0.05) is None


def test_the_numbers_in_words_are_those_of_the_tables() -> None:
    assert describe(RUN) == (
        "38 positions from 0 on are slots 48..63, 16..31, 80..85. Ranks 0..3 hold 10, 10, 9, 9 of "
        "them. Used as row numbers, 22 would lie past the buffer, 16 would hit another slot's row."
    )
    single = describe(OwnerStudy(DcpLayout(1, 1, 9), 7))
    assert "slots 1, 2, 3, 4, 5, 6, ..." in single and "7 would hit the right row" in single


@given(studies(), st.data())
def test_the_sentence_of_a_slot_says_what_the_pool_holds_read_row_by_row(
    study: OwnerStudy, data: st.DataObject
) -> None:
    lay = study.layout
    slot = data.draw(st.integers(0, lay.slot_end - 1))
    stored = {(rank, row): lay.slot(rank, row)
              for rank in range(lay.dcp_size) for row in range(lay.row_end)}  # fmt: skip
    rank, row = next(place for place, held in stored.items() if held == slot)
    told, table = slot_sentence(study, slot), study.table().set_index("slot")
    page, place = slot // lay.widened_page_size, table["position"].get(slot)
    assert told.startswith(f"Slot {slot}: page {page}, rank {rank}, row {row}, ")
    assert (f", position {place}. Used raw" in told) == (place is not None)
    raw = stored.get((rank, slot))
    words = "is out of range" if raw is None else f"silently hits the row of slot {raw}"
    words = "is right" if raw == slot and page else words
    words = "hits the padding page" if slot < lay.page_size else words
    assert f"as row {slot} it {words}" in told


@pytest.mark.parametrize("page_size", SIZES)
@pytest.mark.parametrize("rule", [*ENGINE_RULES, BY_HAND])
def test_every_setting_is_drawn_or_refused_in_words(page_size: int, rule: str) -> None:
    panel = owner_explorer()
    for dcp_size in SIZES:
        panel.set(dcp_size=dcp_size, page_size=page_size, rule=rule, length=2)
        for interleave in SIZES[:3]:
            panel.set(interleave=interleave)
            refused = rule == BY_HAND and page_size % interleave
            assert panel.text.startswith("Not drawn") == bool(refused), panel.text


def test_the_slot_can_be_set_to_every_slot_of_the_pool_and_no_other() -> None:
    panel = owner_explorer()
    last = (NUM_PAGES + 1) * 8 * 2 - 1
    panel.set(slot=last, dcp_size=2, page_size=8)
    assert panel.text.startswith(f"Slot {last}: ")
    with pytest.raises(KvlabError, match=f"control slot takes 0 to {last}: got {last + 1}"):
        panel.set(slot=last + 1)
    panel.set(page_size=1, length=2)
    assert panel.values["slot"] == 25 and panel.text.startswith("Slot 25: ")


def test_a_hover_box_says_what_the_cursor_would() -> None:
    said = {spot.text for spot in draw_owner().spots}
    slots, _, _ = fields(START, "double", 5)
    for cell in slots.cells[::3]:
        assert draw_owner(slot=cell.slot).text.split(" 27 positions")[0] in said


def test_the_explorer_starts_with_a_picture_and_its_numbers() -> None:
    panel = owner_explorer()
    assert panel.text == f"{slot_sentence(START, 21)} {describe(START)}"
    assert "Used raw as row 21 it silently hits the row of slot 85." in panel.text
    assert panel.table().equals(START.table())


@pytest.mark.parametrize(
    ("move", "message"),
    [
        ({"length": 100}, "positions 0..99 need 7 different pages of 16 slots: got [3, 1]"),
        ({"pages": "3, 3"}, "positions 0..26 need 2 different pages of 16 slots: got [3, 3]"),
        ({"pages": "3, 13"}, "a page must lie in [1, 12]: got 13"),
        ({"pages": "3; 1"}, "pages must be whole numbers joined by commas: got '3; 1'"),
        ({"pages": ""}, "pages must be whole numbers joined by commas: got ''"),
    ],
)
def test_what_does_not_fit_is_said_and_the_last_picture_stays(
    move: dict[str, object], message: str
) -> None:
    panel = owner_explorer()
    before = panel.widget.children[1].value
    assert panel.set(**move).text.startswith("Not drawn: ")
    assert message in panel.text and panel.widget.children[1].value == before
    with pytest.raises(StudyError):
        panel.drawing()

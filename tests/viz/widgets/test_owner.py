"""Owner explorer: every cell and number is what brute force over the pool says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import KvlabError, StudyError
from kvlab.index import DcpLayout
from kvlab.lab.owners import ENGINE_RULES, OwnerStudy, describe, slot_facts
from kvlab.viz.widgets import owner_explorer, owner_explorer_figure
from kvlab.viz.widgets.owner import BY_HAND, NUM_PAGES, SIZES, owner_hover, plan, study_of


@st.composite
def studies(draw: st.DrawFn) -> OwnerStudy:
    """A run over some pages of a small pool, with any interleave that divides the page."""
    size = draw(st.integers(1, 8))
    turns = draw(st.sampled_from([i for i in range(1, size + 1) if size % i == 0]))
    layout = DcpLayout(draw(st.integers(1, 8)), size, draw(st.integers(1, 6)), turns)
    pages = draw(st.permutations(range(1, layout.num_pages + 1)))
    room = len(pages) * layout.widened_page_size
    start = draw(st.integers(0, room - 1))
    return OwnerStudy(layout, draw(st.integers(1, room - start)), start, tuple(pages))


@given(studies(), st.data())
def test_the_facts_of_a_slot_are_those_of_the_pool_read_row_by_row(
    study: OwnerStudy, data: st.DataObject
) -> None:
    lay = study.layout
    slot = data.draw(st.integers(0, lay.slot_end - 1))
    facts = slot_facts(study, slot)
    stored = {
        (slot // lay.interleave % lay.dcp_size, row): slot
        for rank in range(lay.dcp_size)
        for row in range(lay.row_end)
        for slot in [lay.slot(rank, row)]
    }
    assert stored[facts.owner, facts.row] == slot
    if slot >= lay.row_end:
        assert (facts.raw, facts.raw_slot) == ("out of range", None)
    elif slot < lay.page_size:
        assert (facts.raw, facts.raw_slot) == ("padding", None)
    else:
        assert facts.raw_slot == stored[facts.owner, slot]
        assert facts.raw == ("right" if facts.raw_slot == slot else "another token")
    table = study.table().set_index("slot")
    assert facts.position == (table["position"].get(slot))


@given(studies())
def test_the_facts_agree_with_the_table(study: OwnerStudy) -> None:
    words = {"right": "right", "another slot": "another token", "out of range": "out of range"}
    for row in study.table().head(20).to_dict("records"):
        facts = slot_facts(study, row["slot"])
        assert (facts.owner, facts.row, facts.raw) == (row["owner"], row["row"], words[row["raw"]])


def test_a_slot_past_the_pool_is_refused() -> None:
    with pytest.raises(StudyError, match=r"a slot of this pool lies in \[0, 208\): got 208"):
        slot_facts(study_of(), 208)


@pytest.mark.parametrize("dcp_size", SIZES)
@pytest.mark.parametrize("page_size", SIZES)
@pytest.mark.parametrize("rule", [*ENGINE_RULES, BY_HAND])
def test_every_setting_is_drawn_or_refused_in_words(
    dcp_size: int, page_size: int, rule: str
) -> None:
    panel = owner_explorer()
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
    panel = owner_explorer()
    study = study_of()
    boxes = owner_hover(**panel.values)  # type: ignore[arg-type]
    where = plan(study, "double", 5)
    said = {box.text for box in boxes}
    for place in where.slots:
        panel.set(slot=place.slot)
        assert panel.text.split(" 27 positions")[0] in said


def test_cells_lie_apart_and_inside_the_figure() -> None:
    for width in ("double", "single"):
        where = plan(study_of(dcp_size=16, page_size=4, length=100), width)
        boxes = [place.box for place in (*where.slots, *where.rows)]
        assert len({box[:2] for box in boxes}) == len(boxes)
        wide = {"double": 7.2, "single": 3.5}[width]
        assert all(x + w <= wide and y + h <= where.height for x, y, w, h in boxes)


def test_the_twin_refuses_what_the_panel_refuses() -> None:
    with pytest.raises(StudyError, match=r"positions 0\.\.99 need 7 different pages"):
        owner_explorer_figure(length=100)


def test_the_explorer_starts_with_a_picture_and_its_numbers() -> None:
    panel = owner_explorer()
    assert panel.text == f"{slot_facts(study_of(), 21).sentence()} {describe(study_of())}"
    assert "Used raw as row 21 it silently hits the row of slot 85." in panel.text
    assert panel.table().equals(study_of().table())


def test_the_explorer_follows_every_control() -> None:
    panel = owner_explorer()
    for move in (
        {"dcp_size": 2, "pages": "3, 1, 5, 2"},
        {"page_size": 8},
        {"pages": "2, 7, 1, 4"},
        {"start": 5},
        {"length": 9},
        {"rule": list(ENGINE_RULES)[1]},
        {"slot": 40},
    ):
        before = panel.text
        assert panel.set(**move).text != before, move


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
    before = panel._picture
    assert panel.set(**move).text.startswith("Not drawn: ")
    assert message in panel.text and panel._picture is before
    with pytest.raises(KvlabError):
        panel.figure()

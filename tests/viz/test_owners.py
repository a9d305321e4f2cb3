"""Owner figures say what the tables say, in numbers that fit their cells and never by hue alone."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from kvlab.errors import KvlabError, LayoutError
from kvlab.index import DcpLayout
from kvlab.lab.origin import Origin
from kvlab.lab.owners import OwnerStudy
from kvlab.viz.owner_fields import left_out, shown_pages
from kvlab.viz.owners import (
    describe,
    owner_atlas,
    owner_map,
    page_map,
    rank_buffers,
    raw_use_map,
)
from kvlab.viz.save import figure_title
from kvlab.viz.spaces import font_size, ink_on, line_slots
from kvlab.viz.style import OWNED, caption

ORIGIN = Origin(
    "kvlab owners", None, {"dcp_size": 4}, "cpu (2 cores)", {"kvlab": "0"}, None, "2026"
)
RUN = OwnerStudy(DcpLayout(4, 4, 8), 38, 0, (3, 1, 5))
FIGURES = {"map": owner_map, "rows": rank_buffers, "pages": page_map, "raw": raw_use_map}


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


def numbers(ax: Axes) -> list[Text]:
    """The texts inside cells, in reading order. Headings take part in the layout, these do not."""
    inside = [text for text in ax.texts if not text.get_in_layout()]
    return sorted(inside, key=lambda text: text.get_position()[::-1])


def last_lines(fig: Figure) -> list[str]:
    """What each cell of the first axes names: the last line of its text."""
    return [text.get_text().split("\n")[-1] for text in numbers(fig.axes[0])]


def legend(fig: Figure) -> Legend:
    """The only legend of a figure."""
    (found,) = [legend for ax in fig.axes if (legend := ax.get_legend()) is not None]
    return found


def faces(fig: Figure) -> set[str]:
    """Fill colours of the cells."""
    drawn = [c for ax in fig.axes for c in ax.collections if isinstance(c, PatchCollection)]
    return {to_hex(tuple(color)) for c in drawn for color in np.atleast_2d(c.get_facecolor())}


@settings(max_examples=25)
@given(studies())
def test_the_owner_map_names_the_owner_of_each_position_in_order(study: OwnerStudy) -> None:
    wanted = [str(owner) for owner in study.table()["owner"]]
    assert [text.lstrip("r") for text in last_lines(owner_map(study))] == wanted


@settings(max_examples=25)
@given(studies())
def test_rank_buffers_name_the_slot_of_each_row_of_each_rank(study: OwnerStudy) -> None:
    layout = study.layout
    pages = sorted(study.table()["page"].unique())
    wanted = [
        str(layout.slot(rank, page * layout.page_size + line))
        for page in pages
        for line in range(layout.page_size)
        for rank in range(layout.dcp_size)
    ]
    assert last_lines(rank_buffers(study)) == wanted


@settings(max_examples=25)
@given(studies())
def test_the_raw_map_names_the_slot_that_the_owner_keeps_in_that_row(study: OwnerStudy) -> None:
    layout = study.layout
    wanted = []
    for slot in study.table()["slot"]:
        inside = slot < layout.row_end
        wanted.append(str(layout.slot(layout.owner(slot), slot)) if inside else "none")
    found = [text.lstrip("→ ") for text in last_lines(raw_use_map(study))]
    assert found in (wanted, [text for text in wanted if text != "none"])


def test_the_page_map_shows_each_page_on_every_rank_beside_its_slots_and_rows() -> None:
    ax = page_map(RUN).axes[0]
    assert [text.get_text() for text in numbers(ax)] == [q for q in "0135" for _ in range(4)]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "slots 0..15",
        "slots 16..31\npositions 16..31",
        "slots 48..63\npositions 0..15",
        "slots 80..95\npositions 32..37",
    ]
    headings = [text.get_text().strip() for text in ax.texts if text.get_in_layout()]
    rows = ["rows 0..3", "rows 4..7", "rows 12..15", "rows 20..23"]
    assert [text for text in headings if text] == rows


def test_a_highlighted_rank_alone_has_the_colour_of_what_is_owned() -> None:
    for fig in (owner_map(RUN, rank=2), rank_buffers(RUN, rank=2)):
        labels = [text.get_text() for text in legend(fig).get_texts()]
        assert labels == ["slot of rank 2", "slot of another rank"]
        assert OWNED.color.lower() in faces(fig)
    assert OWNED.color.lower() not in faces(owner_map(RUN))


@pytest.mark.parametrize("draw", [owner_map, rank_buffers])
def test_a_rank_past_the_last_is_refused(draw: object) -> None:
    with pytest.raises(LayoutError, match=r"dcp_rank must lie in \[0, 4\): got dcp_rank=4"):
        draw(RUN, rank=4)  # type: ignore[operator]


def test_raw_use_outlines_each_slot_below_the_bound_of_rows_on_every_rank() -> None:
    study = OwnerStudy(DcpLayout(2, 2, 3), 12)  # slots 4..15, rows below 8
    marked = rank_buffers(study, raw=True).axes[0].collections
    (outlines,) = [c for c in marked if c.get_zorder() == 3]
    assert len(outlines.get_paths()) == 4 * 2
    plain = rank_buffers(study).axes[0].collections
    assert [c for c in plain if c.get_zorder() == 3] == []


def test_raw_use_shows_the_pages_it_reaches_too() -> None:
    ax = rank_buffers(OwnerStudy(DcpLayout(2, 2, 7), 4), raw=True).axes[0]
    shown = [text.get_text().strip() for text in ax.texts if text.get_in_layout()]
    assert shown == ["padding", "page 1", "page 2", "page 3"]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("dcp_size", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_numbers_stay_in_their_cells_and_nothing_overlaps(
    name: str, dcp_size: int, page_size: int
) -> None:
    layout = DcpLayout(dcp_size, page_size, 40)
    length = min(2 * layout.widened_page_size + 1, 600)
    fig = FIGURES[name](OwnerStudy(layout, length, 0, (31, 2, 17)))
    caption(fig, "A sentence that says what is shown. " * 4, ORIGIN)
    fig.draw_without_rendering()
    (ax,) = fig.axes
    field = ax.get_window_extent().padded(2)
    boxes = [text.get_window_extent() for text in numbers(ax)]
    assert all(field.x0 <= b.x0 and b.x1 <= field.x1 for b in boxes)
    for left, right in pairwise(numbers(ax)):
        if left.get_position()[1] == right.get_position()[1]:
            assert left.get_window_extent().x1 <= right.get_window_extent().x0 + 0.5
    captions = [text.get_window_extent() for text in fig.texts]
    body = ax.get_tightbbox()
    assert body is not None
    assert not any(one.overlaps(other) for one, other in combinations([*captions, body], 2))
    assert all(fig.bbox.x0 - 1 <= b.x0 and b.x1 <= fig.bbox.x1 + 1 for b in [*captions, body])


def test_where_numbers_do_not_fit_ranks_differ_by_hatch_and_are_named_in_a_legend() -> None:
    fig = owner_map(OwnerStudy(DcpLayout(80, 1, 4), 100))
    assert last_lines(fig) == []
    assert [text.get_text() for text in legend(fig).get_texts()] == [f"rank {r}" for r in range(80)]
    hatches = [patch.get_hatch() for patch in legend(fig).get_patches()]
    assert all(one != other for one, other in pairwise(hatches))


def test_rows_too_low_for_numbers_become_blocks_with_first_and_last_slot() -> None:
    study = OwnerStudy(DcpLayout(2, 64, 8), 300)
    shown = [text.get_text() for text in numbers(rank_buffers(study).axes[0])]
    assert shown[:2] == ["128\n…\n254", "129\n…\n255"]
    assert shown[-2:] == ["428\n…\n510", "429\n…\n511"]


def test_what_is_left_out_is_said_in_the_title() -> None:
    study = OwnerStudy(DcpLayout(16, 64, 9), 9 * 1024)
    assert owner_map(study).axes[0].get_title("left") == "Owner of each slot (first 2 of 9 pages)"
    assert left_out(RUN, shown_pages(RUN, 16)) == ""


def test_an_atlas_has_cells_of_one_size_and_a_title_each() -> None:
    runs = {f"c = {c}": OwnerStudy(DcpLayout(c, 8, 30), 38) for c in (1, 2, 16)}
    fig = owner_atlas(runs, "Owners by DCP size")
    fig.draw_without_rendering()
    assert figure_title(fig) == "Owners by DCP size"
    shown = [ax for ax in fig.axes if ax.axison]
    assert [ax.get_title("left") for ax in shown] == list(runs)
    widths = [ax.get_window_extent().width / ax.get_xlim()[1] for ax in shown]
    assert max(widths) - min(widths) < 1


def test_an_atlas_of_nothing_is_refused() -> None:
    with pytest.raises(KvlabError, match="an atlas shows at least one study: got none; pass"):
        owner_atlas({}, "Owners")


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_a_line_holds_whole_turns_and_a_page_whole_lines(c: int, size: int, most: int) -> None:
    columns = line_slots(DcpLayout(c, size, 1), most)
    assert columns % c == 0 and (size * c) % columns == 0
    assert columns <= max(most, c)


@given(st.integers(0, 2**24 - 1))
def test_text_on_any_colour_has_a_contrast_of_4_5(color: int) -> None:
    face = f"#{color:06x}"
    parts = [int(face[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    bright = 0.05 + float(np.dot(linear, [0.2126, 0.7152, 0.0722]))
    assert (
        max(bright, ink := {"#000000": 0.05, "#FFFFFF": 1.05}[ink_on(face)]) / min(bright, ink)
        > 4.5
    )


def test_a_text_that_would_be_too_small_is_not_drawn() -> None:
    assert font_size(["21", "9"], 0.2, 0.16) == 7.5
    assert font_size(["24575"], 0.2, 0.16) is None
    assert font_size(["1"], 0.2, 0.05) is None


def test_the_numbers_in_words_are_those_of_the_tables() -> None:
    assert describe(RUN) == (
        "38 positions from 0 on are slots 48..63, 16..31, 80..85. Ranks 0..3 hold 10, 10, 9, 9 of "
        "them. Used as row numbers, 22 would lie past the buffer, 16 would hit another slot's row."
    )
    single = describe(OwnerStudy(DcpLayout(1, 1, 9), 7))
    assert "slots 1, 2, 3, 4, 5, 6, ..." in single and "7 would hit the right row" in single

"""Pictures of the crash and of a backup show every page, row and position of their tables, once."""

from itertools import pairwise

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kvlab.index import DcpLayout
from kvlab.lab.backup_walk import FOUR_STEPS, walk_layout
from kvlab.lab.crash import CrashStudy, page_census
from kvlab.lab.origin import Origin
from kvlab.viz import crash
from kvlab.viz.backup import backup_steps_figure
from kvlab.viz.save import show
from kvlab.viz.strips import compact, spans
from tests.viz.figure_checks import nothing_overlaps

ORIGIN = Origin("notebook 03", None, {"dcp_size": 4}, "cpu (2 cores)", {"kvlab": "0"}, None, "2026")
SMALL = DcpLayout(4, 4, 64)
STUDY = CrashStudy(SMALL, regime="low", tokens_per_request=5 * 16 + 7)


def boxes(ax: Axes) -> list[tuple[float, float, float, str]]:
    """(x, middle, width, hatch) of each rectangle that stands for a span."""
    found = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return [
        (b.get_x(), b.get_y() + b.get_height() / 2, b.get_width(), b.get_hatch() or "")
        for b in found
    ]


def census() -> pd.DataFrame:
    """Pages of four DCP sizes."""
    tables = [page_census(DcpLayout(c, 4, 64)).assign(dcp_size=c) for c in (1, 2, 4, 8)]
    table = pd.concat(tables, ignore_index=True)
    return table.assign(outcome=table["outcome"].mask(table["dcp_size"] == 1, "right"))


@given(st.lists(st.sampled_from("abc")))
def test_spans_partition_their_values_and_neighbours_differ(values: list[str]) -> None:
    found = spans(values)
    assert [value for begin, end, value in found for _ in range(begin, end)] == values
    assert all(one[2] != two[2] for one, two in pairwise(found))


def test_every_page_stands_in_the_strip_of_its_dcp_size() -> None:
    table = census()
    fig = crash.page_census_figure(table, ORIGIN)
    (ax,) = fig.axes
    for y, size in enumerate((1, 2, 4, 8)):
        mine = [(x, width, hatch) for x, middle, width, hatch in boxes(ax) if middle == y]
        assert sum(width for _, width, _ in mine) == 64
        drawn = {hatch: width for _, width, hatch in mine}
        pages = table[table["dcp_size"] == size]["outcome"].value_counts()
        assert drawn == {crash.OUTCOMES[str(kind)].hatch: n for kind, n in pages.items()}
    counts = [text.get_text() for text in ax.texts]
    assert counts == ["64", "31 · 1 · 32", "15 · 1 · 48", "7 · 1 · 56"]


def test_every_saved_row_is_drawn_on_its_rank() -> None:
    result = STUDY.run()
    fig = crash.saved_rows_figure(result.saved, result.victim, ORIGIN)
    drawn = boxes(fig.axes[0])
    for rank in range(4):
        assert sum(width for _, y, width, _ in drawn if y == rank) == STUDY.tokens
    named = {text.get_text() for text in fig.axes[0].texts}
    holders = {f"request {r}" for r in result.saved["holds_request"] if r >= 0}
    assert named <= holders | {"nobody"} and f"request {result.victim}" in named


def test_every_position_of_the_victim_is_drawn_once_in_each_case() -> None:
    table = pd.concat([STUDY.run().restored.assign(case=name) for name in ("one", "two")])
    fig = crash.victim_rows_figure(table, ORIGIN)
    assert [ax.get_title("left") for ax in fig.axes] == [
        f"{name}: {STUDY.tokens} of {STUDY.tokens} positions are not right"
        for name in ("one", "two")
    ]
    for ax in fig.axes:
        widths = sum(width for _, _, width, _ in boxes(ax))
        assert widths == STUDY.tokens * SMALL.dcp_size  # each as wide as a turn of the ranks


def test_each_hurt_request_has_a_bar_as_long_as_its_wrong_positions() -> None:
    result = STUDY.run()
    rows = pd.concat([result.damaged, result.restored.assign(request=result.victim)])
    fig = crash.damage_figure(rows, result.victim, STUDY.tokens, ORIGIN)
    (ax,) = fig.axes
    wrong = rows.groupby("request").size()
    for y, count in enumerate(wrong):
        assert sum(width for _, middle, width, _ in boxes(ax) if middle == y) == count
    assert [text.get_text() for text in ax.texts] == [str(count) for count in wrong]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == [f"{r} (victim)" if r == result.victim else str(r) for r in wrong.index]


def test_the_steps_name_every_position_that_a_row_or_a_host_copy_holds() -> None:
    layout = DcpLayout(4, 2, 9)
    walk = walk_layout(layout, 19)
    table = walk.table()
    fig = backup_steps_figure(table, walk.victim, layout, ORIGIN)
    for ax, step in zip(fig.axes, FOUR_STEPS.values(), strict=True):
        cells = table[table["step"] == step]
        held = cells[cells["request"] >= 0]
        assert sorted(int(text.get_text()) for text in ax.texts) == sorted(held["position"])
        assert len(boxes(ax)) == len(cells)
        assert step in ax.get_title("left")


def make(name: str) -> Figure:
    """The figure of that name, of small studies."""
    if name == "census":
        return crash.page_census_figure(census(), ORIGIN)
    if name == "steps":
        layout = DcpLayout(4, 2, 9)
        walk = walk_layout(layout, 19)
        return backup_steps_figure(walk.table(), walk.victim, layout, ORIGIN)
    result = STUDY.run()
    if name == "saved":
        return crash.saved_rows_figure(result.saved, result.victim, ORIGIN)
    if name == "victim":
        return crash.victim_rows_figure(result.restored.assign(case="before"), ORIGIN)
    rows = pd.concat([result.damaged, result.restored.assign(request=result.victim)])
    return crash.damage_figure(rows, result.victim, STUDY.tokens, ORIGIN)


@pytest.mark.parametrize("name", ["census", "saved", "victim", "damage", "steps"])
def test_legend_caption_and_axes_keep_apart(name: str) -> None:
    assert nothing_overlaps(make(name))


def test_drawing_changes_no_table() -> None:
    result = STUDY.run()
    before = result.saved.copy()
    crash.saved_rows_figure(result.saved, result.victim, ORIGIN)
    assert result.saved.equals(before)


def test_a_compact_picture_has_the_size_and_words_of_the_full_one_in_fewer_bytes() -> None:
    fig = crash.page_census_figure(census(), ORIGIN)
    small, full = compact(fig), show(fig)
    assert (small.width, small.height, small.alt) == (full.width, full.height, full.alt)
    assert len(small.png) < 0.8 * len(full.png)

"""What holds for every figure, and that each shows the numbers of its table."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import Rectangle

from kvlab.lab.bench import ops
from kvlab.lab.bench.cost import copy_points, localize_points, share_points
from kvlab.viz import cost, crash, retraction, style
from kvlab.viz.save import figure_definition, figure_title
from kvlab.viz.timeline import STATES
from tests.viz.figure_checks import cells, curves, nothing_overlaps, told, words_of
from tests.viz.figures import (
    FIGURES,
    LOG,
    ORIGIN,
    SMALL,
    STUDY,
    SWEEP,
    backed_up,
    bench_rows,
    census,
    crashed,
    hurt,
    made,
    node_run,
)

COSTS = {
    "localize": (cost.localize_figure, localize_points),
    "copies": (cost.copies_figure, copy_points),
    "shares": (cost.shares_figure, share_points),
}
PALETTE = {value for value in vars(style).values() if re.fullmatch("#[0-9A-F]{6}", str(value))}


@pytest.mark.parametrize("name", list(FIGURES))
def test_title_definition_and_origin_stand_apart_from_axes_and_legend(name: str) -> None:
    fig = FIGURES[name]()
    assert nothing_overlaps(fig)
    assert figure_title(fig) and len(figure_definition(fig)) > 60
    assert fig.texts[-1].get_text() == ORIGIN.footer()


@pytest.mark.parametrize("name", list(FIGURES))
def test_axes_say_what_and_in_which_unit(name: str) -> None:
    fig = made(name)
    words = [*told(fig), *words_of(fig)]
    words += [label for ax in fig.axes for label in (ax.get_xlabel(), ax.get_ylabel())]
    for ax in fig.axes:  # numbers on an axis never stand alone
        shown = any(label.get_text() for label in ax.get_xticklabels()) and ax.axison
        below = ax.get_shared_x_axes().get_siblings(ax)
        assert not shown or any(one.get_xlabel() for one in below), name
    units = "nats|token|step|page|position|row|slot|request|DCP|bytes|ids|acts"
    assert any(re.search(units, word) for word in words)


@pytest.mark.parametrize("name", list(FIGURES))
def test_colors_are_those_that_color_blind_readers_can_tell_apart(name: str) -> None:
    ranks = {to_hex(mpl.colormaps["cividis"](at)) for at in np.linspace(0, 1, 4096)}
    used = set()
    for ax in made(name).axes:
        lines = [line.get_color() for line in ax.lines if line.get_linestyle() != "None"]
        areas: list[Any] = [patch.get_facecolor() for patch in ax.patches]
        areas += [one for c in ax.collections for one in np.atleast_2d(c.get_facecolor())]
        used |= {to_hex(color).upper() for color in [*lines, *areas] if len(color)}
    gray = {color for color in used if color[1:3] == color[3:5] == color[5:7]}
    pale = {"#F8E3B4"}  # stays on the host, hatched
    assert {c for c in used - gray - PALETTE - pale if c.lower() not in ranks} == set()


def boxes(ax: Axes) -> list[tuple[float, float, float, str]]:
    """(x, middle, width, hatch) of each rectangle that stands for a span."""
    found = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return [(b.get_x(), round(b.get_y() + b.get_height() / 2, 6), b.get_width(),
             b.get_hatch() or "") for b in found]  # fmt: skip


@given(st.lists(st.sampled_from("abc")))
def test_spans_partition_their_values_and_neighbors_differ(values: list[str]) -> None:
    found = crash.spans(values)
    assert [value for begin, end, value in found for _ in range(begin, end)] == values
    assert all(one[2] != two[2] for one, two in pairwise(found))


def test_every_page_stands_in_the_strip_of_its_dcp_size() -> None:
    table = census()
    (ax,) = made("census").axes
    for y, size in enumerate((1, 2, 4, 8)):
        drawn = {hatch: width for _, middle, width, hatch in boxes(ax) if middle == y}
        pages = table[table["dcp_size"] == size]["outcome"].value_counts()
        assert drawn == {crash.OUTCOMES[str(kind)].hatch: n for kind, n in pages.items()}
    assert told(made("census")) == ["64", "31 · 1 · 32", "15 · 1 · 48", "7 · 1 · 56"]


def test_every_saved_row_is_drawn_on_its_rank() -> None:
    result, (ax,) = crashed(), made("saved").axes
    for rank in range(4):
        assert sum(width for _, y, width, _ in boxes(ax) if y == rank) == STUDY.tokens
    named = set(told(made("saved")))
    holders = {f"request {r}" for r in result.saved["holds_request"] if r >= 0}
    assert named <= holders | {"nobody"} and f"request {result.victim}" in named


def test_every_position_of_the_victim_is_drawn_once_in_each_case() -> None:
    table = pd.concat([crashed().restored.assign(case=name) for name in ("one", "two")])
    fig = crash.victim_rows_figure(table, ORIGIN)
    for ax, name in zip(fig.axes, ("one", "two"), strict=True):
        bad = f"{name}: {STUDY.tokens} of {STUDY.tokens} positions are not right"
        assert ax.get_title("left") == bad
        # each as wide as a turn of the ranks
        assert sum(width for _, _, width, _ in boxes(ax)) == STUDY.tokens * SMALL.dcp_size


def test_each_hurt_request_has_a_bar_as_long_as_its_wrong_positions() -> None:
    (ax,) = made("damage").axes
    wrong = hurt().groupby("request").size()
    for y, count in enumerate(wrong):
        assert sum(width for _, middle, width, _ in boxes(ax) if middle == y) == count
    assert told(made("damage")) == [str(count) for count in wrong]


def test_the_steps_name_every_position_that_a_row_or_a_host_copy_holds() -> None:
    with cells() as drawn:
        FIGURES["steps"]()
    table = backed_up().table()
    assert len(drawn) == len(table)
    held = [int(text) for _, _, text in drawn if text]
    assert sorted(held) == sorted(table.loc[table["request"] >= 0, "position"])
    words = told(made("steps"))
    assert all(f"{n}. {step}" in words for n, step in enumerate(table["step"].unique(), 1))


def test_the_legend_of_the_timeline_names_only_what_is_there() -> None:
    words = told(made("timeline"))
    assert STATES["retracted"].label in words
    assert "aborted" not in words and "waiting" not in words
    stays, _ = node_run()
    marks = [line.get_marker() for line in made("timeline").axes[0].lines]
    for marker, kind in (("v", "retract"), ("^", "resume"), ("o", "finish")):
        assert marks.count(marker) == int((stays["left_by"] == kind).sum()) + 1  # one in the legend


@pytest.mark.parametrize("name", ["dcp", "dcp, single", "reserve", "ways"])
def test_a_count_is_a_point_of_its_line_and_the_zero_is_on_the_page(name: str) -> None:
    (ax,) = made(name).axes
    want = {
        "dcp": [[72, 46, 12, 0], [14, 0, 0, 0]],
        "reserve": [[119, 47, 9, 0], [82, 17, 0, 0]],
        "ways": [[1_764_750, 1_263_248, 0], [324_018, 194_811, 0]],
    }[name.split(",")[0]]
    assert curves(ax) == want
    low, high = ax.get_ylim()
    assert low < 0 <= min(map(min, want)) and max(map(max, want)) < high
    first = {"dcp": "0.5 GiB", "reserve": "1", "ways": "backup"}[name.split(",")[0]]
    assert words_of(made(name))[0] == first


def test_every_point_retracts_or_does_not() -> None:
    (ax,) = made("capacity").axes
    marks = {str(line.get_marker()): line for line in ax.lines if line.get_linestyle() == "None"}
    for marker, retracts in (("X", True), ("o", False)):
        want = SWEEP[(SWEEP["retractions"] > 0) == retracts]
        got = marks[marker]
        np.testing.assert_array_equal(np.asarray(got.get_xdata()), want["dcp_size"])
        np.testing.assert_array_equal(np.asarray(got.get_ydata()), want["capacity_tokens"])


@pytest.mark.parametrize(
    ("counts", "falls"),
    [
        ([72, 46, 12, 0, 14, 0, 0, 0], True),
        ([72, 46, 46, 0, 0, 0, 0, 0], True),
        ([0] * 8, False),
        ([3] * 8, False),
        ([72, 46, 12, 0, 0, 1, 0, 0], False),
    ],
)
def test_the_title_says_that_retractions_fall_where_they_do(counts: list[int], falls: bool) -> None:
    fig = retraction.retractions_by_dcp_figure(SWEEP.assign(retractions=counts), None)
    title = "Retractions fall as the DCP size grows" if falls else "Retractions by DCP size"
    assert figure_title(fig) == title and fig.texts == []
    assert fig.axes[0].get_ylim()[1] >= 1


def test_aborted_requests_are_told_in_the_caption() -> None:
    assert "aborted" not in retraction.retractions_by_dcp_text(SWEEP.assign(aborted=0))
    text = retraction.retractions_by_dcp_text(SWEEP.assign(aborted=[1200] + [0] * 7))
    assert text.endswith("Requests that were aborted are not counted: up to 1,200 of a run.")


def test_each_column_of_a_training_log_is_a_line_and_chance_is_one() -> None:
    left, right = made("loss").axes
    assert curves(left) == [LOG["train_bits_per_byte"].tolist(),
                            LOG["held_out_bits_per_byte"].tolist()]  # fmt: skip
    assert curves(right) == [LOG["recall"].tolist()]
    assert [0.0625, 0.0625] in [np.asarray(line.get_ydata()).tolist() for line in right.lines]
    grays = [line for line in left.lines if len(np.asarray(line.get_xdata())) == 2]
    assert [np.asarray(line.get_xdata()).tolist() for line in grays] == [[2.5, 2.5]]


def heights(ax: Axes) -> dict[str, list[float]]:
    """Label -> heights of the marks of each series."""
    found = {}
    for container in ax.containers:
        assert isinstance(container, ErrorbarContainer) and container.lines[0] is not None
        found[str(container.get_label())] = np.asarray(container.lines[0].get_ydata()).tolist()
    return found


@pytest.mark.parametrize("name", list(COSTS))
def test_without_a_row_every_panel_and_the_caption_say_so(name: str) -> None:
    make, points = COSTS[name]
    fig = make(points(bench_rows().head(0)), ORIGIN, ("merge: none of 24 cases is measured",))
    said = [[text.get_text() for text in ax.texts] for ax in fig.axes if ax.axison]
    assert said and all(words == [cost.NOT_MEASURED] for words in said)
    assert "Not here: merge: none of 24 cases is measured." in figure_definition(fig)
    assert "Not here" not in figure_definition(made(name))
    assert nothing_overlaps(fig)


@pytest.mark.parametrize("name", list(COSTS))
def test_the_title_names_the_device_so_that_two_figures_can_be_told_apart(name: str) -> None:
    make, points = COSTS[name]
    assert figure_title(made(name)).endswith(": cpu")
    gpu = make(points(bench_rows()), replace(ORIGIN, device="A made-up GPU (driver 1)"))
    assert figure_title(gpu).endswith(": A made-up GPU")


def test_localization_has_one_line_a_contender_in_time_an_id() -> None:
    (ax,) = made("localize").axes
    lines = heights(ax)
    lengths = sorted(ids for ids, c in ops.RUNS if c == 8)
    assert lines[ops.MASK] == pytest.approx([5.5e3 / ids for ids in lengths])
    assert lines[ops.CHECKED] == pytest.approx([1e3 / ids for ids in lengths])
    assert set(words_of(made("localize"))) == set(lines)
    assert [label.get_text() for label in ax.get_xticklabels()][:2] == ["1k", "4k"]
    renamed = bench_rows().replace({"ours": {ops.CHECKED: "something new"}})
    assert "something new" in heights(
        cost.localize_figure(localize_points(renamed), ORIGIN).axes[0]
    )


def test_copies_have_a_line_for_each_layer_count_and_dcp_size_with_their_aims() -> None:
    fig = made("copies")
    ratio, ratio_back, share, share_back, _ = fig.axes
    assert [len(heights(ax)) for ax in (ratio, ratio_back, share, share_back)] == [8] * 4
    assert heights(ratio)["61 layers, c=8"] == pytest.approx([4.61] * 4)
    assert heights(share_back)["27 layers, c=2"] == pytest.approx([0.74] * 4)
    assert words_of(fig) == ["27 layers", "61 layers", "c=1", "c=2", "c=4", "c=8"]
    assert [ax.get_title("left") for ax in (ratio, ratio_back)] == ["backup", "restore"]
    assert [text.get_text() for text in ratio.texts] == ["aim 5"]
    assert [text.get_text() for text in share.texts] == []


def test_quartiles_are_the_ends_of_the_bars() -> None:
    share = made("copies").axes[2]
    want = copy_points(bench_rows()).query("op == 'backup' and measure == 'share'")
    ends = [
        (part[0][1], part[1][1])
        for container in share.containers
        for collection in container.lines[2]  # type: ignore[attr-defined]
        for part in collection.get_segments()
    ]
    assert sorted(low for low, _ in ends) == pytest.approx(sorted(want["q1"]))
    assert sorted(high for _, high in ends) == pytest.approx(sorted(want["q3"]))


def test_shares_have_a_mark_for_every_case() -> None:
    merged, written = made("shares").axes
    points = share_points(bench_rows())
    for ax, part in ((merged, "merge"), (written, "owner_write")):
        assert sum(map(len, heights(ax).values())) == int((points["part"] == part).sum())
        assert ax.get_ylim()[0] == 0
    assert [text.get_text() for text in merged.texts] == ["aim 0.8"]


@pytest.mark.parametrize(
    ("count", "text"), [(64, "64 B"), (1024, "1 KiB"), (2**17, "128 KiB"), (2**31, "2 GiB")]
)
def test_bytes_are_told_in_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert cost.bytes_text(count) == text

"""Pictures of costs show the numbers of their rows, and say so where there are none."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from kvlab.errors import StudyError
from kvlab.lab.bench import ops
from kvlab.lab.bench.cost import copy_points, localize_points, origin_of, read_costs, share_points
from kvlab.lab.origin import Origin
from kvlab.viz.cost import NOT_MEASURED, bytes_text
from kvlab.viz.cost_copies import copies_figure
from kvlab.viz.cost_localize import localize_figure
from kvlab.viz.cost_shares import shares_figure
from kvlab.viz.save import figure_definition, figure_title
from tests.lab.bench.cost_rows import CPU, GPU, LOCALIZE_CASES, record
from tests.viz.figure_checks import legend_words, nothing_overlaps

FIGURES = {
    "localize": (localize_figure, localize_points),
    "copies": (copies_figure, copy_points),
    "shares": (shares_figure, share_points),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("runs")
    record(folder)
    return read_costs(folder).of("cpu")


def drawn(name: str, rows: pd.DataFrame, missing: tuple[str, ...] = ()) -> Figure:
    make, points = FIGURES[name]
    return make(points(rows), ORIGIN, missing)


ORIGIN = Origin("make bench", None, {}, CPU.device, {"kvlab": "0"}, None, "2026-01-02")


def heights(ax: Axes) -> dict[str, list[float]]:
    """Label -> heights of the marks of each series."""
    found = {}
    for container in ax.containers:
        assert isinstance(container, ErrorbarContainer)
        line = container.lines[0]
        assert line is not None
        found[str(container.get_label())] = np.asarray(line.get_ydata(), dtype=float).tolist()
    return found


def bars(ax: Axes) -> list[tuple[float, float]]:
    """(low, high) of every bar of quartiles."""
    ends = []
    for container in ax.containers:
        assert isinstance(container, ErrorbarContainer)
        for collection in container.lines[2]:
            ends += [(s[0][1], s[1][1]) for s in collection.get_segments()]
    return ends


@pytest.mark.parametrize("name", list(FIGURES))
def test_legend_caption_and_axes_keep_apart(name: str, rows: pd.DataFrame) -> None:
    assert nothing_overlaps(drawn(name, rows))
    assert nothing_overlaps(drawn(name, rows.head(0), ("copy: none of 32 cases is measured",)))


@pytest.mark.parametrize("name", list(FIGURES))
def test_without_a_row_every_panel_and_the_caption_say_so(name: str, rows: pd.DataFrame) -> None:
    fig = drawn(name, rows.head(0), ("merge: none of 24 cases is measured",))
    said = [[text.get_text() for text in ax.texts] for ax in fig.axes if ax.axison]
    assert said
    assert all(words == [NOT_MEASURED] for words in said)
    assert "Not here: merge: none of 24 cases is measured." in figure_definition(fig)


@pytest.mark.parametrize("name", list(FIGURES))
def test_the_caption_says_measured_and_the_footer_says_where(name: str, rows: pd.DataFrame) -> None:
    fig = drawn(name, rows)
    assert "measured" in figure_definition(fig)
    assert "Not here" not in figure_definition(fig)
    assert any(CPU.device in text.get_text() for text in fig.texts)


@pytest.mark.parametrize("name", list(FIGURES))
def test_the_title_names_the_device_so_that_two_figures_can_be_told_apart(
    name: str, rows: pd.DataFrame
) -> None:
    make, points = FIGURES[name]
    assert figure_title(drawn(name, rows)).endswith(": cpu")
    gpu = make(points(rows), replace(ORIGIN, device=GPU.device))
    assert figure_title(gpu).endswith(": A made-up GPU")


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_table_of_another_kind_is_refused(name: str) -> None:
    make, _ = FIGURES[name]
    with pytest.raises(
        StudyError, match=r"drawn from a table of kvlab\.lab\.bench\.cost: columns missing"
    ):
        make(pd.DataFrame({"x": [1]}), ORIGIN)


def test_localization_has_one_line_a_contender_in_time_an_id(rows: pd.DataFrame) -> None:
    (ax,) = drawn("localize", rows).axes
    lines = heights(ax)
    lengths = sorted(case.ids for case in LOCALIZE_CASES if case.dcp_size == 8)
    assert lines[ops.MASK] == pytest.approx([5.5e3 / ids for ids in lengths])
    assert lines[ops.CHECKED] == pytest.approx([1e3 / ids for ids in lengths])
    assert set(legend_words(ax)) == set(lines)
    assert [label.get_text() for label in ax.get_xticklabels()][:2] == ["1k", "4k"]
    assert "ns an id" in ax.get_ylabel()


def test_a_contender_that_is_new_is_drawn_too(rows: pd.DataFrame) -> None:
    other = rows.replace({"ours": {ops.CHECKED: "something new"}})
    (ax,) = drawn("localize", other).axes
    assert "something new" in heights(ax)


def test_copies_have_a_line_for_each_layer_count_and_dcp_size(rows: pd.DataFrame) -> None:
    ratio, ratio_back, share, share_back, legend = drawn("copies", rows).axes
    for ax in (ratio, ratio_back, share, share_back):
        assert len(heights(ax)) == 8
    assert heights(ratio)["61 layers, c=8"] == pytest.approx([4.61] * 4)
    assert heights(share_back)["27 layers, c=2"] == pytest.approx([0.74] * 4)
    assert legend_words(legend) == ["27 layers", "61 layers", "c=1", "c=2", "c=4", "c=8"]
    assert ratio.get_title("left") == "backup"
    assert ratio_back.get_title("left") == "restore"


def test_quartiles_are_the_ends_of_the_bars(rows: pd.DataFrame) -> None:
    share = drawn("copies", rows).axes[2]
    wanted = copy_points(rows).query("op == 'backup' and measure == 'share'")
    assert sorted(low for low, _ in bars(share)) == pytest.approx(sorted(wanted["q1"]))
    assert sorted(high for _, high in bars(share)) == pytest.approx(sorted(wanted["q3"]))


def test_an_aim_is_a_line_with_its_number_and_no_aim_is_none(rows: pd.DataFrame) -> None:
    ratio, _, share, _, _ = drawn("copies", rows).axes
    assert [text.get_text() for text in ratio.texts] == ["aim 5"]
    assert [text.get_text() for text in share.texts] == []


def test_a_part_of_the_sizes_is_drawn_as_far_as_it_goes(rows: pd.DataFrame) -> None:
    few = rows[(rows["layers"] == 27) & (rows["tokens"] <= 4096) & (rows["dcp_size"] == 8)]
    fig = drawn("copies", few)
    assert heights(fig.axes[0]) == {"27 layers, c=8": pytest.approx([4.27, 4.27])}
    assert nothing_overlaps(fig)


def test_shares_have_a_mark_for_every_case(rows: pd.DataFrame) -> None:
    merged, written = drawn("shares", rows).axes
    points = share_points(rows)
    for ax, part in ((merged, "merge"), (written, "owner_write")):
        assert sum(map(len, heights(ax).values())) == len(points[points["part"] == part])
        assert ax.get_ylim()[0] == 0
    assert [text.get_text() for text in merged.texts] == ["aim 0.8"]
    assert "the pool's method" in legend_words(written)


@pytest.mark.parametrize(
    ("count", "text"), [(64, "64 B"), (1024, "1 KiB"), (2**17, "128 KiB"), (2**31, "2 GiB")]
)
def test_bytes_are_told_in_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_a_gpu_is_drawn_as_a_cpu_is(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path, "a-made-up-gpu", GPU)
    rows = read_costs(tmp_path).of("a-made-up-gpu")
    fig = copies_figure(copy_points(rows), origin_of(rows))
    assert any("A made-up GPU (driver 1)" in text.get_text() for text in fig.texts)
    assert nothing_overlaps(fig)

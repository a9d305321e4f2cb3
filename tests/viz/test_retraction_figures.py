"""Pictures of retraction counts show the numbers of their tables, the zero included."""

from collections.abc import Callable

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kvlab.engine import CountingNode, NodeConfig
from kvlab.engine.workload import Request
from kvlab.index import DcpLayout
from kvlab.lab.origin import Origin
from kvlab.lab.timeline import intervals, pool_fill
from kvlab.viz import retraction
from kvlab.viz.timeline import timeline_figure
from tests.viz.figure_checks import curves, legend_words, nothing_overlaps

ORIGIN = Origin("notebook 05", None, {"dcp_size": 4}, "cpu (2 cores)", {"kvlab": "0"}, None, "2026")
SWEEP = pd.DataFrame(
    {
        "dcp_size": [1, 2, 4, 8] * 2,
        "budget_gib": [0.5] * 4 + [2.0] * 4,
        "capacity_tokens": [1000, 2000, 4000, 8000, 4000, 8000, 16000, 32000],
        "retractions": [72, 46, 12, 0, 14, 0, 0, 0],
        "requests": 2000,
    }
)


def reserves() -> pd.DataFrame:
    """Retractions of two DCP sizes over four reserves."""
    return pd.DataFrame(
        {
            "dcp_size": [1] * 4 + [2] * 4,
            "reserved_decode_tokens": [16, 64, 128, 512] * 2,
            "retractions": [119, 47, 9, 0, 82, 17, 0, 0],
            "budget_gib": 1.0,
        }
    )


def ways() -> pd.DataFrame:
    """Both ways back over three DCP sizes."""
    return pd.DataFrame(
        {
            "dcp_size": [1, 2, 4] * 2,
            "way": ["backup"] * 3 + ["recompute"] * 3,
            "tokens": [1_764_750, 1_263_248, 0, 324_018, 194_811, 0],
        }
    )


def run() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Intervals and fill of four requests in a pool of 512 tokens."""
    layout = DcpLayout(4, 4, 32)
    config = NodeConfig(layout, reserved_decode_tokens=16)
    requests = [Request(rid, 0.0, 16, 192) for rid in range(4)]
    table = intervals(CountingNode(config).run(requests, record=True).events)
    return table, pool_fill(table, layout)


TIMES = pd.DataFrame({"times": [0, 1, 2], "requests": [1929, 70, 1]})
MAKE: dict[str, Callable[[], Figure]] = {
    "dcp": lambda: retraction.retractions_by_dcp_figure(SWEEP, ORIGIN),
    "capacity": lambda: retraction.capacity_boundary_figure(SWEEP, 6000, ORIGIN),
    "reserve": lambda: retraction.retractions_by_reserve_figure(reserves(), ORIGIN),
    "ways": lambda: retraction.backup_or_recompute_figure(ways(), ORIGIN),
    "times": lambda: retraction.retractions_per_request_figure(TIMES, ORIGIN),
    "timeline": lambda: timeline_figure(*run(), ORIGIN),
}


@pytest.mark.parametrize("name", list(MAKE))
def test_legend_caption_and_axes_keep_apart(name: str) -> None:
    assert nothing_overlaps(MAKE[name]())


def test_one_line_a_budget_with_all_its_counts() -> None:
    (ax,) = MAKE["dcp"]().axes
    assert curves(ax) == [[72, 46, 12, 0], [14, 0, 0, 0]]
    assert legend_words(ax) == ["0.5 GiB", "2 GiB"]


@pytest.mark.parametrize("name", ["dcp", "reserve", "ways"])
def test_the_zero_is_on_the_page(name: str) -> None:
    fig = MAKE[name]()
    for ax in fig.axes:
        low, high = ax.get_ylim()
        heights = [y for curve in curves(ax) for y in curve]
        assert low < 0 <= min(heights) and max(heights) < high


def test_one_line_a_way_back_with_all_its_tokens() -> None:
    (ax,) = MAKE["ways"]().axes
    assert curves(ax) == [[1_764_750, 1_263_248, 0], [324_018, 194_811, 0]]
    assert legend_words(ax) == ["backup", "recompute"]


def test_every_point_retracts_or_does_not() -> None:
    (ax,) = MAKE["capacity"]().axes
    by_marker = {
        str(line.get_marker()): line for line in ax.lines if line.get_linestyle() == "None"
    }
    for marker, retracts in (("X", True), ("o", False)):
        want = SWEEP[(SWEEP["retractions"] > 0) == retracts]
        assert list(by_marker[marker].get_xdata()) == list(want["dcp_size"])  # type: ignore[arg-type]
        assert list(by_marker[marker].get_ydata()) == list(want["capacity_tokens"])  # type: ignore[arg-type]


def test_a_run_without_retractions_has_an_axis_too() -> None:
    fig = retraction.retractions_by_dcp_figure(SWEEP.assign(retractions=0), ORIGIN)
    assert fig.axes[0].get_ylim()[1] >= 1


def test_a_bar_of_the_timeline_is_as_long_as_the_stay() -> None:
    table, fill = run()
    fig = timeline_figure(table, fill, ORIGIN)
    bars = [patch for patch in fig.axes[0].patches if isinstance(patch, Rectangle)]
    lasting = table[table["end"] > table["begin"]]
    assert [bar.get_width() for bar in bars] == (lasting["end"] - lasting["begin"]).tolist()
    marks = [line.get_marker() for line in fig.axes[0].lines]
    assert marks.count("v") == marks.count("^") == int((table["left_by"] == "retract").sum())


def test_the_legend_of_the_timeline_names_only_what_is_there() -> None:
    fig = MAKE["timeline"]()
    words = legend_words(fig.axes[1])
    assert "on the host" in words and "aborted" not in words and "waiting" not in words


@pytest.mark.parametrize("origin", [ORIGIN, None])
def test_one_column_has_the_same_lines_and_keeps_apart(origin: Origin | None) -> None:
    fig = retraction.retractions_by_dcp_figure(SWEEP, origin, "single")
    assert fig.get_figwidth() == 3.5
    assert nothing_overlaps(fig)
    (ax,) = fig.axes
    assert curves(ax) == [[72, 46, 12, 0], [14, 0, 0, 0]]
    assert legend_words(ax) == ["0.5 GiB", "2 GiB"]
    assert bool(fig.texts) == (origin is not None)


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
    fig = retraction.retractions_by_dcp_figure(SWEEP.assign(retractions=counts), ORIGIN)
    title = fig.axes[0].get_title("left")
    assert title == (
        "Retractions fall as the DCP size grows" if falls else "Retractions by DCP size"
    )


def test_aborted_requests_are_told_in_the_caption() -> None:
    assert "aborted" not in retraction.retractions_by_dcp_text(SWEEP.assign(aborted=0))
    told = retraction.retractions_by_dcp_text(SWEEP.assign(aborted=[1200] + [0] * 7))
    assert told.endswith("Requests that were aborted are not counted: up to 1,200 of a run.")

"""Pictures of the drift study show the numbers of its tables, with words for all that they show."""

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kvlab.errors import StudyError
from kvlab.lab.drift import CONDITIONS, DEFECTS, condition, metric
from kvlab.lab.origin import Origin
from kvlab.viz.drift import LEAST_TOKENS, drift_by_dcp_figure, drift_by_position_figure
from kvlab.viz.drift_requests import drift_by_condition_figure
from kvlab.viz.drift_scale import LOOKS, PQ, TOLERANCE_TEXT, ZeroLog
from kvlab.viz.drift_signatures import NOT_THERE, signature_figure
from kvlab.viz.drift_tokens import LEVELS, choose, glyph, level, tokens_figure
from kvlab.viz.save import EXPORT_DPI, SCREEN_DPI, figure_definition, figure_title, save_figure
from tests.viz.drift_tables import FLOORS, SIZES, tables
from tests.viz.figure_checks import SETTLING_DRAWS, legend_words, nothing_overlaps
from tests.viz.test_style import contrast

ORIGIN = Origin("kvlab drift", 0, {"requests": 12}, "cpu (2 cores)", {"kvlab": "0"}, None, "2026")
VERDICTS = {found.name: "not excluded" for found in DEFECTS}
MAKE: dict[str, Callable[[], Figure]] = {
    "dcp": lambda: drift_by_dcp_figure(tables()["summary"], ORIGIN),
    "dcp, single": lambda: drift_by_dcp_figure(tables()["summary"], ORIGIN, "single"),
    "position": lambda: drift_by_position_figure(tables()["positions"], ORIGIN),
    "position, single": lambda: drift_by_position_figure(
        tables()["positions"], ORIGIN, width="single"
    ),
    "requests": lambda: drift_by_condition_figure(tables()["requests"], ORIGIN, floors=FLOORS),
    "requests, single": lambda: drift_by_condition_figure(
        tables()["requests"], ORIGIN, dcp_sizes=(4,), width="single"
    ),
    "signatures": lambda: signature_figure(tables()["summary"], ORIGIN, verdicts=VERDICTS),
    "signatures, single": lambda: signature_figure(
        tables()["summary"], ORIGIN, dcp_sizes=(4,), width="single"
    ),
    "tokens": lambda: tokens_figure(
        tables()["events"], tables()["tokens"], FLOORS["float32"], ORIGIN, run="DCP 4"
    ),
}  # fmt: skip


@cache
def made(name: str) -> Figure:
    """The figure of that name, made once for all tests that only look."""
    return MAKE[name]()


def lines_of(ax: Axes, label: str) -> list[float]:
    """Heights of the line that has that label."""
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return [float(y) for y in np.asarray(found.get_ydata(), dtype=float)]


def points(ax: Axes, marker: str) -> list[float]:
    """Where the marks of that kind stand, from left to right."""
    found = [np.asarray(x.get_xdata(), dtype=float) for x in ax.lines if x.get_marker() == marker]
    return sorted(np.concatenate(found).tolist())


def words_of(fig: Figure) -> list[str]:
    """All legend words of a figure."""
    return [word for ax in fig.axes for word in legend_words(ax)]


@pytest.mark.parametrize("name", list(MAKE))
def test_legend_caption_and_axes_keep_apart(name: str) -> None:
    assert nothing_overlaps(made(name))


@pytest.mark.parametrize("name", ["requests", "requests, single", "signatures"])
def test_long_labels_stay_on_the_page_when_exported(name: str) -> None:
    fig = MAKE[name]()
    for _ in range(SETTLING_DRAWS):
        fig.draw_without_rendering()
    fig.set_layout_engine("none")
    for dpi in (EXPORT_DPI, *SCREEN_DPI):
        fig.set_dpi(dpi)
        fig.draw_without_rendering()
        labels = [label.get_window_extent() for label in fig.axes[0].get_yticklabels()]
        assert min(box.x0 for box in labels) > 0, dpi


@pytest.mark.parametrize("name", list(MAKE))
def test_each_picture_has_a_title_and_defines_drift_with_its_unit_and_status(name: str) -> None:
    fig = made(name)
    text = figure_definition(fig)
    assert figure_title(fig) and "|Δℓ|" in text and "easured" in text
    if "signatures" not in name:
        assert metric("abs_dlogprob").definition in text and "nats" in text and PQ in text


@pytest.mark.parametrize("name", [name for name in MAKE if "sign" not in name and name != "tokens"])
def test_the_reference_line_is_named_as_reported(name: str) -> None:
    assert any("reported" in word for word in words_of(made(name)))


@pytest.mark.parametrize("name", [name for name in MAKE if "signatures" not in name])
def test_axes_with_numbers_say_what_and_in_which_unit(name: str) -> None:
    axes = made(name).axes
    labels = [label for ax in axes for label in (ax.get_xlabel(), ax.get_ylabel())]
    assert any("nats" in label or "step" in label for label in labels)


@pytest.mark.parametrize("name", list(MAKE))
def test_drawing_changes_no_table(name: str) -> None:
    before = {key: frame.copy() for key, frame in tables().items()}
    MAKE[name]()
    assert all(frame.equals(before[key]) for key, frame in tables().items())


def test_each_dtype_has_a_panel_whose_lines_are_the_table_zeros_in_their_place() -> None:
    summary = tables()["summary"]
    fig = drift_by_dcp_figure(summary, ORIGIN)
    drawn = summary[summary["condition"].isin(list(LOOKS))]
    columns = ["max_abs_dlogprob", "mean_abs_dlogprob"]
    scale = ZeroLog.over(drawn[columns].to_numpy(), keep=[0.2])
    panels = fig.axes[:6]
    for i, column in enumerate(columns):
        for j, dtype in enumerate(("float32", "bfloat16", "fp8")):
            for name in LOOKS:
                rows = drawn[drawn["condition"].eq(name) & drawn["dtype"].eq(dtype)]
                if len(rows):
                    want = scale.place(rows.sort_values("dcp_size")[column]).tolist()
                    assert lines_of(panels[3 * i + j], name) == want
    assert scale.zero in lines_of(panels[0], "forced_before_fix")


def test_the_legend_of_the_lines_names_each_condition_that_is_drawn_and_no_other() -> None:
    summary = tables()["summary"]
    some = summary[summary["condition"].isin(["no_retraction", "forced_before_fix"])]
    titles = [condition(name).title for name in ("no_retraction", "forced_before_fix")]
    assert words_of(drift_by_dcp_figure(some, ORIGIN)) == [*titles, TOLERANCE_TEXT]


def test_the_caption_names_the_lines_that_a_panel_lacks() -> None:
    text = figure_definition(made("dcp"))
    lacks = {c.title: d for c in CONDITIONS if c.name in LOOKS for d in FLOORS if d not in c.dtypes}
    assert lacks and "Not run: " in text
    for title, dtype in lacks.items():
        assert re.search(rf"{title}[^;]* in {dtype}", text)
    one = tables()["summary"].query("dtype == 'float32'")
    assert "Not run" not in figure_definition(drift_by_dcp_figure(one, ORIGIN))


def test_each_line_of_requests_has_a_tick_at_the_floor_of_its_dtype() -> None:
    requests = tables()["requests"]
    fig = made("requests")
    scale = ZeroLog.over(_worst(requests), keep=[0.2])
    ticks = [line for line in fig.axes[0].lines if str(line.get_label()).startswith("floor ")]
    assert len(ticks) == len(fig.axes[0].get_yticklabels())
    for tick in ticks:
        name = str(tick.get_label()).removeprefix("floor ")
        dtype = next(d for d in FLOORS if d in condition(name).dtypes)
        want = float(scale.place(FLOORS[dtype]))
        assert np.asarray(tick.get_xdata()).tolist() == [want, want]
    assert "noise floor ε of the dtype" in words_of(fig)
    assert "noise floor ε of the dtype" not in words_of(made("requests, single"))


def test_a_study_of_one_dcp_size_and_one_dtype_has_a_picture_too() -> None:
    summary = tables()["summary"].query("dcp_size == 4 and dtype == 'float32'")
    assert nothing_overlaps(drift_by_dcp_figure(summary, ORIGIN))


def test_the_median_of_each_position_is_the_table() -> None:
    positions = tables()["positions"]
    fig = drift_by_position_figure(positions, ORIGIN)
    here = positions[positions["dtype"].eq("float32") & positions["dcp_size"].isin(SIZES)]
    here = here[here["condition"].isin(["forced_fixed", "forced_before_fix"])]
    assert here["tokens"].min() < LEAST_TOKENS <= here["tokens"].max()
    here = here[here["tokens"] >= LEAST_TOKENS]
    scale = ZeroLog.over(here[["p50", "p90", "max"]].to_numpy(), keep=[0.2])
    panels = iter(fig.axes[:4])
    for axis in ("position", "since_restore"):
        for size in SIZES:
            ax = next(panels)
            assert ax.get_title("left") == f"DCP {size}"
            for name in ("forced_fixed", "forced_before_fix"):
                rows = here[here["axis"].eq(axis) & here["dcp_size"].eq(size)]
                rows = rows[rows["condition"] == name].sort_values("at")
                assert lines_of(ax, name) == scale.place(rows["p50"]).tolist()


def test_positions_of_a_dtype_that_was_not_run_are_refused() -> None:
    with pytest.raises(StudyError, match=r"drift by position is drawn .* got 0 rows"):
        drift_by_position_figure(tables()["positions"], ORIGIN, dtype="float16")


def test_every_request_is_one_mark_restored_apart_from_the_others_and_nan_in_its_band() -> None:
    requests = tables()["requests"]
    fig = drift_by_condition_figure(requests, ORIGIN)
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    for ax, size in zip(fig.axes, SIZES, strict=False):
        marks = {mark: points(ax, mark) for mark in "Do"}
        here = requests[requests["dcp_size"] == size]
        assert sum(map(len, marks.values())) == 12 * len(names)
        shown = here[here["condition"] != "defect:widened_as_rows"]
        first = shown.groupby("condition")["dtype"].transform("first")
        back = shown[(shown["dtype"] == first) & shown["restored_at"].notna()]
        assert len(marks["D"]) == len(back)
        lost = float(10.0 ** (ZeroLog.over(_worst(requests), keep=[0.2]).high + 1))
        assert lost in marks["D"]


def _worst(requests: pd.DataFrame) -> "pd.Series[float]":
    return requests["max_abs_dlogprob"].mask(requests["nan_tokens"] > 0)


def test_one_run_under_two_names_is_one_line_and_another_dtype_is_named() -> None:
    fig = drift_by_condition_figure(tables()["requests"], ORIGIN)
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert "forced retraction, before the fix" in names and "widened ids as rows" not in names
    twin = "Widened ids as rows: the run named 'forced retraction, before the fix'."
    assert twin in figure_definition(fig)
    less = tables()["requests"].query("condition != 'defect:widened_as_rows'")
    assert "the run named" not in figure_definition(drift_by_condition_figure(less, ORIGIN))
    assert "scales not restored (fp8)" in names and len(names) == len(CONDITIONS) - 1


def test_every_cell_of_the_matrix_is_a_number_of_the_table() -> None:
    summary = tables()["summary"]
    (ax,) = signature_figure(summary, ORIGIN, dcp_sizes=(4,)).axes
    texts = {t.get_position(): t.get_text() for t in ax.texts}
    names = ["forced_fixed", *(c.name for c in CONDITIONS if c.name.startswith("defect:"))]
    for y, name in enumerate(names):
        row = summary[summary["condition"].eq(name) & summary["dcp_size"].eq(4)].iloc[0]
        changed = row["max_from_fixed"] != 0 or row["nan_tokens"] > 0
        assert texts[0.5, y] == ("●" if changed else NOT_THERE)
        whole = int(row["restored_requests"])
        want = f"{int(row['drifting_restored'])}/{whole}" if whole else NOT_THERE
        assert texts[1.5, y] == want
        assert texts[4.5, y] == f"{row['nan_tokens'] / row['tokens']:.0%}"


def test_a_bar_of_the_matrix_is_as_long_as_its_share() -> None:
    summary = tables()["summary"]
    (ax,) = signature_figure(summary, ORIGIN, dcp_sizes=(4,)).axes
    bars = [p for p in ax.patches if isinstance(p, Rectangle) and to_rgba(p.get_facecolor())[3]]
    fixed = summary[summary["condition"].eq("forced_fixed") & summary["dcp_size"].eq(4)].iloc[0]
    assert bars[0].get_width() == 0.92 * fixed["drifting_restored"] / fixed["restored_requests"]
    assert max(bar.get_width() for bar in bars) <= 0.92


def test_a_hypothetical_defect_is_starred_and_the_star_explained() -> None:
    fig = made("signatures")
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    starred = [name.split("*")[0] for name in names if "*" in name]
    assert starred == [found.title for found in DEFECTS if found.hypothetical]
    assert "* hypothetical" in figure_definition(fig)


def test_a_condition_that_was_not_run_at_one_size_leaves_its_cells_empty() -> None:
    summary = tables()["summary"]
    less = summary[~(summary["condition"].eq("defect:old_rows") & summary["dcp_size"].eq(1))]
    assert nothing_overlaps(signature_figure(less, ORIGIN))
    unseen = summary.assign(repeating_restored=np.nan, median_onset=np.nan)
    assert nothing_overlaps(signature_figure(unseen, ORIGIN))


def test_a_matrix_without_defects_is_refused() -> None:
    calm = tables()["summary"].query("condition == 'no_retraction'")
    with pytest.raises(StudyError, match=r"a matrix of signatures is drawn .* got 0 rows"):
        signature_figure(calm, ORIGIN)


def test_every_token_of_the_chosen_requests_is_a_letter_in_the_shade_of_its_drift() -> None:
    tokens = tables()["tokens"]
    fig = tokens_figure(tables()["events"], tokens, FLOORS["float32"], ORIGIN, rids=[4, 9])
    letters = [text.get_text() for text in fig.axes[0].texts]
    mine = tokens[tokens["rid"].isin([4, 9])]
    assert letters == [glyph(token) for token in mine["token"]]
    assert "Shown: 10 of 12 requests" in figure_definition(made("tokens"))
    assert "Shown" not in figure_definition(fig)
    cells = [p for p in fig.axes[0].patches if isinstance(p, Rectangle) and p.get_width() == 1
             and p.get_hatch() is None and p.get_height() > 0.7]  # fmt: skip
    want = [level(drift, FLOORS["float32"]).color for drift in mine["abs_dlogprob"]]
    shades = [to_hex(cell.get_facecolor()).upper() for cell in cells]
    assert shades == want


def test_no_two_tokens_of_a_request_lie_in_one_cell() -> None:
    fig = made("tokens")
    places = [text.get_position() for text in fig.axes[0].texts]
    assert len(set(places)) == len(places)


def test_a_mark_stands_wherever_a_request_came_back() -> None:
    events = tables()["events"]
    fig = tokens_figure(events, tables()["tokens"], 0.1, ORIGIN, rids=[4, 9])
    back = events[events["event"].eq("resume") & events["rid"].isin([4, 9])]
    assert points(fig.axes[0], "^") == sorted(back["step"])
    assert "came back" in words_of(fig)


@pytest.mark.parametrize("words", ["", *(f"{c.title}, DCP 16, bfloat16" for c in CONDITIONS)])
def test_the_title_of_the_tokens_stays_on_the_page_with_any_condition_and_dtype(words: str) -> None:
    events, tokens = tables()["events"], tables()["tokens"]
    fig = tokens_figure(events, tokens, 0.1, ORIGIN, rids=[4, 9], run=words)
    assert figure_title(fig) == "Tokens of a run, and where requests came back" + (
        f": {words}" if words else ""
    )
    for _ in range(SETTLING_DRAWS):
        fig.draw_without_rendering()
    fig.set_layout_engine("none")
    for dpi in (EXPORT_DPI, *SCREEN_DPI):
        fig.set_dpi(dpi)
        fig.draw_without_rendering()
        box = fig.axes[0].title.get_window_extent()
        assert fig.bbox.contains(box.x0, box.y0) and fig.bbox.contains(box.x1, box.y1), dpi


@pytest.mark.parametrize(
    ("token", "letter"), [(0x20, "·"), (0x0A, "↵"), (0x41, "A"), (0x7F, "□"), (0xFF, "□")]
)
def test_a_byte_has_one_letter(token: int, letter: str) -> None:
    assert glyph(token) == letter


@pytest.mark.parametrize(
    ("drift", "words"),
    [
        (0.0, "equal bits"),
        (2e-6, "|Δℓ| within 2 ε"),
        (0.1, "|Δℓ| up to 0.20"),
        (0.3, "|Δℓ| above 0.20"),
        (float("nan"), "no number"),
    ],
)
def test_a_shade_says_how_far_a_token_drifted(drift: float, words: str) -> None:
    assert level(drift, 1e-6).label == words


def test_shades_darken_with_drift_and_their_letters_can_be_read() -> None:
    for role in LEVELS:
        assert contrast(role.ink, role.color) >= 4.5
    for lighter, darker in pairwise(LEVELS):
        assert contrast("#000000", lighter.color) > 1.3 * contrast("#000000", darker.color)


def test_chosen_requests_fit_the_page() -> None:
    stays = pd.DataFrame(
        {
            "rid": [0, 0, 1, 2, 2],
            "begin": [0, 90, 10, 20, 40],
            "end": [90, 95, 60, 40, 70],
            "left_by": ["retract", "finish", "finish", "resume", "finish"],
        }
    )
    assert choose(stays) == [1, 2]


def test_a_request_that_is_not_there_and_a_floor_that_is_none_are_refused() -> None:
    events, tokens = tables()["events"], tables()["tokens"]
    with pytest.raises(StudyError, match=r"got 99 \(and 0 more\), which is not"):
        tokens_figure(events, tokens, 1e-6, ORIGIN, rids=[99])
    with pytest.raises(StudyError, match="in nats, at least 0: got nan; pass the floor"):
        tokens_figure(events, tokens, float("nan"), ORIGIN)


def test_the_data_of_a_saved_picture_is_its_table(tmp_path: Path) -> None:
    summary = tables()["summary"]
    saved = save_figure(MAKE["dcp"](), "drift-by-dcp", summary, ORIGIN, tmp_path)
    read = saved.data()
    assert list(read.columns) == list(summary.columns) and len(read) == len(summary)
    same = read["max_abs_dlogprob"].to_numpy() == summary["max_abs_dlogprob"].to_numpy()
    assert (same | summary["max_abs_dlogprob"].isna().to_numpy()).all()

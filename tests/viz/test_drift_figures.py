"""Pictures of the drift study show the numbers of its tables, with words for all that they show."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from kvlab.lab.drift import CONDITIONS, DEFECTS, UPSTREAM_TOLERANCE, condition
from kvlab.lab.origin import Origin
from kvlab.viz.drift import (
    LEAST_TOKENS,
    LOOKS,
    NOT_THERE,
    SIZES,
    TOLERANCE_TEXT,
    drift_by_condition_figure,
    drift_by_dcp_figure,
    origin_of,
    signature_figure,
)
from kvlab.viz.save import EXPORT_DPI, SCREEN_DPI, figure_definition, figure_title
from kvlab.viz.style import ZeroLog, figure
from kvlab.viz.tokens import LEVELS, choose, glyph, level, tokens_figure
from tests.viz.drift_tables import FLOORS, tables
from tests.viz.figure_checks import cells, nothing_overlaps, settle, told, words_of
from tests.viz.figures import FIGURES, ORIGIN, VERDICTS, made
from tests.viz.test_style import contrast

DRIFTS = st.one_of(
    st.just(0.0), st.just(float("nan")), st.floats(1e-12, 1e3), st.just(float("inf"))
)
COLUMNS = ["max_abs_dlogprob", "mean_abs_dlogprob"]


def lines_of(ax: Axes, label: str) -> list[float]:
    """Heights of the line that has that label."""
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return [float(y) for y in np.asarray(found.get_ydata(), dtype=float)]


def points(ax: Axes, marker: str) -> list[float]:
    """Where the marks of that kind stand, from left to right."""
    found = [np.asarray(x.get_xdata(), dtype=float) for x in ax.lines if x.get_marker() == marker]
    return sorted(np.concatenate(found).tolist())


@given(st.lists(DRIFTS), st.sampled_from(["x", "y"]))
def test_zeros_stand_below_every_number_and_nan_above_and_all_within_the_limits(
    values: list[float], along: str
) -> None:
    scale = ZeroLog.over(values)
    given = np.array(values, dtype=float)
    real = given[np.isfinite(given) & (given > 0)]
    placed = scale.place(values)
    assert scale.zero < min([*real.tolist(), 10.0**scale.high])
    assert scale.no_number > max([*real.tolist(), 10.0**scale.low])
    assert placed[given == 0].tolist() == [scale.zero] * int((given == 0).sum())
    lost = int((~np.isfinite(given)).sum())
    assert placed[~np.isfinite(given)].tolist() == [scale.no_number] * lost
    assert placed[np.isfinite(given) & (given > 0)].tolist() == real.tolist()
    ax = figure().subplots()
    scale.draw(ax, along)  # type: ignore[arg-type]
    low, high = ax.get_ylim() if along == "y" else ax.get_xlim()
    assert ((low < placed) & (placed < high * (1 + 1e-9))).all()


def test_the_bands_and_the_reported_tolerance_are_named() -> None:
    ax = figure().subplots()
    ZeroLog.over([0.0, 3e-6, 0.2, float("nan")]).draw(ax)
    words = [label.get_text() for label in ax.get_yticklabels()]
    assert words[0] == "0" and words[-1] == "NaN" and "1" in words and "$10^{-6}$" in words
    dotted = [np.asarray(x.get_ydata()).tolist() for x in made("drift by dcp").axes[0].lines]
    assert [UPSTREAM_TOLERANCE] * 2 in dotted
    assert TOLERANCE_TEXT.startswith("0.20") and "reported" in TOLERANCE_TEXT
    ax = figure().subplots()
    ZeroLog.over([1e-12, 1e6]).draw(ax, most=5)
    assert "NaN" not in [label.get_text() for label in ax.get_yticklabels()]
    assert len(ax.get_yticks()) <= 6
    for name in ("drift by dcp", "drift by position", "drift by request"):
        assert TOLERANCE_TEXT in words_of(made(name))


def test_looks_differ_in_color_dash_and_marker_at_once_and_belong_to_conditions() -> None:
    for values in zip(*((x.color, str(x.dash), x.marker) for x in LOOKS.values()), strict=True):
        assert len(set(values)) == len(LOOKS)
    for name in LOOKS:
        assert condition(name).defect is None or name == "forced_before_fix"


def test_a_footer_of_a_recorded_study_keeps_few_parameters() -> None:
    facts: dict[str, Any] = {"model": "tiny", "model_sha256": "0", "requests": 2}
    study = Origin("kvlab drift", 0, {**facts, "conditions": ["a"]}, "cpu", {}, None, "1")
    assert origin_of({**study.as_dict(), "timeline": {}}) == replace(study, parameters=facts)


@pytest.mark.parametrize("name", ["drift by request", "signatures"])
def test_long_labels_stay_on_the_page_when_exported(name: str) -> None:
    fig = FIGURES[name]()
    settle(fig)
    fig.set_layout_engine("none")
    for dpi in (EXPORT_DPI, SCREEN_DPI, 96):
        fig.set_dpi(dpi)
        fig.draw_without_rendering()
        labels = [label.get_window_extent() for label in fig.axes[0].get_yticklabels()]
        assert min(box.x0 for box in labels) > 0, dpi


@pytest.mark.parametrize("name", ["drift by dcp", "drift by request", "signatures", "tokens"])
def test_drawing_changes_no_table(name: str) -> None:
    before = {key: frame.copy() for key, frame in tables().items()}
    FIGURES[name]()
    assert all(frame.equals(before[key]) for key, frame in tables().items())


def test_each_dtype_has_a_panel_whose_lines_are_the_table_zeros_in_their_place() -> None:
    summary = tables()["summary"]
    drawn = summary[summary["condition"].isin(list(LOOKS))]
    scale = ZeroLog.over(drawn[COLUMNS].to_numpy(), keep=[0.2])
    panels = made("drift by dcp").axes[:6]
    for i, column in enumerate(COLUMNS):
        for j, dtype in enumerate(("float32", "bfloat16", "fp8")):
            for name in LOOKS:
                rows = drawn[drawn["condition"].eq(name) & drawn["dtype"].eq(dtype)]
                if len(rows):
                    want = scale.place(rows.sort_values("dcp_size")[column]).tolist()
                    assert lines_of(panels[3 * i + j], name) == want
    assert scale.zero in lines_of(panels[0], "forced_before_fix")


def test_the_legend_names_each_condition_that_is_drawn_and_the_caption_what_a_panel_lacks() -> None:
    summary = tables()["summary"]
    some = summary[summary["condition"].isin(["no_retraction", "forced_before_fix"])]
    titles = [condition(name).title for name in ("no_retraction", "forced_before_fix")]
    assert words_of(drift_by_dcp_figure(some, ORIGIN)) == [*titles, TOLERANCE_TEXT]
    text = figure_definition(made("drift by dcp"))
    lacks = {c.title: d for c in CONDITIONS if c.name in LOOKS for d in FLOORS if d not in c.dtypes}
    assert lacks and "Not run: " in text
    for title, dtype in lacks.items():
        assert re.search(rf"{title}[^;]* in {dtype}", text)
    one = drift_by_dcp_figure(summary.query("dtype == 'float32' and dcp_size == 4"), ORIGIN)
    assert "Not run" not in figure_definition(one) and nothing_overlaps(one)


def test_the_median_of_each_position_is_the_table() -> None:
    positions = tables()["positions"]
    here = positions[positions["dtype"].eq("float32") & positions["dcp_size"].isin(SIZES)]
    here = here[here["condition"].isin(["forced_fixed", "forced_before_fix"])]
    assert here["tokens"].min() < LEAST_TOKENS <= here["tokens"].max()
    here = here[here["tokens"] >= LEAST_TOKENS]
    scale = ZeroLog.over(here[["p50", "p90", "max"]].to_numpy(), keep=[0.2])
    panels = iter(made("drift by position").axes[:4])
    for axis in ("position", "since_restore"):
        for size in SIZES:
            ax = next(panels)
            assert ax.get_title("left") == f"DCP {size}"
            for name in ("forced_fixed", "forced_before_fix"):
                rows = here[here["axis"].eq(axis) & here["dcp_size"].eq(size)]
                rows = rows[rows["condition"] == name].sort_values("at")
                assert lines_of(ax, name) == scale.place(rows["p50"]).tolist()


def _worst(requests: pd.DataFrame) -> "pd.Series[float]":
    return requests["max_abs_dlogprob"].mask(requests["nan_tokens"] > 0)


def test_every_request_is_one_mark_restored_apart_from_the_others_and_nan_in_its_band() -> None:
    requests, fig = tables()["requests"], made("drift by request")
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    scale = ZeroLog.over(_worst(requests), keep=[0.2])
    for ax, size in zip(fig.axes, SIZES, strict=False):
        marks = {mark: points(ax, mark) for mark in "Do"}
        here = requests[requests["dcp_size"] == size]
        assert sum(map(len, marks.values())) == 12 * len(names)
        shown = here[here["condition"] != "defect:widened_as_rows"]
        first = shown.groupby("condition")["dtype"].transform("first")
        back = shown[(shown["dtype"] == first) & shown["restored_at"].notna()]
        assert len(marks["D"]) == len(back)
        assert scale.no_number in marks["D"]
    drawn: Any = fig.axes[0].collections
    found = [tick for tick in drawn if str(tick.get_label()).startswith("floor ")]
    ticks = {str(tick.get_label()): tick.get_segments()[0][:, 0].tolist() for tick in found}
    assert len(ticks) == len(names)
    for label, at in ticks.items():
        known = condition(label.removeprefix("floor "))
        want = float(scale.place(FLOORS[next(d for d in FLOORS if d in known.dtypes)]))
        assert at == [want, want]


def test_one_run_under_two_names_is_one_line_and_another_dtype_is_named() -> None:
    fig = made("drift by request")
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert "forced retraction, before the fix" in names and "widened ids as rows" not in names
    twin = "Widened ids as rows: the run named 'forced retraction, before the fix'."
    assert twin in figure_definition(fig)
    less = tables()["requests"].query("condition != 'defect:widened_as_rows'")
    assert "the run named" not in figure_definition(drift_by_condition_figure(less, ORIGIN, FLOORS))
    assert "scales not restored (fp8)" in names and len(names) == len(CONDITIONS) - 1


def test_every_cell_of_the_matrix_is_a_number_of_the_table_and_its_bar_as_long() -> None:
    summary, (ax,) = tables()["summary"], made("signatures").axes
    texts = {t.get_position(): t.get_text() for t in ax.texts}
    bars = {b.get_xy(): b.get_width() for b in ax.patches
            if isinstance(b, Rectangle) and to_rgba(b.get_facecolor())[3]}  # fmt: skip
    names = ["forced_fixed", *(c.name for c in CONDITIONS if c.name.startswith("defect:"))]
    for y, name in enumerate(names):
        row = summary[summary["condition"].eq(name) & summary["dcp_size"].eq(1)].iloc[0]
        changed = row["max_from_fixed"] != 0 or row["nan_tokens"] > 0
        assert texts[0.5, y] == ("●" if changed else NOT_THERE)
        whole, part = int(row["restored_requests"]), int(row["drifting_restored"])
        assert texts[1.5, y] == (f"{part}/{whole}" if whole else NOT_THERE)
        assert not whole or bars[1.04, y - 0.4] == pytest.approx(0.92 * part / whole)
        assert texts[4.5, y] == f"{row['nan_tokens'] / row['tokens']:.0%}"


def test_a_hypothetical_defect_is_starred_and_a_cell_without_a_run_is_empty() -> None:
    fig, summary = made("signatures"), tables()["summary"]
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    starred = [name.split("*")[0] for name in names if "*" in name]
    assert starred == [found.title for found in DEFECTS if found.hypothetical]
    assert "* hypothetical" in figure_definition(fig)
    less = summary[~(summary["condition"].eq("defect:old_rows") & summary["dcp_size"].eq(1))]
    unseen = summary.assign(repeating_restored=np.nan, median_onset=np.nan)
    for table in (less, unseen):
        assert nothing_overlaps(signature_figure(table, ORIGIN, VERDICTS))


def test_every_token_of_the_chosen_requests_is_a_letter_in_the_shade_of_its_drift() -> None:
    tokens = tables()["tokens"]
    with cells() as drawn:
        fig = FIGURES["tokens"]()
    rids = [int(word.split()[1]) for word in told(fig) if re.fullmatch(r"request \d+", word)]
    assert f"Shown: {len(rids)} of 12 requests" in figure_definition(fig)
    mine = tokens[tokens["rid"].isin(rids)].sort_values(["rid", "position"])
    assert [text for _, _, text in drawn] == [glyph(token) for token in mine["token"]]
    want = [level(drift, FLOORS["float32"]) for drift in mine["abs_dlogprob"]]
    assert [role for _, role, _ in drawn] == want
    assert len({(round(x, 6), round(y, 6)) for (x, y, _, _), _, _ in drawn}) == len(drawn)
    events = tables()["events"]
    back = events[events["event"].eq("resume") & events["rid"].isin(rids)]
    assert len(back) and "came back" in told(fig)


@pytest.mark.parametrize(
    "words", ["", *(f"{c.title}, DCP 16, bfloat16" for c in CONDITIONS if len(c.title) > 25)]
)
def test_the_title_of_the_tokens_stays_on_the_page_with_any_condition_and_dtype(words: str) -> None:
    fig = tokens_figure(tables()["events"], tables()["tokens"], 0.1, ORIGIN, run=words)
    head = "Tokens of a run, and where requests came back"
    assert figure_title(fig) == (f"{head}: {words}" if words else head)
    title = fig.texts[0]
    for dpi in (EXPORT_DPI, SCREEN_DPI, 96):
        fig.set_dpi(dpi)
        fig.draw_without_rendering()
        box = title.get_window_extent()
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

"""A drift axis has a place for every number: decades, exact zeros below them, NaN above."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import StudyError
from kvlab.lab.drift import UPSTREAM_TOLERANCE, condition
from kvlab.lab.origin import Origin
from kvlab.viz.drift_scale import (
    LOOKS,
    TOLERANCE_TEXT,
    ZeroLog,
    origin_of,
    require_rows,
    superscript,
    tolerance_line,
)
from kvlab.viz.style import figure

DRIFTS = st.one_of(
    st.just(0.0), st.just(float("nan")), st.floats(1e-12, 1e3), st.just(float("inf"))
)


@given(st.lists(DRIFTS))
def test_zeros_stand_below_every_number_and_nan_above(values: list[float]) -> None:
    scale = ZeroLog.over(values)
    given = np.array(values, dtype=float)
    real = given[np.isfinite(given) & (given > 0)]
    placed = scale.place(values)
    assert np.isfinite(placed).all() and (placed > 0).all()
    assert scale.zero < min([*real.tolist(), 10.0**scale.high])
    assert scale.no_number > max([*real.tolist(), 10.0**scale.low])
    assert placed[given == 0].tolist() == [scale.zero] * int((given == 0).sum())
    lost = int((~np.isfinite(given)).sum())
    assert placed[~np.isfinite(given)].tolist() == [scale.no_number] * lost
    assert placed[np.isfinite(given) & (given > 0)].tolist() == real.tolist()


@given(st.lists(DRIFTS), st.sampled_from(["x", "y"]))
def test_every_value_lies_within_the_limits_of_the_axis(values: list[float], along: str) -> None:
    scale = ZeroLog.over(values)
    ax = figure().subplots()
    scale.draw(ax, along)  # type: ignore[arg-type]
    low, high = ax.get_ylim() if along == "y" else ax.get_xlim()
    placed = scale.place(values)
    assert ((low < placed) & (placed < high * (1 + 1e-9))).all()


@pytest.mark.parametrize(("name", "value"), [("condition", "unheard_of"), ("dtype", "fp4")])
def test_a_row_that_no_study_has_is_refused_by_every_figure(name: str, value: str) -> None:
    table = pd.DataFrame({"condition": ["natural"] * 2, "dtype": ["fp8"] * 2}, index=[7, 9])
    assert len(require_rows(table, ("condition", "dtype"), "a picture")) == 2
    table.loc[9, name] = value
    with pytest.raises(StudyError, match=rf"of {name}s that a .*: got '{value}' in row 9; leave"):
        require_rows(table, (n for n in ("condition", "dtype")), "a picture")


def test_an_origin_that_lacks_a_fact_is_refused_by_name() -> None:
    with pytest.raises(StudyError, match=r"this one lacks command, seed, .*; pass Study"):
        origin_of({})
    bare = {"command": "x", "seed": 0, "parameters": {}, "device": "cpu", "versions": {}}
    with pytest.raises(StudyError, match=r"lacks parameters\.model, parameters\.model_sha256"):
        origin_of({**bare, "commit": "1", "created": "2026"})


def test_the_bands_are_named_on_the_axis() -> None:
    ax = figure().subplots()
    ZeroLog.over([0.0, 3e-6, 0.2, float("nan")]).draw(ax)
    words = [label.get_text() for label in ax.get_yticklabels()]
    assert words[0] == "0" and words[-1] == "NaN" and "1" in words and "10⁻⁶" in words
    ax = figure().subplots()
    ZeroLog.over([3e-6]).draw(ax)
    assert "NaN" not in [label.get_text() for label in ax.get_yticklabels()]


def test_a_wide_axis_leaves_decades_out_rather_than_crowd_them() -> None:
    ax = figure().subplots()
    ZeroLog.over([1e-12, 1e6]).draw(ax, most=5)
    assert len(ax.get_yticks()) <= 6


def test_an_exponent_is_written_small() -> None:
    assert superscript(-10) == "⁻¹⁰"


def test_the_reported_tolerance_is_drawn_where_it_is_and_called_reported() -> None:
    ax = figure().subplots()
    tolerance_line(ax)
    assert list(ax.lines[0].get_ydata()) == [UPSTREAM_TOLERANCE] * 2  # type: ignore[arg-type]
    assert TOLERANCE_TEXT.startswith("0.20") and "reported" in TOLERANCE_TEXT


def test_looks_differ_in_colour_dash_and_marker_at_once_and_belong_to_conditions() -> None:
    for values in zip(*((x.color, str(x.dash), x.marker) for x in LOOKS.values()), strict=True):
        assert len(set(values)) == len(LOOKS)
    for name in LOOKS:
        assert condition(name).defect is None or name == "forced_before_fix"


def test_a_footer_of_a_recorded_study_keeps_few_parameters() -> None:
    made = Origin(
        "kvlab drift", 0, {"model": "tiny", "conditions": ["a", "b"]}, "cpu", {}, None, "1"
    )
    told = {**made.as_dict(), "timeline": {"dcp_size": 4}}
    assert origin_of(told, ["model"]) == replace(made, parameters={"model": "tiny"})


def test_a_table_without_rows_or_columns_is_refused() -> None:
    with pytest.raises(StudyError, match="got 0 rows, columns missing: none"):
        require_rows(pd.DataFrame({"a": []}), ["a"], "a picture")
    with pytest.raises(StudyError, match=r"a picture is drawn .* got 1 rows, columns missing: b"):
        require_rows(pd.DataFrame({"a": [1]}), ["a", "b"], "a picture")

"""Drift explorer: its tokens are those of the recorded study, and say what the study says."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvlab.errors import StudyError
from kvlab.lab.drift import MARGIN, read_study, read_token_drift
from kvlab.memory.published import data_path
from kvlab.viz.widgets import drift_explorer, drift_explorer_figure
from kvlab.viz.widgets.canvas import Width
from kvlab.viz.widgets.drift import REQUESTS, SIZES, TITLES, drift_hover, drift_table, line_of

FOLDER = data_path("runs", "drift", "summary.csv").parent
STUDY = read_study(FOLDER)


def test_the_largest_drift_of_each_line_is_that_of_the_study() -> None:
    lines = read_token_drift()
    # Of no finite number the study keeps no maximum.
    lines["most"] = [np.nanmax([*drift, -1.0]) for drift in lines["abs_dlogprob"]]
    both = lines.merge(STUDY.requests, on=["condition", "dcp_size", "dtype", "rid"])
    assert len(both) == len(lines) == 12 * len(STUDY.summary)
    want = both["max_abs_dlogprob"].fillna(-1.0)
    np.testing.assert_allclose(both["most"], want, rtol=0.006, atol=1e-12)
    lost = [int(np.isnan(drift).sum()) for drift in both["abs_dlogprob"]]
    assert lost == both["nan_tokens"].tolist()


def test_the_tokens_are_those_of_the_run_that_the_study_keeps() -> None:
    about = STUDY.origin["timeline"]
    assert isinstance(about, dict)
    for rid, mine in STUDY.tokens.groupby("rid"):
        if rid in REQUESTS:
            line = line_of(about["condition"], about["dtype"], about["dcp_size"], int(str(rid)))
            assert list(line.tokens) == mine["token"].tolist()
            np.testing.assert_allclose(line.drift, mine["abs_dlogprob"], rtol=0.006)
            first = mine.loc[mine["restored"], "position"].min()
            assert (line.back[0] if line.back else None) == (None if pd.isna(first) else first)


def test_every_setting_is_drawn_or_says_in_which_dtypes_it_was_run() -> None:
    panel = drift_explorer()
    for condition in TITLES.values():
        run = set(STUDY.summary.loc[STUDY.summary["condition"] == condition, "dtype"])
        for dtype in ("float32", "bfloat16", "fp8"):
            for c, request in zip(SIZES, (0, 3, 7, 11), strict=True):
                panel.set(condition=condition, dtype=dtype, dcp_size=c, request=request)
                refused = panel.text.startswith("Not drawn")
                assert refused == (dtype not in run)
                assert not refused or f"{condition} was run in " in panel.text


def test_the_sentence_counts_what_the_table_has() -> None:
    panel = drift_explorer().set(request=7, token=4)
    table, line = panel.table(), line_of("forced_before_fix", "float32", 4, 7)
    above = int((table["abs_dlogprob"] > MARGIN * line.floor).sum())
    assert f"Of {len(table)} tokens {above} are above 2 ε" in panel.text
    row = table.iloc[4]
    assert panel.text.startswith(f"Token 4, {row['token']}: |Δℓ| {row['abs_dlogprob']:.3g} nats")


def test_the_cursor_ends_with_the_tokens_of_the_request() -> None:
    panel = drift_explorer().set(request=0)
    for request in REQUESTS:
        last = len(panel.set(request=request).table()) - 1
        assert panel.set(token=last).text.startswith(f"Token {last}, ")


def test_hover_boxes_say_the_tokens_of_the_table_in_order() -> None:
    values = drift_explorer().values
    table = drift_table(**values)  # type: ignore[arg-type]
    boxes = drift_hover(**values)  # type: ignore[arg-type]
    assert len(boxes) == len(table)
    assert [box.x for box in boxes] == sorted(box.x for box in boxes)
    for box, at, level in zip(boxes, table["position"], table["level"], strict=True):
        assert box.text.startswith(f"Token {at}, ") and level in box.text


def test_a_run_that_is_not_recorded_is_refused() -> None:
    with pytest.raises(StudyError, match="natural was run in float32: choose one of these"):
        drift_explorer_figure(condition="natural", dtype="fp8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("tokens", "words", 1), "it has the columns condition"),
        (lambda text: text + "a,1,float32,0,,3531,0\n", "has not as many numbers as tokens"),
        (lambda text: text + "a,1,float32,0,,zz,0\n", "ValueError"),
        (None, "FileNotFoundError"),
    ],
)
def test_a_damaged_table_is_refused_by_name(tmp_path: Path, change: object, message: str) -> None:
    if callable(change):
        text = (FOLDER / "token_drift.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "token_drift.csv").write_text(change("".join(text[:3])), encoding="utf-8")
    with pytest.raises(StudyError, match=message):
        read_token_drift(tmp_path)


def test_the_table_says_how_it_was_made() -> None:
    assert "token_drift" in (FOLDER / "token_drift.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_names_of_floor_and_tolerance_do_not_lie_on_one_another(
    dtype: str, width: Width
) -> None:
    fig = drift_explorer_figure("forced_fixed", dtype, 8, 6, 24, width=width)
    fig.draw_without_rendering()
    named = [t for t in fig.axes[0].texts if t.get_text() in ("2 ε", "0.20")]
    assert len(named) >= 2
    for one, other in itertools.combinations(named, 2):
        assert not one.get_window_extent().padded(-1).overlaps(other.get_window_extent().padded(-1))

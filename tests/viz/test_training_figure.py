"""The loss curve shows the lines of the log, and chance beside recall."""

import numpy as np
import pandas as pd
import pytest

from kvlab.errors import StudyError
from kvlab.lab.origin import Origin
from kvlab.viz.save import figure_title
from kvlab.viz.training import loss_curve_figure
from tests.viz.figure_checks import curves, legend_words, nothing_overlaps

ORIGIN = Origin(
    "python -m scripts.train_tiny OUT", 1, {"steps": 4}, "cpu", {"kvlab": "0"}, None, "2026"
)
LOG = pd.DataFrame(
    {
        "phase": [1, 1, 2],
        "tokens": [1_000_000, 2_000_000, 3_000_000],
        "train_bits_per_byte": [4.0, 2.5, 1.5],
        "held_out_bits_per_byte": [3.0, 2.5, 2.0],
        "recall": [0.0, 0.5, 1.0],
    }
)


def test_each_column_of_the_log_is_a_line_and_chance_is_one() -> None:
    fig = loss_curve_figure(LOG, 0.0625, ORIGIN)
    left, right = fig.axes
    assert curves(left) == [[4.0, 2.5, 1.5], [3.0, 2.5, 2.0]]
    assert curves(right) == [[0.0, 0.5, 1.0]]
    assert [0.0625, 0.0625] in [np.asarray(line.get_ydata()).tolist() for line in right.lines]
    assert legend_words(left) == ["training batches", "held-out text"]
    greys = [line for line in left.lines if len(np.asarray(line.get_xdata())) == 2]
    assert [np.asarray(line.get_xdata()).tolist() for line in greys] == [[2.5, 2.5]]
    assert left.get_ylim()[0] == 0
    assert nothing_overlaps(fig)
    assert figure_title(fig) == "Training of the tiny model"


def test_a_table_that_is_no_log_is_refused() -> None:
    with pytest.raises(StudyError, match=r"got 3 rows, columns missing: recall; pass the table"):
        loss_curve_figure(LOG.drop(columns="recall"), 0.0625, ORIGIN)
    with pytest.raises(StudyError, match=r"got 0 rows, columns missing: none"):
        loss_curve_figure(LOG.iloc[:0], 0.0625, ORIGIN)

"""What holds for each of the five: one set of arguments, pictures that fit, files that open."""

import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from kvlab.errors import KvlabError
from kvlab.viz import widgets
from kvlab.viz.panel import Panel
from kvlab.viz.save import figure_definition, figure_title
from kvlab.viz.style import WIDTH_IN
from kvlab.viz.widgets.__main__ import EXPLORERS, moves

NAMES = tuple(make.__name__ for make in EXPLORERS)


def explorer(name: str) -> Panel:
    """The panel of that name."""
    made: Panel = getattr(widgets, name)()
    return made


def twin(name: str) -> Callable[..., Figure]:
    """Its static twin."""
    found: Callable[..., Figure] = getattr(widgets, f"{name}_figure")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_has_the_controls_as_arguments_with_the_values_that_they_start_with(
    name: str,
) -> None:
    asked = inspect.signature(twin(name)).parameters
    defaults = {key: one.default for key, one in asked.items() if key != "width"}
    assert defaults == explorer(name).values


@pytest.mark.parametrize("name", NAMES)
def test_every_control_is_named_in_the_docstring_and_on_the_screen(name: str) -> None:
    panel, told = explorer(name), widgets.__doc__ or ""
    for control in panel.values:
        short = control.rsplit("_", 1)[0] if control[-1].isdigit() else control
        assert short in told
        assert panel.control(control).description


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("name", NAMES)
def test_a_twin_is_as_wide_as_a_column_and_nothing_leaves_it(name: str, width: str) -> None:
    fig = twin(name)(width=width)
    assert fig.get_figwidth() == WIDTH_IN[width]
    assert figure_title(fig) and len(figure_definition(fig)) > 60
    fig.draw_without_rendering()
    page = fig.bbox.padded(2)
    texts = [*fig.texts, *(text for ax in fig.axes for text in ax.texts)]
    for text in texts:
        box = text.get_window_extent()
        inside = page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1)
        assert inside, (text.get_text(), box, page)
    for one, other in itertools.combinations([t for t in texts if t.get_text()], 2):
        a, b = (t.get_window_extent().padded(-1) for t in (one, other))
        assert not a.overlaps(b), (one.get_text(), other.get_text())


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_twin_with_its_table_for_one_column_and_two(
    name: str, tmp_path: Path
) -> None:
    panel = explorer(name)
    for width in ("single", "double"):
        svg, pdf, png, csv, _ = panel.export(tmp_path, width)
        assert svg.stem == name.replace("_", "-")
        assert ElementTree.parse(svg).getroot().tag.endswith("svg")
        assert pdf.read_bytes().startswith(b"%PDF") and b"/FontFile2" in pdf.read_bytes()
        assert imread(png).shape[1] == pytest.approx(200 * WIDTH_IN[width], abs=1)
        assert len(pd.read_csv(csv)) == len(panel.table())


@pytest.mark.parametrize("name", NAMES)
def test_hover_boxes_lie_inside_the_picture_and_apart(name: str) -> None:
    panel = explorer(name)
    wide, high = panel.figure().get_size_inches()
    boxes = [spot.pixels() for spot in panel._spots()]
    assert boxes
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 96 * wide + 1 and 0 <= top < bottom <= 96 * high + 1
    for one, other in itertools.combinations(boxes[:200], 2):
        across = min(one[2], other[2]) - max(one[0], other[0])
        down = min(one[3], other[3]) - max(one[1], other[1])
        assert across <= 1 or down <= 1, (one, other)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_kernel_there_are_a_picture_its_words_and_the_numbers(name: str) -> None:
    panel = explorer(name)
    data, about = panel._repr_mimebundle_()
    assert {"image/png", "text/html", "text/plain"} <= data.keys()
    assert panel.text in str(data["text/plain"]) and panel.text in str(about["image/png"]["alt"])
    assert str(data["text/html"]).count("<tr") > 2
    assert len(str(data["image/png"])) < 130_000


@pytest.mark.parametrize("make", EXPLORERS, ids=NAMES)
def test_random_moves_over_all_that_the_controls_reach_draw_or_refuse_in_words(
    make: Callable[[], Panel],
) -> None:
    assert len(list(moves(make(), 25, seed=7))) == 25


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("backup_stepper", {"step": 6}, r"a step .* in \[0, 6\): got 6; 0 before, 1 backed up"),
        ("backup_stepper", {"step": -1}, r"a whole number in \[0, 6\): got -1"),
        ("backup_stepper", {"step": 1.5}, r"a whole number in \[0, 6\): got 1.5"),
        ("backup_stepper", {"dcp_size": 0}, r"dcp_size must be at least 1"),
        ("merge_explorer", {"ranks": 5}, r"1 to 4 ranks, one for each lse: got ranks=5"),
        ("merge_explorer", {"ranks": 0}, r"1 to 4 ranks, one for each lse: got ranks=0"),
        ("drift_explorer", {"token": -1}, r"a token of this request lies in \[0, \d+\): got -1"),
        ("retraction_timeline", {"step": -1}, r"a step of this run lies in \[0, \d+\): got -1"),
        ("owner_explorer", {"slot": -1}, r"a slot of this pool lies in \[0, 208\): got -1"),
    ],
)
def test_a_twin_refuses_in_words_what_no_slider_reaches(
    name: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(KvlabError, match=message):
        twin(name)(**values)

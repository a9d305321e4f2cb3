"""A panel redraws once a move, keeps its last good picture, and is a picture without a kernel."""

import base64

import ipywidgets as widgets
import pytest
from matplotlib.figure import Figure

from kvlab.errors import KvlabError, LayoutError
from kvlab.viz.panel import Panel
from kvlab.viz.style import figure

calls: list[dict[str, object]] = []


def draw(**values: object) -> tuple[Figure, str]:
    """A figure whose title is the values; refuses start=7 as the package would."""
    calls.append(values)
    if values.get("start") == 7:
        raise LayoutError("start must be at most 6: got start=7 <of the run>")
    fig = figure(height=1)
    fig.subplots().set_title(str(values))
    return fig, f"{len(values)} values & more"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()


def picture(panel: Panel) -> bytes:
    """The PNG that a reader without a kernel sees."""
    return base64.b64decode(str(panel._repr_mimebundle_()[0]["image/png"]))


@pytest.mark.parametrize(
    ("spec", "kind", "start"),
    [
        (True, widgets.Checkbox, True),
        (range(1, 9), widgets.IntSlider, 1),
        (range(0, 9, 4), widgets.IntSlider, 0),
        ((1, 8), widgets.IntSlider, 1),
        ((1, 8, 2), widgets.IntSlider, 1),
        ((0.0, 1.0), widgets.FloatSlider, 0.0),
        ([1, 2, 4], widgets.SelectionSlider, 1),
        (["fixed", "before"], widgets.Dropdown, "fixed"),
        ([3], widgets.Dropdown, 3),
        ({"two ranks": 2}, widgets.Dropdown, 2),
        (widgets.IntText(value=3), widgets.IntText, 3),
    ],
)
def test_a_shorthand_gives_a_labelled_control(spec: object, kind: type, start: object) -> None:
    panel = Panel(draw, page_size=spec)
    (control,) = panel.widget.children[0].children
    assert (type(control), control.description) == (kind, "page size")
    assert panel.values == {"page_size": start}


def test_a_slider_reports_when_it_is_let_go() -> None:
    for spec in (range(1, 9), (0.0, 1.0), [1, 2, 4]):
        (control,) = Panel(draw, start=spec).widget.children[0].children
        assert control.continuous_update is False


def test_the_last_value_of_a_range_can_be_reached() -> None:
    panel = Panel(draw, start=range(0, 9, 4))
    assert panel.set(start=8).values == {"start": 8}


@pytest.mark.parametrize(
    "spec", [None, "text", 3, (1,), (2, 1), (1, 2, 0), [], {}, range(0), range(3, 0, -1)]
)
def test_what_no_shorthand_describes_is_refused(spec: object) -> None:
    with pytest.raises(KvlabError, match=r"a control is a bool, a range, .*: start is "):
        Panel(draw, start=spec)


def test_a_widget_without_a_value_is_refused() -> None:
    with pytest.raises(KvlabError, match="a control has a value: start is a VBox"):
        Panel(draw, start=widgets.VBox())


def test_a_panel_without_controls_is_refused() -> None:
    with pytest.raises(KvlabError, match="a panel has at least one control: got none"):
        Panel(draw)


def test_a_move_draws_once_and_shows_the_new_picture() -> None:
    panel = Panel(draw, dcp_size=[1, 2, 4], start=range(0, 9))
    before = picture(panel)
    calls.clear()
    panel.set(dcp_size=4, start=3)
    assert calls == [{"dcp_size": 4, "start": 3}]
    assert picture(panel) != before
    assert base64.b64encode(picture(panel)).decode() in panel.widget.children[1].value


def test_a_move_of_the_user_draws_too() -> None:
    panel = Panel(draw, start=range(0, 9))
    calls.clear()
    panel.widget.children[0].children[0].value = 5
    assert calls == [{"start": 5}]


def test_the_picture_has_its_size_in_pixels() -> None:
    image = Panel(draw, start=range(0, 9)).widget.children[1].value
    assert 'width="336" height="96"' in image and image.count("<img") == 1


def test_an_error_of_the_package_is_a_sentence_and_the_last_picture_stays() -> None:
    panel = Panel(draw, start=range(0, 9)).set(start=6)
    before = picture(panel)
    panel.set(start=7)
    assert picture(panel) == before
    note = panel.widget.children[2].value
    assert "Not drawn:</b> start must be at most 6: got start=7 &lt;of the run&gt;" in note
    assert "Not drawn: start must be at most 6" in str(panel._repr_mimebundle_()[0]["text/plain"])
    panel.set(start=5)
    assert "Not drawn" not in panel.widget.children[2].value
    assert picture(panel) != before


def test_a_panel_that_could_not_draw_yet_shows_the_sentence_as_a_picture() -> None:
    panel = Panel(draw, start=range(7, 9))
    assert panel.text.startswith("Not drawn: start must be at most 6")
    assert picture(panel).startswith(b"\x89PNG")
    assert panel.widget.children[1].value == ""
    panel.set(start=8)
    assert "<img" in panel.widget.children[1].value


def test_an_error_that_is_not_the_packages_is_not_hidden() -> None:
    def broken(start: int) -> Figure:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        Panel(broken, start=range(0, 9))


def test_a_draw_that_returns_no_figure_is_refused() -> None:
    with pytest.raises(TypeError, match="draw returns a Figure, or a Figure and a str"):
        Panel(lambda start: "text", start=range(0, 9))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"start": 99}, "control start takes 0 to 8: got 99; the panel is unchanged"),
        ({"start": "a"}, "control start takes 0 to 8: got 'a'"),
        ({"start": 4, "dcp_size": 3}, "control dcp_size takes one of 1, 2, 4: got 3"),
        ({"rank": 0}, "a control is one of dcp_size, start: got 'rank'"),
    ],
)
def test_a_value_that_a_control_cannot_take_changes_nothing(
    values: dict[str, object], message: str
) -> None:
    panel = Panel(draw, dcp_size=[1, 2, 4], start=range(0, 9)).set(start=2)
    calls.clear()
    with pytest.raises(KvlabError, match=message):
        panel.set(**values)
    assert panel.values == {"dcp_size": 1, "start": 2}
    assert calls == []


def test_a_panel_is_a_widget_a_picture_and_text_at_once() -> None:
    data, about = Panel(draw, start=range(0, 9))._repr_mimebundle_()
    assert data.keys() == {
        "application/vnd.jupyter.widget-view+json",
        "image/png",
        "text/plain",
    }
    assert "[start = 0]\n1 values & more" in str(data["text/plain"])
    assert about["image/png"]["width"] == 336


def test_the_text_below_is_text_and_not_markup() -> None:
    assert "1 values &amp; more" in Panel(draw, start=range(0, 9)).widget.children[2].value


def test_the_static_figure_is_that_of_the_current_values() -> None:
    panel = Panel(draw, start=range(0, 9)).set(start=3)
    assert panel.figure().axes[0].get_title("left") == "{'start': 3}"
    with pytest.raises(LayoutError, match="at most 6"):
        panel.set(start=7).figure()


def test_an_atlas_draws_every_combination_and_leaves_the_panel_alone() -> None:
    panel = Panel(draw, dcp_size=[1, 2, 4], start=range(0, 9), fixed=True)
    calls.clear()
    page = panel.atlas(dcp_size=[1, 4], start=[0, 5])
    assert calls == [{"dcp_size": c, "start": s, "fixed": True} for c in (1, 4) for s in (0, 5)]
    titles = [ax.get_title("left") for ax in page.axes]
    assert titles[1] == "dcp size = 1, start = 5"
    assert panel.values == {"dcp_size": 1, "start": 0, "fixed": True}


def test_the_tiles_of_an_atlas_do_not_overlap_and_fit_a_page() -> None:
    page = Panel(draw, start=range(0, 7)).atlas(start=[0, 1, 2])
    page.draw_without_rendering()
    boxes = [box for ax in page.axes if (box := ax.get_tightbbox()) is not None]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
    assert page.get_figwidth() <= 7.2


@pytest.mark.parametrize("values", [{}, {"start": []}])
def test_an_atlas_without_values_is_refused(values: dict[str, list[object]]) -> None:
    with pytest.raises(KvlabError, match=r"an atlas names the values to show: pass e.g. start="):
        Panel(draw, start=range(0, 7)).atlas(**values)  # type: ignore[arg-type]


def test_an_atlas_of_an_unknown_control_is_refused() -> None:
    with pytest.raises(KvlabError, match="a control is one of start: got 'rank'"):
        Panel(draw, start=range(0, 7)).atlas(rank=[0])

"""A panel redraws once a move, keeps its last good picture, and is a picture without a kernel."""

import base64
import gc
import io
import json
import re
import weakref
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import ipywidgets as widgets
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from kvlab.errors import KvlabError, LayoutError
from kvlab.viz.exported import publishable
from kvlab.viz.panel import Panel
from kvlab.viz.panel_html import Spot, table_html
from kvlab.viz.save import SCREEN_DPI, png_bytes
from kvlab.viz.spaces import OUTSIDE
from kvlab.viz.style import figure
from kvlab.viz.widgets.canvas import Canvas

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
    on_screen = png_bytes(panel.figure(), SCREEN_DPI[0])
    assert base64.b64encode(on_screen).decode() in panel.widget.children[1].value


def test_the_picture_that_is_kept_has_few_colors_and_is_smaller_than_that_on_the_screen() -> None:
    panel = Panel(draw, start=range(0, 9))
    kept, on_screen = picture(panel), png_bytes(panel.figure(), SCREEN_DPI[0])
    assert imread(io.BytesIO(kept)).shape[:2] == imread(io.BytesIO(on_screen)).shape[:2]
    assert 3 * len(kept) < 2 * len(on_screen)


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


def table(**values: object) -> pd.DataFrame:
    """The values again, three times."""
    return pd.DataFrame([values] * 3)


def rich(**more: Any) -> Panel:
    """A panel with all that a panel can have."""
    return Panel(
        draw,
        name="a-name",
        table=table,
        hover=lambda start, **_: [Spot(0.5, 0.25, 0.5, 0.125, f"start is <{start}>")],
        steps="start",
        definition="What is drawn, in slots.",
        **{"start": range(0, 9), **more},
    )


def test_step_buttons_move_one_step_and_stop_at_the_ends() -> None:
    panel = rich(start=range(0, 5, 2))
    back, forward = panel.widget.children[0].children[1:3]
    assert (back.description, forward.description) == ("Back", "Next")
    back.click()
    assert panel.values == {"start": 0}
    for want in (2, 4, 4):
        forward.click()
        assert panel.values == {"start": want}
    assert panel.text == "1 values & more" and calls[-1] == {"start": 4}


def test_steps_of_an_unknown_control_are_refused() -> None:
    with pytest.raises(KvlabError, match="a control is one of start: got 'rank'"):
        Panel(draw, steps="rank", start=range(0, 9))


def test_a_hover_box_lies_over_the_picture_in_pixels_and_is_text() -> None:
    shown = rich().set(start=3).widget.children[1].value
    assert '<area shape="rect" coords="48,24,96,36"' in shown
    assert 'title="start is &lt;3&gt;"' in shown
    (name,) = re.findall(r'usemap="#([^"]+)"', shown)
    assert f'<map name="{name}">' in shown


def test_the_picture_has_words_and_a_white_ground() -> None:
    shown = Panel(draw, start=range(0, 9)).widget.children[1].value
    assert 'alt="{&#x27;start&#x27;: 0}"' in shown and "background:#FFFFFF" in shown


def test_an_export_writes_five_files_that_open(tmp_path: Path) -> None:
    paths = rich().set(start=3).export(tmp_path)
    assert [path.name for path in paths] == [
        f"a-name.{ending}" for ending in ("svg", "pdf", "png", "csv", "json")
    ]
    svg, pdf, png, csv, about = paths
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert pdf.read_bytes().startswith(b"%PDF") and b"%%EOF" in pdf.read_bytes()[-20:]
    assert imread(png).shape[1] == round(3.5 * 200)
    assert pd.read_csv(csv)["start"].tolist() == [3, 3, 3]
    told = json.loads(about.read_text(encoding="utf-8"))
    assert told["definition"] == "What is drawn, in slots."
    assert told["origin"]["parameters"] == {"start": 3} and told["origin"]["command"] == "a-name"


def test_an_export_of_a_panel_without_a_table_saves_the_values(tmp_path: Path) -> None:
    panel = Panel(draw, start=range(0, 9), dcp_size=[1, 2])
    (csv,) = [path for path in panel.export(tmp_path) if path.suffix == ".csv"]
    assert csv.name == "draw.csv"
    assert pd.read_csv(csv).to_dict("records") == [{"start": 0, "dcp_size": 1}]


def test_the_export_button_says_where_the_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_FIGURES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    panel = rich()
    panel._tools.export.click()
    assert "Saved " in panel._tools.said.value
    assert "a-name.{svg,pdf,png,csv,json}" in panel._tools.said.value
    panel.set(start=7)
    panel._tools.export.click()
    assert "Not saved: start must be at most 6" in panel._tools.said.value


@pytest.mark.parametrize(
    ("width", "message"),
    [
        ("double", "a figure is exported as wide as it is drawn: got width='double'"),
        ("wide", "a figure's width is one of 'single', 'double': got 'wide'"),
    ],
)
def test_a_width_that_the_figure_has_not_is_refused(
    tmp_path: Path, width: str, message: str
) -> None:
    with pytest.raises(KvlabError, match=message):
        rich().export(tmp_path, width)
    assert list(tmp_path.iterdir()) == []


def test_the_table_is_shown_on_demand_and_follows_the_controls() -> None:
    panel = rich()
    assert panel._tools.below.value == ""
    panel._tools.shown.value = True
    assert panel._tools.below.value.count("<tr") == 4
    before = panel._tools.below.value
    assert panel.set(start=5)._tools.below.value != before
    panel._tools.shown.value = False
    assert panel._tools.below.value == ""


def test_a_long_table_says_how_many_rows_are_left_out() -> None:
    shown = table_html(pd.DataFrame({"a": range(100)}), most=10)
    assert shown.count("<tr") == 11 and "The first 10 of 100 rows." in shown


def test_without_a_kernel_there_are_picture_boxes_sentence_and_table() -> None:
    data, _ = rich()._repr_mimebundle_()
    page = str(data["text/html"])
    assert str(data["image/png"]) in page and page.count("<area") == 1
    assert "1 values &amp; more" in page and page.count("<tr") == 4


def test_in_a_terminal_a_panel_is_its_sentence_and_its_table() -> None:
    lines = repr(rich()).splitlines()
    assert lines[0].endswith("[start = 0]") and lines[1] == "1 values & more"
    assert [line.strip() for line in lines[2:]] == ["start", "0", "0", "0"]


def test_the_end_of_a_slider_may_depend_on_another_control() -> None:
    panel = Panel(
        draw,
        bounds=lambda dcp_size, **_: {"slot": (dcp_size, 10 * dcp_size)},
        dcp_size=[1, 2, 4],
        slot=range(0, 100),
    )
    assert panel.values == {"dcp_size": 1, "slot": 1}
    assert panel.set(slot=40, dcp_size=4).values == {"dcp_size": 4, "slot": 40}
    with pytest.raises(KvlabError, match="control slot takes 2 to 20: got 40"):
        panel.set(slot=40, dcp_size=2)
    assert panel.values == {"dcp_size": 4, "slot": 40}
    calls.clear()
    panel.control("dcp_size").value = 1
    assert calls == [{"dcp_size": 1, "slot": 10}]


def test_the_twin_of_an_export_keeps_its_axes_above_the_caption() -> None:
    canvas = Canvas("single", 1.0, "A title")
    canvas.cell(0.1, 0.5, 0.2, 0.2, OUTSIDE, "7")
    fig, _ = publishable(lambda: canvas.finish(), {}, "a command", "A sentence.", "single")
    (ax,) = fig.axes
    low = ax.get_position().y0 * fig.get_figheight()
    assert ax.get_position().height * fig.get_figheight() == pytest.approx(1.0)
    fig.draw_without_rendering()
    tops = [t.get_window_extent().y1 / fig.dpi for t in fig.texts if t.get_text() != "A title"]
    assert max(tops) <= low + 0.01


def test_refused_values_leave_the_table_of_the_picture_that_stays() -> None:
    def table(start: int) -> pd.DataFrame:
        if start == 7:
            raise LayoutError("start must be at most 6")
        return pd.DataFrame({"start": [start]})

    panel = Panel(draw, table=table, start=range(0, 9)).set(start=6)
    panel.set(start=7)
    told = panel._repr_mimebundle_()[0]
    assert "start must be at most 6" in str(told["text/plain"])
    assert "<td>6</td>" in str(told["text/html"])
    assert repr(panel).endswith("6")


def test_words_numbers_and_boxes_are_those_of_the_picture_that_stays() -> None:
    panel = rich().set(start=6)
    about = panel._repr_mimebundle_()[1]["image/png"]
    assert "[start = 6]" in str(about["alt"])
    panel.set(start=7)
    data, kept = panel._repr_mimebundle_()
    assert "[start = 6]\nNot drawn: start must be at most 6" in str(kept["image/png"]["alt"])
    assert "start is &lt;6&gt;" in str(data["text/html"]) and "&lt;7&gt;" not in str(data)


def test_a_bug_of_draw_is_raised_and_said_and_the_last_picture_stays() -> None:
    def broken(start: int) -> Figure:
        return draw(width=1 / (start - 3))[0]

    panel = Panel(broken, start=range(0, 9)).set(start=2)
    shown = panel.widget.children[1].value
    with pytest.raises(ZeroDivisionError):
        panel.set(start=3)
    assert "Not drawn:</b> ZeroDivisionError: division by zero" in panel.widget.children[2].value
    assert panel.widget.children[1].value == shown and "[start = 2]" in repr(panel)
    assert "Not drawn" not in repr(panel.set(start=4))


def test_boxes_that_are_refused_leave_the_last_picture() -> None:
    def hover(start: int) -> list[Spot]:
        if start == 5:
            raise LayoutError("no box for 5")
        return []

    panel = Panel(draw, hover=hover, start=range(0, 9)).set(start=4)
    shown = panel.widget.children[1].value
    panel.set(start=5)
    assert panel.text == "Not drawn: no box for 5"
    assert panel.widget.children[1].value == shown


def test_the_table_of_a_panel_that_could_not_draw_yet_is_that_of_its_controls() -> None:
    panel = rich(start=range(7, 9))
    panel._tools.shown.value = True
    assert panel._tools.below.value.count("<td>7</td>") == 3


@pytest.mark.parametrize("name", ["a/b", "Größe", "a b", "", "../up", "x" * 300])
def test_a_name_that_can_be_no_file_is_refused_when_the_panel_is_made(name: str) -> None:
    with pytest.raises(KvlabError, match="the name of a figure is made of a-z, 0-9"):
        Panel(draw, name=name, start=range(0, 9))


def test_the_name_of_a_function_becomes_one_that_files_can_have() -> None:
    def Größe_2(start: int) -> Figure:
        return draw(start=start)[0]

    assert Panel(Größe_2, start=range(0, 9)).name == "gr-e-2"
    assert Panel(lambda start: draw(start=start), start=range(0, 9)).name == "panel"


def test_a_folder_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(KvlabError, match=r"a figure is saved in a folder .* File exists; name an"):
        rich().export(tmp_path / "taken")


def test_the_home_of_the_reader_is_no_folder_called_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert rich().export("~/of % mine ü")[0].parent == tmp_path / "of % mine ü"
    assert not (tmp_path / "~").exists()


def test_an_export_over_an_export_leaves_its_five_files_and_nothing_else(tmp_path: Path) -> None:
    panel = rich()
    panel.export(tmp_path)
    panel.set(start=4).export(tmp_path)
    assert len(list(tmp_path.iterdir())) == 5
    assert pd.read_csv(tmp_path / "a-name.csv")["start"].tolist() == [4, 4, 4]


def test_equal_pictures_with_other_boxes_have_maps_of_their_own() -> None:
    def named(words: str) -> str:
        panel = Panel(
            lambda start: figure(height=1),
            hover=lambda start: [Spot(0, 0, 1, 1, words)],
            start=range(3),
        )
        (name,) = re.findall(r'usemap="#([^"]+)"', panel.widget.children[1].value)
        return str(name)

    assert named("one") == named("one") != named("other")


def test_moves_leave_no_figures_behind() -> None:
    made: list[weakref.ref[Figure]] = []

    def kept(start: int) -> Figure:
        fig = figure(height=1)
        made.append(weakref.ref(fig))
        return fig

    panel = Panel(kept, start=range(0, 40))
    for start in range(40):
        panel.set(start=start)
    gc.collect()
    assert sum(one() is not None for one in made) == 1

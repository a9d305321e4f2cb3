"""A panel redraws once a move, keeps its last good picture, and is a picture without a kernel."""

import base64
import gc
import io
import json
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from kvlab.errors import KvlabError, LayoutError
from kvlab.viz.panel import Drawing, Panel, Spot
from kvlab.viz.save import SCREEN_DPI, png_bytes
from kvlab.viz.style import figure

calls: list[dict[str, object]] = []


def draw(width: str = "single", **values: object) -> Drawing:
    """A figure whose title is the values; refuses start=7 as the package would."""
    calls.append(values)
    if values.get("start") == 7:
        raise LayoutError("start must be at most 6: got start=7 <of the run>")
    fig = figure("double" if width == "double" else "single", height=1)
    fig.subplots().set_title(str(values))
    spot = Spot(0.5, 0.25, 0.5, 0.125, f"start is <{values.get('start')}>")
    return Drawing(fig, f"{len(values)} values & more", pd.DataFrame([values] * 3), [spot])


def panel_of(drawing: Callable[..., Drawing] = draw, **more: Any) -> Panel:
    """A panel of that function."""
    return Panel(drawing, **{"name": "a-name", "definition": "What is drawn, in slots.", **more})


def rich(**more: Any) -> Panel:
    """A panel with all that a panel can have."""
    return panel_of(**{"steps": "start", "start": range(0, 9), **more})


def part(panel: Panel, name: str) -> widgets.Widget:
    """The button or line of that class."""
    line = panel.widget.children[3].children
    return next(made for made in line if f"kvlab-{name}" in made._dom_classes)


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
        (([1, 2, 4], "words"), widgets.SelectionSlider, 1),
        (widgets.FloatSlider(), widgets.FloatSlider, 0.0),
        ([1, 2, 4], widgets.SelectionSlider, 1),
        (["fixed", "before"], widgets.Dropdown, "fixed"),
        ([3], widgets.Dropdown, 3),
        ({"two ranks": 2}, widgets.Dropdown, 2),
        (widgets.IntText(value=3), widgets.IntText, 3),
    ],
)
def test_a_shorthand_gives_a_labeled_control(spec: object, kind: type, start: object) -> None:
    panel = panel_of(page_size=spec)
    (control,) = panel.widget.children[0].children
    assert (type(control), control.description) == (kind, "page size")
    assert panel.values == {"page_size": start}
    assert not control.has_trait("continuous_update") or control.continuous_update is False


@pytest.mark.parametrize("spec", [None, "text", 3, (1,), (2, 1), [], {}, range(0)])
def test_what_no_shorthand_describes_is_refused(spec: object) -> None:
    with pytest.raises(KvlabError, match=r"a control is a bool, a range, .*: start is"):
        panel_of(start=spec)
    with pytest.raises(KvlabError, match="the name of a figure becomes a file name, of a-z, 0-9"):
        panel_of(name="../up", start=True)


def test_a_move_draws_once_and_shows_the_new_picture() -> None:
    panel = panel_of(dcp_size=[1, 2, 4], start=range(0, 9))
    before = picture(panel)
    calls.clear()
    panel.set(dcp_size=4, start=3)
    assert calls == [{"dcp_size": 4, "start": 3}]
    assert picture(panel) != before
    on_screen = png_bytes(panel.drawing().figure, SCREEN_DPI)
    assert base64.b64encode(on_screen).decode() in panel.widget.children[1].value
    kept = picture(panel)  # in few colors
    assert imread(io.BytesIO(kept)).shape[:2] == imread(io.BytesIO(on_screen)).shape[:2]
    assert 3 * len(kept) < 2 * len(on_screen)
    panel.widget.children[0].children[1].value = 5  # as a user does
    assert calls[-1] == {"dcp_size": 4, "start": 5}


def test_an_error_of_the_package_is_a_sentence_and_the_last_picture_stays() -> None:
    panel = panel_of(start=range(0, 9)).set(start=6)
    before = picture(panel)
    panel.set(start=7)
    assert picture(panel) == before
    note = panel.widget.children[2].value
    assert "Not drawn:</b> start must be at most 6: got start=7 &lt;of the run&gt;" in note
    assert "Not drawn: start must be at most 6" in str(panel._repr_mimebundle_()[0]["text/plain"])
    panel.set(start=5)
    assert "Not drawn" not in panel.widget.children[2].value
    assert picture(panel) != before


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
    panel = panel_of(dcp_size=[1, 2, 4], start=range(0, 9)).set(start=2)
    calls.clear()
    with pytest.raises(KvlabError, match=message):
        panel.set(**values)
    assert panel.values == {"dcp_size": 1, "start": 2}
    assert calls == []


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


def test_a_hover_box_lies_over_the_picture_in_pixels_and_is_text() -> None:
    shown = rich().set(start=3).widget.children[1].value
    assert '<area shape="rect" coords="48,24,96,36"' in shown
    assert 'title="start is &lt;3&gt;"' in shown
    (name,) = re.findall(r'usemap="#([^"]+)"', shown)
    assert f'<map name="{name}">' in shown
    assert 'alt="{&#x27;start&#x27;: 3}"' in shown and "background:#FFFFFF" in shown
    assert 'width="336" height="96"' in shown and shown.count("<img") == 1


def test_an_export_has_the_definition_the_values_and_the_numbers(tmp_path: Path) -> None:
    *_, csv, about = rich().set(start=3).export(tmp_path, "single")
    assert pd.read_csv(csv)["start"].tolist() == [3, 3, 3]
    told = json.loads(about.read_text(encoding="utf-8"))
    assert (about.name, told["definition"]) == ("a-name.json", "What is drawn, in slots.")
    assert told["origin"]["parameters"] == {"start": 3} and told["origin"]["command"] == "a-name"


def test_the_export_button_says_where_the_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_FIGURES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    panel = rich()
    part(panel, "export").click()
    assert "Saved " in panel.widget.children[3].children[-1].value
    assert "a-name.{svg,pdf,png,csv,json}" in panel.widget.children[3].children[-1].value
    panel.set(start=7)
    part(panel, "export").click()
    assert "Not saved: start must be at most 6" in panel.widget.children[3].children[-1].value


def test_a_panel_that_could_not_draw_yet_shows_the_sentence() -> None:
    panel = panel_of(start=range(7, 9))
    assert panel.text.startswith("Not drawn: start must be at most 6")
    data, _ = panel._repr_mimebundle_()
    assert "image/png" not in data and "at most 6" in str(data["text/html"])
    assert panel.widget.children[1].value == ""
    panel.set(start=8)
    assert "<img" in panel.widget.children[1].value


def test_a_long_table_says_how_many_rows_are_left_out() -> None:
    long = pd.DataFrame({"a": range(100)})
    panel = panel_of(lambda start: Drawing(figure(height=1), "", long), start=range(3))
    page = str(panel._repr_mimebundle_()[0]["text/html"])
    assert page.count("<tr") == 61 and "The first 60 of 100 rows." in page


def test_the_table_is_shown_on_demand_and_follows_the_controls() -> None:
    panel = rich()
    assert panel.widget.children[4].value == ""
    part(panel, "table").value = True
    assert panel.widget.children[4].value.count("<tr") == 4
    before = panel.widget.children[4].value
    assert panel.set(start=5).widget.children[4].value != before
    part(panel, "table").value = False
    assert panel.widget.children[4].value == ""


def test_in_a_terminal_a_panel_is_its_sentence_and_its_table() -> None:
    lines = repr(rich()).splitlines()
    assert lines[0].endswith("[start = 0]") and lines[1] == "1 values & more"
    assert [line.strip() for line in lines[2:]] == ["start", "0", "0", "0"]


def test_the_end_of_a_slider_may_depend_on_another_control() -> None:
    panel = panel_of(
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


def test_words_numbers_and_boxes_are_those_of_the_picture_that_stays() -> None:
    panel = rich().set(start=6)
    about = panel._repr_mimebundle_()[1]["image/png"]
    assert "[start = 6]" in str(about["alt"])
    panel.set(start=7)
    data, kept = panel._repr_mimebundle_()
    assert "[start = 6]\nNot drawn: start must be at most 6" in str(kept["image/png"]["alt"])
    assert "start is &lt;6&gt;" in str(data["text/html"]) and "&lt;7&gt;" not in str(data)


def test_a_bug_of_draw_is_raised_and_said_and_the_last_picture_stays() -> None:
    def broken(start: int) -> Drawing:
        return draw(start=1 // (start - 3))

    panel = panel_of(broken, start=range(0, 9)).set(start=2)
    shown = panel.widget.children[1].value
    with pytest.raises(ZeroDivisionError):
        panel.set(start=3)
    assert "Not drawn:</b> ZeroDivisionError: " in panel.widget.children[2].value
    assert panel.widget.children[1].value == shown and "[start = 2]" in repr(panel)
    assert "Not drawn" not in repr(panel.set(start=4))


def test_the_home_of_the_reader_is_no_folder_called_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert rich().export("~/of % mine ü")[0].parent == tmp_path / "of % mine ü"
    assert not (tmp_path / "~").exists()


def test_equal_pictures_with_other_boxes_have_maps_of_their_own() -> None:
    def named(words: str) -> str:
        spots = [Spot(0, 0, 1, 1, words)]
        panel = panel_of(
            lambda start: Drawing(figure(height=1), "", pd.DataFrame(), spots), start=range(3)
        )
        (name,) = re.findall(r'usemap="#([^"]+)"', panel.widget.children[1].value)
        return str(name)

    assert named("one") == named("one") != named("other")


def test_moves_leave_no_figures_behind() -> None:
    made: list[weakref.ref[Figure]] = []

    def kept(start: int) -> Drawing:
        drawing = draw(start=start)
        made.append(weakref.ref(drawing.figure))
        return drawing

    panel = panel_of(kept, start=range(0, 40))
    for start in range(40):
        panel.set(start=start)
    gc.collect()
    assert sum(one() is not None for one in made) == 1

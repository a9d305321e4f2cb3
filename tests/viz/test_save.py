"""A saved figure is found by its name, carries its data and origin, and is the same bytes again."""

import base64
import hashlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image

from kvlab.errors import KvlabError
from kvlab.lab.origin import Origin
from kvlab.viz.save import (
    ENDINGS,
    figure_registry,
    indexed_png,
    png_bytes,
    save_figure,
    show,
)
from kvlab.viz.style import caption, figure

ORIGIN = Origin("kvlab owners", 5, {"dcp_size": 4}, "cpu (2 cores)", {"kvlab": "0"}, None, "2026")
DATA = pd.DataFrame({"dcp_size": [1, 2], "share": [0.5, 1 / 3]})
Rgb = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]
PIXELS = arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3)))


def read(png: bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    """Red, green, blue of each pixel, 0 to 255."""
    return np.asarray(imread(io.BytesIO(png), format="png"), dtype=float)[:, :, :3] * 255


def drawn() -> Figure:
    """Lines, hatches, an image, a color bar, a legend: all that has ids in an SVG."""
    fig = figure("double", height=2)
    left, right = fig.subplots(1, 2)
    left.plot([0, 1], [1, 0], label="a line")
    left.bar([0, 1], [1, 2], hatch="//")
    left.legend()
    left.set_title("Owners of  slots")
    fig.colorbar(right.imshow(np.arange(12).reshape(3, 4)))
    return caption(fig, "Share: owned slots among all, without unit.", ORIGIN)


def test_one_name_gives_picture_data_and_origin(tmp_path: Path) -> None:
    saved = save_figure(drawn(), "owner_slots", DATA, ORIGIN, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"owner_slots.{e}" for e in ENDINGS}
    about = json.loads(saved.path("json").read_text())
    assert about["origin"] == ORIGIN.as_dict()
    assert (about["title"], about["rows"]) == ("Owners of slots", 2)
    assert about["definition"] == "Share: owned slots among all, without unit."
    for ending, checksum in about["sha256"].items():
        assert hashlib.sha256(saved.path(ending).read_bytes()).hexdigest() == checksum
    assert about["sha256"].keys() == set(ENDINGS) - {"json"}
    pd.testing.assert_frame_equal(saved.data(), DATA)


def test_an_index_with_a_name_is_data_and_one_without_is_not(tmp_path: Path) -> None:
    by_size = DATA.set_index("dcp_size")
    named = save_figure(drawn(), "named", by_size, ORIGIN, tmp_path)
    assert list(named.data().columns) == ["dcp_size", "share"]
    plain = save_figure(drawn(), "plain", by_size.reset_index()[1:], ORIGIN, tmp_path)
    assert list(plain.data().columns) == ["dcp_size", "share"]


def test_equal_inputs_give_equal_bytes_whatever_was_drawn_before(tmp_path: Path) -> None:
    fresh = save_figure(drawn(), "a", DATA, ORIGIN, tmp_path / "one")
    used = drawn()
    show(used)
    png_bytes(used, 61)
    again = save_figure(used, "a", DATA, ORIGIN, tmp_path / "two")
    assert again.sha256 == fresh.sha256
    assert save_figure(used, "a", DATA, ORIGIN, tmp_path / "three").sha256 == fresh.sha256
    assert fresh.path("json").read_bytes() == again.path("json").read_bytes()


def test_no_picture_holds_the_time_of_day(tmp_path: Path) -> None:
    saved = save_figure(drawn(), "a", DATA, ORIGIN, tmp_path)
    for ending in ("svg", "pdf", "png"):
        content = saved.path(ending).read_bytes()
        assert not re.search(rb"CreationDate|ModDate|<dc:date>|tIME", content), ending
    svg = saved.path("svg").read_text()  # text as paths, and nothing is loaded
    assert "<text" not in svg and not re.search(r"(?:href|src)=[\"']https?:", svg)


def test_saving_does_not_change_the_figure(tmp_path: Path) -> None:
    fig = drawn()
    engine = fig.get_layout_engine()
    save_figure(fig, "a", DATA, ORIGIN, tmp_path)
    assert fig.get_layout_engine() is engine
    assert all(ax.get_in_layout() for ax in fig.axes)


def test_a_picture_that_fails_leaves_the_old_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_figure(drawn(), "a", DATA, ORIGIN, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    broken = figure()
    broken.text(0.5, 0.5, "$\\nosuchcommand$")
    with pytest.raises(ValueError, match="nosuchcommand"):
        save_figure(broken, "a", DATA[:1], ORIGIN, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["", "A", "a b", "../a", "a.png", "-a", "a" * 81])
def test_a_name_that_is_no_file_name_everywhere_is_refused(tmp_path: Path, name: str) -> None:
    message = f"the name of a figure becomes a file name, .*: got {re.escape(repr(name))}; use e.g."
    with pytest.raises(KvlabError, match=message):
        save_figure(figure(), name, DATA, ORIGIN, tmp_path)
    message = r"saved with the numbers that it shows.*'a' got one of shape \(0, 2\)"
    with pytest.raises(KvlabError, match=message):
        save_figure(figure(), "a", DATA[:0], ORIGIN, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_figures_go_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_FIGURES", str(tmp_path / "deep" / "figures"))
    monkeypatch.setenv("KVLAB_NOTEBOOK", "02_owner_slots")
    save_figure(drawn(), "a", DATA, ORIGIN)
    (only,) = figure_registry()
    assert (only.folder, only.notebook) == (tmp_path / "deep" / "figures", "02_owner_slots")


def test_the_registry_lists_figures_by_notebook_and_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for notebook, name in (("02", "a"), ("01", "z"), ("01", "b")):
        monkeypatch.setenv("KVLAB_NOTEBOOK", notebook)
        save_figure(drawn(), name, DATA, ORIGIN, tmp_path)
    assert [figure.name for figure in figure_registry(tmp_path)] == ["b", "z", "a"]
    assert figure_registry(tmp_path / "nothing") == ()


@given(PIXELS)
def test_every_pixel_reads_back_within_half_a_level(pixels: Rgb) -> None:
    back = read(indexed_png(Image.fromarray(pixels)))
    assert back.shape == pixels.shape
    assert np.abs(back - pixels).max() <= 9


@pytest.mark.parametrize("dpi", [96, 144])
def test_a_shown_figure_has_its_size_in_pixels_its_words_and_half_the_bytes(dpi: int) -> None:
    fig = drawn()
    shown = show(fig, dpi)
    data, about = shown._repr_mimebundle_()  # type: ignore[no-untyped-call]
    png = base64.b64decode(data["image/png"])
    width, height = (float(inches) for inches in fig.get_size_inches())
    assert read(png).shape[:2] == pytest.approx((height * dpi, width * dpi), abs=1)
    assert about["image/png"]["width"] == round(width * 96)
    assert about["image/png"]["height"] == round(height * 96)
    assert repr(shown).startswith("Owners of slots. Share: owned slots")
    assert about["image/png"]["alt"] == repr(shown)
    assert len(png) < 0.6 * len(png_bytes(fig, dpi)) and show(drawn(), dpi).data == png

"""A picture with a palette is the same picture in fewer bytes."""

import io

import matplotlib.image as mpimg
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kvlab.errors import KvlabError
from kvlab.viz.save import show
from kvlab.viz.small import indexed_png, small
from kvlab.viz.style import BLUE, figure

Rgb = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]
PIXELS = arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3)))


def read(png: bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    """Red, green, blue of each pixel, 0 to 255."""
    return np.asarray(mpimg.imread(io.BytesIO(png), format="png"), dtype=float)[:, :, :3] * 255


@given(PIXELS)
def test_every_pixel_reads_back_within_half_a_level(pixels: Rgb) -> None:
    back = read(indexed_png(pixels))
    assert back.shape == pixels.shape
    assert np.abs(back - pixels).max() <= 9


def test_a_picture_of_more_colours_than_a_palette_holds_gets_coarser_levels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (99, 99, 3)).astype(np.uint8)
    back = read(indexed_png(pixels))
    assert np.abs(back - pixels).max() <= 26
    assert len(np.unique(np.round(back).reshape(-1, 3), axis=0)) <= 256


def test_white_stays_white_and_black_black() -> None:
    pixels = np.array([[[255, 255, 255], [0, 0, 0]]], dtype=np.uint8)
    assert np.round(read(indexed_png(pixels))).tolist() == pixels.tolist()


def test_a_small_picture_has_the_size_and_words_of_the_full_one_in_under_half_the_bytes() -> None:
    fig = figure("double")
    ax = fig.subplots()
    ax.plot([0, 1, 2], [0, 1, 0], color=BLUE)
    ax.set_title("A title")
    tiny, full = small(fig), show(fig)
    assert (tiny.width, tiny.height, tiny.alt) == (full.width, full.height, full.alt)
    assert read(tiny.png).shape[:2] == pytest.approx((full.height, full.width), abs=1)
    fine = small(fig, 144)
    assert read(fine.png).shape[:2] == pytest.approx((1.5 * full.height, 1.5 * full.width), abs=1)
    assert (fine.width, fine.height) == (full.width, full.height)
    assert len(tiny.png) < 0.5 * len(full.png)
    assert small(fig).png == tiny.png


@pytest.mark.parametrize("shape", [(3, 3), (3, 3, 4), (0, 3, 3)])
def test_another_array_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        KvlabError, match=r"array \(height, width, 3\) with at least one pixel: got"
    ):
        indexed_png(np.zeros(shape, dtype=np.uint8))

"""What is shown is true, well formed, cut at a known place, and waits for nothing."""

import colorsys
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb
from torch._subclasses.fake_tensor import FakeTensorMode

from kvlab.show import ALPHA, FILLS, Cell, cut, elements, facts, fill, html, listed, strip
from tests.index.cells import read
from tests.viz.test_style import contrast


@given(st.integers(0, 500))
def test_a_cut_shows_the_ends_in_order_and_at_most_one_gap(count: int) -> None:
    shown = cut(range(count))
    known = [at for at in shown if at is not None]
    assert known == sorted(set(known)) and len(shown) <= 17
    assert (None in shown) == (len(known) < count)
    assert not count or (known[0], known[-1]) == (0, count - 1)
    values = elements(torch.arange(count) * 3 + 5)
    assert values == [None if at is None else (at, at * 3 + 5) for at in shown]


def test_what_is_shown_is_escaped() -> None:
    told, line = read(
        html(facts("<b>&", [("<i>", '"<script>"')]), strip("a<", ("x", "y"), [(Cell("<u>"), "&")]))
    )
    assert (told.caption, told.texts()) == ("<b>&", {"<i>": ['"<script>"']})
    assert line.texts() == {"x": ["<u>"], "y": ["&"]}


def test_columns_that_are_left_out_stand_in_every_line_and_the_text_is_aligned() -> None:
    table = strip(
        "Pages", ("page", "state"), [(1, Cell("free")), None, (30, "out"), "... (5 more)"]
    )
    assert read(html(table))[0].texts() == {
        "page": ["1", "...", "30", "... (5 more)"],
        "state": ["free", "...", "out", "..."],
    }
    assert str(table).splitlines() == [
        "Pages",
        "  page   1     ...  30   ... (5 more)",
        "  state  free  ...  out  ...",
    ]


def test_fake_tensors_and_tensors_under_a_transform_are_shown_by_count() -> None:
    seen: list[str] = []

    def look(ids: torch.Tensor) -> torch.Tensor:
        seen.append(listed(ids))
        return ids

    torch.vmap(look)(torch.arange(6).reshape(2, 3))
    real = torch.arange(4)
    with FakeTensorMode():  # a mode refuses operations on what was made outside
        seen += [listed(torch.arange(6)), listed(real)]
    seen += [listed(torch.empty(5, device="meta"))]
    assert seen == ["3 ids on cpu", "6 ids on cpu", "4 ids on cpu", "5 ids on meta"]


class Watched(torch.Tensor):
    """A tensor that notes what is asked of it, as one on a device would have to answer."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def test_of_a_tensor_of_another_kind_only_shape_and_place_are_asked() -> None:
    watched = torch.arange(4).as_subclass(Watched)
    Watched.seen.clear()
    assert listed(watched) == "4 ids on cpu" and elements(watched) is None
    assert set(Watched.seen) == {"__get__"}


@pytest.mark.parametrize("color", FILLS)
@pytest.mark.parametrize(
    ("page", "ink"), [("#ffffff", "#212121"), ("#111111", "#e0e0e0"), ("#1e1e1e", "#d4d4d4")]
)
def test_text_keeps_its_contrast_on_every_fill_in_light_and_dark(
    color: str, page: str, ink: str
) -> None:
    part = int(ALPHA, 16) / 255
    r, g, b = (x * part + y * (1 - part) for x, y in zip(to_rgb(color), to_rgb(page), strict=True))
    assert contrast(to_hex((r, g, b)), ink) >= 4.5


def test_neighboring_owners_differ_in_hue() -> None:
    hues = [colorsys.rgb_to_hsv(*to_rgb(fill(rank)[:7]))[0] for rank in range(12)]
    apart = [abs(a - b) for a, b in pairwise(hues)]
    assert min(min(x, 1 - x) for x in apart) > 0.02

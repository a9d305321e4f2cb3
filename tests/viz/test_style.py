"""Figures share one look, color never stands alone, and captions overlap nothing."""

from itertools import combinations

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from kvlab.errors import KvlabError
from kvlab.lab.origin import Origin
from kvlab.viz import style
from kvlab.viz.style import CYCLE, Role, caption, figure
from tests.viz.figure_checks import nothing_overlaps

ROLES = {name: role for name, role in vars(style).items() if isinstance(role, Role)}
ORIGIN = Origin("kvlab owners", 0, {"dcp_size": 4}, "cpu (2 cores)", {"kvlab": "0"}, None, "2026")


def luminance(color: str) -> float:
    """Relative luminance of WCAG 2."""
    red, green, blue = (
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast of WCAG 2, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_on_a_role_is_readable() -> None:
    for name, role in ROLES.items():
        assert contrast(role.ink, role.color) >= 4.5, name


def test_roles_differ_without_color() -> None:
    assert len(ROLES) == 7
    for one, other in combinations(ROLES.values(), 2):
        # Either the hatch differs or the gray does.
        assert one.hatch != other.hatch or contrast(one.color, other.color) > 1.5


def test_lines_differ_in_color_dash_and_marker_at_once() -> None:
    for key in ("color", "linestyle", "marker"):
        values = [str(entry[key]) for entry in CYCLE]
        assert len(set(values)) == len(values), key


def test_a_figure_has_the_width_of_a_column_and_no_pyplot_window() -> None:
    assert figure("single").get_figwidth() == 3.5
    assert figure("double", height=2).get_size_inches().tolist() == [7.2, 2.0]
    manager = figure().canvas.manager
    assert manager is None


def axes_height_in(fig: Figure) -> float:
    """Height of the first axes in inches, when drawn."""
    fig.draw_without_rendering()
    return fig.axes[0].get_position().height * float(fig.get_figheight())


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("words", [1, 30, 150])
def test_a_caption_overlaps_nothing_and_the_axes_keep_their_size(width: str, words: int) -> None:
    fig = figure(width)  # type: ignore[arg-type]
    fig.subplots().set(xlabel="decode steps", ylabel="retractions", title="Retractions")
    before = axes_height_in(fig)
    caption(fig, "retractions " * words, ORIGIN)
    assert nothing_overlaps(fig)
    assert axes_height_in(fig) == pytest.approx(before, abs=0.05)


def test_a_dollar_sign_in_a_caption_is_a_dollar_sign() -> None:
    fig = figure()
    caption(fig, "costs 1 $ to 2 $ a step", ORIGIN)
    fig.draw_without_rendering()
    assert fig.texts[0].get_text() == "costs 1 $ to 2 $ a step"


def test_a_second_caption_is_refused() -> None:
    fig = caption(figure(), "once", ORIGIN)
    with pytest.raises(KvlabError, match="a figure has one caption: this one has it already"):
        caption(fig, "twice", ORIGIN)

"""Each explorer in JupyterLab: every control by mouse and by keys, to the right picture and words.

All of them stand in one small notebook, a cell each; a test runs its cell again and so begins with
a new panel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from kvlab.index import DcpLayout
from kvlab.lab.backup_walk import STEPS, backup_walk
from kvlab.lab.owners import OwnerStudy, slot_sentence
from kvlab.viz import widgets as explorers
from kvlab.viz.owners import NUM_PAGES, draw_owner
from kvlab.viz.panel import Panel

from .driven import Driven, picture_of
from .lab import Lab
from .notebook import OpenNotebook, keep

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NAMES = [name for name in explorers.__all__ if not name.endswith("_figure")]
Fresh = Callable[[str], tuple[Driven, Panel]]


@pytest.fixture(scope="module")
def gallery(chromium: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    """A notebook with a cell for each explorer, open and run."""
    cells = [f"from kvlab.viz.widgets import {name}\n{name}()" for name in NAMES]
    notebook = OpenNotebook(chromium, lab, lab.write("explorers", *cells))
    notebook.run_all(60_000)
    yield notebook
    notebook.close()


@pytest.fixture
def fresh(gallery: OpenNotebook) -> Fresh:
    """``fresh(name)``: that explorer as it begins, in the browser, and its twin."""

    def make(name: str) -> tuple[Driven, Panel]:
        twin: Panel = getattr(explorers, name)()
        gallery.run_cell(NAMES.index(name))
        driven = Driven(gallery, twin.name)
        driven.shows(twin)
        return driven, twin

    return make


@pytest.mark.parametrize("by", ["mouse", "keys"])
@pytest.mark.parametrize("name", NAMES)
def test_every_control_moves_picture_and_words_to_what_the_function_says(
    fresh: Fresh, name: str, by: str
) -> None:
    driven, twin = fresh(name)
    changed = []
    for control in twin.values:
        before = picture_of(twin)
        value = driven.move(twin, control, by)
        assert value != twin.values[control], control
        twin.set(**{control: value})
        driven.shows(twin)
        assert driven.picture() == picture_of(twin)
        if driven.picture() != before:
            changed.append(control)
        if twin.text.startswith("Not drawn"):  # told in words; go on from where one begins
            driven, twin = fresh(name)
    keep(driven.root, f"{name}_moved_by_{by}")
    # Others may leave it as it is: an lse of a rank that is left out or empty.
    assert len(changed) >= len(twin.values) / 2, changed


def test_hovering_a_cell_tells_its_slot(fresh: Fresh) -> None:
    driven, _ = fresh("owner_explorer")
    study = OwnerStudy(DcpLayout(4, 4, NUM_PAGES), 27, 0, (3, 1))
    image = driven.root.locator("img")
    image.scroll_into_view_if_needed()
    at = image.bounding_box()
    assert at is not None
    for slot in (48, 17, 63):
        told = slot_sentence(study, slot)
        spots = [spot for spot in draw_owner().spots if spot.text == told]
        assert len(spots) == 2, told  # among the slots, and among the rows
        for spot in spots:
            left, top, right, bottom = spot.pixels()
            # The frame of the picture is one pixel wide.
            x, y = at["x"] + 1 + (left + right) / 2, at["y"] + 1 + (top + bottom) / 2
            driven.page.mouse.move(x, y)
            under = "([x, y]) => document.elementFromPoint(x, y).title"
            assert driven.page.evaluate(under, [x, y]) == told


@pytest.mark.parametrize("fix", [True, False])
@pytest.mark.parametrize("by", ["mouse", "keys"])
def test_the_stepper_goes_to_the_end_and_back(fresh: Fresh, by: str, fix: bool) -> None:
    driven, twin = fresh("backup_stepper")
    if not fix:
        driven.handle("fix").click()
        driven.shows(twin.set(fix=False))
    walk = backup_walk(4, 2, 12, "low", fix)
    pictures = {0: driven.picture()}

    def press(button: str) -> None:
        if by == "mouse":
            driven.click(button)
        else:
            driven.root.locator(f".kvlab-{button}").press("Enter")

    last = len(STEPS) - 1
    for step in [*range(1, last + 1), last]:  # one more at the end does nothing
        press("next")
        driven.shows(twin.set(step=step))
        assert f"{walk.steps[step].name}. {walk.steps[step].told}" in driven.sentence()
        pictures[step] = driven.picture()
    right = "Of the victim's 12 positions 12 are right, 0 are not; 0 rows"
    assert (right in driven.sentence()) is fix
    keep(driven.root, f"stepper_end_{'fix' if fix else 'no_fix'}")
    for step in [*reversed(range(last)), 0]:
        press("back")
        driven.shows(twin.set(step=step))
        assert driven.picture() == pictures[step]
    assert len(set(pictures.values())) == len(STEPS)

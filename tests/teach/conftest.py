"""Each test begins with a reader who has tried nothing."""

import pytest

from kvlab.teach.exercise import TRIES


@pytest.fixture(autouse=True)
def nothing_tried() -> None:
    """Forget the tries before."""
    TRIES.clear()

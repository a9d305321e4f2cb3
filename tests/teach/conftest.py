"""Each test begins with a reader who has tried nothing."""

from collections.abc import Iterator

import pytest

from kvlab.teach import forget


@pytest.fixture(autouse=True)
def nothing_tried() -> Iterator[None]:
    """Forget the tries before and after."""
    forget()
    yield
    forget()

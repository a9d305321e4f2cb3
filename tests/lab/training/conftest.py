"""One thread: the models are so small that a second one only waits."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kvlab.lab.training.corpus import Corpus, read_corpus


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def library() -> Corpus:
    """The text of this Python's standard library."""
    return read_corpus()


@pytest.fixture(scope="session")
def source() -> NDArray[np.uint8]:
    """Bytes that are the same on every machine, and hold no value and no line end."""
    return np.frombuffer(bytes(range(97, 123)) * 40, dtype=np.uint8)

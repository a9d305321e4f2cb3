"""The checkpoint and the requests of these tests, made once."""

from pathlib import Path

import pytest

from kvlab.lab.drift import Prompts
from tests.lab.drift.tiny_study import prompts, save_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny Kimi Linear."""
    return save_checkpoint(tmp_path_factory.mktemp("kimi"))


@pytest.fixture(scope="session")
def requests_(tmp_path_factory: pytest.TempPathFactory) -> Prompts:
    """Six short requests."""
    return prompts(tmp_path_factory.mktemp("prompts"))

"""What every test runs under: how hypothesis draws, which tests get a rerun, who needs a GPU or a
browser."""

import importlib.util
import os
import shutil

import pytest
from hypothesis import HealthCheck, Phase, settings

# Workers fill the cores already; more threads in each only wait for each other. Set before the
# first import of torch, and inherited by the notebook kernels.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import torch  # after the threads are set

# Triton reads this when it decorates the kernels, so it must stand before any test is collected.
# Where there is a CUDA device the kernels are compiled, and the `gpu` tests run them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# No limits on time anywhere: on a busy machine a slow draw says nothing about a law.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# In CI the same commit draws the same examples every time; new ones are found by local runs.
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, database=None)
# A seeded bug is caught by any example: nobody reads the smallest, which takes most of the time.
settings.register_profile(
    "bug", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "local")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of kernels and browsers their one rerun, others the reason of their skip."""
    for item in items:
        if item.get_closest_marker("browser") or item.get_closest_marker("notebook"):
            # A kernel can miss a message and wait out its time; see the marker's text.
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and none is here"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip from one place, so that all tests of a browser are skipped with one sentence."""
    if item.get_closest_marker("browser") and (lacking := _lacks_browser()):
        pytest.skip(lacking)


def _lacks_browser() -> str | None:
    """What is missing for tests in a real browser, and how to get it; None if all is there."""
    if shutil.which("chromium") is None:
        return "no chromium is on the PATH: apt-get install chromium (Debian), then run again"
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install -e '.[dev]'"
    return None

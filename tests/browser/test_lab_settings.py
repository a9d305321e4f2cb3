"""``make lab`` starts JupyterLab with the settings that the tests here use; needs no browser."""

import json
import shutil
import subprocess
import sys

import pytest

from .lab import ROOT, SETTINGS


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_lab_keeps_the_state_of_explorers_in_the_notebook() -> None:
    told = subprocess.run(
        ["make", "-n", "lab", f"KVLAB_PYTHON={sys.executable}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert f"--LabApp.app_settings_dir='{SETTINGS.parent}'" in told
    settings = json.loads(SETTINGS.read_text(encoding="utf-8"))
    assert settings["@jupyter-widgets/jupyterlab-manager:plugin"] == {"saveState": True}

"""What ``kvlab doctor`` asks of the project: figures, notebooks, recorded data, room to write.

Worked example, an installed wheel, which has no data folder:

    checkpoint   will not work   data/checkpoints/tiny-kimi-linear lacks config.json, ...
                 do: install kvlab from a checkout, or `git checkout -- data`
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from kvlab.cli.doctor_checks import GROUPS, ROOT, Check, Question, libraries
from kvlab.lab.crash_cuda import COMMAND, PLACE, read_record
from kvlab.lab.findings import FOLDER_VARIABLE, output_folder

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FONT = ("mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
EXTENSION = ("share", "jupyter", "labextensions", "@jupyter-widgets", "jupyterlab-manager")
CHECKPOINT = ("config.json", "model.safetensors")
DRIFT = ("summary.csv", "requests.csv", "positions.csv", "events.csv", "tokens.csv", "origin.json")
CHECKOUT = "run kvlab in its checkout, or restore the folder: `git checkout -- data`"


def project_questions(data: Path = ROOT / "data") -> list[Question]:
    """Figures, JupyterLab, browser, data and build folder; ``data``: the project's data folder."""
    return [
        Question("figures", False, figures),
        Question("jupyterlab", False, jupyterlab),
        Question("chromium", False, chromium),
        Question("checkpoint", False, lambda: checkpoint(data)),
        Question("recorded", False, lambda: recorded(data)),
        Question("build", False, build),
    ]


def figures() -> list[Check]:
    """The drawing libraries and the one font that all figures use; none is imported."""
    check = libraries("figures", GROUPS["figures"], False)
    if not check.ok:
        return [check]
    spec = find_spec("matplotlib")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if any(Path(folder, *FONT).is_file() for folder in folders):
        return [Check("figures", True, False, f"{check.found}, font DejaVu Sans")]
    text = f"{check.found}, but the font DejaVu Sans that ships with matplotlib is not there"
    return [Check("figures", False, False, text, "install matplotlib again")]


def jupyterlab() -> list[Check]:
    """JupyterLab, ipywidgets, and the extension that shows widgets in it."""
    check = libraries("jupyterlab", GROUPS["jupyterlab"], False)
    if not check.ok:
        return [check]
    places = (sys.prefix, sys.base_prefix, Path.home() / ".local", "/usr/local")
    if any(Path(place, *EXTENSION).is_dir() for place in places):
        return [Check("jupyterlab", True, False, f"{check.found}, with the widget extension")]
    text = f"{check.found}, but its widget extension is not there: sliders stay still pictures"
    return [Check("jupyterlab", False, False, text, "install jupyterlab_widgets again")]


def chromium() -> list[Check]:
    """A browser for tests of JupyterLab and of the report."""
    found = next((name for name in CHROMIUM if shutil.which(name)), None)
    if found is not None:
        return [Check("chromium", True, False, f"{found} is on the PATH")]
    text = f"no browser for tests is on the PATH (looked for {', '.join(CHROMIUM)})"
    do = "nothing, only tests that drive a browser need it; or install Chromium"
    return [Check("chromium", False, False, text, do)]


def checkpoint(data: Path) -> list[Check]:
    """The tiny Kimi Linear that notebook 06 and ``kvlab drift`` read."""
    name, folder = "checkpoints/tiny-kimi-linear", data / "checkpoints" / "tiny-kimi-linear"
    lacks = _lacks(folder, CHECKPOINT)
    if lacks:
        return [Check("checkpoint", False, False, f"data/{name} lacks {lacks}", CHECKOUT)]
    size = (folder / CHECKPOINT[1]).stat().st_size / 2**20
    return [Check("checkpoint", True, False, f"data/{name}, {size:.1f} MiB")]


def recorded(data: Path) -> list[Check]:
    """The recorded runs that notebooks show: benchmarks, drift, the crash on CUDA."""
    runs = data / "runs"
    benches = sorted(path.name for path in runs.glob("bench-*.csv"))
    lacks = _lacks(runs / "drift", DRIFT)
    facts = (
        ("benchmark", bool(benches), ", ".join(benches), "no data/runs/bench-*.csv", CHECKOUT),
        ("drift study", not lacks, "data/runs/drift", f"data/runs/drift lacks {lacks}", CHECKOUT),
    )
    checks = [
        Check(name, ok, False, good if ok else bad, None if ok else do)
        for name, ok, good, bad, do in facts
    ]
    place = data.joinpath(*PLACE)
    if place.is_file():
        return [
            *checks,
            Check("cuda crash", True, False, f"recorded on {read_record(place).where()}"),
        ]
    text = "not recorded yet: notebook 03 says so where no GPU is"
    return [
        *checks,
        Check("cuda crash", False, False, text, f"on a machine with a GPU: `{COMMAND}`"),
    ]


def build() -> list[Check]:
    """Whether figures and caches can be written; nothing is left behind."""
    folder = output_folder()
    name = f"{folder.parent.name}/{folder.name}"
    near = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=near):
            return [Check("build", True, False, f"{name} can be written")]
    except OSError as error:
        text = f"{name} cannot be written: {error.strerror or error}"
        do = f"give {FOLDER_VARIABLE} a folder that can be written, or mend the rights of this one"
        return [Check("build", False, False, text, do)]


def _lacks(folder: Path, names: Sequence[str]) -> str:
    """Which of the files are missing or empty, joined; "" if none is."""
    there = (name for name in names if (folder / name).is_file() and (folder / name).stat().st_size)
    found = set(there)
    return ", ".join(name for name in names if name not in found)

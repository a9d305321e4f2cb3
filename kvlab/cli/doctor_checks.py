"""The lines of ``kvlab doctor``, and the libraries that the project asks for.

A check is one line: what was found, and whether it will do. A question that fails is an answer too,
so a machine that lacks something is told about it and the other questions are still asked.

Worked example, a machine without matplotlib:

    Check("figures", False, False, "matplotlib is missing", "install it: pip install -e .")
"""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import kvlab

ROOT = Path(kvlab.__file__).resolve().parents[1]
CORE = ("torch", "numpy", "pandas", "joblib", "tqdm")
#: The other libraries, by what will not work without them.
GROUPS = {
    "figures": ("matplotlib", "pillow"),
    "models": ("transformers", "safetensors"),
    "report": ("nbclient", "nbconvert", "nbformat", "jupyter_client", "pygments", "jinja2"),
    "jupyterlab": ("jupyterlab", "ipywidgets"),
}
IMPORTED_AS = {"pillow": "PIL"}
INSTALL = "install it: `make setup`, or `pip install -e .` in an environment of your own"


@dataclass(frozen=True, slots=True)
class Check:
    """One line: ``ok`` or not; ``needed``: whether the core breaks without it; ``do``: what to do,
    or None where nothing is to be done."""

    name: str
    ok: bool
    needed: bool
    found: str
    do: str | None = None

    @property
    def state(self) -> str:
        """In words."""
        return "ok" if self.ok else "will not work"


@dataclass(frozen=True, slots=True)
class Question:
    """What makes checks: one, or one a device."""

    name: str
    needed: bool
    ask: Callable[[], Sequence[Check]]

    def answers(self) -> Sequence[Check]:
        """Its checks; one that says so if asking fails. Errors: none."""
        try:
            return self.ask()
        except Exception as error:  # whatever a machine can get wrong
            said = " ".join(str(error).split())[:300] or "no words"
            text = f"looking at it fails: {type(error).__name__}: {said}"
            return [Check(self.name, False, self.needed, text, "mend what the words name")]


def libraries(name: str, wanted: Sequence[str], needed: bool) -> Check:
    """One check of several libraries: there, and no older than the project asks for."""
    least = least_versions()
    there, wrong = [], []
    for library in wanted:
        version = version_of(library)
        if version is None:
            wrong.append(f"{library} is missing")
        elif _numbers(version) < _numbers(least.get(library, "0")):
            wrong.append(f"{library} {version} is older than {least[library]}")
        else:
            there.append(f"{library} {version}")
    if wrong:
        return Check(name, False, needed, ", ".join(wrong), INSTALL)
    return Check(name, True, needed, ", ".join(there))


def least_versions() -> dict[str, str]:
    """Library -> oldest version that the project takes, from its list of dependencies.

    Read from pyproject.toml of the checkout, else from what pip kept; empty if there is neither.
    """
    try:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = [*project["dependencies"], *project["optional-dependencies"]["triton"]]
    except OSError:
        try:
            lines = metadata.requires("kvlab") or []
        except metadata.PackageNotFoundError:
            lines = []
    found = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def version_of(library: str) -> str | None:
    """Its version, "of unknown version" if it is on the path by hand, None if it is missing."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        spec = find_spec(IMPORTED_AS.get(library, library))
        return None if spec is None else "of unknown version"


def _numbers(version: str) -> tuple[float, ...]:
    """``version`` as it is compared: "2.13.0+cpu" as (2, 13, 0). Unknown is newer than all."""
    parts = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, parts[0].split("."))) if parts else (float("inf"),)

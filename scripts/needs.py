"""Say in one sentence what an interpreter of one's own lacks: ``python scripts/needs.py bench``.

Make asks this before a target that KVLAB_PYTHON serves, so that a machine whose torch came without
the rest is told so, and not by a traceback. Nothing but the standard library is imported. Worked
example, a container with torch and an older pandas:

    kvlab: make gpu needs pandas>=3.0 (2.2.3 is there) and hypothesis>=6.150 in this python3.12: ...
"""

import re
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
CORE = ("torch", "numpy", "pandas", "joblib", "typer")
#: What each target imports; the others have the notebooks' libraries too, and say it themselves.
TARGETS = {"bench": CORE, "gpu": (*CORE, "pytest", "hypothesis")}


def lacking(names: tuple[str, ...], project: Path = PROJECT) -> list[tuple[str, str | None]]:
    """(requirement, version that is there or None) of each that is missing or too old."""
    told = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    lines = [*told["dependencies"], *told["optional-dependencies"]["dev"]]
    bounds = (re.match(r"([\w-]+)\s*>=\s*([\d.]+)", line) for line in lines)
    least = {bound[1]: bound[2] for bound in bounds if bound is not None}
    found = []
    for name in names:
        try:
            version: str | None = metadata.version(name)
        except metadata.PackageNotFoundError:
            if find_spec(name) is not None:
                continue  # on the path by hand: of a version that nobody tells
            version = None
        if version is None or numbers(version) < numbers(least[name]):
            found.append((f"{name}>={least[name]}", version))
    return found


def numbers(version: str) -> tuple[int, ...]:
    """ "2.11.0+cu128" as (2, 11, 0)."""
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])[:3]))


def sentence(target: str, found: list[tuple[str, str | None]]) -> str:
    """What is missing, and what to do."""
    words = [name if there is None else f"{name} ({there} is there)" for name, there in found]
    listed = " and ".join(", ".join(words).rsplit(", ", 1))
    asked = " ".join(f"'{name}'" for name, _ in found)
    return (
        f"kvlab: make {target} needs {listed} in this {Path(sys.executable).name}: "
        f"KVLAB_PYTHON -m pip install {asked}, or without a network carry the wheels there as "
        f"CONTRIBUTING.md says"
    )


def main(target: str) -> int:
    """0 if nothing is missing, else 1 and the sentence on standard error."""
    found = lacking(TARGETS[target])
    if found:
        print(sentence(target, found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

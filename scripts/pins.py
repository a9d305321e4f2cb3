"""Prints constraints.txt: the version of every package that kvlab and its tests use here.

Worked example, in an environment where the whole suite has just passed:

    .venv/bin/python scripts/pins.py > constraints.txt

The closure starts at pyproject.toml's dependencies and its ``dev`` extra. The other extras are left
out: they are optional, and a pin of something that was not tested would promise too much. On Linux
the CUDA build of torch asks for one release of Triton and the CPU build for none: install that
release before this runs, or the pins of the two contradict each other.
"""

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# The exact versions that kvlab was tested with: its dependencies, the `dev` extra, and all that
# these bring along. `make` installs from this list. Written by scripts/pins.py.
"""


def roots(pyproject: Path) -> list[Requirement]:
    """The requirements that ``pyproject`` names itself: core first, then the ``dev`` extra."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    names = project["dependencies"] + project["optional-dependencies"]["dev"]
    return [Requirement(name) for name in names]


def closure(start: list[Requirement]) -> dict[str, str]:
    """Name -> version of every installed package that ``start`` reaches, markers obeyed.

    Raises ``SystemExit`` with the name when one of them is not installed here.
    """
    found: dict[str, str] = {}
    todo = [(requirement, "") for requirement in start]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"{name} is not installed here; run this in the environment of `make test`.")
        # A build tag such as `+cpu` names where a wheel came from, not which release it is.
        found[name] = dist.version.split("+")[0]
        for wanted in ("", *sorted(requirement.extras)):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                todo += [(Requirement(line), wanted) for line in dist.requires or []]
    return found


if __name__ == "__main__":
    pins = closure(roots(ROOT / "pyproject.toml"))
    print(HEAD + "\n".join(f"{name}=={pins[name]}" for name in sorted(pins)))

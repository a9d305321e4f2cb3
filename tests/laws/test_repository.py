"""What the files around the package promise: pins, environments, sizes, the file tree."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = [Requirement(line) for line in PROJECT["dependencies"]]
DEV = [Requirement(line) for line in PROJECT["optional-dependencies"]["dev"]]

# Core dependencies that no module imports, each with what uses it.
TOOLS = {
    "furo": "Sphinx, as its theme",
    "jupyterlab": "make lab",
    "myst-nb": "Sphinx, as its reader",
    "safetensors": "transformers, for checkpoints without pickle",
    "sphinx": "docs/, the site of the report",
}
# Not on conda-forge, or of one system only.
BY_PIP = {"playwright", "axe-playwright-python", "triton"}
MAX_LINES = 500

# A path of one machine, and the host of a package registry. Neither matches its own text.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|farm|tmp|root|home|opt|Users)/[\w.]")
REGISTRY = re.compile(
    r"pypi[.]org|pythonhosted[.]org|download[.]pytorch|registry[.]npmjs|conda[.]anaconda"
    r"|deb[.]debian|[.]{2}/shared"
)


def tracked_files() -> list[str]:
    """Paths of the project's files, relative to its root; all files where there is no git."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.split("\0")
        return [name for name in listed if name and (ROOT / name).exists()]
    names = []
    for folder, folders, files in os.walk(ROOT):
        # What .gitignore leaves out, in the few words that a walk needs.
        folders[:] = [
            name
            for name in folders
            if name not in {"build", ".venv", "__pycache__", ".hypothesis", ".ipynb_checkpoints"}
            and not name.endswith(("_cache", ".egg-info"))
        ]
        names += [(Path(folder) / name).relative_to(ROOT).as_posix() for name in files]
    return sorted(names)


FILES = tracked_files()


def pins() -> dict[str, str]:
    """Name -> specifier of every line of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier) for pin in found}


def test_every_pin_is_one_exact_release_and_every_direct_dependency_has_one_that_it_allows() -> (
    None
):
    assert [pin for pin in pins().values() if not re.fullmatch(r"==[\w.]+", pin)] == []
    for direct in DIRECT + DEV:
        pin = pins()[canonicalize_name(direct.name)].removeprefix("==")
        assert direct.specifier.contains(pin), direct.name


# Where the name that is imported is not the name that is installed.
INSTALLED_AS = {
    "PIL": "pillow",
    "IPython": "ipython",
    "axe_playwright_python": "axe-playwright-python",
}


def libraries_imported_below(folder: str) -> set[str]:
    """What installs the modules that ``folder`` imports, the standard library left out."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    found -= set(sys.stdlib_module_names) | {"kvlab", "tests", "scripts"}
    return {INSTALLED_AS.get(name, name) for name in found}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported_or_a_named_tool() -> None:
    core = {requirement.name for requirement in DIRECT}
    assert core - libraries_imported_below("kvlab") - set(TOOLS) == set()
    extras = PROJECT["optional-dependencies"]
    optional = {Requirement(line).name for key in ("parquet", "triton") for line in extras[key]}
    dev = {requirement.name for requirement in DEV}
    for folder, more in (
        ("kvlab", optional),
        ("docs", {"pages"}),
        ("tests", dev),
        ("scripts", dev),
    ):
        assert libraries_imported_below(folder) - core - optional - more == set(), folder


def test_the_conda_environment_has_the_same_packages_as_the_project() -> None:
    lines = (ROOT / "environment.yml").read_text(encoding="utf-8").splitlines()
    body = [line.strip() for line in lines[lines.index("dependencies:") + 1 :]]
    python, pip, *listed = [line.removeprefix("- ") for line in body if not line.startswith("#")]
    assert (python, pip) == (f"python{PROJECT['requires-python']}", "pip")
    assert listed.pop() == "-e ."
    by_conda, by_pip = listed[: listed.index("pip:")], listed[listed.index("pip:") + 1 :]
    named = [re.sub("^pytorch", "torch", line) for line in by_conda]  # conda-forge's name of it
    assert [str(Requirement(line)) for line in named + by_pip] == [
        str(requirement) for requirement in sorted(DIRECT + DEV, key=lambda r: r.name in BY_PIP)
    ]
    assert {Requirement(line).name for line in by_pip} == BY_PIP


def test_the_package_says_the_version_of_the_project_and_so_does_the_changelog() -> None:
    package = (ROOT / "kvlab/__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{PROJECT["version"]}"' in package
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{PROJECT['version']}]" in changelog


def test_no_module_is_longer_than_five_hundred_lines() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "kvlab").rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}
    assert len(lengths) > 10


def test_no_file_names_a_path_of_one_machine_or_the_host_of_a_registry() -> None:
    found = []
    for name in FILES:
        content = (ROOT / name).read_bytes()
        if b"\0" in content:
            continue  # a picture or an archive
        for number, line in enumerate(content.decode("utf-8").splitlines(), start=1):
            for match in (MACHINE_PATH.search(line), REGISTRY.search(line)):
                if match:
                    found.append(f"{name}:{number}: {match.group()}")
    assert found == []


def tree_names(readme: str) -> list[str]:
    """The names in the fenced block below ``## What is where``.

    One line names one entry or several: ``kvlab/index/    text`` or ``Makefile, LICENSE    text``.
    """
    block = re.search(r"^## What is where\n.*?^```\w*\n(.*?)^```", readme, re.S | re.M)
    assert block, "README.md needs a fenced block below the heading '## What is where'"
    columns = [re.split(r"\s{2,}", line.strip())[0] for line in block[1].splitlines()]
    return [name.strip() for column in columns for name in column.split(",") if name.strip()]


def test_the_tree_in_the_readme_names_every_top_level_entry_and_every_sub_package() -> None:
    named = tree_names((ROOT / "README.md").read_text(encoding="utf-8"))
    top = {name.partition("/")[0] + ("/" if "/" in name else "") for name in FILES}
    packages = {
        "/".join(name.split("/")[:2]) + "/"
        for name in FILES
        if re.fullmatch(r"kvlab/[^/]+/__init__\.py", name)
    }
    assert sorted(named) == sorted(set(named)), "the tree names an entry twice"
    assert sorted((top | packages) - set(named)) == [], "the tree leaves these out"
    assert [name for name in named if not (ROOT / name).exists()] == []

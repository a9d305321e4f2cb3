"""Imports go down only: the layer table of the design, held against every import statement.

Worked example: ``kvlab/memory/pool.py`` may say ``from kvlab.index import localize``, because
``index`` stands below ``memory``; ``kvlab/index/layout.py`` may not say ``import kvlab.memory``.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Lowest first. Packages of one line may not import each other, each may import the lines below.
LAYERS = (
    ("errors", "show"),
    ("files",),
    ("index", "attn"),
    ("ops",),
    ("memory",),
    ("engine",),
    ("lab",),
    ("viz",),
    ("teach",),
    ("report",),
    ("cli",),
    ("__main__",),  # python -m kvlab
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# What else a layer may import beside the standard library. The three top lines may import anything.
LIBRARIES = {
    "errors": set[str](),
    "show": {"torch"},
    "files": set[str](),
    # numpy: OR and AND reductions, which torch lacks, make the check of a run cheap.
    "index": {"numpy", "torch"},
    "attn": {"torch"},
    "ops": {"torch", "triton"},
    "memory": {"torch", "numpy", "pandas"},
    "engine": {"torch", "numpy", "pandas", "transformers", "safetensors"},
    "lab": {"torch", "numpy", "pandas", "joblib", "pyarrow"},
    "viz": {"torch", "numpy", "pandas", "matplotlib", "ipywidgets", "IPython", "PIL"},
    "teach": {"torch", "numpy"},
}

# The only imports that may stand inside a function, each with its reason; and they must, or the
# package could not be imported without them. The kernels are loaded so, and import triton freely.
LAZY = {
    "triton": "0.7 to 1 GB, absent on most machines",
    "kvlab.ops.kernels": "imports triton",
    "pyarrow": "170 MB, an extra",
    "kvlab.lab.bench.engine": "imports transformers, seconds that other parts need not wait for",
    "kvlab.lab.drift.run": "imports transformers, seconds that other parts need not wait for",
}
# The command line computes nothing, and its help answers at once: there these stand at the top, and
# all else inside the functions that need it.
LIGHT = {"typer", "cli", "errors", "files"}
# A layer's module that a command needs without the library: only inside its functions.
SPARED = {("kvlab.lab.owners", "pandas"): "half a second, and kvlab owners answers without"}


class Import(NamedTuple):
    """One imported module, where it stands, and whether that is inside a function."""

    module: str
    line: int
    lazy: bool


def imports(source: str, package: str) -> Iterator[Import]:
    """Every module that ``source`` imports; relative imports are resolved against ``package``."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: -(node.level - 1) or None] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            # `from kvlab import memory` names a package, `from kvlab.errors import X` a thing in
            # one: the longer name is right for the first and harmless for the second.
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, lazy)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        # Names for annotations are not imported when the program runs.
        inside = inside or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    yield from walk(ast.parse(source), lazy=False)


def broken_laws(source: str, module: str, package: str) -> list[str]:
    """One sentence for each import of ``source``, the text of ``module``, that breaks a law."""
    layer = module.split(".")[1] if "." in module else None
    if layer is not None and layer not in LEVEL:
        return [f"{module} is in no layer: give {layer} a line in LAYERS"]
    broken = []
    for found in imports(source, package):
        top, _, rest = found.module.partition(".")
        where = f"{module}:{found.line} imports {found.module}"
        if top == "kvlab":
            target = rest.split(".")[0]
            if layer is None:
                broken.append(f"{where}: kvlab/__init__.py is imported by all and imports none")
            elif target in LEVEL and target != layer and LEVEL[target] >= LEVEL[layer]:
                broken.append(f"{where}: {target} does not stand below {layer}")
        elif top not in sys.stdlib_module_names and top not in LIBRARIES.get(layer or "", {top}):
            broken.append(f"{where}: {layer} may import {sorted(LIBRARIES[layer or ''])}")
        names = {found.module, top, found.module.rpartition(".")[0]}
        if layer == "cli":
            light = top in sys.stdlib_module_names or (rest.split(".")[0] or top) in LIGHT
            if light == found.lazy:
                broken.append(f"{where} {'inside' if light else 'outside'} a function")
            continue
        if (module, top) in SPARED:
            if not found.lazy:
                broken.append(f"{where} outside a function: {SPARED[module, top]}")
            continue
        may_be_lazy = names & LAZY.keys()
        if found.lazy and not may_be_lazy:
            broken.append(f"{where} inside a function: only {sorted(LAZY)} may")
        if may_be_lazy and not found.lazy and not module.startswith("kvlab.ops.kernels"):
            broken.append(f"{where} outside a function: {LAZY[may_be_lazy.pop()]}")
    return broken


def modules() -> Iterator[tuple[Path, str, str]]:
    """Path, dotted name, and package of every module of kvlab."""
    for path in sorted((ROOT / "kvlab").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        package = ".".join(parts[:-1])
        yield path, package if parts[-1] == "__init__" else ".".join(parts), package


def test_every_import_of_the_package_goes_down() -> None:
    found = [
        (path.read_text(encoding="utf-8"), module, package) for path, module, package in modules()
    ]
    assert {"kvlab", "kvlab.errors", "kvlab.index.layout"} <= {module for _, module, _ in found}
    assert [sentence for one in found for sentence in broken_laws(*one)] == []


def test_only_the_model_package_imports_transformers_which_takes_seconds() -> None:
    importing = {
        module
        for path, module, package in modules()
        for found in imports(path.read_text(encoding="utf-8"), package)
        if found.module.partition(".")[0] in {"transformers", "safetensors"}
    }
    assert importing
    assert {name for name in importing if not name.startswith("kvlab.engine.model.")} == set()


# What each rule does with a line; None: it is allowed.
SOURCES = [
    ("kvlab.index.layout", "import math\nimport torch\nfrom .spaces import WidenedSlots", None),
    ("kvlab.memory.pool", "from kvlab.index import localize", None),
    ("kvlab.ops.entry", "def f():\n    from kvlab.ops.kernels import localize", None),
    ("kvlab.ops.kernels.localize", "import triton", None),
    ("kvlab.cli.main", "import typer\nfrom kvlab.cli import output", None),
    ("kvlab.cli.main", "def f():\n    from kvlab.report import build_report", None),
    ("kvlab.cli.main", "if TYPE_CHECKING:\n    import pandas as pd", None),
    ("kvlab.lab.owners", "def f():\n    import pandas as pd", None),
    ("kvlab.index.layout", "import kvlab.memory", "memory does not stand below index"),
    ("kvlab.index.layout", "from ..memory import pool", "memory does not stand below index"),
    ("kvlab.index.layout", "from .. import attn", "attn does not stand below index"),
    ("kvlab.index.layout", "import pandas", "index may import"),
    ("kvlab.lab.study", "class A:\n    def f(self):\n        import json", "inside a function"),
    ("kvlab.lab.study", "if 1:\n    from kvlab.viz import x", "viz does not stand below lab"),
    ("kvlab.ops.entry", "from kvlab.ops import kernels", "outside a function"),
    ("kvlab.cli.main", "import rich", "outside a function"),
    ("kvlab.cli.main", "def f():\n    import json", "inside a function"),
    ("kvlab.lab.owners", "import pandas as pd", "outside a function: half a second"),
    ("kvlab.tools", "", "in no layer"),
    ("kvlab", "from kvlab.index import localize", "imports none"),
]


@pytest.mark.parametrize(("module", "source", "sentence"), SOURCES)
def test_imports_that_go_up_sideways_or_hide_are_named_and_others_allowed(
    module: str, source: str, sentence: str | None
) -> None:
    found = broken_laws(source, module, module.rpartition(".")[0] or module)
    assert len(found) == (sentence is not None)
    assert all(str(sentence) in one for one in found)


def test_no_module_is_imported_by_a_computed_name() -> None:
    hidden = [
        f"{module}:{node.lineno}"
        for path, module, _ in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name | ast.Attribute)
        and (node.id if isinstance(node, ast.Name) else node.attr)
        in {"import_module", "__import__"}
    ]
    assert hidden == []

"""What the package offers, read from its sources: every public name with signature and docstring.

The sources are parsed and not imported, so that the reference needs no triton and no GPU, takes a
second instead of half a minute, and says what is written. (pdoc was tried: it imports all it
describes, 22 s here, leaves out what cannot be imported, and every page of it would have had to be
framed anew.)

A name is public if no part of its dotted path starts with an underscore. A constant or an alias is
listed if it begins with a capital or is in its module's ``__all__``.

    >>> [item.name for item in read_module("def f(a: int) -> int:\\n    return a", "m").items]
    ['f']
    >>> read_module("def f(a: int) -> int:\\n    return a", "m").items[0].signature
    'f(a: int) -> int'
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import kvlab

LONGEST_VALUE = 160  # characters of a constant; what is longer is cut
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Item:
    """One public name. ``kind``: "function", "class", "value", "field", "property" or "method"."""

    name: str
    kind: str
    signature: str
    doc: str
    members: tuple["Item", ...] = ()
    exported: str | None = None  # the package that offers it, if that is not its module


@dataclass(frozen=True)
class Module:
    """One module: dotted ``name``, docstring, and what it defines."""

    name: str
    doc: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Layer:
    """One sub-package of kvlab, or one module beside them, with all that is below it."""

    name: str
    doc: str
    modules: tuple[Module, ...] = field(default=())

    @property
    def names(self) -> int:
        """How many public names it has; fields and methods are not counted."""
        return sum(len(module.items) for module in self.modules)


def read_layers(folder: Path | None = None) -> tuple[Layer, ...]:
    """The layers below ``folder`` (the package kvlab), by name, with every module but __main__."""
    root = folder or Path(kvlab.__file__).parent
    found: dict[str, list[Module]] = {}
    exports: dict[tuple[str, str], str] = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        if (len(parts) < 3 and parts[-1] == "__init__") or any(map(_private, parts[:-1])):
            continue
        source = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if parts[-1] == "__init__":
            exports |= {key: name for key in _exports(ast.parse(source)) if key not in exports}
        elif _private(parts[-1]):
            continue
        found.setdefault(name.split(".")[1], []).append(read_module(source, name))
    return tuple(
        Layer(name, modules[0].doc, tuple(_offered(module, exports) for module in modules))
        for name, modules in found.items()
    )


def read_module(source: str, name: str) -> Module:
    """The public names that ``source`` defines. Errors: SyntaxError."""
    tree = ast.parse(source)
    public = _listed(tree)
    lines = source.splitlines()
    return Module(name, _doc(tree), tuple(_items(tree.body, lines, public)))


def _private(name: str) -> bool:
    return name.startswith("_")


def _offered(module: Module, exports: dict[tuple[str, str], str]) -> Module:
    items = [
        Item(i.name, i.kind, i.signature, i.doc, i.members, exports.get((module.name, i.name)))
        for i in module.items
    ]
    return Module(module.name, module.doc, tuple(items))


def _exports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of what a package imports to offer it."""
    listed = _listed(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, a.name) for a in node.names if a.name in listed)


def _listed(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and "__all__" in map(ast.unparse, node.targets):
            return {str(name) for name in ast.literal_eval(node.value)}
    return set()


def _items(body: list[ast.stmt], lines: list[str], public: set[str]) -> Iterator[Item]:
    for node in body:
        if isinstance(node, Function) and not _private(node.name):
            yield Item(node.name, "function", _signature(node), _doc(node))
        elif isinstance(node, ast.ClassDef) and not _private(node.name):
            yield Item(node.name, "class", _class(node), _doc(node), tuple(_members(node, lines)))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            constant = re.fullmatch(r"[A-Z]\w*", name) or name in public
            if constant and not _private(name):
                yield Item(name, "value", _short(ast.unparse(node)), _comment(node, lines))


def _members(node: ast.ClassDef, lines: list[str]) -> Iterator[Item]:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and not _private(ast.unparse(part.target)):
            text = _short(ast.unparse(part))
            yield Item(ast.unparse(part.target), "field", text, _comment(part, lines))
        elif isinstance(part, Function) and not _private(part.name):
            marks = {ast.unparse(mark).split(".")[-1] for mark in part.decorator_list}
            if marks & {"property", "cached_property"}:
                kind, text = "property", part.name
                text += f": {ast.unparse(part.returns)}" if part.returns else ""
            else:
                kind, text = "method", _signature(part)
            yield Item(part.name, kind, text, _doc(part))


def _class(node: ast.ClassDef) -> str:
    """The name, and how the class is made: its bases, or the arguments of its ``__init__``."""
    made = next((n for n in node.body if isinstance(n, Function) and n.name == "__init__"), None)
    if made is not None:
        return node.name + _signature(made).removeprefix("__init__").removesuffix(" -> None")
    if any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
        fields = [ast.unparse(n) for n in node.body if isinstance(n, ast.AnnAssign)]
        return f"{node.name}({', '.join(f for f in fields if not _private(f))})"
    bases = ", ".join(map(ast.unparse, node.bases))
    return f"{node.name}({bases})" if bases else node.name


def _signature(node: Function) -> str:
    given = node.args
    places = [*given.posonlyargs, *given.args]
    without = len(places) - len(given.defaults)
    defaults: list[ast.expr | None] = [*([None] * without), *given.defaults]
    parts = [_argument(*pair) for pair in zip(places, defaults, strict=True)]
    if parts and parts[0] in {"self", "cls"}:
        del parts[0]
    if given.vararg:
        parts.append("*" + _argument(given.vararg))
    elif given.kwonlyargs:
        parts.append("*")
    parts += [_argument(*p) for p in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        parts.append("**" + _argument(given.kwarg))
    text = ", ".join(parts)
    return f"{node.name}({text})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def _argument(arg: ast.arg, default: ast.expr | None = None) -> str:
    text = ast.unparse(arg)
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _doc(node: ast.Module | ast.ClassDef | Function) -> str:
    return ast.get_docstring(node) or ""


def _comment(node: ast.stmt, lines: list[str]) -> str:
    """The comment behind a value, else the one right above it."""
    end = lines[(node.end_lineno or node.lineno) - 1]
    behind = re.search(r"(?<=\S)\s{2,}#:? ?(.*)$", end)
    if behind:
        return behind[1]
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not (found := re.match(r"\s*#:? ?(.*)$", line)):
            break
        above.insert(0, found[1])
    return " ".join(above)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} ..."

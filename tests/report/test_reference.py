"""The reference has every public name once, with its signature and what it says of itself."""

import ast
import re
from pathlib import Path

import pytest

from kvlab.report.docstrings import docstring_html
from kvlab.report.reference import Item, Module, read_layers, read_module

PACKAGE = Path(__file__).parents[2] / "kvlab"


def item(source: str, name: str) -> Item:
    """The item ``name`` of a module with this source."""
    return next(item for item in read_module(source, "kvlab.x").items if item.name == name)


@pytest.mark.parametrize(
    ("source", "signature"),
    [
        ("def f(): ...", "f()"),
        ("def f(a: int, b: str = 'x') -> int: ...", "f(a: int, b: str = 'x') -> int"),
        ("def f(a, /, *, b: int | None = None): ...", "f(a, *, b: int | None = None)"),
        ("def f(*a: int, b=1, **c): ...", "f(*a: int, b = 1, **c)"),
        ("class f(ValueError): ...", "f(ValueError)"),
        ("@dataclass(frozen=True)\nclass f:\n    a: int\n    b: int = 1\n    _c: int = 2", None),
        ("class f:\n    def __init__(self, a: int) -> None: ...", "f(a: int)"),
    ],
)
def test_a_signature_reads_as_it_is_called(source: str, signature: str | None) -> None:
    assert item(source, "f").signature == (signature or "f(a: int, b: int = 1)")


def test_members_are_fields_properties_and_methods_without_self() -> None:
    source = '''
class A:
    a: int  # how many
    #: of what
    b: str = "x"
    _c: int
    @property
    def d(self) -> int:
        """Doubled."""
    def e(self, n: int) -> int:
        """Times n."""
    def _f(self): ...
'''
    members = [(m.kind, m.signature, m.doc) for m in item(source, "A").members]
    assert members == [
        ("field", "a: int", "how many"),
        ("field", "b: str = 'x'", "of what"),
        ("property", "d: int", "Doubled."),
        ("method", "e(n: int) -> int", "Times n."),
    ]


def test_private_names_are_left_out_and_constants_are_listed() -> None:
    source = "A = 1  # one\n_B = 2\nc = 3\ndef _d(): ...\nclass _E: ...\n"
    assert [(i.name, i.doc) for i in read_module(source, "kvlab.x").items] == [("A", "one")]


def modules() -> list[Module]:
    """All modules of kvlab."""
    return [module for layer in read_layers() for module in layer.modules]


def test_every_module_but_the_starters_is_in_the_reference() -> None:
    named = {m.name for m in modules()}
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if path.name != "__main__.py" and path.parent != PACKAGE
    }
    assert files <= named
    assert "kvlab.errors" in named


def test_every_name_that_a_package_offers_is_in_the_reference_and_has_a_docstring() -> None:
    known = {(m.name, i.name): i for m in modules() for i in m.items}
    by_name = {name for _, name in known}
    lacking = []
    for path in PACKAGE.rglob("__init__.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                lacking += [n for n in ast.literal_eval(node.value) if n not in by_name]
    # A module that a package offers whole is a module of the reference.
    assert [n for n in lacking if not any(m.name.endswith(f".{n}") for m in modules())] == []
    called = [item for item in known.values() if item.kind in {"function", "class"}]
    assert len(called) > 300
    assert [item.name for item in called if not item.doc] == []


def test_a_name_says_from_where_it_is_imported() -> None:
    layout = next(m for m in modules() if m.name == "kvlab.index.layout")
    offered = {item.name: item.exported for item in layout.items}
    assert offered["DcpLayout"] == "kvlab.index"
    assert offered["require_int"] is None


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("", ""),
        ("One\nline.\n\nTwo <b>.", "<p>One line.</p><p>Two &lt;b&gt;.</p>"),
        ("See ``v % c`` and `x`.", "<p>See <code>v % c</code> and <code>x</code>.</p>"),
        ("A:\n\n    a  b\n\n    c", '<p>A:</p><pre tabindex="0">a  b\n\nc</pre>'),
        (
            "Args:\n    a: one\n        more.\n    b: ``two``.",
            '<p class="section">Args</p><dl><dt><code>a</code></dt><dd>one more.</dd>'
            "<dt><code>b</code></dt><dd><code>two</code>.</dd></dl>",
        ),
        (">>> f(1)\n2\n\nEnd.", '<pre tabindex="0">&gt;&gt;&gt; f(1)\n2</pre><p>End.</p>'),
    ],
)
def test_a_docstring_becomes_paragraphs_blocks_and_lists(text: str, html: str) -> None:
    assert docstring_html(text) == html


def test_addresses_in_a_docstring_are_links() -> None:
    address = "https" + "://example.org/a?b=1"
    assert re.search(rf'<a href="{re.escape(address)}">', docstring_html(f"See {address}."))

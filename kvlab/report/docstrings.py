"""Docstrings as HTML, in the few forms that this project writes.

Paragraphs; ``code`` between two backticks; indented blocks, which stay as they are typed; and
sections such as ``Args:`` whose lines are ``name: what it is``.

    >>> docstring_html("The rank of ``slot``.")
    '<p>The rank of <code>slot</code>.</p>'
"""

import html
import re
import textwrap

SECTIONS = ("Args:", "Returns:", "Raises:", "Yields:", "Attributes:", "Columns:")
_CODE = re.compile(r"``(.+?)``|`([^`\n]+)`")
_WEB = re.compile(r"https?://[^\s<>)\"']+[^\s<>)\"'.,;:]")
_ENTRY = re.compile(r"^(\*{0,2}\w[\w, *./]*): (.*)$", re.S)


def docstring_html(text: str) -> str:
    """``text``, a docstring whose indentation is cleaned, as HTML; "" for an empty one."""
    out, section = [], False
    for kind, lines in _blocks(text):
        body = textwrap.dedent("\n".join(lines))
        entries = _entries(body) if section and kind == "block" else []
        section = kind == "section"
        if section:
            out.append(f'<p class="section">{body.strip().rstrip(":")}</p>')
        elif entries:
            out.append(f"<dl>{''.join(_entry(*entry) for entry in entries)}</dl>")
        elif kind == "block":
            out.append(f'<pre tabindex="0">{html.escape(body)}</pre>')
        else:
            out.append(f"<p>{inline(' '.join(body.split()))}</p>")
    return "".join(out)


def inline(text: str) -> str:
    """One paragraph: escaped, with code and addresses marked up."""
    parts, at = [], 0
    for found in _CODE.finditer(text):
        parts.append(_linked(text[at : found.start()]))
        parts.append(f"<code>{html.escape(found[1] or found[2])}</code>")
        at = found.end()
    return "".join([*parts, _linked(text[at:])])


def _linked(text: str) -> str:
    return _WEB.sub(lambda m: f'<a href="{m[0]}">{m[0]}</a>', html.escape(text, quote=False))


def _blocks(text: str) -> list[tuple[str, list[str]]]:
    """Runs of lines with their kind: "text", "section", or "block" for what is typed as it is."""
    blocks: list[tuple[str, list[str]]] = []
    gap = example = False
    for line in text.splitlines():
        if not line.strip():
            gap, example = True, False
            continue
        example = example or line.startswith(">>>")
        plain = "section" if line.strip() in SECTIONS else "text"
        kind = "block" if example or line.startswith(" ") else plain
        last = blocks[-1][0] if blocks else None
        if kind == last and (kind == "block" or (kind == "text" and not gap)):
            blocks[-1][1].extend([""] * gap + [line])
        else:
            blocks.append((kind, [line]))
        gap = False
    return blocks


def _entry(name: str, meaning: str) -> str:
    return f"<dt><code>{html.escape(name)}</code></dt><dd>{inline(meaning)}</dd>"


def _entries(text: str) -> list[tuple[str, str]]:
    """``name: meaning`` lines with their indented continuations; [] if the block is not that."""
    joined = re.sub(r"\n[ ]+", " ", text).splitlines()
    found = [_ENTRY.match(line) for line in joined]
    return [(m[1], m[2]) for m in found if m] if all(found) else []

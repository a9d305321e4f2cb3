"""What a cell shows: one value that is a table, code or words, as HTML and as text.

Neutral to light and dark themes: no colour carries meaning, borders take the colour of the text.

    >>> print(Block("Title", (Table(("v", "rank"), ((5, 1),)),)))
    Title
      v  rank
      5  1
"""

import re
from dataclasses import dataclass
from html import escape

import torch

_BOX = "border-left:3px solid currentColor;padding:0.1em 0 0.1em 0.8em;margin:0.4em 0"
_CELL = "text-align:left;padding:0.15em 0.8em;font-family:monospace;white-space:pre-wrap"
_CODE = (
    "white-space:pre-wrap;font-family:monospace;margin:0.8em 0;background:transparent;color:inherit"
)
_TABLE = "color:inherit;border-collapse:collapse"
_WIDEST = 60
_LETTERS = 600


def cut(text: str) -> str:
    """``text``, or its first letters and how many there are."""
    told = f"{text[:_LETTERS]} ... ({len(text)} letters in all)"
    return text if len(text) <= len(told) else told


def spelled(value: object) -> str:
    """``repr(value)``, cut; never raises, whatever a reader's object does."""
    try:
        return cut(repr(value))
    except Exception:  # a repr of the reader, or a number of more digits than Python prints
        if isinstance(value, int):
            return f"a number of {value.bit_length()} bits"
        return f"a {type(value).__name__} that cannot be shown"


def short(value: object) -> str:
    """``value`` on one line, tensors as lists, a long list cut in the middle; a word as it is."""
    if isinstance(value, torch.Tensor):
        return short(value.tolist())
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        items = [spelled(item) if isinstance(item, str) else short(item) for item in value]
        if len(items) > 24:
            items = [*items[:16], "...", *items[-4:], f"({len(value)} in all)"]
        opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")")
        return f"{opening}{', '.join(items)}{closing}"
    return cut(value) if isinstance(value, str) else spelled(value)


def _words(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under their heads."""

    heads: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def __repr__(self) -> str:
        lines = [self.heads, *(tuple(short(x) for x in row) for row in self.rows)]
        wide = [min(_WIDEST, max(len(line[i]) for line in lines)) for i in range(len(self.heads))]
        padded = ["  ".join(x.ljust(w) for x, w in zip(ln, wide, strict=True)) for ln in lines]
        return "\n".join(line.rstrip() for line in padded)

    def _repr_html_(self) -> str:
        def line(cells: tuple[object, ...], tag: str) -> str:
            inside = "".join(
                f'<{tag} style="{_CELL}">{escape(short(cell))}</{tag}>' for cell in cells
            )
            return f"<tr>{inside}</tr>"

        body = "".join(line(row, "td") for row in self.rows)
        head = line(self.heads, "th")
        return f'<table style="{_TABLE}"><thead>{head}</thead><tbody>{body}</tbody></table>'


@dataclass(frozen=True, slots=True)
class Code:
    """Python source."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<pre style="{_CODE}">{escape(self.text)}</pre>'


@dataclass(frozen=True, slots=True)
class Block:
    """A titled stack of words, tables and code."""

    title: str
    parts: tuple["str | Table | Code", ...] = ()

    def __repr__(self) -> str:
        inside = "\n".join(part if isinstance(part, str) else repr(part) for part in self.parts)
        indented = "\n".join(f"  {line}".rstrip() for line in inside.splitlines())
        return f"{self.title}\n{indented}" if indented else self.title

    def _repr_html_(self) -> str:
        inside = "".join(
            f"<p>{_words(part)}</p>" if isinstance(part, str) else part._repr_html_()
            for part in self.parts
        )
        return f'<div style="{_BOX}"><p><strong>{escape(self.title)}</strong></p>{inside}</div>'

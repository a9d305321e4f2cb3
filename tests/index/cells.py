"""Reads the HTML that a value shows of itself, strictly: what is not well formed is an error."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

MOST_BYTES = 7000
ALLOWED = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td"}


@dataclass
class Cell:
    tag: str
    scope: str | None
    style: str
    text: str = ""


@dataclass
class Table:
    caption: str = ""
    rows: list[list[Cell]] = field(default_factory=list)

    def texts(self) -> dict[str, list[str]]:
        """The cells of each line, by the name that stands at its head."""
        return {row[0].text: [cell.text for cell in row[1:]] for row in self.rows}

    def columns(self) -> list[dict[str, str]]:
        """One mapping a column, from the names of the lines; columns left out are skipped."""
        texts = self.texts()
        found = [
            dict(zip(texts, column, strict=True)) for column in zip(*texts.values(), strict=True)
        ]
        return [column for column in found if not any(x.startswith("...") for x in column.values())]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tables: list[Table] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        given = dict(attrs)
        assert set(given) <= {"style", "scope"}, given
        self.open.append(tag)
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag in ("th", "td"):
            cell = Cell(tag, given.get("scope"), given.get("style") or "")
            self.tables[-1].rows[-1].append(cell)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] == "caption":
            self.tables[-1].caption += data
        else:
            assert self.open[-1] in ("th", "td"), data
            self.tables[-1].rows[-1][-1].text += data


def read(html: str) -> list[Table]:
    """The tables of ``html``, once they are fit to be shown: small, closed, named, with scopes, and
    no color without a word."""
    assert len(html.encode()) <= MOST_BYTES
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    for table in reader.tables:
        assert table.caption
        assert len({len(row) for row in table.rows}) == 1, table
        for cell in (cell for row in table.rows for cell in row):
            assert (cell.scope in ("row", "col")) == (cell.tag == "th")
            assert not re.search(r"(^|;)color:", cell.style), "text keeps the color of the page"
            assert "background" not in cell.style or cell.text
    return reader.tables


def facts(table: Table) -> dict[str, str]:
    """The values of a table of facts by their names."""
    return {name: cells[0] for name, cells in table.texts().items()}


def numbers(text: str) -> list[int]:
    """The whole numbers in a text, with or without thousands separators."""
    return [int(x.replace(",", "")) for x in re.findall(r"\d{1,3}(?:,\d{3})+(?!\d)|\d+", text)]


def span(text: str) -> range:
    """The range that "4 .. 7", "4" or "none" names."""
    if text == "none":
        return range(0)
    low, high = (*numbers(text), *numbers(text))[:2]
    return range(low, high + 1)

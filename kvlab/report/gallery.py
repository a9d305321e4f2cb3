"""The gallery: each figure with its definition, its origin, its numbers and its files.

figures.html#crash-page-census      the figure of that name, below its notebook
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from kvlab.report.pages import Page
from kvlab.viz.save import CSS_PX_PER_IN, EXPORT_DPI, SavedFigure

MAX_SHOWN_SVG_BYTES = 400_000
MAX_SHOWN_ROWS = 12
MAX_SHOWN_COLUMNS = 12
ENDINGS = ("svg", "pdf", "png", "csv", "json")
LONGEST_CELL = 80


@dataclass(frozen=True)
class Group:
    """The figures of one notebook; ``page`` is None for those that no notebook made."""

    page: Page | None
    figures: tuple[Mapping[str, object], ...]


def groups(figures: Sequence[SavedFigure], pages: Sequence[Page]) -> tuple[Group, ...]:
    """The figures below their notebooks, in the order of these; the rest comes last."""
    of = {page.stem: [f for f in figures if f.notebook == page.stem] for page in pages}
    rest = [f for f in figures if f.notebook not in of]
    made = [Group(page, tuple(map(shown, of[page.stem]))) for page in pages if of[page.stem]]
    return (*made, *([Group(None, tuple(map(shown, rest)))] if rest else []))


def shown(figure: SavedFigure) -> dict[str, object]:
    """What the gallery needs of a figure. A heavy SVG is shown as its PNG."""
    with figure.path("png").open("rb") as png:
        head = png.read(24)  # signature, then the header chunk with width and height
    pixels = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    width, height = (round(n * CSS_PX_PER_IN / EXPORT_DPI) for n in pixels)
    light = figure.path("svg").stat().st_size <= MAX_SHOWN_SVG_BYTES
    data = figure.data()
    return {
        "name": figure.name,
        "title": figure.title,
        "definition": figure.definition,
        "notebook": figure.notebook,
        "origin": _origin(figure.origin),
        "shown": "svg" if light else "png",
        "width": width,
        "height": height,
        "endings": ENDINGS,
        "rows": len(data),
        "columns": list(data.columns[:MAX_SHOWN_COLUMNS]),
        "left_out": len(data.columns) - len(data.columns[:MAX_SHOWN_COLUMNS]),
        "cells": _cells(data.iloc[:MAX_SHOWN_ROWS, :MAX_SHOWN_COLUMNS]),
    }


def _origin(origin: Mapping[str, object]) -> list[tuple[str, str]]:
    """The facts of an origin that a reader asks for first, as (name, value)."""
    names = ("command", "seed", "device", "commit", "created")
    facts = [(name, str(origin[name])) for name in names if origin.get(name) is not None]
    parameters = origin.get("parameters")
    if isinstance(parameters, Mapping) and parameters:
        facts.append(("parameters", ", ".join(f"{k} {v}" for k, v in parameters.items())))
    return facts


def _cells(data: pd.DataFrame) -> list[list[str]]:
    plain = data.astype(object).where(data.notna(), None)
    return [[_cell(value) for value in row] for row in plain.itertuples(index=False)]


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "..."

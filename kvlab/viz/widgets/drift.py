"""Drift explorer: the tokens of one request, coloured by how far their logprob has moved.

Cells are the reference's tokens in order, the bars below them |delta logprob| in decades; triangles
show where the request came back from the host. All from the recorded study.

Worked example: request 0 without retraction, DCP 4, float32 is white and grey: equal bits, or noise
below twice the floor.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from kvlab.errors import StudyError
from kvlab.lab.drift import (
    CONDITIONS,
    DTYPES,
    MARGIN,
    UPSTREAM_TOLERANCE,
    read_study,
    read_token_drift,
)
from kvlab.memory.published import data_path
from kvlab.viz.drift_tokens import FAR, LEVELS, LOST, glyph, level
from kvlab.viz.exported import publishable
from kvlab.viz.panel import Panel
from kvlab.viz.panel_html import Spot
from kvlab.viz.spaces import look_of
from kvlab.viz.style import BLACK, DARK_GREY, VERMILLION
from kvlab.viz.widgets.canvas import Box, Canvas, Width, keys_height

NAME = "drift-explorer"
SIZES, REQUESTS = [1, 2, 4, 8], range(12)
TITLES = {known.title: known.name for known in CONDITIONS}
DEFINITION = (
    "Cells: the reference's tokens in order (· a blank, ↵ a line's end, □ another byte). Shade and "
    "bar: |Δℓ| = |ln q(x) - ln p(x)| of the token x, nats; p: next-token distribution of the "
    "reference, q: that of the run (teacher forcing). ε: largest |Δℓ| without retraction. "
    "Triangle: first token after a return. Measured (tiny-kimi-linear, synthetic requests)."
)
LEFT_IN, TOP_IN, CELL_IN, BARS_IN, GAP_IN = 0.62, 0.62, 0.26, 1.15, 0.3
LOW, HIGH = -8, 2  # decades that the bars span
NAME_IN = 0.13  # from one name of a line to the next
PER_LINE = {"double": 40, "single": 20}


@dataclass(frozen=True, slots=True)
class Line:
    """One request of one run. ``drift``: |delta logprob| of each token, nats; ``back``: output
    positions of the first tokens after a return; ``floor``: of the dtype, nats."""

    tokens: bytes
    drift: tuple[float, ...]
    back: tuple[int, ...]
    floor: float


@lru_cache(maxsize=1)
def _lines() -> dict[tuple[str, str, int, int], Line]:
    floors, rows = _floors(), cast("Any", read_token_drift().itertuples())
    return {
        (row.condition, row.dtype, row.dcp_size, row.rid): Line(
            row.tokens, tuple(row.abs_dlogprob), tuple(row.restored_at), floors[row.dtype]
        )
        for row in rows
    }


@lru_cache(maxsize=1)
def _floors() -> dict[str, float]:
    study = read_study(data_path("runs", "drift", "summary.csv").parent)
    return {str(k): float(v) for k, v in study.summary.groupby("dtype")["floor"].first().items()}


def line_of(condition: str, dtype: str, dcp_size: int, request: int) -> Line:
    """The recorded line. Errors: StudyError for a run that is not recorded."""
    found = _lines().get((condition, dtype, dcp_size, request))
    if found is None:
        run = sorted({key[1] for key in _lines() if key[0] == condition})
        raise StudyError(
            f"tokens are recorded for {len(TITLES)} conditions in the dtypes that each was run in, "
            f"DCP {', '.join(map(str, SIZES))} and requests 0 to {REQUESTS[-1]}: got {condition} "
            f"in {dtype}, DCP {dcp_size}, request {request}; {condition} was run in "
            f"{', '.join(run) or 'no dtype'}: choose one of these"
        )
    return found


def drift_table(
    condition: str, dtype: str, dcp_size: int, request: int, token: int = 0
) -> pd.DataFrame:
    """One row a token: position, the token as text and byte, nats, its level, whether it is the
    first after a return."""
    line = line_of(condition, dtype, dcp_size, request)
    return pd.DataFrame(
        {
            "position": range(len(line.tokens)),
            "token": [glyph(byte) for byte in line.tokens],
            "byte": list(line.tokens),
            "abs_dlogprob": line.drift,
            "level": [level(drift, line.floor).label for drift in line.drift],
            "came_back": [at in line.back for at in range(len(line.tokens))],
        }
    )


def drift_hover(
    condition: str, dtype: str, dcp_size: int, request: int, token: int = 0
) -> list[Spot]:
    """A box a token, cell and bar, with its numbers."""
    line = line_of(condition, dtype, dcp_size, request)
    spots = []
    for at in range(len(line.tokens)):
        x, y, wide, high = _box(at, len(line.tokens), "double")
        spots.append(Spot(x, y, wide, high + BARS_IN, _told(line, at)))
    return spots


def _box(at: int, count: int, width: Width) -> Box:
    """The cell of a token."""
    per = min(PER_LINE[width], count)
    canvas_in = {"double": 7.2, "single": 3.5}[width]
    wide = (canvas_in - LEFT_IN - 0.55) / max(per, PER_LINE[width] // 2)
    down = at // per * (CELL_IN + BARS_IN + GAP_IN)
    return LEFT_IN + at % per * wide, TOP_IN + down, wide, CELL_IN


def _told(line: Line, at: int) -> str:
    drift = line.drift[at]
    said = f"{drift:.3g} nats" if math.isfinite(drift) else "no number"
    back = ", first after a return" if at in line.back else ""
    name = {0x20: "a blank", 0x0A: "a line's end"}.get(line.tokens[at], glyph(line.tokens[at]))
    return f"Token {at}, {name}: |Δℓ| {said}, {level(drift, line.floor).label}{back}."


def _sentence(line: Line, at: int) -> str:
    finite = [drift for drift in line.drift if math.isfinite(drift)]
    above = sum(drift > MARGIN * line.floor for drift in finite)
    lost = len(line.drift) - len(finite)
    most = f"the largest is {max(finite):.3g} nats" if finite else "none is a number"
    nan = f", {lost} have no number" if lost else ""
    back = f"came back before token {', '.join(map(str, line.back))}" if line.back else "never left"
    return (
        f"{_told(line, at)} Of {len(line.drift)} tokens {above} are above 2 ε (ε = "
        f"{line.floor:.2g} nats){nan}; {most}. The request {back}."
    )


def _draw(
    condition: str, dtype: str, dcp_size: int, request: int, token: int, width: Width = "double"
) -> tuple[Figure, str]:
    line = line_of(condition, dtype, dcp_size, request)
    if token < 0:
        raise StudyError(f"a token of this request lies in [0, {len(line.tokens)}): got {token}")
    at = min(token, len(line.tokens) - 1)
    count = len(line.tokens)
    per = min(PER_LINE[width], count)
    rows = -(-count // per)
    words = [role.label for role in LEVELS] + ["came back"]
    bottom = TOP_IN + rows * (CELL_IN + BARS_IN + GAP_IN)
    canvas = Canvas(width, bottom + keys_height(width, words, LEFT_IN) + 0.05, "Tokens by drift")
    title = next(known.title for known in CONDITIONS if known.name == condition)
    canvas.text(0.08, 0.34, f"Request {request}: {title}, DCP {dcp_size}, {dtype}", 8)
    for row in range(rows):
        _axis(canvas, _box(row * per, count, width), min(per, count - row * per), line.floor)
    for place, (byte, drift) in enumerate(zip(line.tokens, line.drift, strict=True)):
        x, y, wide, high = box = _box(place, count, width)
        role = level(drift, line.floor)
        canvas.cell(*box, look_of(role), glyph(byte), bold=role in (FAR, LOST))
        tall = BARS_IN if role is LOST else _height(drift)
        if tall > 0:
            canvas.box(x + wide * 0.15, y + high + BARS_IN - tall, wide * 0.7, tall, look_of(role))
        if place in line.back:
            canvas.mark(x + wide / 2, y - 0.07, "v", BLACK, 6)
        if place == at:
            canvas.outline((x, y, wide, high + BARS_IN))
    entries: list[Any] = [(look_of(role), role.label) for role in LEVELS]
    canvas.keys(bottom, [*entries, (("v", BLACK), "came back")], LEFT_IN)
    return canvas.finish(), _sentence(line, at)


def _height(drift: float) -> float:
    """Of a bar, inches: its decades above the lowest; 0 for equal bits."""
    if drift <= 0 or not math.isfinite(drift):
        return 0.0
    share = (math.log10(drift) - LOW) / (HIGH - LOW)
    return BARS_IN * min(1.0, max(0.02, share))


def _axis(canvas: Canvas, first: Box, count: int, floor: float) -> None:
    """Decades, floor and tolerance of one line of bars."""
    x, y, wide, high = first
    low, end = y + high + BARS_IN, x + count * wide
    canvas.line([(x, low), (end, low)])
    canvas.text(x - 0.05, y + high / 2, "nats", 6.5, DARK_GREY, "right")
    for decade in (-8, -6, -4, -2, 0, 2):
        canvas.text(x - 0.05, low - BARS_IN * (decade - LOW) / (HIGH - LOW),
                    f"1e{decade}", 6.5, DARK_GREY, "right")  # fmt: skip
    lines = (
        (MARGIN * floor, "2 ε", DARK_GREY),
        (UPSTREAM_TOLERANCE, f"{UPSTREAM_TOLERANCE:.2f}", VERMILLION),
    )
    heights = [_height(value) for value, _, _ in lines]
    middle = sum(heights) / 2
    for height, (_, name, color) in zip(heights, lines, strict=True):
        canvas.line([(x, low - height), (end, low - height)], color, 0.9, "--")
        # Two lines may be closer than two names.
        near = abs(height - middle) < NAME_IN / 2
        upper = height > middle or (height == middle and color == VERMILLION)
        beside = middle + (NAME_IN if upper else -NAME_IN) / 2 if near else height
        canvas.text(end + 0.05, low - beside, name, 6.5, color)


def _bounds(
    condition: str, dtype: str, dcp_size: int, request: int, **_: object
) -> dict[str, tuple[int, int]]:
    line = _lines().get((condition, dtype, dcp_size, request))
    return {} if line is None else {"token": (0, len(line.tokens) - 1)}


def drift_explorer() -> Panel:
    """Choose condition, dtype, DCP size, request and token of the recorded study."""
    return Panel(
        _draw,
        name=NAME,
        table=drift_table,
        hover=drift_hover,
        steps="token",
        bounds=_bounds,
        definition=DEFINITION,
        condition=widgets.Dropdown(options=TITLES, value="forced_before_fix"),
        dtype=widgets.Dropdown(options=list(DTYPES), value="float32"),
        dcp_size=widgets.SelectionSlider(options=SIZES, value=4),
        request=widgets.IntSlider(min=0, max=REQUESTS[-1], value=3),
        token=widgets.IntSlider(min=0, max=30, value=0),
    )


def drift_explorer_figure(
    condition: str = "forced_before_fix",
    dtype: str = "float32",
    dcp_size: int = 4,
    request: int = 3,
    token: int = 0,
    *,
    width: Width = "double",
) -> Figure:
    """The picture of ``drift_explorer`` with its caption; arguments are the controls.

    A ``token`` past the end shows the last one. Errors: StudyError for a run that is not recorded,
    or a token below 0.
    """
    values = {
        **{"condition": condition, "dtype": dtype, "dcp_size": dcp_size},
        **{"request": request, "token": token},
    }
    return publishable(_draw, values, NAME, DEFINITION, width)[0]

"""The tokens of runs, shaded by how far their logprob has moved: a time-line, and the explorer.

``tokens_figure`` has a line a request over the steps of the node. While a request runs, each step
makes one token, and the cell of that step shows it; while it sits on the host, the line is hatched.
So a reader sees which token came next after the return, and from which token on it is another one.

``drift_explorer`` has the tokens of one request of the recorded study, with bars of |Δℓ| in decades
below them.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from textwrap import wrap
from typing import Any

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from kvlab.engine import Event
from kvlab.errors import StudyError
from kvlab.lab.drift import (
    CONDITIONS,
    DTYPES,
    MARGIN,
    UPSTREAM_TOLERANCE,
    metric,
    read_study,
    read_token_drift,
)
from kvlab.lab.origin import Origin
from kvlab.lab.timeline import intervals
from kvlab.memory.published import data_path
from kvlab.viz.canvas import Box, Canvas, Key
from kvlab.viz.drift import PQ
from kvlab.viz.panel import Drawing, Panel, Spot, twin
from kvlab.viz.style import BLACK, DARK_GRAY, SKY, VERMILLION, WHITE, Role, Width, caption, width_in

# Darker is worse, so that a gray print keeps the order; the letters of the last two are bold.
EQUAL = Role("equal bits", WHITE)
FLOOR = Role("|Δℓ| within 2 ε", "#D9D9D9")
ABOVE = Role(f"|Δℓ| up to {UPSTREAM_TOLERANCE:.2f}", SKY)
FAR = Role(f"|Δℓ| above {UPSTREAM_TOLERANCE:.2f}", VERMILLION)
LOST = Role("no number", BLACK, ink=WHITE)
LEVELS = (EQUAL, FLOOR, ABOVE, FAR, LOST)
WAITING = Role("waiting", WHITE, "....")
HOST = Role("on the host", "#F8E3B4", "////")
#: Bytes that are no letter.
SIGNS = {0x20: "·", 0x0A: "↵", 0x09: "→"}

TITLE_LETTERS = 64  # of a line that fits the page at every resolution
MOST_STEPS, MOST_REQUESTS = 72, 10
RUN_LEFT_IN, RUN_LINE_IN, RUN_CELL_IN = 0.85, 0.27, 0.2

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


def glyph(token: int) -> str:
    """One letter for a byte: itself if ASCII has a picture of it, a sign for blanks, else "□"."""
    if token in SIGNS:
        return SIGNS[token]
    return chr(token) if 0x20 < token < 0x7F else "□"


def level(drift: float, floor: float) -> Role:
    """How a token is shaded: by |Δℓ| in nats, against the floor ε and the reported tolerance."""
    if not math.isfinite(drift):
        return LOST
    if drift == 0:
        return EQUAL
    if drift <= MARGIN * floor:
        return FLOOR
    return ABOVE if drift <= UPSTREAM_TOLERANCE else FAR


def tokens_figure(
    events: pd.DataFrame, tokens: pd.DataFrame, floor: float, origin: Origin, run: str = ""
) -> Figure:
    """Tokens and stays of some requests of one run, those of ``choose``.

    Args:
        events: step, event, rid, tokens of the whole run.
        tokens: rid, position, step, token (a byte), abs_dlogprob.
        floor: ε of the dtype, nats.
        run: words for the title: condition, DCP size, dtype.
    """
    stays = intervals(Event(*row) for row in events.itertuples(index=False, name=None))
    chosen = choose(stays)
    mine = stays[stays["rid"].isin(chosen)]
    shown = tokens[tokens["rid"].isin(chosen)].sort_values(["rid", "position"])
    first = int(mine["begin"].min()) - 1  # the token of the prefill is drawn a step before
    last = max(int(mine["end"].max()), int(shown["step"].max()) + 1)
    title = wrap(
        f"Tokens of a run, and where requests came back: {run}".rstrip(": "),
        TITLE_LETTERS,
        break_on_hyphens=False,
    )
    top = 0.16 + 0.16 * len(title)
    canvas = Canvas("double", "\n".join(title))
    step_in = (canvas.wide - RUN_LEFT_IN - 0.1) / (last - first)
    left = RUN_LEFT_IN - first * step_in
    middles = {rid: top + (y + 0.5) * RUN_LINE_IN for y, rid in enumerate(chosen)}
    for rid, middle in middles.items():
        canvas.text(RUN_LEFT_IN - 0.06, middle, f"request {rid}", 7.5, align="right")
        _draw_stays(canvas, mine[mine["rid"] == rid], left, step_in, middle)
    for rid, middle in middles.items():
        _draw_tokens(canvas, shown[shown["rid"] == rid], left, step_in, middle, floor)
    low = top + len(chosen) * RUN_LINE_IN + 0.02
    label = "step of the node: one forward, one token a cell"
    canvas.scale(RUN_LEFT_IN, low, step_in, (first, last), label)
    entries = _entries(mine, {level(float(drift), floor) for drift in tokens["abs_dlogprob"]})
    height = low + 0.5 + canvas.keys(low + 0.5, entries)
    which = (
        f"Shown: {len(chosen)} of {stays['rid'].nunique()} requests, of the first {MOST_STEPS} "
        f"steps in which most of {MOST_REQUESTS} came back. "
    )
    return caption(
        canvas.finish(height),
        f"Shade: |Δℓ|, {metric('abs_dlogprob').definition}, in nats; {PQ}; "
        f"ε = {floor:.2g} nats is the largest without retraction. · is a blank, ↵ a line's "
        "end, □ another byte. A request makes one token a step while it runs; its first is the "
        f"prefill's. Tokens are those of the reference (teacher forcing). {which}Measured.",
        origin,
    )


def choose(stays: pd.DataFrame) -> list[int]:
    """Up to 10 requests that arrive and end within 72 steps of which most came back, by rid."""
    ends = stays.groupby("rid").agg(begin=("begin", "min"), end=("end", "max"))
    back = set(stays.loc[stays["left_by"] == "resume", "rid"])
    best: list[int] = []
    for start in ends["begin"].unique().tolist():
        inside = ends[ends["begin"].ge(start) & ends["end"].le(start + MOST_STEPS)]
        rids = sorted(inside.index, key=lambda rid: (rid not in back, rid))[:MOST_REQUESTS]
        if sum(rid in back for rid in rids) > sum(rid in back for rid in best) or not best:
            best = rids
    return sorted(int(rid) for rid in best or ends.index[:MOST_REQUESTS])


def _draw_stays(
    canvas: Canvas, stays: pd.DataFrame, left: float, step_in: float, middle: float
) -> None:
    high = 0.55 * RUN_CELL_IN
    rows: Any = stays.itertuples()
    for stay in rows:
        wide = (stay.end - stay.begin) * step_in
        if stay.state != "running" and wide > 0:
            role = WAITING if stay.state == "waiting" else HOST
            canvas.box((left + stay.begin * step_in, middle - high / 2, wide, high), role)
        if stay.left_by == "resume":
            canvas.mark(left + stay.end * step_in, middle + 0.1, "^", BLACK, 6)


def _draw_tokens(
    canvas: Canvas, tokens: pd.DataFrame, left: float, step_in: float, middle: float, floor: float
) -> None:
    steps = tokens["step"].tolist()
    if len(steps) > 1 and steps[0] == steps[1]:
        steps[0] -= 1
    for step, token, drift in zip(steps, tokens["token"], tokens["abs_dlogprob"], strict=True):
        if pd.isna(step):
            continue
        role = level(float(drift), floor)
        box = (left + step * step_in, middle - RUN_CELL_IN / 2, step_in, RUN_CELL_IN)
        canvas.cell(box, role, glyph(int(token)), bold=role in (FAR, LOST))


def _entries(stays: pd.DataFrame, shades: set[Role]) -> list[tuple[Key, str]]:
    lasting = set(stays.loc[stays["end"] > stays["begin"], "state"])
    roles = [role for role in LEVELS if role in shades]
    roles += [r for state, r in (("waiting", WAITING), ("retracted", HOST)) if state in lasting]
    entries: list[tuple[Key, str]] = [(role, role.label) for role in roles]
    back = (stays["left_by"] == "resume").any()
    return [*entries, (("^", BLACK), "came back")] if back else entries


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
    study = read_study(data_path("runs", "drift", "summary.csv").parent)
    floors = study.summary.groupby("dtype")["floor"].first()
    rows: Any = read_token_drift().itertuples()
    return {
        (row.condition, row.dtype, row.dcp_size, row.rid): Line(
            row.tokens, tuple(row.abs_dlogprob), tuple(row.restored_at), float(floors[row.dtype])
        )
        for row in rows
    }


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


def draw_drift(
    condition: str = "forced_before_fix",
    dtype: str = "float32",
    dcp_size: int = 4,
    request: int = 3,
    token: int = 0,
    width: Width = "double",
) -> Drawing:
    """The tokens of one request in order, the bars below them |delta logprob| in decades.

    Table: one row a token: position, the token as text and byte, nats, its level, whether it is the
    first after a return. A ``token`` past the end shows the last one. Errors: StudyError for a run
    that is not recorded, or a token below 0.
    """
    line = line_of(condition, dtype, dcp_size, request)
    count = len(line.tokens)
    if token < 0:
        raise StudyError(f"a token of this request lies in [0, {count}): got {token}")
    at = min(token, count - 1)
    per = min(PER_LINE[width], count)
    rows = -(-count // per)
    canvas, spots = Canvas(width, "Tokens by drift"), []
    title = next(known.title for known in CONDITIONS if known.name == condition)
    canvas.text(0.08, 0.34, f"Request {request}: {title}, DCP {dcp_size}, {dtype}", 8)
    for row in range(rows):
        _axis(canvas, _box(row * per, count, width), min(per, count - row * per), line.floor)
    for place, (byte, drift) in enumerate(zip(line.tokens, line.drift, strict=True)):
        x, y, wide, high = box = _box(place, count, width)
        role = level(drift, line.floor)
        canvas.cell(box, role, glyph(byte), bold=role in (FAR, LOST))
        tall = BARS_IN if role is LOST else _height(drift)
        if tall > 0:
            canvas.box((x + wide * 0.15, y + high + BARS_IN - tall, wide * 0.7, tall), role)
        if place in line.back:
            canvas.mark(x + wide / 2, y - 0.07, "v", BLACK, 6)
        both = (x, y, wide, high + BARS_IN)
        spots.append(Spot(*both, _told(line, place)))
        if place == at:
            canvas.outline(both)
    bottom = TOP_IN + rows * (CELL_IN + BARS_IN + GAP_IN)
    entries: list[tuple[Key, str]] = [(role, role.label) for role in LEVELS]
    keys_in = canvas.keys(bottom, [*entries, (("v", BLACK), "came back")], LEFT_IN)
    table = pd.DataFrame(
        {
            "position": range(count),
            "token": [glyph(byte) for byte in line.tokens],
            "byte": list(line.tokens),
            "abs_dlogprob": line.drift,
            "level": [level(drift, line.floor).label for drift in line.drift],
            "came_back": [place in line.back for place in range(count)],
        }
    )
    return Drawing(canvas.finish(bottom + keys_in + 0.05), _sentence(line, at), table, spots)


def _box(at: int, count: int, width: Width) -> Box:
    """The cell of a token."""
    per = min(PER_LINE[width], count)
    wide = (width_in(width) - LEFT_IN - 0.55) / max(per, PER_LINE[width] // 2)
    down = at // per * (CELL_IN + BARS_IN + GAP_IN)
    return LEFT_IN + at % per * wide, TOP_IN + down, wide, CELL_IN


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
    canvas.text(x - 0.05, y + high / 2, "nats", 6.5, DARK_GRAY, "right")
    for decade in range(LOW, HIGH + 1, 2):
        tall = BARS_IN * (decade - LOW) / (HIGH - LOW)
        canvas.text(x - 0.05, low - tall, f"1e{decade}", 6.5, DARK_GRAY, "right")
    # Two lines may be closer than two names: one stands above its line, the other below.
    for value, name, color, down in (
        (MARGIN * floor, "2 ε", DARK_GRAY, NAME_IN / 2),
        (UPSTREAM_TOLERANCE, f"{UPSTREAM_TOLERANCE:.2f}", VERMILLION, -NAME_IN / 2),
    ):
        tall = _height(value)
        canvas.line([(x, low - tall), (end, low - tall)], color, 0.9, "--")
        canvas.text(end + 0.05, low - tall + down, name, 6.5, color)


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


def _bounds(
    condition: str, dtype: str, dcp_size: int, request: int, **_: object
) -> dict[str, tuple[int, int]]:
    line = _lines().get((condition, dtype, dcp_size, request))
    return {} if line is None else {"token": (0, len(line.tokens) - 1)}


def drift_explorer() -> Panel:
    """Choose condition, dtype, DCP size, request and token of the recorded study."""
    return Panel(
        draw_drift,
        name=NAME,
        steps="token",
        bounds=_bounds,
        definition=DEFINITION,
        condition=TITLES,
        dtype=list(DTYPES),
        dcp_size=SIZES,
        request=REQUESTS,
        token=widgets.IntSlider(max=30),
    )


drift_explorer_figure = twin(draw_drift, NAME, DEFINITION)

"""All runs of a study to its tables: floors first, since every judgement is against one."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from kvlab.lab.drift.conditions import Condition
from kvlab.lab.drift.events import events_of
from kvlab.lab.drift.prompts import Prompts
from kvlab.lab.drift.results import EVENTS, KEY, POSITIONS, REQUESTS, SUMMARY, TOKENS, Study
from kvlab.lab.drift.tables import (
    RunData,
    position_rows,
    request_rows,
    summary_row,
    token_rows,
)
from kvlab.lab.keep import Values

#: Arrays by (view, condition or "reference", DCP size, dtype); None where none was run.
Find = Callable[[str, str, int, str], Values | None]
Point = tuple[Condition, int, str]
#: The run whose events and tokens are kept, the first of these that was run; c as near 4 as any.
TIMELINE = ("forced_before_fix", "forced_fixed", "no_retraction")


def assemble(
    points: Sequence[Point], find: Find, prompts: Prompts, origin: Mapping[str, object]
) -> Study:
    """The tables of a study whose runs ``find`` gives."""
    lengths = [request.prompt_tokens for request in prompts.workload.requests]
    data = {point: _data(find, *point) for point in points}
    floors = _floors(data)
    by_name = {(known.name, c, dtype): run for (known, c, dtype), run in data.items()}
    summary, requests, positions = [], [], []
    for (known, c, dtype), run in data.items():
        key = dict(zip(KEY, (known.name, _defect(known), c, dtype), strict=True))
        free = _tokens(find("free", "reference", 1, dtype), find)
        rows = request_rows(run, lengths, floors[dtype], free)
        table = pd.DataFrame([{**key, **row} for row in rows])
        fixed = by_name[known.fixed, c, dtype]
        summary.append({**key, **summary_row(run, table, floors[dtype], fixed)})
        requests.append(table)
        positions += [{**key, **row} for row in position_rows(run, lengths)]
    events, tokens, chosen = _timeline(data, find, lengths)
    whole = pd.concat(requests, ignore_index=True)
    return Study(
        _rounded(pd.DataFrame(summary)[[*SUMMARY]]),
        _rounded(whole[[*REQUESTS]]),
        _rounded(pd.DataFrame(positions)[[*POSITIONS]]),
        events,
        _rounded(tokens),
        {**origin, "timeline": chosen},
    )


def _rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """Six digits of every float: what is left is noise, and twice the size of a file."""
    return frame.map(lambda x: float(f"{x:.6g}") if isinstance(x, float) else x)


def _data(find: Find, known: Condition, dcp_size: int, dtype: str) -> RunData:
    reference, run = (
        find("forced", "reference", 1, dtype),
        find("forced", known.name, dcp_size, dtype),
    )
    assert reference is not None and run is not None  # the forced view is always run
    cuts = np.cumsum(reference["length"].astype(np.int64))[:-1]
    signed = run["logprob"].astype(np.float64) - reference["logprob"].astype(np.float64)
    free = find("free", known.name, dcp_size, dtype)
    return RunData(
        tuple(np.split(signed, cuts)),
        tuple(np.split(run["kl"].astype(np.float64), cuts)),
        tuple(np.split(run["rank"].astype(np.int64), cuts)),
        None if free is None else _cut(free["token"], reference["length"]),
        tuple(events_of(run["events"])),
        (int(run["restores"][0]), int(run["restores"][1])),
    )


def _cut(tokens: "np.ndarray", lengths: "np.ndarray") -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(part.tolist()) for part in np.split(tokens, np.cumsum(lengths.astype(np.int64))[:-1])
    )


def _tokens(reference: Values | None, find: Find) -> tuple[tuple[int, ...], ...] | None:
    return None if reference is None else _cut(reference["token"], reference["length"])


def _floors(data: Mapping[Point, RunData]) -> dict[str, float]:
    """Of each dtype the largest |delta logprob| without retraction, over all DCP sizes."""
    floors: dict[str, float] = {}
    for (known, _, dtype), run in data.items():
        if known.name == "no_retraction":
            top = float(np.abs(np.concatenate(run.dlogprob)).max())
            floors[dtype] = max(floors.get(dtype, 0.0), top)
    return floors


def _defect(known: Condition) -> str:
    return known.defect.name if known.defect is not None else ""


def _timeline(
    data: Mapping[Point, RunData], find: Find, lengths: Sequence[int]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, object]]:
    known, c, dtype = min(
        (p for p in data if p[0].name in TIMELINE),
        key=lambda p: (TIMELINE.index(p[0].name), abs(p[1] - 4), p[2] != "float32"),
    )
    run = data[known, c, dtype]
    reference = find("forced", "reference", 1, dtype)
    assert reference is not None
    outputs = _cut(reference["token"], reference["length"])
    events = pd.DataFrame(
        [(e.step, e.kind, e.rid, e.tokens) for e in run.events], columns=[*EVENTS]
    )
    tokens = pd.DataFrame(token_rows(run, lengths, outputs))[[*TOKENS]]
    return events, tokens, {"condition": known.name, "dcp_size": c, "dtype": dtype}

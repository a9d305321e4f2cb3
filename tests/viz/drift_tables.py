"""Tables as the drift study writes them, with made-up numbers: for tests of pictures."""

from functools import cache

import numpy as np
import pandas as pd

from kvlab.engine import CountingNode, NodeConfig
from kvlab.engine.workload import Request
from kvlab.index import DcpLayout
from kvlab.lab.drift import CONDITIONS, Condition, Point
from kvlab.lab.drift.tables import RunData, position_rows, request_rows, summary_row, token_rows

SIZES = (1, 4)
FLOORS = {"float32": 3e-6, "bfloat16": 0.04, "fp8": 0.08}
REQUESTS = [Request(rid, 0.0, 10 + rid % 5, 24) for rid in range(12)]
PROMPTS = [request.prompt_tokens for request in REQUESTS]
TEXT = b"5f zt=0c\n\tdef merge(part):\n\xff\x00"


@cache
def run(known: Condition, size: int, dtype: str) -> RunData:
    """A run whose schedule is real and whose logprobs are made up: drift after a restore where the
    condition has a defect that can act, noise below the floor elsewhere, zeros at DCP 1."""
    forced = 3 if known.schedule == "forced" else None
    config = NodeConfig(DcpLayout(size, 4, 400), concurrency=None, max_running=8,
                        reserved_decode_tokens=8, force_retract_interval=forced)  # fmt: skip
    events = CountingNode(config).run(REQUESTS, record=True).events
    back = {e.rid: e.tokens + 1 - PROMPTS[e.rid] for e in events if e.kind == "resume"}
    rng = np.random.default_rng(0)
    acts = known.defect is not None and known.defect.can_act(size)
    drift = []
    for request in REQUESTS:
        noise = rng.uniform(0.01, 1, request.output_tokens) * FLOORS[dtype]
        values = noise * 0 if size == 1 and dtype == "float32" else noise
        if acts and request.rid in back:
            values[back[request.rid] + 2 :] = rng.uniform(0.05, 6)
            if known.name == "defect:nan_padding":
                values[back[request.rid] + 5 :] = np.nan
        drift.append(values)
    same = tuple(np.zeros(len(values), np.int64) for values in drift)
    said = tuple(tuple(range(request.output_tokens)) for request in REQUESTS)
    return RunData(
        PROMPTS, tuple(drift), tuple(d * d for d in drift), same, said, said, tuple(events)
    )


@cache
def tables() -> dict[str, pd.DataFrame]:
    """summary, requests, positions of all conditions; events and tokens of one run."""
    summary, requests, positions = [], [], []
    twins = {known.name: known for known in CONDITIONS}
    for known in CONDITIONS:
        for size in SIZES:
            for dtype in known.dtypes:
                made = run(known, size, dtype)
                key = Point(known, size, dtype).key
                rows = pd.DataFrame([key | row for row in request_rows(made, FLOORS[dtype])])
                fixed = run(twins[known.fixed], size, dtype)
                summary.append({**key, **summary_row(made, rows, FLOORS[dtype], fixed)})
                requests.append(rows)
                positions += [{**key, **row} for row in position_rows(made)]
    one = run(twins["forced_before_fix"], 4, "float32")
    texts = [tuple(TEXT[i % len(TEXT)] for i in range(r.output_tokens)) for r in REQUESTS]
    return {
        "summary": pd.DataFrame(summary),
        "requests": pd.concat(requests, ignore_index=True),
        "positions": pd.DataFrame(positions),
        "events": pd.DataFrame(
            [(e.step, e.kind, e.rid, e.tokens) for e in one.events],
            columns=["step", "event", "rid", "tokens"],
        ),
        "tokens": pd.DataFrame(token_rows(one, texts)),
    }

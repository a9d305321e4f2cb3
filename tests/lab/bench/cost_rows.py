"""Benchmark files that are made up, of the cases, names and columns of the benchmark itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvlab.lab.bench import copies, ops
from kvlab.lab.bench.clock import Timing
from kvlab.lab.bench.table import Row, as_frame, compare

CPU = {
    **{"device": "cpu (2 cores)", "threads": 2, "torch": "2.13.0", "kvlab": "0.1.0"},
    **{"commit": "966e344", "created": "2026-01-02", "load": 0.1, "runs": 3},
}
GPU = {**CPU, "device": "A made-up GPU (driver 1)", "threads": 8, "commit": "1a2b3c4"}


def rows_of(
    part: str, case: str, ours: str, facts: dict[str, Any], **ratios: tuple[str, float, Any]
) -> list[Row]:
    """Rows in which ours takes a microsecond, of quartiles a tenth below and above."""
    spread = np.array([0.8, 0.9, 1.0, 1.1, 1.2])
    times = {base: 1e-6 * ratio * spread for base, ratio, _ in ratios.values()}
    timing = Timing({ours: np.full(5, 1e-6), **times}, 5, 1)
    pairs = [(ours, base, aim) for base, _, aim in ratios.values()]
    return compare(part, case, timing, pairs, {"backend": "torch", **facts}, ours)


def all_rows() -> Iterator[Row]:
    """A row of every comparison that is drawn."""
    for ids, c in ops.RUNS:
        name = ops.localize_case(ids, c).name
        facts = {"op": "localize", "ids": ids, "dcp_size": c, "bytes": 8 * ids}
        for ours in (ops.CHECKED, ops.FIRST, ops.op_name(ops.LOCALIZE, "torch")):
            pairs = {"a": (ops.STRIDE, 0.5, None), "b": (ops.MASK, 5.5, 5.0)}
            yield from rows_of(ops.LOCALIZE, name, ours, facts, **pairs, c=(ops.COPY, 0.25, None))
        yield from rows_of(ops.LOCALIZE, name, ops.ALL, facts, a=(ops.STRIDES, 0.8, None))
    for sizes in copies.SIZES:
        name, c = copies.copy_case(sizes).name, sizes.dcp_size
        facts = {"layers": sizes.layers, "tokens": sizes.tokens, "dcp_size": c}
        fast = 2 + c / 4 + sizes.layers / 100
        for op, up, one in (
            ("backup", copies.UPSTREAM, copies.OUT),
            ("restore", copies.UPSTREAM_BACK, copies.BACK),
        ):
            pairs = {"a": (up, fast, 5.0), "b": (one, 0.7 + c / 50, None)}
            yield from rows_of(copies.PART, name, op, {"op": op, **facts}, **pairs)
    for made in ops.MERGES:
        facts = {"op": "merge", "dcp_size": made[1], "bytes": made[1] * made[2] * made[3] * 2**10}
        pair = (ops.COPY, 0.6, ops.NEAR_MERGE_COPY)
        name = ops.op_name(ops.MERGE, "torch")
        yield from rows_of(ops.MERGE, ops.merge_case(*made).name, name, facts, a=pair)
    for ids, c, paged in ops.STEPS:
        facts = {"op": "owner_write", "ids": ids, "dcp_size": c, "bytes": 2**10 * ids // c}
        for ours in (ops.POOL, ops.op_name(ops.WRITE, "torch")):
            name = ops.write_case(ids, c, paged).name
            pairs = {"a": (ops.EAGER, 1.5, None), "b": (ops.COPY, 0.4, None)}
            yield from rows_of(ops.WRITE, name, ours, facts, **pairs)


def frame(where: dict[str, Any] = CPU) -> pd.DataFrame:
    """All rows of one device."""
    return as_frame(list(all_rows()), where)


def record(folder: Path, slug: str = "cpu", where: dict[str, Any] = CPU) -> Path:
    """A file of one device below ``folder``."""
    path = folder / f"bench-{slug}.csv"
    frame(where).to_csv(path, index=False)
    return path

"""Benchmark files that are made up, of the cases, names and columns of the benchmark itself.

Times are a formula and stand for no machine.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from kvlab.lab.bench import copies, ops
from kvlab.lab.bench.rows import Aim, Conditions, Facts, Row, Spread, as_frame

CPU = Conditions("cpu (2 cores)", 2, "2.13.0", "0.1.0", "966e344", "2026-01-02", 0.1, 3)
GPU = Conditions("A made-up GPU (driver 1)", 8, "2.11.0", "0.1.0", "1a2b3c4", "2026-01-03", 0.1, 3)
LOCALIZE_CASES = [c for c in ops.FULL[ops.LOCALIZE] if isinstance(c, ops.LocalizeCase)]


def row(
    part: str, case: str, ours: str, base: str, ratio: float, facts: Facts, aim: Aim | None = None
) -> Row:
    """A row in which ours takes a microsecond; quartiles are a tenth below and above."""
    mine, theirs, ratios = (Spread(0.9 * v, v, 1.1 * v) for v in (1e-6, 1e-6 * ratio, ratio))
    return Row(part, case, ours, base, mine, theirs, ratios, aim, 5, 1, "", facts, ratio)


def all_rows() -> Iterator[Row]:
    """A row of every comparison that is drawn."""
    for case in LOCALIZE_CASES:
        facts = Facts("localize", "torch", ids=case.ids, dcp_size=case.dcp_size, bytes=8 * case.ids)
        aim = ops.NEAR_STRIDE if case.aimed == "cpu" else None
        for ours in (ops.CHECKED, ops.FIRST, ops.op_name(ops.LOCALIZE, "torch")):
            yield row(ops.LOCALIZE, case.name, ours, ops.STRIDE, 0.5, facts, aim)
            yield row(ops.LOCALIZE, case.name, ours, ops.MASK, 5.5, facts)
            yield row(ops.LOCALIZE, case.name, ours, ops.COPY, 0.25, facts)
        yield row(ops.LOCALIZE, case.name, ops.ALL, ops.STRIDES, 0.8, facts)
    for copy in copies.FULL:
        for op, up, one in (
            ("backup", copies.UPSTREAM, copies.OUT),
            ("restore", copies.UPSTREAM_BACK, copies.BACK),
        ):
            told = Facts(
                op, "torch", copy.layers, copy.tokens, None, copy.dcp_size, copy.request_bytes
            )
            fast = 2 + copy.dcp_size / 4 + copy.layers / 100
            yield row(copies.PART, copy.name, op, up, fast, told, copies.ABOVE_UPSTREAM)
            yield row(copies.PART, copy.name, op, one, 0.7 + copy.dcp_size / 50, told)
    for made in ops.FULL[ops.MERGE]:
        facts = Facts("merge", "torch", dcp_size=made.dcp_size, bytes=made.touched_bytes)
        name = ops.op_name(ops.MERGE, "torch")
        yield row(ops.MERGE, made.name, name, ops.COPY, 0.6, facts, ops.NEAR_MERGE_COPY)
    for step in ops.FULL[ops.WRITE]:
        facts = Facts("owner_write", "torch", None, None, 64, step.dcp_size, step.touched_bytes)
        for ours in (ops.POOL, ops.op_name(ops.WRITE, "torch")):
            yield row(ops.WRITE, step.name, ours, ops.EAGER, 1.5, facts)
            yield row(ops.WRITE, step.name, ours, ops.COPY, 0.4, facts)


def frame(where: Conditions = CPU) -> pd.DataFrame:
    """All rows of one device."""
    return as_frame(list(all_rows()), where)


def record(folder: Path, slug: str = "cpu", where: Conditions = CPU) -> Path:
    """A file of one device below ``folder``."""
    path = folder / f"bench-{slug}.csv"
    frame(where).to_csv(path, index=False)
    return path

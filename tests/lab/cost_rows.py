"""Benchmark files that are made up, of the cases, names and columns of the benchmark itself.

Times are a formula and stand for no machine.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from kvlab.lab.bench import localize, merge, request_pool, requests, writes
from kvlab.lab.bench.rows import Aim, Facts, Row, Spread
from kvlab.lab.bench.run import Conditions
from kvlab.lab.bench.table import as_frame

CPU = Conditions("cpu (2 cores)", 2, "2.13.0", "0.1.0", "966e344", "2026-01-02", 0.1, 3)
GPU = Conditions("A made-up GPU (driver 1)", 8, "2.11.0", "0.1.0", "1a2b3c4", "2026-01-03", 0.1, 3)


def around(value: float) -> Spread:
    """Quartiles a tenth below and above."""
    return Spread(0.9 * value, value, 1.1 * value)


def row(
    part: str,
    case: str,
    ours: str,
    baseline: str,
    ratio: float,
    facts: Facts,
    aim: Aim | None = None,
) -> Row:
    """A row in which ours takes a microsecond."""
    seconds, theirs = around(1e-6), around(1e-6 * ratio)
    return Row(
        *(part, case, ours, baseline, seconds, theirs, around(ratio), aim, 5, 1, "", facts, ratio)
    )


def localize_rows() -> Iterator[Row]:
    for case in localize.FULL:
        facts = Facts("localize", "torch", ids=case.ids, dcp_size=case.dcp_size, bytes=8 * case.ids)
        aim = localize.NEAR_STRIDE if case.aimed == "cpu" else None
        for ours in (localize.CHECKED, localize.FIRST, localize.run_name("torch")):
            yield row("localize", case.name, ours, localize.STRIDE, 0.5, facts, aim)
            yield row("localize", case.name, ours, localize.MASK, 5.5, facts)
            yield row("localize", case.name, ours, localize.COPY, 0.25, facts)
        yield row("localize", case.name, localize.ALL, localize.STRIDES, 0.8, facts)


def copy_rows() -> Iterator[Row]:
    for case in requests.FULL:
        facts = Facts(
            None,
            "torch",
            layers=case.layers,
            tokens=case.tokens,
            dcp_size=case.dcp_size,
            bytes=case.request_bytes,
        )
        for op, up, copy in (
            ("backup", request_pool.UPSTREAM, request_pool.OUT),
            ("restore", request_pool.UPSTREAM_BACK, request_pool.BACK),
        ):
            told = Facts(op, "torch", facts.layers, facts.tokens, None, facts.dcp_size, facts.bytes)
            fast = 2 + case.dcp_size / 4 + case.layers / 100
            yield row("copy", case.name, op, up, fast, told, requests.ABOVE_UPSTREAM)
            yield row("copy", case.name, op, copy, 0.7 + case.dcp_size / 50, told)


def share_rows() -> Iterator[Row]:
    for made in merge.FULL:
        facts = Facts("merge", "torch", dcp_size=made.dcp_size, bytes=made.copy_bytes)
        name = merge.merge_name("torch")
        yield row("merge", made.name, name, merge.COPY, 0.6, facts, merge.NEAR_COPY)
    for case in writes.FULL:
        facts = Facts("owner_write", "torch", None, None, case.ids, case.dcp_size, case.copy_bytes)
        for ours in (writes.POOL, writes.op_name("torch")):
            yield row("owner_write", case.name, ours, writes.EAGER, 1.5, facts)
            yield row("owner_write", case.name, ours, writes.COPY, 0.4, facts)


def frame(where: Conditions = CPU) -> pd.DataFrame:
    """All rows of one device."""
    return as_frame([*localize_rows(), *copy_rows(), *share_rows()], where)


def record(folder: Path, slug: str = "cpu", where: Conditions = CPU) -> Path:
    """A file of one device below ``folder``."""
    path = folder / f"bench-{slug}.csv"
    frame(where).to_csv(path, index=False)
    return path

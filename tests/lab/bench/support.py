"""What the tests of the benchmark share: small cases, and a place with a cache that they exceed."""

from dataclasses import replace

from kvlab.lab.bench import copies, decode, localize, merge, requests, scheduler, writes
from kvlab.lab.bench.clock import Effort
from kvlab.lab.bench.place import open_place
from kvlab.lab.bench.request_pool import RequestCase
from kvlab.lab.bench.rows import Row
from kvlab.lab.bench.table import as_record

#: This CPU as if its cache held 16 KiB, so that few inputs are gone through.
HERE = replace(open_place("cpu"), cache_bytes=2**14)
BRIEF = Effort(0.0, least=2, most=2, warmup=1)

SMALL = copies.CopyCase(4, layers=2, rows=130, repetitions=2, queue=2, kv_lora_rank=8)
FEW_IDS = localize.LocalizeCase(1000, 4, BRIEF, runs=2)
FEW_TOKENS = RequestCase(2, 520, 4, BRIEF, kv_lora_rank=8)
FEW_ROWS = merge.MergeCase("tiny", 3, 2, 4, 8, BRIEF)
FEW_WRITES = writes.WriteCase(64, 4, False, BRIEF)
FEW_STEPS = decode.DecodeCase(2, 5, repetitions=2, warmup=0, steps=2, dcp_sizes=(1, 3))
FEW_REQUESTS = scheduler.SchedulerCase(20, 2, (5, 10, 20), 2, 8, 2)


def tiny_rows(part: str) -> list[Row]:
    """The rows of one tiny case of each part."""
    return {
        "localize": lambda: localize.rows_of(FEW_IDS, HERE),
        "copy": lambda: [*copies.rows_of(SMALL), *requests.rows_of(FEW_TOKENS, HERE)],
        "merge": lambda: merge.rows_of(FEW_ROWS, HERE),
        "owner_write": lambda: writes.rows_of(FEW_WRITES, HERE),
        "scheduler": lambda: [scheduler.twin_row(FEW_REQUESTS)],
        "decode": lambda: decode.rows_of(FEW_STEPS),
    }[part]()


def require_whole(rows: list[Row]) -> None:
    """Every row names its two sides and has times, a ratio that fits them, and its repetitions."""
    assert rows
    assert len({row.key for row in rows}) == len(rows)
    for row in rows:
        assert all(row.key)
        for part in (row.seconds, row.baseline_seconds, row.ratio):
            assert 0 < part.low <= part.median <= part.high
        assert row.repetitions >= 1
        record = as_record(row)
        assert (record["aim"] is None) == (record["met"] is None)
        assert {"ours_s_q1", "ours_s", "ours_s_q3", "baseline_s", "ratio", "warmup"} <= set(record)

"""What the tests of the benchmark share: small cases, and a place with a cache that they exceed."""

from dataclasses import replace

from kvlab.lab.bench import copies, engine, ops
from kvlab.lab.bench.clock import Effort, open_place
from kvlab.lab.bench.rows import Row

#: This CPU as if its cache held 16 KiB, so that few inputs are gone through.
HERE = replace(open_place("cpu"), cache_bytes=2**14)
BRIEF = Effort(0.0, least=2, most=2, warmup=1)
FEW_TOKENS = copies.CopyCase(2, 520, 4, BRIEF, kv_lora_rank=8)
FEW: dict[str, ops.Case] = {
    "localize": ops.LocalizeCase(1000, 4, BRIEF),
    "merge": ops.MergeCase("tiny", 3, 2, 4, 8, BRIEF),
    "owner_write": ops.WriteCase(64, 4, False, BRIEF),
}
FEW_STEPS = engine.DecodeCase(2, 5, repetitions=2, warmup=0, steps=2, dcp_sizes=(1, 3))
FEW_REQUESTS = engine.SchedulerCase(20, 2, (5, 10, 20), 2, 8, 2)


def tiny_rows(part: str) -> list[Row]:
    """The rows of one tiny case of each part."""
    if part in FEW:
        return ops.rows_of(FEW[part], HERE)
    return {
        "copy": lambda: copies.rows_of(FEW_TOKENS, HERE),
        "scheduler": lambda: engine.twin_rows(FEW_REQUESTS),
        "decode": lambda: engine.decode_rows(FEW_STEPS),
    }[part]()

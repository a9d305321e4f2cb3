"""How many Python calls of the package a write, a backup and a restore make: counted, not timed.

A reader of one backup opens as many files as it enters, and a check that moved back below a
validated type shows here at once.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

import kvlab
from kvlab.index import DcpLayout
from kvlab.memory import (
    MLATokenToKVPool,
    PagedTokenToKVPoolAllocator,
    ReqToTokenPool,
    back_up_ranks,
    restore_ranks,
)

HOME = str(Path(kvlab.__file__).parent)
LAYOUT = DcpLayout(dcp_size=2, page_size=4, num_pages=8)


def calls_of(work: Callable[[], object]) -> list[str]:
    """The file of each call of the package's own functions, in order."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return files


def test_the_calls_of_a_write_a_backup_and_a_restore_are_few() -> None:
    pools = [MLATokenToKVPool(LAYOUT, rank, layers=2) for rank in range(2)]
    allocator, table = PagedTokenToKVPoolAllocator(LAYOUT), ReqToTokenPool(2, 64, LAYOUT)
    runs = []
    for _ in range(2):
        row, ids = table.alloc(), allocator.alloc_extend(0, 19)
        assert row is not None
        assert ids is not None
        table.append(row, ids)
        runs.append(table.slots(row))
    nope, rope = torch.ones(7, 512), torch.ones(7, 64)
    ids = runs[0].ids[:7]
    for pool in pools:  # whatever is made once has been made
        pool.set_mla_kv_buffer(0, ids, nope, rope)
    restore_ranks(pools, back_up_ranks(pools, runs[0]), runs[1])

    assert len(calls_of(lambda: pools[0].set_mla_kv_buffer(0, ids, nope, rope))) <= 25
    backups = []
    made = calls_of(lambda: backups.extend(back_up_ranks(pools, runs[0])))
    assert len(made) <= 60
    assert len(set(made)) <= 6
    assert len(calls_of(lambda: restore_ranks(pools, backups, runs[1]))) <= 70

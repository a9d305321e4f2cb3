"""Cells keep a request whole: after a failure on one rank every rank can try again."""

from typing import Any

import pytest
import torch

from kvlab import ops
from kvlab.engine import FingerprintCells
from kvlab.errors import HostFullError, PoolError
from kvlab.index import DcpLayout, WidenedSlots

LAYOUT = DcpLayout(4, 2, 9)
OLD, NEW = WidenedSlots(torch.arange(8, 27)), WidenedSlots(torch.arange(40, 59))


def written(host_bytes: int | None = None) -> FingerprintCells:
    cells = FingerprintCells(LAYOUT, host_bytes=host_bytes)
    positions = torch.arange(len(OLD))
    cells.write(torch.full_like(positions, 5), positions, OLD.ids)
    return cells


def test_a_rank_that_cannot_back_up_gives_the_memory_of_the_others_back() -> None:
    cells = written()
    cells.pools[2].host.capacity_bytes = 0
    with pytest.raises(HostFullError, match="must fit the host arena"):
        cells.back_up(5, OLD)
    assert [pool.host.lent_bytes for pool in cells.pools] == [0, 0, 0, 0]
    cells.check(5, OLD)


def test_a_restore_that_fails_on_one_rank_can_be_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = written()
    backups = cells.back_up(5, OLD)
    cells.release(5, OLD)
    calls: list[object] = []

    real = ops.scatter_rows

    def failing(*given: Any, **options: Any) -> None:
        calls.append(given)
        if len(calls) == 3:
            raise RuntimeError("the bus is gone")
        real(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ops, "scatter_rows", failing)
        with pytest.raises(RuntimeError, match="bus"):
            cells.restore(5, backups, NEW)
    assert not any(backup.spent for backup in backups)
    cells.restore(5, backups, NEW)
    cells.check(5, NEW)
    assert all(backup.spent for backup in backups)
    assert [pool.host.lent_bytes for pool in cells.pools] == [0, 0, 0, 0]


def test_a_row_of_the_right_request_and_the_wrong_position_is_wrong() -> None:
    cells = written()
    positions = torch.arange(len(OLD)).flip(0)
    cells.write(torch.full_like(positions, 5), positions, OLD.ids)
    with pytest.raises(PoolError, match=r"holds \(request, position, layer\) = \[5, 18, 0\]"):
        cells.check(5, OLD)

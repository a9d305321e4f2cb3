"""A whole decode node whose backups are in flight while it goes on: nobody's rows are lost."""

import pytest

from kvlab.engine import FingerprintCells, NodeConfig, StepNode
from kvlab.engine.workload import Request
from kvlab.errors import PoolError
from kvlab.index import DcpLayout
from kvlab.memory import DeferredLane

LAYOUT = DcpLayout(dcp_size=4, page_size=4, num_pages=12)
CONFIG = NodeConfig(LAYOUT, reserved_decode_tokens=16)
REQUESTS = tuple(Request(i, 0.0, 16, 64) for i in range(4))


def cells(seed: int | None, room: int, host_bytes: int | None = None) -> FingerprintCells:
    return FingerprintCells(
        LAYOUT,
        layers=2,
        lane=lambda: DeferredLane(seed, room),
        wait=False,
        host_bytes=host_bytes,
    )


@pytest.mark.parametrize("host_bytes", [None, 0, 4096])
@pytest.mark.parametrize(("seed", "room"), [(None, 100), (3, 40), (4, 10_000)])
def test_the_node_does_what_one_with_immediate_copies_does(
    seed: int | None, room: int, host_bytes: int | None
) -> None:
    held = cells(seed, room, host_bytes)
    node = StepNode(CONFIG, held, check_every_step=True)
    result = node.run(REQUESTS)
    plain = FingerprintCells(LAYOUT, layers=2, host_bytes=host_bytes)
    assert result == StepNode(CONFIG, plain, check_every_step=True).run(REQUESTS)
    assert result.counters.retracted_requests + result.counters.declined_backups > 0
    assert node.audit() == held.audit() == []
    assert [pool.host.lent_bytes for pool in held.pools] == [0] * 4


def test_rows_that_are_written_over_in_flight_are_seen_at_the_first_restore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = cells(None, 100)
    for pool in held.pools:
        monkeypatch.setattr(pool, "before_write", lambda: None)
    with pytest.raises(PoolError, match=r"rank \d, layer 0, row \d+ holds \(request, position, l"):
        StepNode(CONFIG, held, check_every_step=True).run(REQUESTS)

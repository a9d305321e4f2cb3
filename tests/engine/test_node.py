"""The node on real pools: it counts like its twins, and every row of every rank stays right."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine import CountingNode, FingerprintCells, NodeConfig, StepNode
from kvlab.engine.result import ABORT_HOST_FULL
from kvlab.engine.workload import Request, load_trace
from kvlab.errors import PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab import crash
from kvlab.memory import KvBackup
from tests.engine.reference_node import reference
from tests.engine.test_counting import nodes, workloads
from tests.engine.test_traces import public_trace


@settings(max_examples=70, derandomize=True)
@given(workloads(), nodes())
def test_stepping_on_real_pools_gives_the_result_of_both_twins(
    requests: tuple[Request, ...], config: NodeConfig
) -> None:
    stepped = StepNode(config).run(requests, record=True)
    assert stepped == reference(requests, config) == CountingNode(config).run(requests, record=True)


@settings(max_examples=40, derandomize=True)
@given(
    requests=workloads(),
    config=nodes(),
    dcp_size=st.sampled_from([1, 2, 3, 4, 8]),
    interleaved=st.booleans(),
    layers=st.integers(1, 2),
)
def test_after_any_step_every_row_of_every_rank_names_its_request_and_position(
    requests: tuple[Request, ...],
    config: NodeConfig,
    dcp_size: int,
    interleaved: bool,
    layers: int,
) -> None:
    size, pages = config.layout.page_size, config.layout.num_pages
    layout = DcpLayout(dcp_size, size, pages, size if interleaved else 1)
    rules = {name: getattr(config, name) for name in config.__slots__}
    config = NodeConfig(**{**rules, "layout": layout})
    cells = FingerprintCells(layout, layers=layers)
    node = StepNode(config, cells, check_every_step=True)
    node.run(requests)
    # At the end all is given back, and nothing was written where nothing may be.
    assert node.audit() == cells.audit() == []
    assert node.allocator.available_size() == layout.capacity_tokens
    assert [pool.host.lent_bytes for pool in cells.pools] == [0] * dcp_size


def harness(dcp_size: int = 4, **rules: object) -> tuple[tuple[Request, ...], NodeConfig]:
    """The small harness of natural pressure: 4 requests of 16 + 96 tokens over 288 tokens."""
    layout = DcpLayout(dcp_size, 16 // dcp_size, 18)
    config = NodeConfig(layout, reserved_decode_tokens=8, **rules)  # type: ignore[arg-type]
    return tuple(Request(i, 0.0, 16, 96) for i in range(4)), config


class RawRestore(FingerprintCells):
    """Cells with the defect: backup and restore use widened ids as rows."""

    def back_up(self, rid: int, slots: WidenedSlots) -> list[KvBackup]:
        copies = [crash.copy_out(pool.buffer, slots.ids) for pool in self.pools]
        self.saved = {**getattr(self, "saved", {}), rid: copies}
        return []

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        for pool, copy in zip(self.pools, self.saved[rid], strict=True):
            crash.copy_in(pool.buffer, copy, slots.ids)


def test_the_defect_ends_in_an_index_error_when_the_pool_is_full() -> None:
    requests, config = harness()
    with pytest.raises(IndexError, match="out of bounds"):
        StepNode(config, RawRestore(config.layout)).run(requests)


def test_the_defect_is_seen_at_the_first_restore_when_every_id_is_in_range() -> None:
    requests, config = harness(force_retract_interval=5)
    roomy = DcpLayout(4, 4, 300)
    config = NodeConfig(roomy, reserved_decode_tokens=16, force_retract_interval=5)
    with pytest.raises(PoolError, match=r"rank \d, layer 0, row \d+ holds"):
        StepNode(config, RawRestore(roomy)).run(requests)


def test_one_rank_cannot_show_the_defect() -> None:
    requests, config = harness(1, force_retract_interval=5)
    result = StepNode(config, RawRestore(config.layout)).run(requests)
    assert result.counters.resumed_requests > 0


class LateSnapshot(FingerprintCells):
    """Cells that restore the rows of the position before: a snapshot off by one."""

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        super().restore(rid, backups, slots)
        positions = torch.arange(len(slots)) - 1
        self.write(torch.full_like(positions, rid), positions.clamp(min=0), slots.ids)


def test_a_snapshot_off_by_one_position_is_seen() -> None:
    requests, config = harness()
    with pytest.raises(PoolError, match="expected"):
        StepNode(config, LateSnapshot(config.layout)).run(requests)


@pytest.mark.parametrize("dcp_size", [1, 4, 16])
def test_equal_capacity_gives_equal_counts_on_any_number_of_ranks(dcp_size: int) -> None:
    requests, config = harness(dcp_size)
    result = StepNode(config, check_every_step=True).run(requests)
    _, one = harness(1)
    assert result.counters == CountingNode(one).run(requests).counters
    assert result.counters.retracted_requests > 0


def test_a_backup_that_the_host_declines_aborts_the_request_and_loses_nothing_else() -> None:
    # A victim's rows of one rank fill one block of 4096 bytes of the host arena.
    requests, config = harness()
    declined = {}
    for blocks in (0, 1, 4):
        cells = FingerprintCells(config.layout, host_bytes=4096 * blocks)
        node = StepNode(config, cells, check_every_step=True)
        result = node.run(requests)
        declined[blocks] = result.counters.declined_backups
        assert result.abort_reasons().get(ABORT_HOST_FULL, 0) == declined[blocks]
        assert result.counters.finished + result.counters.aborted == 4
        assert node.audit() == cells.audit() == []
    assert declined[0] > declined[1] > declined[4] == 0


def test_the_first_40_requests_of_the_public_trace_give_identical_results() -> None:
    requests = load_trace(public_trace("azure_llm_2023_conv.csv"), limit=40).requests
    config = NodeConfig(DcpLayout(2, 64, 50), concurrency=32, reserved_decode_tokens=0)
    stepped = StepNode(config).run(requests, record=True)
    assert stepped.counters.retracted_requests > 0
    assert stepped == CountingNode(config).run(requests, record=True)
